"""Which distributions' libraries are there when a wheel is installed. Pure."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytorch_build.check.policy import Policy
    from pytorch_build.check.view import WheelView

_SHOWN = 3


def available(view: WheelView, policy: Policy) -> tuple[str, ...]:
    """Name the providers whose libraries are there when this wheel is installed."""
    required = {_distribution(text) for text in (view.metadata.requires_dist if view.metadata else ())}
    own = view.name.distribution
    found: list[str] = []
    queue = [
        name
        for name, provider in policy.providers.items()
        if any(matches(one, provider.distributions) for one in required)
        or own in provider.assumed_by
        # ROCm's wheels load each other's libraries without requiring one another.
        or (matches(own, provider.distributions) and own != name)
    ]
    while queue:
        name = queue.pop(0)
        if name not in found:
            found.append(name)
            queue += policy.providers[name].includes
    return tuple(found)


def provided(view: WheelView, policy: Policy) -> tuple[str, ...]:
    """List patterns of the libraries that the wheel may expect from other distributions."""
    return tuple(pattern for name in available(view, policy) for pattern in policy.providers[name].brings)


def places(view: WheelView, policy: Policy) -> Mapping[str, tuple[str, ...]]:
    """Return other distributions' folders that an RPATH must lead to: folder -> patterns of its libraries.

    ROCm's own wheels are laid out by `rocm_packaging`, and are not judged by this.
    """
    there = (policy.providers[name] for name in available(view, policy))
    return {
        folder: libraries
        for provider in there
        if not matches(view.name.distribution, provider.distributions)
        for folder, libraries in provider.folders.items()
    }


def unasked(view: WheelView, policy: Policy) -> Mapping[str, tuple[str, ...]]:
    """List patterns of libraries of distributions that the wheel does not require: by provider."""
    there = available(view, policy)
    return {
        name: provider.brings
        for name, provider in policy.providers.items()
        if name not in there and view.name.distribution not in provider.distributions
    }


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is among shell patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def some(items: Iterable[str]) -> str:
    """Name the first few of many, and how many more there are."""
    every = list(items)
    shown = ", ".join(every[:_SHOWN])
    return shown if len(every) <= _SHOWN else f"{shown} and {len(every) - _SHOWN} more"


def _distribution(requirement: str) -> str:
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:
        return ""
