"""The tool's side of the pytest plugin: its plan, its arguments, and the journal that it keeps.

`pytorch_build.test.target.wheel_test_plugin` describes the formats, and runs inside the target environment.
What runs tests puts `TARGET` on the process's PYTHONPATH, adds `arguments` to pytest's (or to
``PYTEST_ADDOPTS``, where a program starts pytest), and reads the journal afterwards.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from core import files
from core.data import Model, read_text
from core.errors import DataError

TARGET = Path(__file__).with_name("target")
PLUGIN = "wheel_test_plugin"

Action = Literal["skip", "xfail", "retry"]
Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed", "rerun", "crashed"]


class PlannedRule(Model):
    """One rule that applies; `tests` are patterns of test ids."""

    name: str
    action: Action
    reason: str
    retries: int = 0
    tests: tuple[str, ...] = ()


class Plan(Model):
    """What the plugin does; the journal's name may hold ``{pid}``, for one file per process."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    root: str
    journal: str
    runner: bool = False
    only: tuple[str, ...] | None = None
    rules: tuple[PlannedRule, ...] = ()


class Line(Model, extra="ignore"):
    """A line of the journal, with the fields of its kind; a later plugin may add some."""

    kind: Literal["session", "collect", "collected", "rule", "start", "test", "end"]
    schema_: Literal[1] = Field(default=1, alias="schema")
    time: float = 0.0
    python: str = ""
    torch: str = ""
    file: str = ""
    tests: tuple[str, ...] = ()
    deselected: int = 0
    rule: str = ""
    test: str = ""
    outcome: Outcome = "passed"
    seconds: float = 0.0
    attempt: int = 1
    message: str = ""
    text: str = ""
    exit: int = 0


@dataclass(frozen=True, kw_only=True)
class Session:
    """One pytest session, as far as its journal goes."""

    began: Line
    uncollected: tuple[Line, ...] = ()
    collected: tuple[str, ...] = ()
    deselected: int = 0
    rules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    started: tuple[str, ...] = ()
    results: tuple[Line, ...] = ()
    end: Line | None = None

    @property
    def whole(self) -> bool:
        """Whether pytest came to its end, and every file was collected."""
        return self.end is not None and all(one.outcome != "error" for one in self.uncollected)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Tests that began and did not end: what ran when the interpreter died."""
        ended = {one.test for one in self.results if one.outcome != "rerun"}
        return tuple(test for test in self.started if test not in ended)

    @property
    def unreached(self) -> tuple[str, ...]:
        """Tests that were about to run and never began."""
        begun = {*self.started, *(one.test for one in self.results)}
        return tuple(test for test in self.collected if test not in begun)


def matches(pattern: str, test: str) -> bool:
    """Return whether a pattern of a rule takes a test, or one of a path a file, as the plugin decides it."""
    return fnmatchcase(test, pattern.replace("[", "[[]"))


def arguments(path: Path, plan: Plan) -> Sequence[str]:
    """Write the plan for the plugin, and return pytest's arguments for it."""
    files.write_text(path, plan.model_dump_json(by_alias=True, indent=1) + "\n")
    return ("-p", PLUGIN, "--wheel-test-plan", str(path))


def read_journal(path: Path) -> Sequence[Session]:
    """Read the sessions of a journal.

    A last line that was cut is left out: its writer died, and the session has no end.
    """
    sessions: list[list[Line]] = []
    for number, text in enumerate(read_text(path).splitlines(keepends=True), 1):
        if not text.endswith("\n"):
            break
        try:
            line = Line.model_validate_json(text)
        except ValidationError as problem:
            first = str(problem).splitlines()[0]
            raise DataError(f"{path}, line {number}: not a line of a journal: {first}.") from problem
        if line.kind == "session":
            sessions.append([])
        elif not sessions:
            raise DataError(f"{path}, line {number}: a journal begins with a session.")
        sessions[-1].append(line)
    if not sessions:
        raise DataError(f"{path} is empty: pytest ended before any test ran.")
    return [_session(lines) for lines in sessions]


def _session(lines: Sequence[Line]) -> Session:
    kinds: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        kinds[line.kind].append(line)
    return Session(
        began=lines[0],
        uncollected=tuple(kinds["collect"]),
        collected=tuple(test for line in kinds["collected"] for test in line.tests),
        deselected=sum(line.deselected for line in kinds["collected"]),
        rules={line.rule: line.tests for line in kinds["rule"]},
        started=tuple(dict.fromkeys(line.test for line in kinds["start"])),
        results=tuple(kinds["test"]),
        end=next(iter(kinds["end"]), None),
    )
