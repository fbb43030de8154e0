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
    """Return the component of a name that a user gave."""
    if name not in COMPONENTS:
        raise UsageError(f"Unknown component {name!r}. {nearest(name, COMPONENTS)}")
    return COMPONENTS[name]


def component_of(distribution: str) -> Component | None:
    """Return the component that is built into a distribution; None for one that is not ours."""
    for component in COMPONENTS.values():
        if component.distribution == distribution:
            return component
    return None


def distributions() -> Sequence[str]:
    """Return the distributions that are built, in build order."""
    return [component.distribution for component in COMPONENTS.values()]


def needed_first(name: str, *, gpu: bool) -> tuple[str, ...]:
    """Return the components that are installed before one is built, in that order."""
    return tuple(
        first_name
        for first_name in COMPONENTS[name].built_first
        if gpu or not COMPONENTS[first_name].serves_gpus_only
    )


def with_required(names: Iterable[str]) -> frozenset[str]:
    """Return components with all that they are built against, and all that their wheels require."""
    required: set[str] = set()
    for name in names:
        component = COMPONENTS[name]
        required |= {name, *component.built_first, *component.required_components}
    return frozenset(required)
