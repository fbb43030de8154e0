"""The inside of builds, from what their records say of ninja, caches and memory, and the results of tests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from ci.report.model import (
    Build,
    CellName,
    Problem,
    TestLine,
    TestRun,
    Tests,
)
from core.junit import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from ci.report.facts import GroupFacts, RunFacts
    from core.run.records import Record
    from pytorch_build.test.summary import CaseEntry, GroupEntry

SLOWEST = 50
_WORSE: dict[str, int] = {outcome: at for at, outcome in enumerate(OUTCOMES)}


def builds_of(facts: RunFacts) -> tuple[tuple[Build, ...], tuple[Problem, ...]]:
    """Return the inside of builds, failed ones first, then the longest; and what makes no sense."""
    builds, problems = [], []
    read = TypeAdapter(Build).validate_python
    for group in facts.groups:
        for key, record in group.records:
            if not record.stage.startswith("build_"):
                continue
            facts_of = {"cell": CellName.of(group.name, record.cell), "stage": record.stage}
            facts_of |= {"seconds": record.seconds, "failed": record.status != "ok"}
            try:
                build = read({**record.details, **facts_of})
            except ValidationError as problem:
                first = problem.errors()[0]
                path = ".".join(str(part) for part in first["loc"])
                problems.append(Problem(where=key, what=f"details.{path}: {first['msg']}."))
                build = read(facts_of)
            graphs = sorted(build.graphs, key=lambda one: (-one.seconds, one.folder))
            builds.append(replace(build, graphs=tuple(graphs)))
    builds.sort(key=lambda one: (not one.failed, -one.seconds, one.cell, one.stage))
    return tuple(builds), tuple(problems)


def tests_of(facts: RunFacts) -> Tests:
    """Put the results of all groups together; a test that fails in ten cells is one line."""
    entries = [(group.name, one) for group in facts.groups for one in group.tests]
    runs = {(run.cell, run.stage): run for group in facts.groups for run in _recorded(group)}
    runs |= {(run.cell, run.stage): run for run in (_run(group, one) for group, one in entries)}
    slowest = sorted(_lines(entries, lambda one: one.slowest), key=lambda line: (-line.seconds, line.test))
    return Tests(
        runs=tuple(runs[key] for key in sorted(runs)),
        failures=tuple(_lines(entries, lambda one: one.failures)),
        flaky=tuple(_lines(entries, lambda one: one.flaky)),
        slowest=tuple(slowest[:SLOWEST]),
    )


def _stage(one: GroupEntry) -> str:
    return f"{one.stage}_{one.config}" if one.config else one.stage


def _run(group: str, one: GroupEntry) -> TestRun:
    same = one.model_dump(include={"passed", "seconds", "problems"})
    return TestRun(cell=CellName.of(group, one), stage=_stage(one), totals=_totals(one.totals), **same)


def _totals(counts: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    known = [(outcome, counts[outcome]) for outcome in OUTCOMES if counts.get(outcome)]
    return tuple(known + sorted((name, n) for name, n in counts.items() if n and name not in _WORSE))


def _recorded(group: GroupFacts) -> Iterator[TestRun]:
    """Take totals out of records, for tests whose reports do not exist."""
    for _, record in group.records:
        totals = record.details.get("outcomes") or _counted(record)
        if record.stage.startswith("test_") and "-" not in record.stage and isinstance(totals, dict):
            yield TestRun(
                cell=CellName.of(group.name, record.cell),
                stage=record.stage,
                passed=record.status == "ok",
                totals=_totals({str(name): n for name, n in totals.items() if isinstance(n, int)}),
                seconds=record.seconds,
            )


def _counted(record: Record) -> Mapping[str, int]:
    match record.details.get("tests"):
        case {"tests": int(tests), "failures": int(failures), "errors": int(errors), "skipped": int(skipped)}:
            bad = failures + errors
            return {"passed": tests - bad - skipped, "skipped": skipped, "failed": bad}
    return {}


def _lines(
    entries: Iterable[tuple[str, GroupEntry]], chosen: Callable[[GroupEntry], Iterable[CaseEntry]]
) -> list[TestLine]:
    """Put the same test of several cells together, with its worst outcome."""
    found: dict[str, TestLine] = {}
    for group, entry in entries:
        place = f"{_stage(entry)} {CellName.of(group, entry)}".strip()
        for one in chosen(entry):
            line = TestLine(**one.model_dump(exclude={"shard", "attempts"}), cells=(place,))
            found[one.test] = _joined(found[one.test], line) if one.test in found else line
    return sorted(found.values(), key=lambda line: (-len(line.cells), line.test))


def _joined(first: TestLine, second: TestLine) -> TestLine:
    worse = second if _WORSE.get(second.outcome, 0) > _WORSE.get(first.outcome, 0) else first
    return replace(
        worse,
        cells=tuple(dict.fromkeys((*first.cells, *second.cells))),
        seconds=max(first.seconds, second.seconds),
    )
