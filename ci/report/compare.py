"""What differs between two runs, by what their pages say.

A cell of one run alone is no change: another matrix was asked for. What a run does not know is not compared.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from ci.report.model import PageChange, StageTests

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ci.report.model import ChangeKind, RunPage
    from core.cell import GroupCell

    # A stage, test or distribution of a cell, and what was measured of each.
    Subject: TypeAlias = tuple[GroupCell, str]
    Measurements: TypeAlias = Mapping[Subject, float]

# Cells that have what they should have; all others lack something, or it failed.
SOUND = frozenset({"passed", "untested"})


# A difference that is told reaches both numbers of its kind; the relative one is a part of the smaller value,
# so that growing and shrinking are judged alike. The same sources build up to a tenth faster or slower on
# shared runners, and more than that while a compiler cache fills; a minute is what somebody waiting notices.
SLOWER_SECONDS = 60
SLOWER_PART = 0.2

# Two builds of the same sources differ by some kilobytes (paths, times and versions inside binaries); a new
# kernel or library is larger than this.
LARGER_BYTES = 256 << 10
LARGER_PART = 0.01


def compare_pages(previous_page: RunPage, page: RunPage) -> tuple[PageChange, ...]:
    """Return what a run has other than the one before it, in the cells that both have."""
    return (
        *_changed_states(previous_page, page),
        *_newly_failing_tests("failing", previous_page, page),
        *_newly_failing_tests("passing", page, previous_page),
        *_changed_numbers(
            _tests_that_ran(previous_page, page),
            _tests_that_ran(page, previous_page),
            decrease="lost",
            increase="gained",
        ),
        *_changed_numbers(
            _build_seconds(previous_page),
            _build_seconds(page),
            absolute=SLOWER_SECONDS,
            relative=SLOWER_PART,
            decrease="faster",
            increase="slower",
        ),
        *_changed_numbers(
            _wheel_bytes(previous_page),
            _wheel_bytes(page),
            absolute=LARGER_BYTES,
            relative=LARGER_PART,
            decrease="smaller",
            increase="larger",
        ),
    )


def _changed_states(previous_page: RunPage, page: RunPage) -> Iterator[PageChange]:
    """Yield the cells that became sound, and those that were; the reason is what the worse one lacks."""
    previous_cells = {cell.name: cell for cell in previous_page.cells}
    for cell in page.cells:
        previous_cell = previous_cells.get(cell.name)
        if previous_cell is None:
            continue
        is_sound = cell.state in SOUND
        was_sound = previous_cell.state in SOUND
        if is_sound and not was_sound:
            kind: ChangeKind = "mended"
            reason = previous_cell.reason
        elif was_sound and not is_sound:
            kind = "broken"
            reason = cell.reason
        else:
            continue
        yield PageChange(
            kind=kind,
            cell=cell.name,
            before=previous_cell.state,
            now=cell.state,
            why=reason,
        )


def _changed_numbers(
    previous_numbers: Measurements,
    numbers: Measurements,
    *,
    absolute: float = 1,
    relative: float = 0,
    decrease: ChangeKind,
    increase: ChangeKind,
) -> Sequence[PageChange]:
    """Return what became more or less, the largest difference first."""
    changes: list[PageChange] = []
    for subject in previous_numbers.keys() & numbers.keys():
        cell, name = subject
        change = PageChange(
            kind=increase,
            cell=cell,
            what=name,
            before=previous_numbers[subject],
            now=numbers[subject],
        )
        limit = max(absolute, relative * min(previous_numbers[subject], numbers[subject]))
        if abs(change.grown) < limit:
            continue
        if change.grown < 0:
            change = replace(change, kind=decrease)
        changes.append(change)
    return sorted(changes, key=lambda change: (change.kind, -abs(change.grown), change.cell, change.what))


def _build_seconds(page: RunPage) -> Measurements:
    seconds: dict[Subject, float] = {}
    for build in page.builds:
        if not build.failed:
            seconds[build.cell, build.stage] = build.seconds
    return seconds


def _wheel_bytes(page: RunPage) -> Measurements:
    sizes: dict[Subject, float] = {}
    for wheel in page.wheels:
        # By distribution: a wheel's version, and with it its name, is another one in each run.
        sizes[wheel.cell, wheel.distribution] = wheel.size
    return sizes


def _tests_that_ran(page: RunPage, other_page: RunPage) -> Measurements:
    """Return how many tests ran, by stage: none where a sound cell lacks tests that the other run has."""
    counts: dict[Subject, float] = {}
    sound_cells = {cell.name for cell in page.cells if cell.state in SOUND}
    for tests in other_page.tests.runs:
        if tests.cell in sound_cells:
            counts[tests.cell, tests.stage] = 0
    for tests in page.tests.runs:
        counts[tests.cell, tests.stage] = tests.ran_count
    return counts


def _newly_failing_tests(kind: ChangeKind, previous_page: RunPage, page: RunPage) -> Iterator[PageChange]:
    """Yield the tests that fail and did not, of stages of which the run before names all failures.

    Of swapped pages, these are the tests that pass now.
    """
    previous_failures = _failures_by_stage_and_cell(previous_page)
    listed_in_full = _stages_listed_in_full(previous_page, previous_failures)
    tests_listed_in_full: dict[str, StageTests] = {}
    for tests in page.tests.runs:
        if not tests.missing and tests.stage_and_cell in listed_in_full:
            tests_listed_in_full[tests.stage_and_cell] = tests

    for case in page.tests.failures:
        for stage_and_cell in case.cells:
            if stage_and_cell not in tests_listed_in_full or (stage_and_cell, case.test) in previous_failures:
                continue
            tests = tests_listed_in_full[stage_and_cell]
            yield PageChange(
                kind=kind,
                cell=tests.cell,
                what=case.test,
                before="passed" if kind == "failing" else "failed",
                now="failed" if kind == "failing" else "passed",
                why=tests.stage,
            )


def _failures_by_stage_and_cell(page: RunPage) -> set[tuple[str, str]]:
    """Return the tests that failed, each with its stage and cell."""
    failures: set[tuple[str, str]] = set()
    for case in page.tests.failures:
        for stage_and_cell in case.cells:
            failures.add((stage_and_cell, case.test))
    return failures


def _stages_listed_in_full(page: RunPage, failures: set[tuple[str, str]]) -> set[str]:
    """Return the stages and cells of which a page names as many failures as there were."""
    counts = Counter(stage_and_cell for stage_and_cell, _ in failures)
    listed_in_full: set[str] = set()
    for tests in page.tests.runs:
        if not tests.missing and tests.failed_count == counts[tests.stage_and_cell]:
            listed_in_full.add(tests.stage_and_cell)
    return listed_in_full
