"""The components: the projects that are built into wheels, one module each.

A new component is a module with a `Component`, its place in `COMPONENTS` and its session in the noxfile; a
torch ref builds it once it has a table of its name. Nothing else names components one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from core.errors import UsageError, nearest
from pytorch_build.components.apex import APEX
from pytorch_build.components.audio import AUDIO
from pytorch_build.components.component import Component, MachineNeed
from pytorch_build.components.torch import TORCH
from pytorch_build.components.triton import TRITON
from pytorch_build.components.vision import VISION

__all__ = [
    "COMPONENTS",
    "TORCH",
    "Component",
    "MachineNeed",
    "component_of",
    "distributions",
    "find_component",
    "needed_first",
    "with_required",
]

# In build order.
COMPONENTS: Mapping[str, Component] = {
    component.name: component for component in (TRITON, TORCH, AUDIO, VISION, APEX)
}


def find_component(name: str) -> Component:
    """Return the component that a user named; an unknown name is an error."""
    if name not in COMPONENTS:
        raise UsageError(f"Unknown component {name!r}. {nearest(name, COMPONENTS)}")
    return COMPONENTS[name]


def component_of(distribution: str) -> Component | None:
    """Return the component whose wheel has the distribution's name; None for others' wheels."""
    for component in COMPONENTS.values():
        if component.distribution == distribution:
            return component
    return None


def distributions() -> Sequence[str]:
    """Return the distribution names of all components, in build order."""
    return [component.distribution for component in COMPONENTS.values()]


def components_built_before(name: str, *, gpu: bool) -> tuple[str, ...]:
    """Return the components that are installed before one is built, in that order."""
    return tuple(
        first_name
        for first_name in COMPONENTS[name].built_first
        if gpu or not COMPONENTS[first_name].serves_gpus_only
    )


def with_required_components(names: Iterable[str]) -> frozenset[str]:
    """Return components, and those that they are built against or that their wheels require."""
    required: set[str] = set()
    for name in names:
        component = COMPONENTS[name]
        required |= {name, *component.built_first, *component.required_components}
    return frozenset(required)
