"""The page as text, for a terminal, and as Markdown, for a job's summary."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

from ci.report.names import cell_text
from ci.tables import Table
from core import console
from core.console import counted, duration
from core.run import job_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ci.report.history import CellHistory, History, HistoryRun
    from ci.report.model import BuildRow, CaseRow, PageChange, RunPage, StageTests, TimeLine, WheelRow

_MOST_ROWS = 20
_MOST_SLOW_TESTS = 5
_DIGITS = 12  # of a commit or a digest
_WORDS_OF_CHANGES: Mapping[str, str] = {
    "lost": "with fewer tests",
    "gained": "with more tests",
    "failing": "newly failing",
    "passing": "no longer failing",
}


TextRow: TypeAlias = tuple[str, ...]


def make_tables(page: RunPage, *, brief: bool = False) -> Sequence[Table]:
    """Return what the page says in tables; `brief` are the cells, and wheels of edited trees."""
    tables = [_table_of_cells(page)]
    if brief:
        edited_wheels = [wheel for wheel in page.wheels if wheel.edited]
        tables += _tables_of_wheels(page, edited_wheels)
        return tables

    tables += _tables_of_wheels(page, page.wheels)
    tables += [
        _table_of_builds(page),
        Table(
            title="tests",
            columns=("tests", "results", "time", "verdict"),
            rows=[_row_of_tests(tests) for tests in page.tests.runs],
        ),
        _table_of_cases("failures", page.tests.failures),
        _table_of_cases("flaky tests", page.tests.flaky),
        Table(
            title="slowest tests",
            columns=("test", "time"),
            rows=[(case.test, duration(case.seconds)) for case in page.tests.slowest[:_MOST_SLOW_TESTS]],
        ),
        _table_of_changes(page),
        _table_of_sources(page),
        _table_of_releases(page),
    ]
    return tables


def make_verdict(page: RunPage) -> str:
    """Return in a line how the run stands."""
    cells = counted(len(page.cells), "cell")
    if page.cells:
        cells = f"{cells} ({count_words(page.states.items())})"
    files = counted(len(page.wheels), "file")
    problems = counted(len(page.problems), "problem")
    return f"run {page.run_id}: {cells}, {files}, {problems}"


def make_markdown(page: RunPage) -> str:
    """Return the matrix and the wheels for a job's summary."""
    heading = make_verdict(page).capitalize()
    blocks = [f"### {job_files.text(heading)}"]
    tables = [_table_of_cells(page), *_tables_of_wheels(page, page.wheels), _table_of_releases(page)]
    blocks += [f"{job_files.text(table.title)}\n\n{table.markdown()}" for table in tables if table.rows]
    return "\n\n".join(blocks)


# --- Tables of a run


def _table_of_cells(page: RunPage) -> Table:
    rows: list[TextRow] = []
    for cell in page.cells:
        critical_stages = [bar.stage for bar in cell.line.critical_path]
        row = (
            cell_text(cell.name),
            cell.state,
            str(cell.wheels),
            elapsed_words(cell.line),
            " → ".join(critical_stages),
            cell.reason,
        )
        rows.append(row)
    columns = ("cell", "state", "wheels", "time", "critical path", "why")
    return Table(
        title="cells",
        columns=columns,
        rows=rows,
    )


def _tables_of_wheels(page: RunPage, wheels: Sequence[WheelRow]) -> Iterator[Table]:
    """Yield a table for each artifact group."""
    columns = ("wheel", "version", "size", "seconds", "commit", "sha256")
    for group in page.groups:
        rows = [
            (
                wheel.name,
                wheel.version,
                console.size(wheel.size),
                f"{wheel.seconds:.1f}",
                ", ".join(filter(None, (wheel.commit[:_DIGITS], wheel.edited))),
                wheel.sha256[:_DIGITS],
            )
            for wheel in wheels
            if wheel.cell.artifact_group == group.name
        ]
        yield Table(
            title=f"run {page.run_id}, {group.name}",
            columns=columns,
            rows=rows,
        )


def _table_of_builds(page: RunPage) -> Table:
    """Return the longest builds of which more is known than their time."""
    builds = [build for build in page.builds[:_MOST_ROWS] if build.has_details]
    columns: TextRow = ("build", "time", "cache hits", "memory")
    rows = [_row_of_build(build) for build in builds]
    if any(build.reached for build in builds):
        columns = (*columns, "failed")
        for position, build in enumerate(builds):
            reach = str(build.reached or "")
            rows[position] = (*rows[position], reach)
    return Table(
        title="the longest builds",
        columns=columns,
        rows=rows,
    )


def _row_of_build(build: BuildRow) -> TextRow:
    time = duration(build.seconds)
    if build.failed:
        time = f"failed after {time}"

    cache_hit_rate = ""
    if build.cache is not None and build.cache.hit_rate is not None:
        cache_hit_rate = f"{build.cache.hit_rate:.0%}"
    return (
        f"{build.stage} {cell_text(build.cell)}",
        time,
        cache_hit_rate,
        console.size(build.memory.peak) if build.memory else "",
    )


def _row_of_tests(tests: StageTests) -> TextRow:
    if tests.missing:
        verdict = tests.missing
    elif tests.passed:
        verdict = "passed"
    else:
        verdict = "; ".join(tests.problems) or "failed"
    results = count_words(tests.totals)
    return tests.stage_and_cell, results, duration(tests.seconds), verdict


def _table_of_cases(title: str, cases: Sequence[CaseRow]) -> Table:
    if len(cases) > _MOST_ROWS:
        title = f"{title}, the first {_MOST_ROWS} of {len(cases)}"
    rows: list[TextRow] = []
    for case in cases[:_MOST_ROWS]:
        count = str(len(case.cells))
        rows.append((case.test, case.outcome, count, case.line))
    return Table(
        title=title,
        columns=("test", "outcome", "cells", "why"),
        rows=rows,
    )


def _table_of_changes(page: RunPage) -> Table:
    rows: list[TextRow] = []
    for change in page.changes[:_MOST_ROWS]:
        subject = f"{change.what} {cell_text(change.cell)}"
        row = (
            change_words(change.kind),
            subject.strip(),
            amount_words(change.kind, change.before),
            amount_words(change.kind, change.now),
            change.why,
        )
        rows.append(row)
    rows += [("gone", wheel_name, "", "", "") for wheel_name in page.gone]
    columns = ("change", "what", "before", "now", "why")
    return Table(
        title=f"since run {page.against}",
        columns=columns,
        rows=rows,
    )


def _table_of_sources(page: RunPage) -> Table:
    """Return the sources that differ from the run before."""
    rows: list[TextRow] = []
    for source in page.sources:
        if not page.against or not source.changed:
            continue
        row = (
            source.torch_ref,
            source.project,
            source.commit_before[:_DIGITS],
            source.commit[:_DIGITS],
            source.version,
            source.compare,
        )
        rows.append(row)
    columns = ("torch ref", "project", "before", "now", "version", "between")
    return Table(
        title=f"sources since run {page.against}",
        columns=columns,
        rows=rows,
    )


def _table_of_releases(page: RunPage) -> Table:
    """Return what was decided on the run's wheels."""
    rows: list[TextRow] = []
    for release in page.releases:
        row = (
            release.set_name,
            release.group,
            release.state,
            release.decided,
            release.by,
            ", ".join(release.rules),
            "; ".join(release.reasons),
        )
        rows.append(row)
    return Table(
        title="releases",
        columns=("set", "family", "state", "since", "by", "rule", "why"),
        rows=rows,
    )


# --- Tables of a history


def make_history_tables(history: History) -> Sequence[Table]:
    """Return the runs of a history, and its cells: since when one fails, or what it took."""
    runs = Table(
        title="runs, the last first",
        columns=("run", "began", "cells", "since the one before"),
        rows=[_row_of_run(run) for run in history.runs],
    )
    cells = Table(
        title="cells",
        columns=("cell", "state", "since", "last good", "what failed first, or what it took"),
        rows=[_row_of_history(history, line) for line in history.lines],
    )
    return [runs, cells]


def _row_of_run(run: HistoryRun) -> TextRow:
    day = run.started[:10]
    notes = filter(None, (count_changes(run.changes), *run.problems))
    return run.run_id, day, count_words(run.states.items()), "; ".join(notes)


def _row_of_history(history: History, line: CellHistory) -> TextRow:
    since = ""
    if line.since is not None:
        since = history.runs[line.since].run_id
        if line.good is None:
            since = f"{since} or before"
    last_good = ""
    if line.good is not None:
        last_good = history.runs[line.good].run_id

    point = line.deciding_point
    summary = point.why
    if not summary:
        time = duration(point.seconds or 0)
        size = console.size(point.size or 0)
        summary = f"{time}, {size}, {point.tests or 0} tests"
    return cell_text(line.name), line.state, since, last_good, summary


# --- Numbers and names for people


def change_words(kind: str) -> str:
    """Return a kind of change for people: ``newly failing``."""
    return _WORDS_OF_CHANGES.get(kind, kind)


def count_changes(changes: Iterable[PageChange]) -> str:
    """Return what differs from the run before: ``1 broken, 2 slower``."""
    counts = Counter(change_words(change.kind) for change in changes)
    return count_words(counts.items())


def count_words(counts: Iterable[tuple[str, int]]) -> str:
    """Return how often each name was counted: ``1 broken, 2 slower``."""
    parts = [f"{count} {name}" for name, count in counts]
    return ", ".join(parts)


def amount_words(kind: str, value: float | str) -> str:
    """Return what a change was or is: a state, seconds, bytes, a number of tests."""
    if isinstance(value, str) or kind in {"lost", "gained"}:
        return str(value)
    if kind in {"slower", "faster"}:
        return duration(value)
    return console.size(int(value))


def signed_size(count: int) -> str:
    """Return a change of bytes: ``+1.4 MiB``, ``-812 B``, ``0``."""
    if count == 0:
        return "0"
    sign = "+" if count > 0 else "-"
    return f"{sign}{console.size(abs(count))}"


def elapsed_words(line: RunPage | TimeLine) -> str:
    """Return for how long something ran, and over what time where that is more: ``48 s over 2 h 05 min``."""
    busy = duration(line.busy)
    if line.elapsed > line.busy * 1.1 + 1:
        return f"{busy} of work over {duration(line.elapsed)}"
    return busy
