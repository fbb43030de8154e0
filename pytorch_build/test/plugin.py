"""The tool's side of the pytest plugin: the settings that it reads, and the events that it writes.

`pytorch_build.test.target.wheel_test_plugin` describes the events, and runs inside the target environment.
What runs tests puts `TARGET` on the process's PYTHONPATH, and adds what `write_settings` returns to pytest's
arguments (or to ``PYTEST_ADDOPTS``, where a program starts pytest).
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from core import files
from core.data import Model, read_text
from core.errors import DataError

TARGET = Path(__file__).with_name("target")
PLUGIN = "wheel_test_plugin"

Action = Literal["skip", "xfail", "retry"]
Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed", "rerun", "unrun"]


class AppliedRule(Model):
    """A skip rule whose conditions hold; `tests` are patterns of test ids."""

    name: str
    action: Action
    reason: str
    retries: int = 0
    tests: tuple[str, ...] = ()


class PluginSettings(Model):
    """What the plugin is told.

    Attributes:
        root: The folder that paths in test ids begin in.
        events: The folder of the events.
        watch_seconds: The time after which a test is ended together with its process; None for no end.
        started_by_run_test: Whether upstream's ``run_test.py`` starts pytest.
        excluded: Ids of tests that do not run.
        rules: The rules, which all apply.
    """

    root: str
    events: str
    watch_seconds: float | None = None
    started_by_run_test: bool = False
    excluded: tuple[str, ...] = ()
    rules: tuple[AppliedRule, ...] = ()


class CollectedEvent(Model, extra="ignore"):
    """The tests that are about to run, others that exist, and the tests that each rule takes."""

    kind: Literal["collected"]
    time: float
    tests: tuple[str, ...]
    deselected: tuple[str, ...]
    rules: dict[str, tuple[str, ...]]


class StartedEvent(Model, extra="ignore"):
    """The beginning of a test."""

    kind: Literal["started"]
    time: float
    test: str


class EndedEvent(Model, extra="ignore"):
    """The result of one attempt at a test, or of a file that was not collected."""

    kind: Literal["ended"] = "ended"
    time: float = 0.0
    test: str
    outcome: Outcome = "passed"
    seconds: float = 0.0
    attempt: int = 1
    rule: str = ""
    message: str = ""
    text: str = ""


_EVENT: TypeAdapter[CollectedEvent | StartedEvent | EndedEvent] = TypeAdapter(
    Annotated[CollectedEvent | StartedEvent | EndedEvent, Field(discriminator="kind")]
)


class EventLog:
    """What one pytest process wrote down of its tests.

    Attributes:
        collected: The tests that were about to run; None where it was not done with collecting them.
        deselected: Other tests that exist.
        rules: The tests that each rule takes.
        results: The attempts that ended, in their order.
        running: The test that started and did not end.
        last_time: When the last event happened, in seconds since 1970.
    """

    def __init__(self) -> None:
        self.collected: tuple[str, ...] | None = None
        self.deselected: tuple[str, ...] = ()
        self.rules: dict[str, tuple[str, ...]] = {}
        self.results: list[EndedEvent] = []
        self.running: str | None = None
        self.last_time = 0.0

    def add(self, event: CollectedEvent | StartedEvent | EndedEvent) -> None:
        """Add what happened next."""
        self.last_time = event.time
        match event:
            case CollectedEvent():
                self.collected = event.tests
                self.deselected = event.deselected
                self.rules = event.rules
            case StartedEvent():
                self.running = event.test
            case EndedEvent():
                self.results.append(event)
                if event.outcome != "rerun":
                    self.running = None

    @property
    def existing(self) -> set[str]:
        """The tests that it collected, whether they were to run or not."""
        collected = self.collected or ()
        return {*collected, *self.deselected}

    @property
    def unreached(self) -> tuple[str, ...]:
        """The tests that were about to run and never started."""
        reached = {result.test for result in self.results}
        if self.running is not None:
            reached.add(self.running)
        collected = self.collected or ()
        return tuple(test for test in collected if test not in reached)


def matches(pattern: str, test: str) -> bool:
    """Return whether a pattern of a rule takes a test, or one of a path a file, as the plugin decides it."""
    return fnmatchcase(test, pattern.replace("[", "[[]"))


def write_settings(path: Path, settings: PluginSettings) -> Sequence[str]:
    """Write settings for the plugin, and return pytest's arguments with which it reads them."""
    files.write_text(path, settings.model_dump_json(indent=1) + "\n")
    return ("-p", PLUGIN, "--wheel-tests", str(path))


def read_event_logs(folder: Path) -> Sequence[EventLog]:
    """Return the events of each process that wrote into a folder, in the order of their last ones."""
    event_logs: list[EventLog] = []
    for path in folder.glob("*.jsonl"):
        event_log = read_event_log(path)
        if event_log is not None:
            event_logs.append(event_log)
    return sorted(event_logs, key=lambda event_log: event_log.last_time)


def read_event_log(path: Path) -> EventLog | None:
    """Return the events of one process; None where it died before the first.

    A last line that was cut is left out: its writer died.
    """
    event_log = EventLog()
    lines = read_text(path).splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        if not line.endswith("\n"):
            break
        try:
            event_log.add(_EVENT.validate_json(line))
        except ValidationError as problem:
            first_line = str(problem).splitlines()[0]
            raise DataError(
                f"{path}, line {number}: no event of the pytest plugin: {first_line}."
            ) from problem
    return event_log if event_log.last_time else None
