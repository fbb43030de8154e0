"""The last runs of a store, by what their pages say: since when a cell fails, or what it took."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from ci.report.compare import SOUND, compare_pages
from ci.report.names import cell_text, natural_key

if TYPE_CHECKING:
    from ci.report.model import CellProgress, PageChange, RunPage, State
    from core.cell import GroupCell
    from core.run import Platform


@dataclass(frozen=True, kw_only=True)
class HistoryRun:
    """A run of a history.

    Attributes:
        address: Of its page, if it has one.
        problems: What cannot be read of it.
        states: How many of its cells are in each state.
        against: The run before it that has some of its cells.
        changes: What differs from that run.
    """

    run_id: str
    release_type: str = ""
    address: str = ""
    problems: tuple[str, ...] = ()
    started: str = ""
    states: Mapping[State, int] = field(default_factory=dict)
    against: str = ""
    changes: tuple[PageChange, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CellPoint:
    """A cell in a run: why it is not sound; what its builds took, its wheels' size, the tests that ran."""

    state: State
    why: str = ""
    seconds: float | None = None
    size: int | None = None
    tests: int | None = None


@dataclass(frozen=True, kw_only=True)
class CellHistory:
    """A cell in each of the runs, None where it is in none.

    In all runs from the last back to the one at `since` it was not sound; at `good`, before them, it was.
    """

    name: GroupCell
    state: State
    points: tuple[CellPoint | None, ...]
    since: int | None = None
    good: int | None = None

    @property
    def deciding_point(self) -> CellPoint:
        """The run that says most: the one since which it fails, else the last one that has the cell."""
        for point in self.points[self.since or 0 :]:
            if point is not None:
                return point
        raise LookupError("The cell is in no run.")


@dataclass(frozen=True, kw_only=True)
class History:
    """The last runs, the last first."""

    schema_version: Literal[1] = 1
    platform: Platform
    runs: tuple[HistoryRun, ...]
    lines: tuple[CellHistory, ...]


def make_history(platform: Platform, runs_and_pages: Sequence[tuple[HistoryRun, RunPage | None]]) -> History:
    """Lay runs and their pages out, the last first; cells that fail come first."""
    pages = [page for _, page in runs_and_pages]
    runs: list[HistoryRun] = []
    points_of_cells: dict[GroupCell, list[CellPoint | None]] = {}
    for position, (run, page) in enumerate(runs_and_pages):
        if page is None:
            runs.append(run)
            continue
        older_pages = pages[position + 1 :]
        runs.append(_complete_run(run, page, older_pages))
        for cell, point in _points_of_cells(page):
            if cell not in points_of_cells:
                points_of_cells[cell] = [None] * len(pages)
            points_of_cells[cell][position] = point

    lines = [_cell_history(cell, points) for cell, points in points_of_cells.items()]
    # Cells that fail come first.
    lines.sort(key=lambda line: (line.since is None, natural_key(cell_text(line.name))))
    return History(
        platform=platform,
        runs=tuple(runs),
        lines=tuple(lines),
    )


def _complete_run(run: HistoryRun, page: RunPage, older_pages: Sequence[RunPage | None]) -> HistoryRun:
    """Return a run with how its cells ended, and what differs from the one before that shares a cell."""
    run = replace(run, started=page.started, states=page.states)
    cells = _cells_of(page)
    for older_page in older_pages:
        if older_page is None or cells.isdisjoint(_cells_of(older_page)):
            continue
        changes = compare_pages(older_page, page)
        return replace(run, against=older_page.run_id, changes=changes)
    return run


def _cells_of(page: RunPage) -> set[GroupCell]:
    return {cell.name for cell in page.cells}


def _points_of_cells(page: RunPage) -> Iterator[tuple[GroupCell, CellPoint]]:
    """Yield what went wrong first in cells, and what those took and hold all of whose builds are there."""
    seconds: dict[GroupCell, float] = defaultdict(float)
    for build in page.builds:
        seconds[build.cell] += build.seconds
    sizes: Counter[GroupCell] = Counter()
    for wheel in page.wheels:
        sizes[wheel.cell] += wheel.size
    test_counts: Counter[GroupCell] = Counter()
    for tests in page.tests.runs:
        test_counts[tests.cell] += tests.ran_count

    for cell in page.cells:
        point = CellPoint(state=cell.state, why=_reason_of_cell(cell))
        if _has_all_builds(cell):
            point = replace(
                point,
                seconds=seconds[cell.name],
                size=sizes[cell.name],
                tests=test_counts.get(cell.name),
            )
        yield cell.name, point


def _reason_of_cell(cell: CellProgress) -> str:
    """Return why a cell is not sound: the first error of its stages, else what it lacks; "" where it is."""
    if cell.state in SOUND:
        return ""
    for stage_run in cell.stages:
        if stage_run.state in {"ok", "missing"}:
            continue
        error = stage_run.cause or stage_run.error or stage_run.state
        return f"{stage_run.stage}: {error}"
    return cell.reason


def _has_all_builds(cell: CellProgress) -> bool:
    for stage_run in cell.stages:
        is_build = stage_run.stage.startswith("build_")
        if is_build and stage_run.state != "ok":
            return False
    return True


def _cell_history(cell: GroupCell, points: Sequence[CellPoint | None]) -> CellHistory:
    """Return a cell's history, with the runs since which it is not sound, and before which it was."""
    first_bad: int | None = None
    last_good: int | None = None
    states = {position: point.state for position, point in enumerate(points) if point is not None}
    for position, state in states.items():
        if state in SOUND:
            last_good = position
            break
        first_bad = position

    return CellHistory(
        name=cell,
        state=next(iter(states.values())),
        points=tuple(points),
        since=first_bad,
        good=None if first_bad is None else last_good,
    )
