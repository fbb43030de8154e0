"""The page as text, for a terminal, and as Markdown, for a job's summary."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from ci.report.model import cell_text
from core import console
from core.console import duration
from core.run import job_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ci.report.compare import History
    from ci.report.model import Change, Page, TimeLine

MOST = 20
# controls, marks of direction, what no encoding has: each changes how the text around it is read
_MISLEADING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff"
    "\ud800-\udfff]"
)

CHANGES = {"lost": "with fewer tests", "gained": "with more tests"}
CHANGES |= {"failing": "newly failing", "passing": "no longer failing"}


class Table(NamedTuple):
    """A table; one without rows is not shown."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def tables(page: Page, *, brief: bool = False) -> tuple[Table, ...]:
    """Return what the page says in tables; `brief` are the cells, and wheels of edited trees."""
    more = () if brief else (_builds(page), *_tests(page), _changed(page), _sources(page))
    return readable(_cells(page), *_wheels(page, every=not brief), *more)


def readable(*found: Table) -> tuple[Table, ...]:
    """Return the tables that have rows, each row on one line, without what misleads."""
    return tuple(
        one._replace(rows=tuple(tuple(spelt(" ".join(cell.split())) for cell in row) for row in one.rows))
        for one in found
        if one.rows
    )


def verdict(page: Page) -> str:
    """Return in a line how the run stands."""
    states = f" ({_counted(page.states)})" if page.cells else ""
    cells = f"{console.counted(len(page.cells), 'cell')}{states}"
    files = console.counted(len(page.wheels), "file")
    problems = console.counted(len(page.problems), "problem")
    return f"run {page.run_id}: {cells}, {files}, {problems}"


def markdown(page: Page) -> str:
    """Return the matrix and the wheels for a job's summary."""
    blocks = [f"### {job_files.text(verdict(page).capitalize())}"]
    for one in readable(_cells(page), *_wheels(page)):
        rows = [tuple(map(job_files.text, row)) for row in one.rows]
        blocks.append(f"{job_files.text(one.title)}\n\n{job_files.table(one.columns, rows)}")
    return "\n\n".join(blocks)


def _cells(page: Page) -> Table:
    rows = [
        (
            cell_text(cell.name),
            cell.state,
            str(cell.wheels),
            took(cell.line),
            " → ".join(step.stage for step in cell.line.path),
            cell.reason,
        )
        for cell in page.cells
    ]
    return Table("cells", ("cell", "state", "wheels", "time", "critical path", "why"), rows)


def _wheels(page: Page, *, every: bool = True) -> Sequence[Table]:
    columns = ("wheel", "version", "size", "seconds", "commit", "sha256")
    rows: dict[str, list[tuple[str, ...]]] = {group.name: [] for group in page.groups}
    for one in (one for one in page.wheels if every or one.edited):
        commit, size = ", ".join(filter(None, (one.commit[:12], one.edited))), console.size(one.size)
        row = (one.name, one.version, size, f"{one.seconds:.1f}", commit, one.sha256[:12])
        rows[one.cell.artifact_group or ""].append(row)
    return [Table(f"run {page.run_id}, {group}", columns, found) for group, found in rows.items()]


def _builds(page: Page) -> Table:
    rows = []
    for one in page.builds[:MOST]:
        graph = one.graphs[0] if one.graphs else None
        rate = one.cache.hit_rate if one.cache else None
        slowest = graph.slowest[0] if graph and graph.slowest else None
        rows.append(
            (
                f"{one.stage} {cell_text(one.cell)}",
                f"failed after {duration(one.seconds)}" if one.failed else duration(one.seconds),
                f"{graph.edges}, {graph.mean:.1f} at a time" if graph else "",
                f"{rate:.0%}" if rate is not None else "",
                console.size(one.memory.peak) if one.memory else "",
                f"{slowest.output} {duration(slowest.seconds)}" if slowest else "",
                str(one.reached or ""),
            )
        )
    columns = ("build", "time", "commands", "cache hits", "memory", "slowest file", "failed")
    used = None if any(row[-1] for row in rows) else -1
    return Table("the longest builds", columns[:used], [row[:used] for row in rows if any(row[2:])])


def _tests(page: Page) -> Sequence[Table]:
    runs = [
        (
            f"{run.stage} {cell_text(run.cell)}",
            ", ".join(f"{count} {name}" for name, count in run.totals),
            duration(run.seconds),
            run.missing or ("passed" if run.passed else "; ".join(run.problems) or "failed"),
        )
        for run in page.tests.runs
    ]
    found = [Table("tests", ("tests", "results", "time", "verdict"), runs)]
    for title, lines in (("failures", page.tests.failures), ("flaky tests", page.tests.flaky)):
        rows = [(one.test, one.outcome, str(len(one.cells)), one.line) for one in lines[:MOST]]
        left = f", the first {MOST} of {len(lines)}" if len(lines) > MOST else ""
        found.append(Table(f"{title}{left}", ("test", "outcome", "cells", "why"), rows))
    slow = [(one.test, duration(one.seconds)) for one in page.tests.slowest[:5]]
    return [*found, Table("slowest tests", ("test", "time"), slow)]


def amount(name: str, value: float | str) -> str:
    """Write what a change was or is: a state, seconds, bytes, a number of tests."""
    if isinstance(value, str) or name in {"lost", "gained"}:
        return str(value)
    return duration(value) if name in {"slower", "faster"} else console.size(int(value))


def _changed(page: Page) -> Table:
    rows = [
        (
            CHANGES.get(one.kind, one.kind),
            f"{one.what} {cell_text(one.cell)}".strip(),
            amount(one.kind, one.before),
            amount(one.kind, one.now),
            one.why,
        )
        for one in page.changes[:MOST]
    ]
    rows += [("gone", name, "", "", "") for name in page.gone]
    return Table(f"since run {page.against}", ("change", "what", "before", "now", "why"), rows)


def _sources(page: Page) -> Table:
    rows = [
        (one.torch_ref, one.project, one.commit_before[:12], one.commit[:12], one.version, one.compare)
        for one in page.sources
        if page.against and one.changed
    ]
    columns = ("torch ref", "project", "before", "now", "version", "between")
    return Table(f"sources since run {page.against}", columns, rows)


def changed(changes: Sequence[Change]) -> str:
    """Count what differs from the run before: ``1 broken, 2 slower``."""
    return _counted(CHANGES.get(one.kind, one.kind) for one in changes)


def _counted(names: Iterable[str] | Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in Counter(names).items())


def history_tables(history: History) -> Sequence[Table]:
    """Return the runs of a history, and its cells: since when one fails, or what it took."""
    runs = [
        (
            run.run_id,
            run.started[:10],
            _counted(run.states),
            "; ".join(filter(None, (changed(run.changes), *run.problems))),
        )
        for run in history.runs
    ]
    cells = []
    for line in history.lines:
        ids = ["" if at is None else history.runs[at].run_id for at in (line.since, line.good)]
        ids[0] += " or before" * (line.since is not None and line.good is None)
        one = next(filter(None, line.points if line.since is None else line.points[line.since :]))
        took = f"{duration(one.seconds or 0)}, {console.size(one.size or 0)}, {one.tests or 0} tests"
        cells.append((cell_text(line.name), line.state, *ids, one.why or took))
    return readable(
        Table("runs, the last first", ("run", "began", "cells", "since the one before"), runs),
        Table("cells", ("cell", "state", "since", "last good", "what failed first, or what it took"), cells),
    )


def spelt(text: str) -> str:
    r"""Spell out invisible characters that change what is read: ``\u202e``."""
    return _MISLEADING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def signed(count: int) -> str:
    """Write a change of bytes: ``+1.4 MiB``, ``-812 B``, ``0``."""
    return f"{'+' if count > 0 else '-'}{console.size(abs(count))}" if count else "0"


def took(what: Page | TimeLine) -> str:
    """Write for how long something ran, and over what time where that is more: ``48 s over 2 h 05 min``."""
    apart = what.elapsed > what.busy * 1.1 + 1
    return f"{duration(what.busy)} of work over {duration(what.elapsed)}" if apart else duration(what.busy)


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """Return the key to sort a name by, so that 2.10 comes after 2.9."""
    parts = re.split(r"([0-9]{1,18})", text)
    return tuple((int(part), "") if at % 2 else (0, part) for at, part in enumerate(parts))
