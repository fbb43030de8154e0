"""The checks' data: limits, forbidden contents, and which libraries come from where."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from core.data import Model, load_toml


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
