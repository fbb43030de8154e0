import pytest

from pytorch_build.test.junit.document import OUTCOMES, Case, Document, Outcome, Suite
from pytorch_build.test.junit.reader import read_junit
from pytorch_build.test.junit.writer import write_junit
from tests.kit.torch_results import case_of


def detailed_case(outcome: Outcome) -> Case:
    """Return a result with everything that a result can say, in letters that XML has a meaning for."""
    has_passed = outcome == "passed"
    is_flaky = outcome == "flaky"
    return case_of(
        f"test_a.py::TestA::test_{outcome}[é|`<b>`]",
        outcome=outcome,
        seconds=0.25,
        line="" if has_passed else f"why <{outcome}> & so",
        text="" if has_passed else f"why <{outcome}>\nand on ]]>",
        attempts=2 if outcome in {"flaky", "failed"} else 1,
        rule="nn.slow: Now <and> then." if is_flaky else "",
    )


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_reads_the_results_that_it_wrote(outcome: Outcome) -> None:
    document = Document(cases=(detailed_case(outcome),), timestamp="2026-01-02T03:04:05+00:00")

    document_read = read_junit(write_junit(document))

    assert document_read.cases == document.cases
    assert document_read.timestamp == document.timestamp


def test_reads_the_properties_and_problems_that_it_wrote() -> None:
    document = Document(
        cases=(case_of("test_a.py::test_x"),),
        suites={"test_a.py": Suite(seconds=9.5, properties={"complete": "8"})},
        properties={"shard": "2/6", "torch_ref": "release/2.10"},
        problems=("it ended early",),
        timestamp="2026-01-02T03:04:05+00:00",
    )

    assert read_junit(write_junit(document)) == document
