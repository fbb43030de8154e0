from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import junit
from core.junit import FAILING, OUTCOMES, Case, Document, Suite, counts, first_line, last_attempt, read, worst

if TYPE_CHECKING:
    from collections.abc import Sequence

PRINTED = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Cf", "Cn")), max_size=20)


def case(outcome: Any = "passed", test: str = "test_a.py::test_x", **facts: Any) -> Case:
    return Case(test=test, outcome=outcome, file="test_a.py", **facts)


def test_every_outcome_is_written_and_read_again() -> None:
    cases = tuple(
        case(
            outcome,
            f"test_a.py::TestA::test_{at}[é|`<b>`]",
            seconds=at / 4,
            line="" if outcome == "passed" else f"why <{at}> & so",
            text="" if outcome == "passed" else f"why <{at}>\nand more ]]>",
            attempts=2 if outcome in {"flaky", "failed"} else 1,
            rule="nn.slow: Now <and> then." if outcome == "flaky" else "",
        )
        for at, outcome in enumerate(OUTCOMES)
    )
    document = Document(
        cases=cases,
        suites={"test_a.py": Suite(seconds=9.5, properties={"whole": "8"})},
        properties={"shard": "2/6", "torch_ref": "release/2.10"},
        problems=("it ended early",),
        timestamp="2026-01-02T03:04:05+00:00",
    )
    assert read(junit.write(document)) == document


@given(
    names=st.lists(PRINTED, min_size=1, max_size=5, unique=True),
    outcomes=st.lists(st.sampled_from(OUTCOMES), min_size=5, max_size=5),
    line=PRINTED,
)
def test_what_is_written_loses_no_test(names: Sequence[str], outcomes: Sequence[Any], line: str) -> None:
    cases = tuple(
        case(outcome, f"t.py::{name}", line=line) for name, outcome in zip(names, outcomes, strict=False)
    )
    again = read(junit.write(Document(cases=cases)))
    assert [(one.test, one.outcome) for one in again.cases] == [(one.test, one.outcome) for one in cases]
    assert again.problems == ()


@pytest.mark.parametrize(
    ("message", "text", "line"),
    [
        ("AssertionError: no\n  more", "", "AssertionError: no"),
        ("\x1b[31mAssertionError\x1b[0m: no", "", "AssertionError: no"),
        (
            "collection failure",
            "Traceback\n    import x\nE   ModuleNotFoundError: x",
            "ModuleNotFoundError: x",
        ),
        ('failed on setup with "E"', "E       RuntimeError: set-up\nE   y", "RuntimeError: set-up"),
        ("", "Traceback (most recent call last):\n  File\nValueError: v\n\n", "ValueError: v"),
        ("failed on teardown with x", "", "failed on teardown with x"),
        ("", "", ""),
        ("x" * 9999, "", "x" * 300),
    ],
)
def test_the_line_that_matters(message: str, text: str, line: str) -> None:
    assert first_line(message, text) == line


def test_a_failed_call_says_more_than_its_clean_up() -> None:
    both = worst([case("failed", line="assert 0", text="a", seconds=1), case("error", text="b", seconds=2)])
    assert (both.outcome, both.line, both.text, both.seconds) == ("failed", "assert 0", "a\nb", 3)


@pytest.mark.parametrize(
    ("outcomes", "outcome"),
    [
        (("passed",), "passed"),
        (("failed", "passed"), "flaky"),
        (("crashed", "passed"), "flaky"),
        (("failed", "error", "passed"), "flaky"),
        (("passed", "failed"), "failed"),
        (("failed", "timeout"), "timeout"),
        (("failed", "skipped"), "failed"),
        (("skipped", "skipped"), "skipped"),
        (("passed", "skipped"), "skipped"),
    ],
)
def test_attempts_make_one_result(outcomes: Sequence[Any], outcome: str) -> None:
    made = last_attempt([case(one, line=one, seconds=1) for one in outcomes])
    assert (made.outcome, made.attempts, made.seconds) == (outcome, len(outcomes), len(outcomes))
    if outcome == "flaky":
        assert made.line == outcomes[0]


def test_counts_name_every_outcome() -> None:
    assert counts([case(), case("failed"), case()]) == dict.fromkeys(OUTCOMES, 0) | {"passed": 2, "failed": 1}
    assert {one for one in OUTCOMES if case(one).failing} == FAILING


def test_long_texts_keep_both_ends() -> None:
    assert junit.cut("abc", 3) == "abc"
    assert junit.cut("a" * 50 + "b" * 50, 10) == "aaaaa\n… 90 characters left out …\nbbbbb"
