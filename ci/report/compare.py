"""A run beside the one before it: cells, build times, wheel sizes and tests, held against each other.

A page is compared with a page, so both say what their records say. A cell of one run alone is no change, as
another matrix was asked for; of what a run does not know, nothing is told.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from ci.report.model import Change, Comparison
from core.data import Model, data_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from typing import TypeAlias

    from ci.report.model import Cell, CellName, Page

    Numbers: TypeAlias = Mapping[tuple[CellName, str], float]

# cells that have what they should have; all others lack something, or it failed
SOUND = frozenset({"passed", "untested"})


class Least(Model):
    """From which difference on two numbers are told apart."""

    absolute: float = Field(ge=0)
    relative: float = Field(ge=0)

    def apart(self, one: float, other: float) -> bool:
        """Return whether two numbers differ enough to be told."""
        return abs(one - other) >= max(self.absolute, self.relative * min(one, other))


class Thresholds(Model):
    """From which difference on numbers of a kind are told apart."""

    build_seconds: Least
    wheel_bytes: Least


thresholds = data_file(Path(__file__).with_name("compare.toml"), Thresholds)
_ANY = Least(absolute=1, relative=0)


def compare(now: Page, before: Page) -> Comparison:
    """Say what a run has other than the one before it, for the cells that both have."""
    old, least = {cell.name: cell for cell in before.cells}, thresholds()
    both = [(old[cell.name], cell) for cell in now.cells if cell.name in old]
    faster, slower = _apart(_seconds(before), _seconds(now), least.build_seconds)
    smaller, larger = _apart(_sizes(before), _sizes(now), least.wheel_bytes)
    lost, gained = _apart(_ran(before, now), _ran(now, before), _ANY)
    return Comparison(
        against=before.run_id,
        broken=_turned(both, sound=False),
        mended=_turned(both, sound=True),
        slower=slower,
        faster=faster,
        larger=larger,
        smaller=smaller,
        lost=lost,
        gained=gained,
        failing=_newly_failing(now, before, ("passed", "failed")),
        passing=_newly_failing(before, now, ("failed", "passed")),
    )


def _turned(both: Iterable[tuple[Cell, Cell]], *, sound: bool) -> tuple[Change, ...]:
    """Return the cells that became sound, or that were and are no more."""
    return tuple(
        Change(cell=now.name, before=was.state, now=now.state, why=(was if sound else now).reason)
        for was, now in both
        if (now.state in SOUND) is sound and (was.state in SOUND) is not sound
    )


def _apart(before: Numbers, now: Numbers, least: Least) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """Return what became less and what became more, the largest difference first."""
    found = [
        Change(cell=key[0], what=key[1], before=before[key], now=now[key])
        for key in before.keys() & now.keys()
        if least.apart(before[key], now[key])
    ]
    found.sort(key=lambda one: (-abs(one.grown), one.cell, one.what))
    return tuple(one for one in found if one.grown < 0), tuple(one for one in found if one.grown > 0)


def _seconds(page: Page) -> Numbers:
    return {(one.cell, one.stage): one.seconds for one in page.builds if not one.failed}


def _sizes(page: Page) -> Numbers:
    """Return sizes by distribution: a wheel's version, and with it its name, is another one in each run."""
    return {(one.cell, one.distribution): one.size for one in page.wheels}


def _ran(page: Page, other: Page) -> Numbers:
    """Return how many tests ran, by stage; none where a sound cell lacks tests that the other run has."""
    sound = {cell.name for cell in page.cells if cell.state in SOUND}
    lacking = {(one.cell, one.stage): 0 for one in other.tests.runs if one.cell in sound}
    return {**lacking, **{(one.cell, one.stage): one.ran for one in page.tests.runs}}


def _newly_failing(now: Page, before: Page, words: tuple[str, str]) -> tuple[Change, ...]:
    """Return the tests that fail and did not, in places of which the run before names all failures."""
    old, tested = _failures(before), {run.place: run for run in now.tests.runs if not run.missing}
    return tuple(
        Change(cell=tested[one].cell, what=line.test, before=words[0], now=words[1], why=tested[one].stage)
        for line in now.tests.failures
        for one in line.cells
        if one in tested and one in old and line.test not in old[one]
    )


def _failures(page: Page) -> Mapping[str, Collection[str]]:
    """Return the names of tests that failed, by place, where all of them are known."""
    named: dict[str, set[str]] = defaultdict(set)
    for line in page.tests.failures:
        for place in line.cells:
            named[place].add(line.test)
    runs = (run for run in page.tests.runs if not run.missing and run.failed == len(named[run.place]))
    return {run.place: named[run.place] for run in runs}
