"""The inside of builds, from what their records say of ninja, of the compiler cache and of memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import ConfigDict, Field, ValidationError

from ci.report.model import (
    Build,
    BuildGraph,
    CellName,
    Compiled,
    CompilerCache,
    Memory,
    Problem,
    Reached,
    TestLine,
    TestRun,
    Tests,
)
from core.data import Model
from core.junit import OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ci.report.facts import GroupFacts, RunFacts
    from core.run.records import Record
    from pytorch_build.test.report_data import CaseEntry, GroupEntry


_Count = Annotated[int, Field(ge=0)]
_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Said(Model):
    # a later version's record may say more
    model_config = ConfigDict(extra="ignore")


class _Cache(_Said):
    kind: str
    hits: _Count
    misses: _Count
    uncacheable: _Count = 0
    errors: _Count = 0
    storage: str = ""
    access: str = ""
    lost: str = ""


class _Graph(_Said):
    folder: str
    edges: _Count
    seconds: _Number
    busy_seconds: _Number
    slowest: tuple[tuple[str, _Number], ...] = ()
    parallelism: tuple[_Number, ...] = ()


class _Memory(_Said):
    peak: _Count
    total: _Count
    used: tuple[_Count, ...] = ()


class _Reached(_Said):
    done: _Count = 0
    total: _Count = 0
    failed: tuple[str, ...] = ()


class _Details(_Said):
    reached: _Reached | None = None
    compiler_cache: _Cache | None = None
    ninja: tuple[_Graph, ...] = ()
    memory: _Memory | None = None


def builds_of(facts: RunFacts) -> tuple[tuple[Build, ...], tuple[Problem, ...]]:
    """Read what builds say of their inside, failed ones first, then the longest; and what makes no sense."""
    builds, problems = [], []
    for group in facts.groups:
        for key, record in group.records:
            if not record.stage.startswith("build_"):
                continue
            try:
                said = _Details.model_validate(record.details)
            except ValidationError as problem:
                first = problem.errors()[0]
                path = ".".join(str(part) for part in first["loc"])
                problems.append(Problem(where=key, what=f"details.{path}: {first['msg']}."))
                said = _Details()
            builds.append(_build(group.name, record, said))
    builds.sort(key=lambda one: (not one.failed, -one.seconds, one.cell, one.stage))
    return tuple(builds), tuple(problems)


def _build(group: str, record: Record, said: _Details) -> Build:
    cache, memory = said.compiler_cache, said.memory
    return Build(
        cell=CellName(group=group, torch_ref=record.cell.torch_ref, python=record.cell.python),
        stage=record.stage,
        seconds=record.seconds,
        failed=record.status != "ok",
        reached=Reached(**said.reached.model_dump()) if said.reached else None,
        cache=CompilerCache(**cache.model_dump()) if cache else None,
        graphs=_graphs(said.ninja),
        memory=Memory(**memory.model_dump()) if memory else None,
    )


def _graphs(said: Sequence[_Graph]) -> tuple[BuildGraph, ...]:
    graphs = [
        BuildGraph(
            folder=one.folder,
            edges=one.edges,
            seconds=one.seconds,
            busy=one.busy_seconds,
            slowest=tuple(Compiled(output=output, seconds=seconds) for output, seconds in one.slowest),
            parallelism=one.parallelism,
        )
        for one in said
    ]
    return tuple(sorted(graphs, key=lambda one: (-one.seconds, one.folder)))


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
