"""The checks' data: limits, forbidden contents, and which libraries come from where."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import Field, field_validator

from core.data import Model, load_toml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pytorch_build.check import WheelView


class SizeLimit(Model):
    """Limits of a wheel file, in bytes; 0 is none."""

    minimum: int = 0
    warn_above: int = 0
    error_above: int = 0


class Forbidden(Model):
    """Contents that do not belong into a wheel."""

    pattern: str
    severity: Literal["error", "warning", "note"] = "error"
    message: str
    distributions: tuple[str, ...] = ("*",)

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as problem:
            raise ValueError(f"{value!r} is no regular expression: {problem}") from problem
        return value

    def holds_for(self, distribution: str) -> bool:
        """Whether the rule is meant for a distribution."""
        return any(fnmatchcase(distribution, pattern) for pattern in self.distributions)


class Provider(Model):
    """Libraries that another distribution brings, loaded or on the search path at run time."""

    distributions: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    folders: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    includes: tuple[str, ...] = ()
    assumed_by: tuple[str, ...] = ()

    @property
    def brings(self) -> tuple[str, ...]:
        """Patterns of all its libraries."""
        return (*self.libraries, *(name for names in self.folders.values() for name in names))


class Windows(Model):
    """DLLs that a wheel for Windows need not bring. Names are shell patterns in small letters."""

    libraries: tuple[str, ...] = ()
    redistributable: tuple[str, ...] = ()
    debug: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


class Policy(Model):
    """What the checks allow."""

    exempt_labels: tuple[str, ...] = ()
    device_code: tuple[str, ...] = ()
    system_libraries: tuple[str, ...] = ()
    machine_libraries: tuple[str, ...] = ()
    windows: Windows = Windows()
    preloaded: tuple[str, ...] = ()
    sizes: dict[str, SizeLimit] = Field(default_factory=dict)
    forbidden: tuple[Forbidden, ...] = ()
    providers: dict[str, Provider] = Field(default_factory=dict)

    @field_validator("providers")
    @classmethod
    def _includes_exist(cls, value: dict[str, Provider]) -> dict[str, Provider]:
        for name, provider in value.items():
            for other in provider.includes:
                if other not in value:
                    raise ValueError(f"{name} includes {other!r}, which is no provider")
        return value


def load_policy(path: Path | None = None) -> Policy:
    """Read the policy (default: the one beside this module)."""
    return _default() if path is None else load_toml(path, Policy)


@cache
def _default() -> Policy:
    return load_toml(Path(__file__).with_name("policy.toml"), Policy)


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
