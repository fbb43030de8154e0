"""Runs beside each other, by what their pages say: one and the one before it, and the last of a store.

A cell of one run alone is no change: another matrix was asked for. What a run does not know is not compared.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import Field

from ci.report.model import Change, Kind, Page, State, cell_text
from ci.report.text import natural
from core.cell import GroupCell
from core.data import Model, data_file
from core.run import Platform

Numbers: TypeAlias = Mapping[tuple[GroupCell, str], float]
# cells that have what they should have; all others lack something, or it failed
SOUND = frozenset({"passed", "untested"})


class Least(Model):
    """From which difference on two numbers are told apart: both hold."""

    absolute: float = Field(1, ge=0)
    relative: float = Field(0, ge=0)


class Thresholds(Model):
    """The contents of `compare.toml`."""

    build_seconds: Least
    wheel_bytes: Least


thresholds = data_file(Path(__file__).with_name("compare.toml"), Thresholds)


def compare(before: Page, now: Page) -> tuple[Change, ...]:
    """Say what a run has other than the one before it, for the cells that both have."""
    least, both = thresholds(), (before, now)
    times = [{(it.cell, it.stage): it.seconds for it in one.builds if not it.failed} for one in both]
    # by distribution: a wheel's version, and with it its name, is another one in each run
    sizes = [{(it.cell, it.distribution): it.size for it in one.wheels} for one in both]
    return (
        *_turned(before, now),
        *_newly_failing("failing", before, now),
        *_newly_failing("passing", now, before),
        *_apart(("gained", "lost"), Least(), _ran(before, now), _ran(now, before)),
        *_apart(("slower", "faster"), least.build_seconds, *times),
        *_apart(("larger", "smaller"), least.wheel_bytes, *sizes),
    )


def _turned(before: Page, now: Page) -> Iterator[Change]:
    """Tell the cells that became sound, or that were and are no more; why: what the worse one lacks."""
    old = {cell.name: cell for cell in before.cells}
    for cell in now.cells:
        was = old.get(cell.name, cell)
        if (sound := cell.state in SOUND) is not (was.state in SOUND):
            kind: Kind = "mended" if sound else "broken"
            why = was.reason if sound else cell.reason
            yield Change(kind=kind, cell=cell.name, before=was.state, now=cell.state, why=why)


def _apart(kinds: tuple[Kind, Kind], least: Least, before: Numbers, now: Numbers) -> Sequence[Change]:
    """Tell what became more or less, the largest difference first."""
    found = [
        Change(kind=kinds[now[key] < before[key]], cell=key[0], what=key[1], before=before[key], now=now[key])
        for key in before.keys() & now.keys()
        if abs(now[key] - before[key]) >= max(least.absolute, least.relative * min(before[key], now[key]))
    ]
    return sorted(found, key=lambda one: (one.kind, -abs(one.grown), one.cell, one.what))


def _ran(page: Page, other: Page) -> Numbers:
    """Return how many tests ran, by stage; none where a sound cell lacks tests that the other run has."""
    sound = {cell.name for cell in page.cells if cell.state in SOUND}
    lacking = {(one.cell, one.stage): 0 for one in other.tests.runs if one.cell in sound}
    return {**lacking, **{(one.cell, one.stage): one.ran for one in page.tests.runs}}


def _newly_failing(kind: Kind, before: Page, now: Page) -> Iterator[Change]:
    """Tell the tests that fail and did not, in places of which the run before names all failures."""
    was, became = ("passed", "failed") if kind == "failing" else ("failed", "passed")
    named = {(place, line.test) for line in before.tests.failures for place in line.cells}
    count = Counter(place for place, _ in named)
    known = {run.place for run in before.tests.runs if not run.missing and run.failed == count[run.place]}
    tested = {run.place: run for run in now.tests.runs if not run.missing and run.place in known}
    for line in now.tests.failures:
        for run in (tested[place] for place in line.cells if place in tested):
            if (run.place, line.test) not in named:
                what = Change(kind=kind, cell=run.cell, what=line.test, why=run.stage)
                yield replace(what, before=was, now=became)


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run; `address`: of its page, if any; `problems`: what cannot be read; `against`: the run before."""

    run_id: str
    release_type: str = ""
    address: str = ""
    problems: tuple[str, ...] = ()
    started: str = ""
    states: Mapping[State, int] = field(default_factory=dict)
    against: str = ""
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Point:
    """A cell in a run: why it is not sound; what its builds took, its wheels' size, the tests that ran."""

    state: State
    why: str = ""
    seconds: float | None = None
    size: int | None = None
    tests: int | None = None


@dataclass(frozen=True, kw_only=True)
class Line:
    """A cell in each of the runs, None where it is in none; `since`, `good`: the places of runs.

    In all from the last back to `since` it was not sound, in `good` before them it was.
    """

    name: GroupCell
    state: State
    points: tuple[Point | None, ...]
    since: int | None = None
    good: int | None = None


@dataclass(frozen=True, kw_only=True)
class History:
    """The last runs, the last first."""

    schema_version: Literal[1] = 1
    platform: Platform
    runs: tuple[Run, ...]
    lines: tuple[Line, ...]


def history_of(platform: Platform, found: Sequence[tuple[Run, Page | None]]) -> History:
    """Lay runs and their pages out, the last first; cells that fail come first."""
    pages = [page for _, page in found]
    points: dict[GroupCell, list[Point | None]] = {}
    for at, page in enumerate(pages):
        for name, point in _points(page) if page else ():
            points.setdefault(name, [None] * len(pages))[at] = point
    lines = [_line(name, every) for name, every in points.items()]
    lines.sort(key=lambda one: (one.since is None, natural(cell_text(one.name))))
    runs = tuple(_run(run, page, pages[at:]) for at, (run, page) in enumerate(found, 1))
    return History(platform=platform, runs=runs, lines=tuple(lines))


def _run(run: Run, page: Page | None, older: Sequence[Page | None]) -> Run:
    """Say how a run's cells ended, and what differs from the one before it that shares a cell."""
    if not page:
        return run
    names = {cell.name for cell in page.cells}
    before = next((one for one in older if one and any(cell.name in names for cell in one.cells)), None)
    if before:
        run = replace(run, against=before.run_id, changes=compare(before, page))
    return replace(run, started=page.started, states=page.states)


def _points(page: Page) -> Iterator[tuple[GroupCell, Point]]:
    """Say what went wrong first in cells, and what those took and hold all of whose builds are there."""
    seconds, sizes, ran = defaultdict[GroupCell, float](float), Counter[GroupCell](), Counter[GroupCell]()
    for build in page.builds:
        seconds[build.cell] += build.seconds
    for wheel in page.wheels:
        sizes[wheel.cell] += wheel.size
    for tests in page.tests.runs:
        ran[tests.cell] += tests.ran
    for cell in page.cells:
        name, wrong = cell.name, [one for one in cell.stages if one.state != "ok"]
        failed = (one for one in wrong if one.state != "missing")
        why = next((f"{one.stage}: {one.cause or one.error or one.state}" for one in failed), cell.reason)
        point = Point(state=cell.state, why="" if cell.state in SOUND else why)
        if not any(one.stage.startswith("build_") for one in wrong):
            point = replace(point, seconds=seconds[name], size=sizes[name], tests=ran.get(name))
        yield name, point


def _line(name: GroupCell, points: Sequence[Point | None]) -> Line:
    there = [(at, one) for at, one in enumerate(points) if one]
    failing = [at for at, _ in takewhile(lambda found: found[1].state not in SOUND, there)]
    line = Line(name=name, state=there[0][1].state, points=tuple(points))
    sound = (at for at, one in there if one.state in SOUND)
    return replace(line, since=failing[-1], good=next(sound, None)) if failing else line
