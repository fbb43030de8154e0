"""The tool's side of the pytest plugin: its plan, its arguments, and the journal that it keeps.

`pytorch_build.test.target.wheel_test_plugin` describes the formats, and runs inside the target environment.
What runs upstream's tests writes a plan, puts `TARGET` on the process's PYTHONPATH, adds `arguments` to
pytest's (or to ``PYTEST_ADDOPTS``, where a program starts pytest), and reads the journal afterwards.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from core import files
from core.data import Model, read_text
from core.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TARGET = Path(__file__).with_name("target")
PLUGIN = "wheel_test_plugin"
SCHEMA = 1

Action = Literal["skip", "xfail", "retry"]
Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed", "rerun", "crashed"]


class PlannedRule(Model):
    """One rule that applies; `patterns` are regular expressions for whole test ids."""

    name: str
    action: Action
    reason: str
    retries: int = 0
    tests: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()

    def takes(self, test: str) -> bool:
        """Whether it names this test."""
        return test in self.tests or any(re.fullmatch(one, test) for one in self.patterns)


class Plan(Model):
    """What the plugin does; the journal's name may hold ``{pid}``, for one file per process."""

    schema_: Literal[1] = Field(default=1, alias="schema")
    root: str
    journal: str
    mode: Literal["apply", "try"] = "apply"
    runner: bool = False
    only: tuple[str, ...] | None = None
    rules: tuple[PlannedRule, ...] = ()


class _Line(Model):
    """A line of the journal; keys that a later plugin adds are no reason to lose a result."""

    model_config = ConfigDict(extra="ignore")


class Began(_Line):
    """Where and with what a session began; `time` in seconds since 1970."""

    kind: Literal["session"]
    schema_: Literal[1] = Field(alias="schema")
    time: float
    python: str
    torch: str


class Uncollected(_Line):
    """A file that could not be collected, or that skips itself."""

    kind: Literal["collect"]
    file: str
    outcome: Literal["error", "skipped"]
    message: str
    text: str = ""


class Collected(_Line):
    """What was about to run."""

    kind: Literal["collected"]
    tests: tuple[str, ...]
    deselected: int


class RuleMatches(_Line):
    """Every collected test that a rule matches."""

    kind: Literal["rule"]
    rule: str
    tests: tuple[str, ...]


class Start(_Line):
    """A test that began."""

    kind: Literal["start"]
    test: str


class Result(_Line):
    """One attempt at one test that ended; `seconds` are setup, call and teardown together."""

    kind: Literal["test"]
    test: str
    outcome: Outcome
    seconds: float
    attempt: int
    rule: str
    message: str
    text: str = ""


class End(_Line):
    """How a session ended, with pytest's exit status."""

    kind: Literal["end"]
    exit: int


Line = Annotated[
    Began | Uncollected | Collected | RuleMatches | Start | Result | End, Field(discriminator="kind")
]
_LINE: TypeAdapter[Line] = TypeAdapter(Line)
# as the plugin writes them
_COLLECTION = tuple(f'{{"kind": "{kind}", ' for kind in ("collected", "session", "collect", "rule"))


@dataclass(frozen=True, kw_only=True)
class Session:
    """One pytest session, as far as its journal goes."""

    began: Began
    uncollected: tuple[Uncollected, ...] = ()
    collected: tuple[str, ...] = ()
    deselected: int = 0
    rules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    started: tuple[str, ...] = ()
    results: tuple[Result, ...] = ()
    end: End | None = None

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


def write_plan(path: Path, plan: Plan) -> None:
    """Write the plan for the plugin."""
    files.write_text(path, plan.model_dump_json(by_alias=True, indent=1) + "\n")


def arguments(plan: Path) -> Sequence[str]:
    """Return pytest's arguments for the plugin; `TARGET` must be on the process's PYTHONPATH."""
    return ("-p", PLUGIN, "--wheel-test-plan", str(plan))


def read_journal(path: Path) -> Sequence[Session]:
    """Read the sessions of a journal.

    A last line that was cut is left out: its writer died, and the session has no end.
    """
    sessions: list[list[Line]] = []
    for number, text in enumerate(read_text(path).splitlines(keepends=True), 1):
        if not text.endswith("\n"):
            break
        try:
            line = _LINE.validate_python(json.loads(text))
        except (ValueError, ValidationError) as problem:
            first = str(problem).splitlines()[0]
            raise DataError(f"{path}, line {number}: not a line of a journal: {first}.") from problem
        if isinstance(line, Began):
            sessions.append([])
        elif not sessions:
            raise DataError(f"{path}, line {number}: a journal begins with a session.")
        sessions[-1].append(line)
    if not sessions:
        raise DataError(f"{path} is empty: pytest ended before it began.")
    return [_session(lines) for lines in sessions]


def keep_collection(journals: Sequence[Path], target: Path) -> None:
    """Keep what journals say of collections and rules, for ``skips check``, without each test's lines."""
    kept = [
        line
        for journal in journals
        for line in read_text(journal).splitlines(keepends=True)
        if line.startswith(_COLLECTION) and line.endswith("\n")
    ]
    if any(line.startswith(_COLLECTION[0]) for line in kept):
        files.write_text(target, "".join(kept))


def _session(lines: Sequence[Line]) -> Session:
    began, *_ = (line for line in lines if isinstance(line, Began))
    collected = [line for line in lines if isinstance(line, Collected)]
    return Session(
        began=began,
        uncollected=tuple(line for line in lines if isinstance(line, Uncollected)),
        collected=tuple(test for line in collected for test in line.tests),
        deselected=sum(line.deselected for line in collected),
        rules={line.rule: line.tests for line in lines if isinstance(line, RuleMatches)},
        started=tuple(dict.fromkeys(line.test for line in lines if isinstance(line, Start))),
        results=tuple(line for line in lines if isinstance(line, Result)),
        end=next((line for line in lines if isinstance(line, End)), None),
    )
