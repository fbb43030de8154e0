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
    """Something that cannot be shown, or that went wrong.

    Attributes:
        where: The key, or the stage and its cell.
        what: A sentence.
        hint: The next action; "" for none.
    """

    where: str
    what: str
    hint: str = ""


@dataclass(frozen=True, kw_only=True)
class StageRun:
    """One stage of a cell.

    Attributes:
        stage: The session's name.
        state: ``missing`` where the stage belongs to the cell and no record says that it ended.
        started: When it began; "" where nobody knows.
        seconds: How long it took.
        exit_code: The front door's.
        error: What went wrong; "" for nothing.
        key: The record's key; "" for none.
    """

    stage: str
    state: StageState
    started: str = ""
    seconds: float = 0.0
    exit_code: int = 0
    error: str = ""
    key: str = ""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A stage on a time line.

    Attributes:
        stage: The stage.
        state: Its state.
        start: Where it is drawn, in seconds from the left; long idle times are cut short.
        seconds: How long it took.
        critical: Whether it is on the critical path.
    """

    stage: str
    state: StageState
    start: float
    seconds: float
    critical: bool = False


@dataclass(frozen=True, kw_only=True)
class Step:
    """A stage of the critical path.

    Attributes:
        stage: The stage.
        seconds: How long it took.
        waited: How long it began after the one before had ended.
    """

    stage: str
    seconds: float
    waited: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Idle:
    """A time in which no stage ran, drawn shorter than it was.

    Attributes:
        at: Where the drawing is cut, in seconds from the left.
        seconds: How long it was.
    """

    at: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class TimeLine:
    """The stages of a cell in time.

    Attributes:
        bars: By start.
        length: Seconds that are drawn.
        elapsed: Seconds from the first start to the last end.
        idle: Times that were cut short.
        path: The chain of stages that the last end depended on.
    """

    bars: tuple[Bar, ...] = ()
    length: float = 0.0
    elapsed: float = 0.0
    idle: tuple[Idle, ...] = ()
    path: tuple[Step, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of the matrix.

    Attributes:
        name: Family, ref and Python.
        state: The worst of its stages.
        reason: Why it is not ``passed``; "" otherwise.
        stages: In the order that they ran; what is missing comes last.
        line: The same in time.
        wheels: How many wheels it made.
        requirements: What installs them: ``torch==2.10.0+rocm7.1``.
    """

    name: CellName
    state: State
    reason: str
    stages: tuple[StageRun, ...]
    line: TimeLine
    wheels: int = 0
    requirements: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder of a wheel.

    Attributes:
        path: Its path; ``…`` for all that are not named.
        files: How many files.
        size: Bytes unpacked.
        packed: Bytes in the wheel.
        grown: `packed` less that of the run before; None where that is not known.
    """

    path: str
    files: int
    size: int
    packed: int
    grown: int | None = None


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel or sdist of the run.

    Attributes:
        name: File name.
        path: Its path from the page, quoted: ``../python/g/torch-….whl``.
        cell: The cell of the stage that made it.
        stage: That stage.
        distribution: Normalised name.
        version: Version.
        requires_python: A specifier, or "".
        size: Bytes.
        sha256: Hex SHA-256.
        origin: The repository of its sources; "" where nobody knows.
        commit: The commit; "" where nobody knows.
        folders: What is in it, the largest first.
        before: The size of the same wheel in the run before; None for none.
        part_of: The distribution whose device code it holds: ``torch``; "" for any other.
        extra: The extra that installs its device code, where that is in other wheels.
    """

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
    """An artifact group of the run.

    Attributes:
        name: Its name.
        find_links: Address of its flat page; "" where only the page's own place tells.
        stages: Those that are no cell's: ROCm's.
    """

    name: str
    find_links: str = ""
    stages: tuple[StageRun, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TestRun:
    """The results of a test stage on a cell.

    Attributes:
        cell: Its cell.
        stage: The stage, with its configuration.
        passed: Whether the results can be believed, and none failed.
        totals: Outcome -> tests, those that there are.
        seconds: All shards together.
        problems: Why they cannot be believed.
    """

    __test__ = False

    cell: CellName
    stage: str
    passed: bool
    totals: tuple[tuple[str, int], ...]
    seconds: float
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TestLine:
    """A test that somebody wants to know of, wherever that was.

    Attributes:
        test: Its node id.
        outcome: The worst of the outcomes.
        line: Why, in a line.
        text: All that was said.
        cells: Stage and cell of each place.
        seconds: The longest that it took.
        command: What runs it again; "" where nobody knows.
        rule: The rule by which it was tried again, and its reason.
    """

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
    """Everything about tests.

    Attributes:
        runs: One a stage and cell.
        failures: What failed; those that fail in most cells first.
        flaky: What failed and then passed.
        slowest: What took longest.
    """

    runs: tuple[TestRun, ...] = ()
    failures: tuple[TestLine, ...] = ()
    flaky: tuple[TestLine, ...] = ()
    slowest: tuple[TestLine, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Source:
    """A project's sources in the run, and in the one before.

    Attributes:
        torch_ref: The ref.
        project: The project.
        origin: The repository.
        ref: What the commit was resolved from.
        commit: The commit; "" for a prebuilt project, or one that has gone.
        version: The wheels' base version, or the requirement of a prebuilt one.
        commit_before: The commit of the run before; "" for none.
        version_before: Its version; "" for none.
        compare: Address that shows what lies between; "" where there is none.
    """

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
    """A run.

    Attributes:
        run_id: The run.
        platform: ``linux`` or ``windows``.
        against: The run that it is held against; "" for none.
        started: When its first stage began; "" where nobody knows.
        problems: The first thing to read.
        groups: Artifact groups.
        cells: The matrix, sorted.
        wheels: What it made, sorted.
        gone: Names of wheels that only the run before has.
        builds: The longest first.
        tests: Results of tests.
        sources: By ref, in build order.
    """

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
