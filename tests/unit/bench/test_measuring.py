import sys

import pytest

from core.errors import CheckError, DataError, ProcessError
from tests.bench.measuring import Figure, Sample, Series, Work, in_turn, put

MEMORY = 2 << 20


def series(name: str, *walls: float, cpu: float = 1.0, note: str = "") -> Series:
    """Return the measurements of a program, in seconds of wall time."""
    return Series(name, [Sample(wall, cpu, MEMORY) for wall in walls], note)


# Figures


@pytest.mark.parametrize(
    ("busy", "by_wall", "by_cpu"),
    [(False, "**0.12**", "0.50"), (True, "0.12", "**0.50**")],
    ids=["idle", "busy"],
)
def test_compares_with_a_baseline_by_the_time_that_counts(*, busy: bool, by_wall: str, by_cpu: str) -> None:
    figure = Figure(series("ours", 1.0, 3.0), [series("theirs", 16.04, cpu=2.0)], "two files")

    _our_row, their_row = figure.rows(busy=busy)

    # Wall time says nothing on a busy machine.
    assert their_row == ("theirs", "16.0", "2.00", "2", by_wall, by_cpu, "")


def test_shows_the_mean_and_the_range_of_measurements() -> None:
    figure = Figure(series("ours", 1.0, 3.0, note="≤ 1 s"), [], "two files")

    (our_row,) = figure.rows(busy=False)

    assert our_row == (
        "**ours**",
        "2.00 (1.00 to 3.00)",
        "1.00 (1.00 to 1.00)",
        "2",
        "",
        "",
        "two files; ≤ 1 s",
    )


# Pages

PAGE = "before\n<!-- bench: one -->\nold\n<!-- end -->\nbetween\n<!-- bench: two -->\n<!-- end -->\n"
ROWS = [("a | b", *"123456")]


def test_puts_a_table_between_its_marks() -> None:
    page = put(PAGE, "one", ROWS, "when and where")

    assert page.startswith("before\n<!-- bench: one -->\n\n|  | wall, s |")
    assert "| a \\| b | 1 | 2 | 3 | 4 | 5 | 6 |\n\nwhen and where\n\n<!-- end -->\nbetween\n" in page
    assert "old" not in page


def test_replaces_a_table_by_itself() -> None:
    page = put(PAGE, "one", ROWS, "when and where")

    assert put(page, "one", ROWS, "when and where") == page


def test_names_a_table_that_has_no_place() -> None:
    with pytest.raises(DataError, match="three"):
        put(PAGE, "three", [], "")


# Measurements


@pytest.mark.processes
def test_runs_works_in_turn_after_a_run_that_does_not_count() -> None:
    started_works: list[str] = []
    works = [
        Work("one", [sys.executable, "-c", "pass"], before=lambda: started_works.append("one"), times=3),
        Work("two", lambda: None, before=lambda: started_works.append("two")),
    ]

    first, second = in_turn(works, runs=2)

    assert started_works == ["one", "two"] * 3
    assert len(first.samples) == len(second.samples) == 2


@pytest.mark.processes
def test_measures_the_time_and_memory_of_a_program() -> None:
    (measured,) = in_turn([Work("one", [sys.executable, "-c", "pass"])], runs=1)

    (sample,) = measured.samples
    assert sample.cpu > 0
    assert sample.memory > 1 << 20


@pytest.mark.processes
def test_measures_a_call_in_a_fork_and_without_memory() -> None:
    called: list[str] = []

    (measured,) = in_turn([Work("call", lambda: called.append("in a fork"))], runs=1)

    assert [sample.memory for sample in measured.samples] == [0]
    assert called == []


@pytest.mark.processes
def test_a_call_that_fails_is_an_error() -> None:
    with pytest.raises(CheckError):
        in_turn([Work("fails", sys.exit)], runs=1)


@pytest.mark.processes
def test_a_program_that_fails_is_an_error_with_its_words() -> None:
    with pytest.raises(ProcessError, match="out of luck"):
        in_turn([Work("fails", [sys.executable, "-c", "exit('out of luck')"])], runs=1)
