"""What is shown of a run: frozen values that HTML, text and JSON are written from, and nothing else.

Sizes are bytes, durations seconds, moments ISO 8601 in UTC as records have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ci.report.build_model import Build
    from ci.report.cell_name import CellName

# from the best to the worst: of several states of a cell, the worst counts
State = Literal["passed", "untested", "incomplete", "interrupted", "unreadable", "failed"]
StageState = Literal["ok", "missing", "interrupted", "unreadable", "failed"]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that cannot be shown, or that went wrong."""

    where: str
    what: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """One stage of a cell."""

    stage: str
    state: StageState
    started: str = ""
    seconds: float = 0.0
    exit_code: int = 0
    error: str = ""
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A stage on a time line."""

    stage: str
    state: StageState
    start: float
    seconds: float
    critical: bool = False


@dataclass(frozen=True, kw_only=True)
class Step:
    """A stage of the critical path."""

    stage: str
    seconds: float
    waited: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Idle:
    """A time in which no stage ran, drawn shorter than it was."""

    at: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TimeLine:
    """The stages of a cell in time."""

    bars: tuple[Bar, ...] = ()
    length: float = 0.0
    elapsed: float = 0.0
    idle: tuple[Idle, ...] = ()
    path: tuple[Step, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of the matrix."""

    name: CellName
    state: State
    reason: str
    stages: tuple[StageRun, ...]
    line: TimeLine
    wheels: int = 0
    requirements: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder of a wheel."""

    path: str
    files: int
    size: int
    packed: int
    grown: int | None = None


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel or sdist of the run."""

    name: str
    path: str
    cell: CellName
    stage: str
    distribution: str
    version: str
    requires_python: str
    size: int
    sha256: str
    origin: str = ""
    commit: str = ""
    folders: tuple[Folder, ...] = ()
    before: int | None = None
    part_of: str = ""
    extra: str = ""

    @property
    def requirement(self) -> str:
        """What installs it, with the device code of all the GPUs that it was built for."""
        return f"{self.distribution}{f'[{self.extra}]' if self.extra else ''}=={self.version}"

    @property
    def grown(self) -> int | None:
        """Bytes more than in the run before; None where it had no such wheel."""
        return None if self.before is None else self.size - self.before


@dataclass(frozen=True, kw_only=True)
class Group:
    """An artifact group of the run."""

    name: str
    find_links: str = ""
    stages: tuple[StageRun, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TestRun:
    """The results of a test stage on a cell."""

    __test__ = False

    cell: CellName
    stage: str
    passed: bool
    totals: tuple[tuple[str, int], ...]
    seconds: float
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TestLine:
    """A test that somebody wants to know of, wherever that was."""

    __test__ = False

    test: str
    outcome: str
    line: str
    text: str
    cells: tuple[str, ...]
    seconds: float
    command: str = ""
    rule: str = ""


@dataclass(frozen=True, kw_only=True)
class Tests:
    """Everything about tests."""

    runs: tuple[TestRun, ...] = ()
    failures: tuple[TestLine, ...] = ()
    flaky: tuple[TestLine, ...] = ()
    slowest: tuple[TestLine, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Source:
    """A project's sources in the run, and in the one before."""

    torch_ref: str
    project: str
    origin: str
    ref: str
    commit: str
    version: str
    commit_before: str = ""
    version_before: str = ""
    compare: str = ""

    @property
    def changed(self) -> bool:
        """Whether it differs from the run before."""
        return (self.commit, self.version) != (self.commit_before, self.version_before)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A run."""

    schema_version: Literal[1] = 1
    run_id: str
    platform: str
    against: str = ""
    started: str = ""
    problems: tuple[Problem, ...] = ()
    groups: tuple[Group, ...] = ()
    cells: tuple[Cell, ...] = ()
    wheels: tuple[Wheel, ...] = ()
    gone: tuple[str, ...] = ()
    builds: tuple[Build, ...] = ()
    tests: Tests = Tests()
    sources: tuple[Source, ...] = ()
