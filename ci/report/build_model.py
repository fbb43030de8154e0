"""What is shown of the inside of a build: part of `ci.report.model`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ci.report.cell_name import CellName


@dataclass(frozen=True, kw_only=True)
class CompilerCache:
    """What a compiler cache did for a build."""

    kind: str
    hits: int
    misses: int
    uncacheable: int
    errors: int
    storage: str = ""
    access: str = ""
    lost: str = ""

    @property
    def hit_rate(self) -> float | None:
        """Hits as a part of what could be cached, 0 to 1; None where nothing could."""
        cacheable = self.hits + self.misses
        return self.hits / cacheable if cacheable else None


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A file that a build made, and what it took."""

    output: str
    seconds: float


@dataclass(frozen=True, kw_only=True)
class BuildGraph:
    """One ninja's work within a build."""

    folder: str
    edges: int
    seconds: float
    busy: float
    slowest: tuple[Compiled, ...] = ()
    parallelism: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        """Commands that ran at a time, on average."""
        return self.busy / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The machine's memory while a build ran."""

    peak: int
    total: int
    used: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reached:
    """How far ninja came in a build that failed."""

    done: int = 0
    total: int = 0
    failed: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """Say it in words."""
        counted = f"at command {self.done} of {self.total}" if self.total else ""
        made = f"making {', '.join(self.failed)}" if self.failed else ""
        return " ".join(filter(None, (counted, made)))


@dataclass(frozen=True, kw_only=True)
class Build:
    """What is known of the inside of a build."""

    cell: CellName
    stage: str
    seconds: float
    failed: bool = False
    reached: Reached | None = None
    cache: CompilerCache | None = None
    graphs: tuple[BuildGraph, ...] = ()
    memory: Memory | None = None
