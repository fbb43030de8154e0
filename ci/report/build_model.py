"""What is shown of the inside of a build: part of `ci.report.model`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ci.report.cell_name import CellName


@dataclass(frozen=True, kw_only=True)
class CompilerCache:
    """What a compiler cache did for a build.

    Attributes:
        kind: ``ccache`` or ``sccache``.
        hits: Compilations that were answered from it.
        misses: Compilations that ran.
        uncacheable: Calls that it passed on.
        errors: Failures of the cache itself.
        storage: Where entries were to lie; "" where the record does not say.
        access: What the build might do there: ``read-write``, ``read-only``.
        lost: Why entries lay elsewhere; "" where they did not.
    """

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
    """One ninja's work within a build.

    Attributes:
        folder: Where it ran, below the source tree.
        edges: Commands.
        seconds: From the first start to the last end.
        busy: All commands' seconds together.
        slowest: What took longest.
        parallelism: Commands that ran at a time, over equal parts of `seconds`.
    """

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
    """The machine's memory while a build ran.

    Attributes:
        peak: The most that was used.
        total: What there is.
        used: Over equal parts of the build.
    """

    peak: int
    total: int
    used: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reached:
    """How far ninja came in a build that failed.

    Attributes:
        done: Commands that it had begun or done; 0 where it did not say.
        total: Of how many.
        failed: Outputs of the commands that failed.
    """

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
    """What is known of the inside of a build.

    Attributes:
        cell: Its cell.
        stage: ``build_torch``.
        failed: Whether it ended early; what else is said holds up to there.
        reached: How far it came then; None where it did not say.
        seconds: The whole stage.
        cache: None for a build without compiler cache.
        graphs: The longest first; empty where no ninja ran, or the record says nothing of it.
        memory: None where the record says nothing of it.
    """

    cell: CellName
    stage: str
    seconds: float
    failed: bool = False
    reached: Reached | None = None
    cache: CompilerCache | None = None
    graphs: tuple[BuildGraph, ...] = ()
    memory: Memory | None = None
