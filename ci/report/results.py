"""The results of a run's tests: each stage of each cell, and the tests that are worth showing."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from ci.report.model import CaseRow, RunTests, StageTests
from ci.report.names import cell_of_tests
from core.console import counted
from pytorch_build.test.junit.document import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ci.report.facts import CellStage, RunFacts
    from core.cell import GroupCell
    from pytorch_build.test.summary import CaseData, CellData

_MOST_SLOW_TESTS = 50
_SHORTEST_SLOW_TEST = 1.0  # seconds


def merge_tests(facts: RunFacts) -> RunTests:
    """Put the results of all groups together; a test that fails in ten cells is one row."""
    runs: dict[CellStage, StageTests] = {}
    failures: list[CaseRow] = []
    flaky: list[CaseRow] = []
    slowest: list[CaseRow] = []
    for group in facts.groups:
        for entry in group.tests:
            stage_tests = _stage_tests(group.name, entry)
            runs[stage_tests.cell, stage_tests.stage] = stage_tests
            failures += _case_rows(entry.failures, stage_tests.stage_and_cell)
            flaky += _case_rows(entry.flaky, stage_tests.stage_and_cell)
            slowest += _case_rows(entry.slowest, stage_tests.stage_and_cell)

    for key, reason in _void_tests(facts).items():
        if key in runs:
            runs[key] = replace(runs[key], missing=reason)
    slow_rows = [row for row in _merge_cells(slowest) if row.seconds >= _SHORTEST_SLOW_TEST]
    slow_rows.sort(key=lambda row: (-row.seconds, row.test))
    return RunTests(
        runs=tuple(runs[key] for key in sorted(runs)),
        failures=_merge_cells(failures),
        flaky=_merge_cells(flaky),
        slowest=tuple(slow_rows[:_MOST_SLOW_TESTS]),
    )


def _stage_tests(artifact_group: str, entry: CellData) -> StageTests:
    """Return the results of one stage on one cell, with counts in the order of outcomes."""
    totals: list[tuple[str, int]] = []
    for outcome in sorted(entry.totals, key=_order_of_outcome):
        count = entry.totals[outcome]
        if count > 0:
            totals.append((outcome, count))
    stage = entry.stage
    if entry.config:
        stage = f"{stage}_{entry.config}"
    return StageTests(
        cell=cell_of_tests(artifact_group, entry),
        stage=stage,
        passed=entry.passed,
        totals=tuple(totals),
        seconds=entry.seconds,
        problems=entry.problems,
    )


def _order_of_outcome(outcome: str) -> tuple[int, str]:
    """Return what outcomes are sorted by: the order of the known ones, and then their names."""
    if outcome in OUTCOMES:
        return OUTCOMES.index(outcome), outcome
    return len(OUTCOMES), outcome


def _case_rows(entries: Iterable[CaseData], stage_and_cell: str) -> Sequence[CaseRow]:
    """Return tests of one cell."""
    return [
        CaseRow(
            test=entry.test,
            outcome=entry.outcome,
            line=entry.line,
            text=entry.text,
            cells=(stage_and_cell,),
            seconds=entry.seconds,
            command=entry.command,
            rule=entry.rule,
        )
        for entry in entries
    ]


def _void_tests(facts: RunFacts) -> Mapping[CellStage, str]:
    """Return why results count as missing, by cell and stage; a shard's reason is that of the whole stage."""
    reasons: dict[CellStage, str] = {}
    for group in facts.groups:
        reasons.update(group.void_tests)
    for (cell, stage), reason in list(reasons.items()):
        whole_stage, _, _ = stage.partition("-")
        reasons[cell, whole_stage] = reason
    return reasons


def _merge_cells(rows: Iterable[CaseRow]) -> tuple[CaseRow, ...]:
    """Put the same test of several cells together, with its worst outcome; those in most cells come first."""
    rows_of_tests: dict[str, list[CaseRow]] = defaultdict(list)
    for row in rows:
        rows_of_tests[row.test].append(row)

    merged_rows: list[CaseRow] = []
    for same_rows in rows_of_tests.values():
        stages_and_cells: dict[str, None] = {}  # an ordered set
        for row in same_rows:
            stages_and_cells.update(dict.fromkeys(row.cells))
        worst_row = max(same_rows, key=_severity)
        seconds = max(row.seconds for row in same_rows)
        merged_rows.append(replace(worst_row, cells=tuple(stages_and_cells), seconds=seconds))
    return tuple(sorted(merged_rows, key=lambda row: (-len(row.cells), row.test)))


def _severity(row: CaseRow) -> int:
    """Return how bad an outcome is: the known ones stand in that order."""
    if row.outcome in OUTCOMES:
        return OUTCOMES.index(row.outcome)
    return 0


def reasons_of_failed_tests(tests: RunTests) -> Mapping[GroupCell, Mapping[str, str]]:
    """Return why tests of cells did not pass, by their stages."""
    reasons: dict[GroupCell, dict[str, str]] = defaultdict(dict)
    for stage_tests in tests.runs:
        if stage_tests.passed or stage_tests.missing:
            continue
        reason = f"{stage_tests.stage} cannot be believed"
        if stage_tests.failed_count > 0:
            count = counted(stage_tests.failed_count, "test")
            reason = f"{count} of {stage_tests.stage} failed"
        reasons[stage_tests.cell][stage_tests.stage] = reason
    return reasons
