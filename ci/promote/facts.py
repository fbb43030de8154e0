"""What a promotion is decided on: plain values, gathered by `ci.promote.gathering`."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from rocm_packaging.packages.layouts import is_rocm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ci.promote.documents import Cell, Document, StagedFile
    from ci.promote.run_records import Test


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel or sdist of the set, as it was staged and as it is found now."""

    cell: Cell
    file: StagedFile
    found: str
    sidecar: str
    built: frozenset[str]
    requires: tuple[str, ...] = ()

    @property
    def is_rocm(self) -> bool:
        """Whether it is one of ROCm's own packages."""
        return is_rocm(self.file.distribution)


@dataclass(frozen=True, kw_only=True)
class FailedBuild:
    """A build of the set's that failed after its last success, or never had one."""

    cell: Cell
    stage: str
    error: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that the decision on a set follows from."""

    set_name: str
    wheels: tuple[Wheel, ...]
    tests: tuple[Test, ...] = ()
    failed_builds: tuple[FailedBuild, ...] = ()
    promised: Mapping[Cell, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    commits: Mapping[Cell, Mapping[str, str]] = field(default_factory=lambda: MappingProxyType({}))
    released: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=lambda: MappingProxyType({}))
    staging: tuple[Document, ...] = ()
    troubles: tuple[tuple[Cell, str], ...] = ()
