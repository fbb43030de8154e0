from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytorch_build.test.cell_results import CellResults, add_missing_results, merge_reports
from pytorch_build.test.junit.document import FAILING, OUTCOMES, Case, Document, Suite
from pytorch_build.test.junit.reader import read_junit
from pytorch_build.test.junit.writer import write_junit
from pytorch_build.test.report import (
    EXISTING_TESTS,
    LEFT_OUT,
    MAY_SKIP,
    REQUIRED_FILES,
    Report,
    ReportOrigin,
    document_to_write,
    report_of_document,
)
from pytorch_build.test.shards import Shard
from tests.kit.torch_results import case_of

TORCH = ReportOrigin(
    stage="test_torch", torch_ref="release/2.10", python="cp312", gpu_family="gfx110X-all", run_id="17"
)


def report_with(
    *cases: Case,
    shard: str | None = None,
    origin: ReportOrigin = TORCH,
    suites: Mapping[str, Suite] | None = None,
    properties: Mapping[str, str] | None = None,
    problems: tuple[str, ...] = (),
    timestamp: str = "",
    filename: str = "",
) -> Report:
    """Return a report of cases; `shard` is K/N."""
    document = Document(
        cases=cases,
        suites=suites or {},
        properties=properties or {},
        problems=problems,
        timestamp=timestamp,
    )
    index, _, count = (shard or "").partition("/")
    parsed_shard = Shard(index=int(index), count=int(count)) if shard else None
    return Report(origin=origin, document=document, shard=parsed_shard, filename=filename)


def merge_one(*reports: Report) -> CellResults:
    """Merge reports of one origin."""
    (cell_results,) = merge_reports(reports)
    return cell_results


def test_shards_are_merged_in_their_order() -> None:
    first = report_with(case_of("a.py::x"), case_of("a.py::y", outcome="failed"), shard="1/2")
    second = report_with(case_of("b.py::x", outcome="flaky"), shard="2/2")

    cell_results = merge_one(second, first)

    tests = [(case.test, case.shard) for case in cell_results.document.cases]
    assert tests == [("a.py::x", "1/2"), ("a.py::y", "1/2"), ("b.py::x", "2/2")]
    assert cell_results.document.problems == ()
    assert cell_results.shard_count == 2
    assert [case.test for case in cell_results.document.failing] == ["a.py::y"]
    assert not cell_results.passed


def test_a_file_in_two_shards_adds_up() -> None:
    suites = {"t.py": Suite(seconds=2, properties={EXISTING_TESTS: "2"})}
    first = report_with(case_of("t.py::A::x"), shard="1/2", suites=suites)
    second = report_with(case_of("t.py::B::y"), shard="2/2", suites=suites)

    cell_results = merge_one(first, second)

    assert cell_results.passed
    assert cell_results.seconds == 4


def test_a_file_that_failed_as_a_whole_is_no_test_that_is_missing() -> None:
    cell_results = merge_one(report_with(case_of("t.py::x"), case_of("t.py", outcome="crashed"), shard="1/1"))

    assert not cell_results.passed
    assert cell_results.document.problems == ()


def test_origins_are_judged_apart() -> None:
    nightly = ReportOrigin(stage="test_torch", torch_ref="nightly", python="cp312")
    reports = [report_with(case_of(outcome="failed")), report_with(case_of(), origin=nightly)]

    results = {cell_results.origin: cell_results.passed for cell_results in merge_reports(reports)}

    assert results == {nightly: True, TORCH: False}


A_CASE = case_of("a.py::x")
B_CASE = case_of("b.py::x")
A_FILE = {"a.py": Suite(properties={EXISTING_TESTS: "1"})}
B_FILE = {"b.py@gfx942": Suite()}
NINETY_SKIPPED = [case_of(f"t.py::{index}", outcome="skipped") for index in range(90)]
TWO_TESTS = {"t.py": Suite(properties={EXISTING_TESTS: "2"})}


@pytest.mark.parametrize(
    ("reports", "problem"),
    [
        pytest.param([report_with(A_CASE, shard="1/2")], "shard 2/2", id="missing shard"),
        pytest.param(
            [report_with(A_CASE, shard="3/9")], "1/9, 2/9, 4/9 and 5 more", id="many missing shards"
        ),
        pytest.param(
            [report_with(A_CASE, shard="1/1"), report_with(B_CASE, shard="1/1")],
            "shard 1/1 reported 2 times",
            id="shard that ran twice",
        ),
        pytest.param(
            [report_with(A_CASE, shard="1/1"), report_with(B_CASE, shard="1/2")],
            "shards of 1 and of 2",
            id="two counts of shards",
        ),
        pytest.param(
            [report_with(A_CASE, shard="1/2"), report_with(A_CASE, shard="2/2")],
            "a.py::x",
            id="test in two shards",
        ),
        pytest.param(
            [report_with(A_CASE, shard="1/1"), report_with(B_CASE, filename="odd.xml")],
            "odd.xml",
            id="report without a shard",
        ),
        pytest.param(
            [
                report_with(A_CASE, shard="1/2", properties={REQUIRED_FILES: "a.py"}),
                report_with(B_CASE, shard="2/2", properties={REQUIRED_FILES: "a.py b.py"}),
            ],
            "which test files were to run",
            id="two lists of files",
        ),
        pytest.param(
            [
                report_with(A_CASE, shard="1/2", properties={REQUIRED_FILES: "a.py"}),
                report_with(B_CASE, shard="2/2"),
            ],
            "which test files were to run",
            id="report without a list of files",
        ),
        pytest.param(
            [
                report_with(
                    A_CASE, shard="1/2", properties={REQUIRED_FILES: "a.py b.py c.py"}, suites=A_FILE
                ),
                report_with(
                    B_CASE, shard="2/2", properties={REQUIRED_FILES: "a.py b.py c.py"}, suites=B_FILE
                ),
            ],
            "1 of 3 test files did not run: c.py",
            id="file in no shard",
        ),
        pytest.param(
            [report_with(A_CASE, properties={REQUIRED_FILES: ""}, suites=A_FILE)],
            "no test file of the configuration",
            id="configuration without files",
        ),
        pytest.param(
            [report_with(A_CASE, properties={LEFT_OUT: "2 of 3 test files did not run"})],
            "2 of 3 test files",
            id="files left out, in a report of an earlier version",
        ),
        pytest.param(
            [report_with(A_CASE, case_of("t.py::y", outcome="flaky"), properties={MAY_SKIP: "0"})],
            "1 tests were skipped or tried",
            id="flaky test without a rule",
        ),
        pytest.param(
            [report_with(A_CASE, *NINETY_SKIPPED, properties={MAY_SKIP: "50"})],
            "90 tests were skipped or tried",
            id="too many skipped without a rule",
        ),
        pytest.param(
            [report_with(A_CASE, problems=("cut off",), filename="a.xml")], "a.xml: cut off", id="torn report"
        ),
        pytest.param([report_with()], "no test ran", id="no test"),
        pytest.param(
            [report_with(case_of(outcome="skipped"), case_of("t.py::A::y", outcome="xfailed"))],
            "all 2 tests",
            id="only skipped tests",
        ),
        pytest.param(
            [report_with(case_of(), suites=TWO_TESTS, shard="1/1")], "t.py has 2 tests", id="missing test"
        ),
        pytest.param(
            [
                report_with(case_of(), suites=TWO_TESTS, shard="1/2"),
                report_with(case_of(), suites=TWO_TESTS, shard="2/2"),
            ],
            "t.py has 2 tests, and 1 are reported",
            id="one test twice, and another missing",
        ),
    ],
)
def test_results_that_cannot_be_trusted_are_no_pass(reports: Sequence[Report], problem: str) -> None:
    cell_results = merge_one(*reports)

    assert not cell_results.passed
    assert any(problem in text for text in cell_results.document.problems)


def test_reports_of_one_shard_are_attempts_in_their_order() -> None:
    second = report_with(case_of(), timestamp="2026-01-01T00:00:02", filename="a.xml")
    first = report_with(
        case_of(outcome="failed", line="no"), timestamp="2026-01-01T00:00:01", filename="b.xml"
    )

    cell_results = merge_one(second, first)

    (case,) = cell_results.document.cases
    assert cell_results.passed
    assert case.outcome == "flaky"
    assert case.attempts == 2
    assert case.line == "no"


def read_back(report: Report) -> Report:
    """Return a report that was written and read again."""
    return report_of_document(read_junit(write_junit(document_to_write(report))), ReportOrigin())


@pytest.mark.parametrize(
    ("first_cases", "problems"),
    [
        pytest.param([case_of()], (), id="one empty shard"),
        pytest.param([], ("no test ran",), id="two empty shards"),
    ],
)
def test_an_empty_shard_is_no_problem_beside_another(
    first_cases: list[Case], problems: tuple[str, ...]
) -> None:
    first = read_back(report_with(*first_cases, shard="1/2", properties={MAY_SKIP: "0"}))
    second = read_back(report_with(shard="2/2", properties={MAY_SKIP: "0"}))

    assert merge_one(first, second).document.problems == problems


OUTCOMES_OF_TESTS = st.dictionaries(
    st.integers(0, 12).map(lambda number: f"t{number % 3}.py::T::test_{number}"),
    st.sampled_from(OUTCOMES),
    min_size=1,
)


@given(outcomes=OUTCOMES_OF_TESTS, count=st.integers(1, 4), data=st.data())
def test_merging_loses_and_invents_nothing(outcomes: dict[str, Any], count: int, data: st.DataObject) -> None:
    shards: list[list[Case]] = [[] for _index in range(count)]
    for test, outcome in outcomes.items():
        line = "" if outcome == "passed" else "why"
        rule = "a rule" if outcome == "flaky" else ""
        shard = data.draw(st.sampled_from(shards))
        shard.append(case_of(test, outcome=outcome, line=line, rule=rule))
    reports = [
        read_back(report_with(*cases, shard=f"{index}/{count}", properties={MAY_SKIP: "100"}))
        for index, cases in enumerate(shards, start=1)
    ]

    cell_results = merge_one(*data.draw(st.permutations(reports)))

    has_passes = not {"passed", "flaky"}.isdisjoint(outcomes.values())
    has_failures = not FAILING.isdisjoint(outcomes.values())
    assert len(cell_results.document.cases) == len(outcomes)
    assert {case.test: case.outcome for case in cell_results.document.cases} == outcomes
    assert bool(cell_results.document.failing) == has_failures
    assert cell_results.passed == (has_passes and not has_failures)


@given(count=st.integers(2, 6), data=st.data())
def test_no_pass_without_any_one_of_the_shards(count: int, data: st.DataObject) -> None:
    reports = [
        report_with(case_of(f"t{index}.py::x"), shard=f"{index}/{count}") for index in range(1, count + 1)
    ]
    assert merge_one(*reports).passed

    reports.remove(data.draw(st.sampled_from(reports)))

    assert not merge_one(*reports).passed


def test_an_expected_result_that_is_missing_is_a_problem() -> None:
    torch = merge_one(report_with(case_of()))

    first, second = add_missing_results([torch], ["torch-release-2.10-cp312", "smoke-release-2.10-cp312"])

    assert first == torch
    assert second.origin.folder == "smoke-release-2.10-cp312"
    assert not second.passed
