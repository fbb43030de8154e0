from collections.abc import Sequence
from typing import Any

import pytest

from pytorch_build.test.junit.document import FAILING, OUTCOMES, count_outcomes, merge_attempts
from tests.kit.torch_results import case_of


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
    ids=", ".join,
)
def test_makes_one_result_of_all_attempts(outcomes: Sequence[Any], outcome: str) -> None:
    result = merge_attempts([case_of(outcome=attempt, seconds=1) for attempt in outcomes])

    assert result.outcome == outcome
    assert result.attempts == len(outcomes)
    assert result.seconds == len(outcomes)


def test_a_flaky_result_has_the_line_of_its_first_failure() -> None:
    result = merge_attempts([case_of(outcome="failed", line="why"), case_of()])

    assert result.line == "why"


def test_counts_every_outcome() -> None:
    counts = count_outcomes([case_of(), case_of(outcome="failed"), case_of()])

    assert counts == dict.fromkeys(OUTCOMES, 0) | {"passed": 2, "failed": 1}


def test_four_outcomes_are_failures() -> None:
    failures = {outcome for outcome in OUTCOMES if case_of(outcome=outcome).failing}

    assert failures == FAILING == {"failed", "error", "timeout", "crashed"}
