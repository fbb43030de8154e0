import sys

import pytest

from core.errors import CheckError, DataError, ProcessError
from tests.bench.measuring import Figure, Sample, Series, Work, in_turn, put


def series(name: str, *walls: float, cpu: float = 1.0, note: str = "") -> Series:
    return Series(name, [Sample(one, cpu, 2 << 20) for one in walls], note)


@pytest.mark.parametrize(("busy", "ratios"), [(False, ("**0.12**", "0.50")), (True, ("0.12", "**0.50**"))])
def test_a_baseline_has_both_ratios_and_the_one_that_counts_is_bold(
    *, busy: bool, ratios: tuple[str, str]
) -> None:
    figure = Figure(series("ours", 1.0, 3.0, note="≤ 1 s"), [series("theirs", 16.04, cpu=2.0)], "two files")
    assert [*figure.rows(busy=busy)] == [
        ("**ours**", "2.00 (1.00 to 3.00)", "1.00 (1.00 to 1.00)", "2", "", "", "two files; ≤ 1 s"),
        ("theirs", "16.0", "2.00", "2", *ratios, ""),
    ]


def test_a_table_is_put_between_its_marks_and_replaced_the_next_time() -> None:
    page = "before\n<!-- bench: one -->\nold\n<!-- end -->\nbetween\n<!-- bench: two -->\n<!-- end -->\n"
    once = put(page, "one", [("a | b", *"123456")], "when and where")
    assert once.startswith("before\n<!-- bench: one -->\n\n|  | wall, s |")
    assert "| a \\| b | 1 | 2 | 3 | 4 | 5 | 6 |\n\nwhen and where\n\n<!-- end -->\nbetween\n" in once
    assert put(once, "one", [("a | b", *"123456")], "when and where") == once
    with pytest.raises(DataError, match="no place for three"):
        put(page, "three", [], "")


@pytest.mark.processes
def test_works_run_in_turn_after_a_run_that_does_not_count() -> None:
    did: list[str] = []
    works = [
        Work("one", [sys.executable, "-c", "pass"], before=lambda: did.append("one"), times=3),
        Work("two", lambda: did.append("in a fork"), before=lambda: did.append("two")),
    ]
    program, call = in_turn(works, runs=2)
    assert did == ["one", "two"] * 3
    assert [one.cpu > 0 and one.memory > 1 << 20 for one in program.samples] == [True, True]
    assert [one.memory for one in call.samples] == [0, 0]
    with pytest.raises(CheckError, match="failed"):
        in_turn([Work("fails", sys.exit)], runs=1)
    with pytest.raises(ProcessError, match="it said why"):
        in_turn([Work("fails", [sys.executable, "-c", "exit('it said why')"])], runs=1)
