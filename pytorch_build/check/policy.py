"""The checks' data: limits, forbidden contents, and which libraries come from where."""

from __future__ import annotations

import re  # noqa: TC003 - pydantic reads it
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import Field, field_validator

from core.data import Model, data_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytorch_build.check import WheelView

_FILE = Path(__file__).with_name("policy.toml")
_SHOWN = 3


class SizeLimit(Model):
    """Limits of a wheel file, in bytes; 0 is none."""

    minimum: int = 0
    warn_above: int = 0
    error_above: int = 0


class Compiled(Model):
    """Names that promise a library or program, and the text that may take its place, whole."""

    pattern: re.Pattern[str]
    what: Literal["library", "program"]
    text: re.Pattern[str]


class Forbidden(Model):
    """Contents that do not belong into a wheel."""

    pattern: re.Pattern[str]
    severity: Literal["error", "warning", "note"] = "error"
    message: str
    distributions: tuple[str, ...] = ("*",)


class Provider(Model):
    """Libraries of another distribution, loaded or on the search path at run time."""

    distributions: tuple[str, ...]
    libraries: tuple[str, ...] = ()
    folders: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    includes: tuple[str, ...] = ()
    assumed_by: tuple[str, ...] = ()

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns of all its libraries."""
        return (*self.libraries, *(name for names in self.folders.values() for name in names))


class Windows(Model):
    """DLLs that a wheel for Windows need not hold. Names are shell patterns in small letters."""

    libraries: tuple[str, ...] = ()
    redistributable: tuple[str, ...] = ()
    debug: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


class Message(Model):
    """What is said of a DLL, with {names}, {provider} and {tags}."""

    severity: Literal["error", "warning", "note"]
    words: str


class Policy(Model):
    """What the checks allow."""

    exempt_labels: tuple[str, ...] = ()
    device_code: tuple[str, ...] = ()
    system_libraries: tuple[str, ...] = ()
    machine_libraries: tuple[str, ...] = ()
    windows: Windows = Windows()
    preloaded: tuple[str, ...] = ()
    sizes: dict[str, SizeLimit] = Field(default_factory=dict)
    compiled: tuple[Compiled, ...] = ()
    forbidden: tuple[Forbidden, ...] = ()
    providers: dict[str, Provider] = Field(default_factory=dict)
    generic: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    messages: dict[str, Message] = Field(default_factory=dict)

    @field_validator("providers")
    @classmethod
    def _includes_exist(cls, value: dict[str, Provider]) -> dict[str, Provider]:
        for name, provider in value.items():
            for other in provider.includes:
                if other not in value:
                    raise ValueError(f"{name} includes {other!r}, which is not a provider")
        return value

    def promise(self, name: str) -> Compiled | None:
        """Return what a member's name promises to be compiled; None for nothing."""
        return next((one for one in self.compiled if one.pattern.search(name)), None)


load_policy = data_file(_FILE, Policy)


class Providers:
    """Libraries that a wheel may expect of the distributions it requires, and those of all others."""

    def __init__(self, view: WheelView, policy: Policy, *, lower: bool = False) -> None:
        own = view.name.distribution
        required = {_distribution(text) for text in (view.metadata.requires_dist if view.metadata else ())}
        there: list[str] = []
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
            if name not in there:
                there.append(name)
                queue += policy.providers[name].includes
        known = [policy.providers[name] for name in there]
        self.libraries = tuple(
            pattern.lower() if lower else pattern for provider in known for pattern in provider.patterns
        )
        # ROCm's own wheels are laid out by `rocm_packaging`, and are not judged by this
        self.folders = {
            folder: libraries
            for provider in known
            if not matches(own, provider.distributions)
            for folder, libraries in provider.folders.items()
        }
        self._others = {
            name: [one.lower() if lower else one for one in provider.patterns]
            for name, provider in policy.providers.items()
            if name not in there and own not in provider.distributions
        }

    def undeclared(self, library: str) -> str:
        """Return the distribution that has a library and is not required; "" for none."""
        return next((name for name, patterns in self._others.items() if matches(library, patterns)), "")


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name is among shell patterns."""
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
