"""What is shown of a run: frozen values that HTML, text and JSON are rendered from.

The names of fields are the keys of the page's JSON. Sizes are bytes, durations seconds, moments ISO 8601 in
UTC as records have them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, get_args

from pydantic import Field

from ci.report.names import cell_text
from core.cell import GroupCell
from pytorch_build.test.junit.document import FAILING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# From the best to the worst: of several states of a cell, the worst counts.
State = Literal["passed", "untested", "incomplete", "interrupted", "unreadable", "failed"]
STATES: tuple[State, ...] = get_args(State)
StageState = Literal["ok", "missing", "interrupted", "unreadable", "failed"]


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
class ReportedProblem:
    """Something that went wrong, or that cannot be shown.

    Attributes:
        where: The stage and cell, or the key of a document.
        what: The first error.
        hint: What to do about it.
        around: The lines around the error in the log.
        again: The command that does the stage once more.
        log: Where the log is, as seen from the page.
        also: The other places where the same went wrong.
    """

    where: str
    what: str
    hint: str = ""
    around: tuple[str, ...] = ()
    again: str = ""
    log: str = ""
    also: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """One stage of a cell.

    Attributes:
        cause: The first error of the stage's tools, if any.
        around: The lines around it in the log.
        again: The command that does the stage once more.
        borrowed: The run that lent its wheels, if one did.
        edited: How a developer's tree differs from its commit.
        left_out_targets: The GPU family's gfx targets that the build was told to leave out.
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
    left_out_targets: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A stage on a time line.

    Attributes:
        start: Where it is drawn.
        after: How long after the first stage it began.
        critical: Whether it is on the path that the end depended on.
        waited: How long after the end of the stage before it on that path it began.
    """

    stage: str
    start: float
    after: float
    seconds: float
    critical: bool = False
    waited: float = 0.0


@dataclass(frozen=True, kw_only=True)
class IdleTime:
    """A time in which no stage ran, drawn shorter than it was: `width`, which grows with it."""

    after: float
    start: float
    width: float
    seconds: float


class Tick(NamedTuple):
    """A mark of a time axis; its label begins or ends there."""

    position: float
    label: str
    anchor: Literal["start", "end"]


@dataclass(frozen=True, kw_only=True)
class TimeLine:
    """The stages of a cell in time: something ran for `busy` of the `elapsed` seconds from first to last.

    After each idle time, the ticks count from 0 again.
    """

    bars: tuple[Bar, ...] = ()
    started: str = ""
    length: float = 0.0
    elapsed: float = 0.0
    busy: float = 0.0
    idle: tuple[IdleTime, ...] = ()
    ticks: tuple[Tick, ...] = ()

    @property
    def critical_path(self) -> Sequence[Bar]:
        """The critical path."""
        return [bar for bar in self.bars if bar.critical]


@dataclass(frozen=True, kw_only=True)
class CellProgress:
    """How far a cell of the matrix came.

    Attributes:
        line: When its stages ran. The name is a key of ``report --json``.
        requirements: What installs its wheels; none where a build of it failed.
        lacking: The files that these need and the run does not hold.
        elsewhere: The options of pip's that say where those files are.
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
class WheelFolder:
    """A folder of a wheel: `packed` are its bytes in the wheel, `grown` how many more than before."""

    path: str
    files: int
    size: int
    packed: int
    grown: int | None = None


@dataclass(frozen=True, kw_only=True)
class WheelRow:
    """A wheel or sdist of the run; `before` is its size in the run that this one is compared with."""

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
    folders: tuple[WheelFolder, ...] = ()
    before: int | None = None
    part_of: str = ""
    extra: str = ""

    @property
    def requirement(self) -> str:
        """What installs it, with the device code of all the GPUs that it was built for."""
        extras = f"[{self.extra}]" if self.extra else ""
        return f"{self.distribution}{extras}=={self.version}"

    @property
    def grown(self) -> int | None:
        """Bytes more than in the run before; None where it had no such wheel."""
        if self.before is None:
            return None
        return self.size - self.before


@dataclass(frozen=True, kw_only=True)
class GroupRow:
    """An artifact group of the run, with the stages that belong to none of its cells."""

    name: str
    find_links: str = ""
    stages: tuple[StageRun, ...] = ()
    line: TimeLine = TimeLine()


# These are read from records' details as they are: a later version's record may say more.
_Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class CacheUse:
    """What a compiler cache did for a build; `lost` is why its storage stopped to answer."""

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
        if cacheable == 0:
            return None
        return self.hits / cacheable


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """The memory of a build's largest process, and that of the machine."""

    peak: _Count
    total: _Count


@dataclass(frozen=True, kw_only=True)
class BuildReach:
    """How far ninja came in a build that failed."""

    done: _Count = 0
    total: _Count = 0
    failed: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts: list[str] = []
        if self.total > 0:
            parts.append(f"at command {self.done} of {self.total}")
        if self.failed:
            files = ", ".join(self.failed)
            parts.append(f"making {files}")
        return " ".join(parts)


@dataclass(frozen=True, kw_only=True)
class BuildRow:
    """What is known of the inside of a build."""

    cell: GroupCell
    stage: str
    seconds: float
    failed: bool = False
    reached: BuildReach | None = None
    cache: Annotated[CacheUse | None, Field(validation_alias="compiler_cache")] = None
    memory: MemoryUse | None = None

    @property
    def has_details(self) -> bool:
        """Whether its record says more than how long it took."""
        return bool(self.reached or self.cache or self.memory)


@dataclass(frozen=True, kw_only=True)
class StageTests:
    """The results of a test stage on a cell; `missing` is why they count for nothing."""

    cell: GroupCell
    stage: str
    passed: bool
    totals: tuple[tuple[str, int], ...]
    seconds: float
    problems: tuple[str, ...] = ()
    missing: str = ""

    @property
    def stage_and_cell(self) -> str:
        """The stage and cell, as the tests that are listed name it."""
        return f"{self.stage} {cell_text(self.cell)}".strip()

    @property
    def failed_count(self) -> int:
        """How many tests failed."""
        return sum(count for outcome, count in self.totals if outcome in FAILING)

    @property
    def ran_count(self) -> int:
        """How many tests ran, and count."""
        if self.missing:
            return 0
        return sum(count for outcome, count in self.totals if outcome != "skipped")


@dataclass(frozen=True, kw_only=True)
class CaseRow:
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
    failures: tuple[CaseRow, ...] = ()
    flaky: tuple[CaseRow, ...] = ()
    slowest: tuple[CaseRow, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SourceRow:
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
        has_other_commit = self.commit != self.commit_before
        return has_other_commit or self.version != self.version_before


@dataclass(frozen=True, kw_only=True)
class ReleaseRow:
    """What became of a set of wheels that was staged of the run, for one of its artifact groups.

    Attributes:
        decided: When it was, or when it was staged.
        rules: Those by which cells are released.
        reasons: Why it is refused, or what was overridden, by whom and why.
        decision: The key of the decision's record.
    """

    group: str
    set_name: str
    state: Literal["staged", "promoting", "promoted", "refused"]
    decided: str
    by: str = ""
    rules: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    decision: str = ""


ChangeKind = Literal[
    "broken",  # a cell that passed does no more
    "mended",
    "failing",  # a test fails
    "passing",  # it does no more, or is gone
    "lost",  # fewer tests of a stage ran
    "gained",
    "slower",  # a build took longer
    "faster",
    "larger",  # a wheel is larger
    "smaller",
]


@dataclass(frozen=True, kw_only=True)
class PageChange:
    """What differs in a cell: its state, a test's result, or of `what` the tests, seconds or bytes."""

    kind: ChangeKind
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
class RunPage:
    """A run; something ran for `busy` of the `elapsed` seconds between its first start and its last end.

    `against` is the run that it is compared with, and `gone` the wheels that only that one has.
    """

    schema_version: Literal[1] = 1
    run_id: str
    platform: str
    against: str = ""
    started: str = ""
    busy: float = 0.0
    elapsed: float = 0.0
    problems: tuple[ReportedProblem, ...] = ()
    groups: tuple[GroupRow, ...] = ()
    cells: tuple[CellProgress, ...] = ()
    wheels: tuple[WheelRow, ...] = ()
    gone: tuple[str, ...] = ()
    builds: tuple[BuildRow, ...] = ()
    tests: RunTests = RunTests()
    sources: tuple[SourceRow, ...] = ()
    releases: tuple[ReleaseRow, ...] = ()
    changes: tuple[PageChange, ...] = ()

    @property
    def states(self) -> Mapping[State, int]:
        """How many cells are in each state, the worst first."""
        counts = Counter(cell.state for cell in self.cells)
        return {state: counts[state] for state in reversed(STATES) if state in counts}

    @property
    def state(self) -> State:
        """The worst state of a cell, or of a stage that is no cell's."""
        states: set[str] = {*self.states}
        for group in self.groups:
            for stage in group.stages:
                states.add(_STATES_OF_STAGES.get(stage.state, stage.state))
        for state in reversed(STATES):
            if state in states:
                return state
        return "incomplete"


_STATES_OF_STAGES: Mapping[str, State] = {"ok": "passed", "missing": "untested"}
