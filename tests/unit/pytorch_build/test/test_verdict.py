from collections.abc import Sequence

import pytest

from core.errors import CheckError
from pytorch_build.test.cell_results import merge_reports
from pytorch_build.test.report import Report
from pytorch_build.test.verdict import require_passed, why_failed
from tests.kit.torch_halves import FIRST_HALF, ORIGIN, merge_halves, report_of_half
from tests.kit.torch_results import document_of


def test_a_half_is_judged_by_itself() -> None:
    require_passed(report_of_half(FIRST_HALF))

    with pytest.raises(CheckError, match="1 of 1"):
        require_passed(report_of_half(FIRST_HALF, "failed"))


def test_results_that_passed_have_no_reason_against_them() -> None:
    assert why_failed([merge_halves("passed", "flaky")]) == ""


@pytest.mark.parametrize(
    ("found_reports", "names"),
    [
        pytest.param([], ["no result"], id="no report"),
        pytest.param(
            [Report(origin=ORIGIN, document=document_of("failed"))],
            ["1 of 1 failed", "t.py::x0 failed"],
            id="failure",
        ),
        pytest.param([report_of_half(FIRST_HALF)], ["shard 2/2"], id="missing half"),
    ],
)
def test_results_that_did_not_pass_say_why(found_reports: Sequence[Report], names: list[str]) -> None:
    reason = why_failed(merge_reports(found_reports))

    for name in names:
        assert name in reason
