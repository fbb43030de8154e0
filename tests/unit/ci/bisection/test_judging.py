"""What exit codes mean."""

from collections.abc import Sequence

import pytest

from ci.bisection.judging import judge_exit_codes


@pytest.mark.parametrize(
    ("exit_codes", "result"),
    [
        ([0], "good"),
        ([1], "bad"),
        ([124], "bad"),
        ([125], "skip"),
        ([127], "bad"),
        ([0, 125, 1], "skip"),
        ([0, 1, 0], "bad"),
    ],
)
def test_exit_codes_mean_what_they_mean_to_git_bisect(exit_codes: Sequence[int], result: str) -> None:
    assert judge_exit_codes(exit_codes).result == result
