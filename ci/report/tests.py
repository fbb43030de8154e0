"""Results of tests, across all cells of a run: a test that fails in ten of them is told once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ci.report.cell_name import CellName
from ci.report.model import TestLine, TestRun, Tests
from core.junit import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ci.report.reading import GroupFacts, RunFacts
    from core.run.records import Record
    from pytorch_build.test.summary import CaseEntry, GroupEntry

SLOWEST = 50
_WORSE: dict[str, int] = {outcome: at for at, outcome in enumerate(OUTCOMES)}


def tests_of(facts: RunFacts) -> Tests:
    """Put the results of all groups together."""
    entries = [(group.name, one) for group in facts.groups for one in group.tests]
    runs = [_run(group, one) for group, one in entries]
    known = {(run.cell, run.stage) for run in runs}
    recorded = (run for group in facts.groups for run in _recorded(group))
    runs += [run for run in recorded if (run.cell, run.stage) not in known]
    slowest = _lines(entries, lambda one: one.slowest)
    slowest.sort(key=lambda line: (-line.seconds, line.test))
    return Tests(
        runs=tuple(sorted(runs, key=lambda run: (run.cell, run.stage))),
        failures=tuple(_lines(entries, lambda one: one.failures)),
        flaky=tuple(_lines(entries, lambda one: one.flaky)),
        slowest=tuple(slowest[:SLOWEST]),
    )


def _stage(one: GroupEntry) -> str:
    return f"{one.stage}_{one.config}" if one.config else one.stage


def _run(group: str, one: GroupEntry) -> TestRun:
    return TestRun(
        cell=CellName(group=group, torch_ref=one.torch_ref, python=one.python),
        stage=_stage(one),
        passed=one.passed,
        totals=_totals(one.totals),
        seconds=one.seconds,
        problems=one.problems,
    )


def _totals(counts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    known = [(outcome, counts[outcome]) for outcome in OUTCOMES if counts.get(outcome)]
    return tuple(known + sorted((name, n) for name, n in counts.items() if n and name not in _WORSE))


def _recorded(group: GroupFacts) -> Iterator[TestRun]:
    """Take totals out of records, for tests whose reports are not there."""
    for _, record in group.records:
        totals = record.details.get("outcomes") or _counted(record)
        if record.stage.startswith("test_") and "-" not in record.stage and isinstance(totals, dict):
            counts = {str(name): n for name, n in totals.items() if isinstance(n, int)}
            yield TestRun(
                cell=CellName(group=group.name, torch_ref=record.cell.torch_ref, python=record.cell.python),
                stage=record.stage,
                passed=record.status == "ok",
                totals=_totals(counts),
                seconds=record.seconds,
            )


def _counted(record: Record) -> Mapping[str, int]:
    said = record.details.get("tests")
    names = ("tests", "failures", "errors", "skipped")
    if not isinstance(said, dict) or not all(isinstance(said.get(name), int) for name in names):
        return {}
    bad = said["failures"] + said["errors"]
    return {"passed": said["tests"] - bad - said["skipped"], "skipped": said["skipped"], "failed": bad}


def _lines(
    entries: Iterable[tuple[str, GroupEntry]], chosen: Callable[[GroupEntry], Iterable[CaseEntry]]
) -> list[TestLine]:
    """Put the same test of several cells together; the worst outcome speaks for it."""
    found: dict[str, TestLine] = {}
    for group, entry in entries:
        name = CellName(group=group, torch_ref=entry.torch_ref, python=entry.python)
        place = f"{_stage(entry)} {name}".strip()
        for one in chosen(entry):
            line = TestLine(
                test=one.test,
                outcome=one.outcome,
                line=one.line,
                text=one.text,
                cells=(place,),
                seconds=one.seconds,
                command=one.command,
                rule=one.rule,
            )
            found[one.test] = _joined(found[one.test], line) if one.test in found else line
    return sorted(found.values(), key=lambda line: (-len(line.cells), line.test))


def _joined(first: TestLine, second: TestLine) -> TestLine:
    worse = second if _WORSE.get(second.outcome, 0) > _WORSE.get(first.outcome, 0) else first
    return replace(
        worse,
        cells=tuple(dict.fromkeys((*first.cells, *second.cells))),
        seconds=max(first.seconds, second.seconds),
    )
