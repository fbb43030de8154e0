import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from core import console
from core.shell import command_line
from pytorch_build.test import summary
from pytorch_build.test.cell_results import CellResults
from pytorch_build.test.junit.document import Case, Document
from pytorch_build.test.report import ReportOrigin
from pytorch_build.test.summary import pytest_expression, repeating_command
from tests.kit.torch_results import case_of

TORCH = ReportOrigin(
    stage="test_torch",
    torch_ref="release/2.10",
    python="cp312",
    gpu_family="gfx110X-all",
    run_id="17123441166",
)
ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=20)


def results_of(*cases: Case, problems: tuple[str, ...] = (), seconds: float = 0.0) -> CellResults:
    """Return the results of a shard of six."""
    cases_of_shard = tuple(replace(case, shard="2/6") for case in cases)
    document = Document(cases=cases_of_shard, problems=problems)
    return CellResults(origin=TORCH, document=document, seconds=seconds, shard_count=6)


def render(markdown: str) -> str:
    """Return the page that a viewer makes of Markdown."""
    return str(MarkdownIt("commonmark").enable("table").render(markdown))


@pytest.mark.parametrize(
    ("origin", "test", "end_of_command"),
    [
        pytest.param(
            TORCH,
            "test/test_nn.py::TestNN::test_x",
            "--torch-ref release/2.10 --gpu-family gfx110X-all --include test_nn -k 'TestNN and test_x'",
            id="torch",
        ),
        pytest.param(
            TORCH,
            "test/test_nn.py@gfx942::TestNN::test_x",
            "--include test_nn -k 'TestNN and test_x'",
            id="one of several architectures",
        ),
        pytest.param(
            TORCH,
            "test/dynamo/test_misc.py",
            "--gpu-family gfx110X-all --include dynamo/test_misc",
            id="whole file",
        ),
        pytest.param(
            ReportOrigin(stage="test_torch", config="distributed"),
            "test/distributed/test_c10d.py::T::x",
            "nox -s test_torch -- --config distributed --include distributed/test_c10d -k 'T and x'",
            id="configuration",
        ),
        pytest.param(
            ReportOrigin(stage="test_smoke", torch_ref="nightly", python="cp313t", run_id="17"),
            "test_torch.py::test_matmul[float16]",
            "nox -s test_smoke -P 3.13t -- --run-id 17 --torch-ref nightly -k 'test_matmul[float16]' --force",
            id="smoke test",
        ),
        pytest.param(
            ReportOrigin(stage="test_rocm", python="cp312", gpu_family="gfx942", run_id="17"),
            "rocm_sdk.core::files are there",
            "nox -s test_rocm -P 3.12 -- --run-id 17 --gpu-family gfx942 --force",
            id="ROCm",
        ),
        pytest.param(ReportOrigin(folder="somewhere"), "t.py::x", "", id="unknown origin"),
    ],
)
def test_a_failure_has_the_command_that_runs_it_again(
    origin: ReportOrigin, test: str, end_of_command: str
) -> None:
    command = repeating_command(origin, case_of(test, outcome="failed"))

    # Windows quotes words in another way.
    assert command.endswith(command_line(shlex.split(end_of_command)))


@pytest.mark.parametrize(
    ("test", "expected_expression"),
    [
        ("t.py::T::x", "T and x"),
        ("t.py::x[a-b.c]", "x[a-b.c]"),
        ("t.py::x[a b]", "x"),
        ("t.py::x['; rm -rf ~]", "x"),
        ("t.py::x[a::b]", "x[a::b]"),
        ("t.py", ""),
        ("t.py::or::x", "x"),
    ],
)
def test_an_expression_names_a_test_without_what_pytest_would_misread(
    test: str, expected_expression: str
) -> None:
    assert pytest_expression(case_of(test)) == expected_expression


@given(ANY_TEXT)
def test_a_name_cannot_leave_its_command(name: str) -> None:
    case = case_of(f"test/test_nn.py::T::{name}", outcome="failed")

    command = shlex.split(repeating_command(TORCH, case))

    assert command[:3] == ["nox", "-s", "test_torch"]
    assert len(command) <= 16


FAILURE = case_of(outcome="failed", line="AssertionError: <b>no</b> | `x`", seconds=2)
FLAKY_RULE = "nn.slow: It is *slow* (ROCm/TheRock#1)"
FLAKY = case_of("test/test_a.py::T::flaky", outcome="flaky", attempts=2, line="once", rule=FLAKY_RULE)


def test_failures_come_before_flaky_tests() -> None:
    slow = case_of("test/test_a.py::T::slow", seconds=90)
    results = results_of(slow, FAILURE, FLAKY, problems=("no report of shard 3/6",), seconds=123)

    text = summary.markdown([results], title="Tests of run 17")

    order = ["no report of shard", "#### Failures", "AssertionError", "nox -s test_torch", "#### Flaky"]
    positions = [text.index(part) for part in order]
    assert text.startswith("### Tests of run 17: 1 failed, 1 problem with the reports, 2 passed\n")
    assert positions == sorted(positions)


def test_a_page_shows_messages_attempts_and_rules_as_they_are() -> None:
    page = render(summary.markdown([results_of(FAILURE, FLAKY)], title="T"))

    assert "<code>AssertionError: &lt;b&gt;no&lt;/b&gt; | `x`</code>" in page
    assert "<td>2</td>" in page
    assert FLAKY_RULE in page
    assert page.count("<table>") == 2


def test_a_flaky_test_keeps_its_name_in_a_table() -> None:
    page = render(summary.markdown([results_of(case_of("t.py::x[a|b]", outcome="flaky"))], title="T"))

    assert "<td><code>t.py::x[a|b]</code></td>" in page


def test_a_pass_has_no_list_of_failures() -> None:
    text = summary.markdown([results_of(case_of(seconds=0.9), seconds=1)], title="Tests")

    assert text.startswith("### Tests: 1 passed\n")
    assert "Failures" not in text
    assert "cannot be trusted" not in text


@given(
    st.lists(
        st.tuples(ANY_TEXT, ANY_TEXT, st.sampled_from(["failed", "flaky", "crashed", "passed"])), max_size=3
    )
)
def test_no_text_breaks_the_page(texts: list[tuple[str, str, Any]]) -> None:
    cases = [case_of(f"t.py::{name}", outcome=outcome, line=line, seconds=1) for name, line, outcome in texts]

    page = render(summary.markdown([results_of(*cases, problems=("p",))], title="T"))

    outcomes = [case.outcome for case in cases]
    failures = outcomes.count("failed") + outcomes.count("crashed")
    tables = 2 if "flaky" in outcomes else 1
    assert page.count("<li>") == 1 + failures
    assert page.count("<pre>") == failures
    assert page.count("<table>") == tables
    assert "<script" not in page
    assert "<img" not in page


@given(ANY_TEXT)
def test_any_text_may_be_code(text: str) -> None:
    page = render(f"x {summary.as_code(text)} y | z")

    assert page.count("<code>") == 1
    assert page.endswith("</code> y | z</p>\n")


def test_a_page_of_thousands_of_failures_fits() -> None:
    count = summary.MOST_FAILURES + 1000
    cases = [
        case_of(f"t.py::T::test_{index}_{'x' * 300}", outcome="failed", line="y" * 3000)
        for index in range(count)
    ]

    text = summary.markdown([results_of(*cases)], title="T")

    assert len(text.encode()) < console.SUMMARY_LIMIT
    assert text.startswith(f"### T: {count} failed")
    assert "and 1000 more failures" in text


def summary_data(*results: CellResults) -> dict[str, Any]:
    """Return the summary of a run, as JSON has it."""
    document = summary.summary_data("17", results).model_dump_json()
    data: dict[str, Any] = json.loads(document)
    return data


def test_the_data_of_a_run_has_its_totals() -> None:
    data = summary_data(results_of(FAILURE))

    (entry,) = data["tests"]
    assert data["schema_version"] == 1
    assert data["run_id"] == "17"
    assert data["passed"] is False
    assert entry["stage"] == "test_torch"
    assert entry["gpu_family"] == "gfx110X-all"
    assert entry["totals"]["failed"] == 1


def test_the_data_of_a_failure_says_why_and_how_to_repeat_it() -> None:
    data = summary_data(results_of(case_of(outcome="failed", line="no", text="all of it", seconds=1.23456)))

    (failure,) = data["tests"][0]["failures"]
    assert failure["command"].startswith("nox -s test_torch")
    assert failure["text"] == "all of it"
    assert failure["shard"] == "2/6"
    assert failure["seconds"] == 1.235


def test_the_data_of_a_run_names_flaky_and_skipped_tests() -> None:
    skipped = case_of("a.py::s", outcome="skipped", line="no GPU")

    (entry,) = summary_data(results_of(FLAKY, skipped))["tests"]

    (flaky,) = entry["flaky"]
    assert flaky["attempts"] == 2
    assert flaky["rule"] == FLAKY_RULE
    assert entry["skipped"] == {"a.py::s": "no GPU"}


def test_a_run_without_tests_has_not_passed() -> None:
    assert summary_data()["passed"] is False
