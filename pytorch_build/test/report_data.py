"""A run's test results as data: JSON for the run's page, and for whoever counts failures over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from core.data import Model
from pytorch_build.test.reproduction import command
from pytorch_build.test.summary import slowest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.junit import Case
    from pytorch_build.test.results import Tested

_SLOWEST = 50


class CaseEntry(Model):
    """One test that somebody wants to know of.

    Attributes:
        test: Its node id.
        outcome: Its outcome.
        seconds: How long it took.
        shard: The shard that ran it; "" without shards.
        attempts: How often it ran.
        rule: The rule by which it was tried again, and its reason; "" for none.
        line: The first line that matters.
        text: All that was said.
        command: What runs it again; "" where nobody knows.
    """

    test: str
    outcome: str
    seconds: float
    shard: str = ""
    attempts: int = 1
    rule: str = ""
    line: str = ""
    text: str = ""
    command: str = ""


class GroupEntry(Model):
    """The results of one stage on one cell.

    Attributes:
        stage: The stage; the next ones are its cell.
        passed: Whether they can be believed, and none failed.
        totals: By outcome.
        problems: Why they cannot be believed.
        failures: What stands against the wheels.
        flaky: What failed and then passed.
        slowest: What took longest.
        skipped: Node id -> why it did not run.
    """

    stage: str
    torch_ref: str = ""
    python: str = ""
    gpu_family: str = ""
    config: str = ""
    run_id: str = ""
    passed: bool
    shards: int
    seconds: float
    totals: dict[str, int]
    problems: tuple[str, ...] = ()
    failures: tuple[CaseEntry, ...] = ()
    flaky: tuple[CaseEntry, ...] = ()
    slowest: tuple[CaseEntry, ...] = ()
    skipped: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it


class ReportData(Model):
    """All results of a run.

    Attributes:
        passed: Whether everything passed.
        tests: One entry a stage and cell.
    """

    schema_version: Literal[1] = 1
    run_id: str
    passed: bool
    tests: tuple[GroupEntry, ...]


def data(run_id: str, tested: Sequence[Tested]) -> ReportData:
    """Put the data together."""
    entries = tuple(_entry(one) for one in tested)
    return ReportData(
        run_id=run_id, passed=bool(entries) and all(one.passed for one in entries), tests=entries
    )


def _entry(one: Tested) -> GroupEntry:
    origin = one.origin
    flaky = [(case, shard) for case, shard in one.cases if case.outcome == "flaky"]
    return GroupEntry(
        stage=origin.stage or origin.folder,
        torch_ref=origin.torch_ref,
        python=origin.python,
        gpu_family=origin.gpu_family,
        config=origin.config,
        run_id=origin.run_id,
        passed=one.passed,
        shards=one.shards,
        seconds=round(one.seconds, 3),
        totals=one.counts,
        problems=one.problems,
        failures=tuple(_test(one, case, shard) for case, shard in one.failing),
        flaky=tuple(_test(one, case, shard) for case, shard in flaky),
        slowest=tuple(_test(one, case, "") for _, case in slowest([one], _SLOWEST)),
        skipped={case.test: case.line for case, _ in one.cases if case.outcome in {"skipped", "xfailed"}},
    )


def _test(one: Tested, case: Case, shard: str) -> CaseEntry:
    told = case.outcome != "passed"
    return CaseEntry(
        test=case.test,
        outcome=case.outcome,
        seconds=round(case.seconds, 3),
        shard=shard,
        attempts=case.attempts,
        rule=case.rule,
        line=case.line,
        text=case.text,
        command=command(one.origin, case) if told else "",
    )
