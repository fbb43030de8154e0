import pytest

from core.errors import DataError
from tests.bench.comparisons import Comparison, Measurement, Sample, replace_table

MEMORY = 2 << 20


def measurement(name: str, *walls: float, cpu: float = 1.0, note: str = "") -> Measurement:
    """Return the measurement of a program, in seconds of wall time."""
    samples = [Sample(wall=wall, cpu=cpu, memory=MEMORY) for wall in walls]
    return Measurement(name=name, samples=samples, note=note)


# Rows


@pytest.mark.parametrize(
    ("busy", "by_wall", "by_cpu"),
    [(False, "**0.12**", "0.50"), (True, "0.12", "**0.50**")],
    ids=["idle", "busy"],
)
def test_compares_with_a_baseline_by_the_time_that_counts(*, busy: bool, by_wall: str, by_cpu: str) -> None:
    baseline = measurement("theirs", 16.04, cpu=2.0)
    comparison = Comparison(subject=measurement("ours", 1.0, 3.0), baselines=[baseline])

    _our_row, their_row = comparison.rows(busy=busy)

    # Wall time says nothing on a busy machine.
    assert their_row == ("theirs", "16.0", "2.00", "2", by_wall, by_cpu, "")


def test_shows_the_median_and_the_range_of_measurements() -> None:
    subject = measurement("ours", 1.0, 3.0, note="≤ 1 s")
    comparison = Comparison(subject=subject, note="two files")

    (our_row,) = comparison.rows(busy=False)

    assert our_row == (
        "**ours**",
        "2.00 (1.00 to 3.00)",
        "1.00 (1.00 to 1.00)",
        "2",
        "",
        "",
        "two files; ≤ 1 s",
    )


def test_shows_no_memory_where_none_was_measured() -> None:
    subject = Measurement(name="ours", samples=[Sample(wall=1.0, cpu=1.0)])

    assert subject.cells() == ("1.00", "1.00", "")


# Pages

PAGE = "before\n<!-- bench: one -->\nold\n<!-- end -->\nbetween\n<!-- bench: two -->\n<!-- end -->\n"
ROWS = [("a | b", *"123456")]


def test_puts_a_table_between_its_marks() -> None:
    page = replace_table(PAGE, "one", ROWS, "when and where")

    assert page.startswith("before\n<!-- bench: one -->\n\n|  | wall, s |")
    assert "| a \\| b | 1 | 2 | 3 | 4 | 5 | 6 |\n\nwhen and where\n\n<!-- end -->\nbetween\n" in page
    assert "old" not in page


def test_replaces_a_table_by_itself() -> None:
    page = replace_table(PAGE, "one", ROWS, "when and where")

    assert replace_table(page, "one", ROWS, "when and where") == page


def test_names_a_table_that_has_no_place() -> None:
    with pytest.raises(DataError, match="three"):
        replace_table(PAGE, "three", [], "")
