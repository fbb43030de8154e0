"""What is shown of a run: frozen values that HTML, text and JSON are written from, and nothing else.

Sizes are bytes, durations seconds, moments ISO 8601 in UTC as records have them.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, get_args

from pydantic import Field

from core.cell import GroupCell, python_of_tag
from core.junit import FAILING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.run.records import Record
    from pytorch_build.test.summary import GroupEntry

# from the best to the worst: of several states of a cell, the worst counts
State = Literal["passed", "untested", "incomplete", "interrupted", "unreadable", "failed"]
STATES: tuple[State, ...] = get_args(State)
StageState = Literal["ok", "missing", "interrupted", "unreadable", "failed"]


def cell_of_record(artifact_group: str, record: Record) -> GroupCell:
    """Return what the stage of a record ran on, as pages lay cells out."""
    cell = record.cell
    return GroupCell(artifact_group=artifact_group, torch_ref=cell.torch_ref, python=cell.python)


def cell_of_tests(artifact_group: str, entry: GroupEntry) -> GroupCell:
    """Return what the tests of an entry ran on."""
    return GroupCell(
        artifact_group=artifact_group,
        torch_ref=entry.torch_ref or None,
        python=python_of_tag(entry.python) if entry.python else None,
    )


def cell_text(cell: GroupCell) -> str:
    """Return a cell as pages and their JSON name it: ``gfx94X-dcgpu nightly cp312``."""
    parts = (cell.artifact_group, cell.torch_ref, cell.python_tag)
    return " ".join(part for part in parts if part)


def anchor(cell: GroupCell) -> str:
    """Return where a cell stands on a run's page."""
    return f"cell-{re.sub('[^0-9A-Za-z]+', '-', cell_text(cell))}"


def json_value(value: object) -> Mapping[str, object]:
    """Return a value of this model as an object of JSON: what `json.dumps` takes as its `default`."""
    if isinstance(value, GroupCell):
        return {
            "group": value.artifact_group or "",
            "torch_ref": value.torch_ref or "",
            "python": value.python_tag or "",
        }
    if not is_dataclass(value):
        raise TypeError(f"{value!r} is no part of a page.")
    return {field.name: getattr(value, field.name) for field in fields(value)}


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that cannot be shown, or that went wrong; `also`: where else the same did."""

    where: str
    what: str
    hint: str = ""
    around: tuple[str, ...] = ()
    again: str = ""
    log: str = ""
    also: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """One stage of a cell; `cause`: the first error of its tools, with the lines `around` it in its `log`.

    `again`: the command that does it once more; `borrowed`: the run that lent its wheels; `edited`: its tree.
    """

    stage: str
    state: StageState
    started: str = ""
    seconds: float = 0.0
    exit_code: int = 0
    error: str = ""
    cause: str = ""
    around: tuple[str, ...] = ()
    again: str = ""
    log: str = ""
    borrowed: str = ""
    edited: str = ""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A stage on a time line, where it is drawn, and when it began after the first one.

    A `critical` one is of the path that the end depended on; it `waited` after the one before it.
    """

    stage: str
    start: float
    after: float
    seconds: float
    critical: bool = False
    waited: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Idle:
    """A time in which no stage ran, drawn shorter than it was: `width`, which grows with it."""

    after: float
    start: float
    width: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TimeLine:
    """The stages of a cell in time: something ran for `busy` of the `elapsed` seconds from first to last.

    `ticks`: where a mark of the axis is, its label and the end of it there; after `idle` times from 0 again.
    """

    bars: tuple[Bar, ...] = ()
    started: str = ""
    length: float = 0.0
    elapsed: float = 0.0
    busy: float = 0.0
    idle: tuple[Idle, ...] = ()
    ticks: tuple[tuple[float, str, Literal["start", "end"]], ...] = ()

    @property
    def path(self) -> Sequence[Bar]:
        """The critical path."""
        return [bar for bar in self.bars if bar.critical]


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a cell of the matrix came; `requirements` install it, unless a build of it failed.

    What they need and the run does not hold is `lacking`; options of pip's that say where it is: `elsewhere`.
    """

    name: GroupCell
    state: State
    reason: str
    stages: tuple[StageRun, ...]
    line: TimeLine
    wheels: int = 0
    requirements: tuple[str, ...] = ()
    lacking: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


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
    cell: GroupCell
    stage: str
    distribution: str
    version: str
    requires_python: str
    size: int
    sha256: str
    seconds: float
    origin: str = ""
    commit: str = ""
    edited: str = ""
    borrowed: str = ""
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
    line: TimeLine = TimeLine()


# read from records' details as they are, too: a later version's record may say more
_Count = Annotated[int, Field(ge=0)]
_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class CompilerCache:
    """What a compiler cache did for a build."""

    kind: str
    hits: _Count
    misses: _Count
    uncacheable: _Count = 0
    errors: _Count = 0
    storage: str = ""
    access: str = ""
    lost: str = ""

    @property
    def hit_rate(self) -> float | None:
        """Hits as a part of what could be cached, 0 to 1; None where nothing could."""
        cacheable = self.hits + self.misses
        return self.hits / cacheable if cacheable else None


class Compiled(NamedTuple):
    """A file that a build made, and what it took."""

    output: str
    seconds: _Number


@dataclass(frozen=True, kw_only=True)
class BuildGraph:
    """One ninja's work within a build."""

    folder: str
    edges: _Count
    seconds: _Number
    busy: Annotated[_Number, Field(validation_alias="busy_seconds")]
    slowest: tuple[Compiled, ...] = ()
    parallelism: tuple[_Number, ...] = ()

    @property
    def mean(self) -> float:
        """Commands that ran at a time, on average."""
        return self.busy / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The machine's memory while a build ran."""

    peak: _Count
    total: _Count
    used: tuple[_Count, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Reached:
    """How far ninja came in a build that failed."""

    done: _Count = 0
    total: _Count = 0
    failed: tuple[str, ...] = ()

    def __str__(self) -> str:
        counted = f"at command {self.done} of {self.total}" if self.total else ""
        made = f"making {', '.join(self.failed)}" if self.failed else ""
        return " ".join(filter(None, (counted, made)))


@dataclass(frozen=True, kw_only=True)
class Build:
    """What is known of the inside of a build."""

    cell: GroupCell
    stage: str
    seconds: float
    failed: bool = False
    reached: Reached | None = None
    cache: Annotated[CompilerCache | None, Field(validation_alias="compiler_cache")] = None
    graphs: Annotated[tuple[BuildGraph, ...], Field(validation_alias="ninja")] = ()
    memory: Memory | None = None

    @property
    def known(self) -> bool:
        """Whether its record says more than how long it took."""
        return bool(self.reached or self.cache or self.graphs or self.memory)


@dataclass(frozen=True, kw_only=True)
class StageTests:
    """The results of a test stage on a cell; `missing`: why they count for nothing."""

    cell: GroupCell
    stage: str
    passed: bool
    totals: tuple[tuple[str, int], ...]
    seconds: float
    problems: tuple[str, ...] = ()
    missing: str = ""

    @property
    def place(self) -> str:
        """The stage and cell, as the tests that are listed name it."""
        return f"{self.stage} {cell_text(self.cell)}".strip()

    @property
    def failed(self) -> int:
        """How many tests failed."""
        return sum(count for name, count in self.totals if name in FAILING)

    @property
    def ran(self) -> int:
        """How many tests ran, and count."""
        return 0 if self.missing else sum(count for name, count in self.totals if name != "skipped")


@dataclass(frozen=True, kw_only=True)
class CaseLine:
    """A test that is worth showing, with the cells that it ran in."""

    test: str
    outcome: str
    line: str
    text: str
    cells: tuple[str, ...]
    seconds: float
    command: str = ""
    rule: str = ""


@dataclass(frozen=True, kw_only=True)
class RunTests:
    """Everything about tests."""

    runs: tuple[StageTests, ...] = ()
    failures: tuple[CaseLine, ...] = ()
    flaky: tuple[CaseLine, ...] = ()
    slowest: tuple[CaseLine, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Source:
    """A project's sources in the run, and in the one before."""

    torch_ref: str
    project: str
    origin: str = ""
    ref: str = ""
    commit: str = ""
    version: str = ""
    commit_before: str = ""
    version_before: str = ""
    compare: str = ""

    @property
    def changed(self) -> bool:
        """Whether it differs from the run before."""
        return (self.commit, self.version) != (self.commit_before, self.version_before)


# a cell that passed does no more, or the other way; a test fails, or no more (it may be gone); fewer tests of
# a stage ran, or more; a build took longer, or less; a wheel is larger, or smaller
Kind = Literal[
    "broken", "mended", "failing", "passing", "lost", "gained", "slower", "faster", "larger", "smaller"
]


@dataclass(frozen=True, kw_only=True)
class Change:
    """What differs in a cell: its state, a test's result, or of `what` the tests, seconds or bytes."""

    kind: Kind
    cell: GroupCell
    what: str = ""
    before: float | str = ""
    now: float | str = ""
    why: str = ""

    @property
    def grown(self) -> float:
        """How much more it is."""
        return float(self.now) - float(self.before)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A run; something ran for `busy` of the `elapsed` seconds between its first start and its last end."""

    schema_version: Literal[1] = 1
    run_id: str
    platform: str
    against: str = ""
    started: str = ""
    busy: float = 0.0
    elapsed: float = 0.0
    problems: tuple[Problem, ...] = ()
    groups: tuple[Group, ...] = ()
    cells: tuple[Progress, ...] = ()
    wheels: tuple[Wheel, ...] = ()
    gone: tuple[str, ...] = ()
    builds: tuple[Build, ...] = ()
    tests: RunTests = RunTests()
    sources: tuple[Source, ...] = ()
    changes: tuple[Change, ...] = ()

    @property
    def states(self) -> Mapping[State, int]:
        """How many cells are in each state, the worst first."""
        found = Counter(cell.state for cell in self.cells)
        return {state: found[state] for state in reversed(STATES) if found[state]}

    @property
    def state(self) -> State:
        """The worst state of a cell, or of a stage that is no cell's."""
        same = {"ok": "passed", "missing": "untested"}
        found = {same.get(run.state, run.state) for group in self.groups for run in group.stages}
        found |= self.states.keys()
        return next((one for one in reversed(STATES) if one in found), "incomplete")
