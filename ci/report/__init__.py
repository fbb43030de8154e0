"""The page of a run: one model of what its records say, shown as HTML, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.report.cells import cells_of, problems_of, runs_of
from ci.report.model import Group, Page
from ci.report.results import builds_of, tests_of
from ci.report.wheels import sources_of, wheels_of

if TYPE_CHECKING:
    from ci.report.facts import RunFacts
    from ci.report.model import CellName, Tests


def page_of(facts: RunFacts, before: RunFacts | None = None) -> Page:
    """Make the page of a run."""
    wheels, gone = wheels_of(facts, before)
    tests = tests_of(facts)
    builds, odd = builds_of(facts)
    starts = [record.started for group in facts.groups for _, record in group.records]
    groups = tuple(
        Group(
            name=group.name,
            find_links=group.find_links,
            stages=tuple(run for name, runs in runs_of(group).items() if not name.torch_ref for run in runs),
        )
        for group in facts.groups
    )
    return Page(
        run_id=facts.run_id,
        platform=facts.platform,
        against=before.run_id if before else "",
        started=min(starts, default=""),
        problems=(*problems_of(facts), *odd),
        groups=groups,
        cells=cells_of(facts, wheels, _failing(tests)),
        wheels=wheels,
        gone=gone,
        builds=builds,
        tests=tests,
        sources=sources_of(facts, before),
    )


def _failing(tests: Tests) -> dict[CellName, str]:
    """Return why tests of cells did not pass."""
    failing: dict[CellName, str] = {}
    for run in tests.runs:
        if not run.passed:
            bad = sum(
                count for name, count in run.totals if name in {"failed", "error", "crashed", "timeout"}
            )
            what = f"{bad} tests of {run.stage} failed" if bad else f"{run.stage} cannot be believed"
            failing[run.cell] = " and ".join(filter(None, [failing.get(run.cell, ""), what]))
    return failing
