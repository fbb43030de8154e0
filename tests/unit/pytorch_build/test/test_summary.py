import json
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from core import console
from core.junit import Case
from pytorch_build.test import summary
from pytorch_build.test.results import Origin, Tested
from pytorch_build.test.summary import command, expression
from tests.unit.pytorch_build.test.test_results import case

TORCH = Origin(
    stage="test_torch",
    torch_ref="release/2.10",
    python="cp312",
    gpu_family="gfx110X-all",
    run_id="17123441166",
)
ANY = st.text(st.characters(codec="utf-8"), max_size=60)


def results(*cases: Case, **facts: Any) -> Tested:
    return Tested(origin=TORCH, cases=tuple((one, "2/6") for one in cases), **facts)


def rendered(markdown: str) -> str:
    return str(MarkdownIt("commonmark").enable("table").render(markdown))


@pytest.mark.parametrize(
    ("origin", "test", "expected"),
    [
        (
            TORCH,
            "test/test_nn.py::TestNN::test_x",
            "--torch-ref release/2.10 --gpu-family gfx110X-all --include test_nn -k 'TestNN and test_x'",
        ),
        (TORCH, "test/test_nn.py@gfx942::TestNN::test_x", "--include test_nn -k 'TestNN and test_x'"),
        (TORCH, "test/dynamo/test_misc.py", "--gpu-family gfx110X-all --include dynamo/test_misc"),
        (
            Origin(stage="test_torch", config="distributed"),
            "test/distributed/test_c10d.py::T::x",
            "nox -s test_torch -- --config distributed --include distributed/test_c10d -k 'T and x'",
        ),
        (
            Origin(stage="test_smoke", torch_ref="nightly", python="cp313t", run_id="17"),
            "test_torch.py::test_matmul[float16]",
            "nox -s test_smoke -P 3.13t -- --run-id 17 --torch-ref nightly -k 'test_matmul[float16]' --force",
        ),
        (
            Origin(stage="test_rocm", python="cp312", gpu_family="gfx942", run_id="17"),
            "rocm_sdk.core::files are there",
            "nox -s test_rocm -P 3.12 -- --run-id 17 --gpu-family gfx942 --force",
        ),
        (Origin(folder="somewhere"), "t.py::x", ""),
    ],
)
def test_the_command_that_runs_a_failure_again(origin: Origin, test: str, expected: str) -> None:
    assert command(origin, case(test, "failed")).endswith(expected)


@pytest.mark.parametrize(
    ("test", "expected"),
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
def test_expressions_hold_what_they_can(test: str, expected: str) -> None:
    assert expression(case(test)) == expected


@given(ANY)
def test_a_name_cannot_leave_its_command(name: str) -> None:
    words = shlex.split(command(TORCH, case(f"test/test_nn.py::T::{name}", "failed")))
    assert words[:3] == ["nox", "-s", "test_torch"]
    assert len(words) <= 16


def test_failures_come_first_with_why_and_how() -> None:
    bad = case(outcome="failed", line="AssertionError: <b>no</b> | `x`", seconds=2)
    slow = case("test/test_a.py::T::slow", seconds=90)
    rule = "nn.slow: It is *slow* (ROCm/TheRock#1)"
    flaky = case("test/test_a.py::T::flaky", "flaky", attempts=2, line="once", rule=rule)
    whole = [results(slow, bad, flaky, problems=("no report of shard 3/6",), seconds=123, shards=6)]
    text = summary.markdown(whole, title="Tests of run 17")
    assert text.startswith("### Tests of run 17: 1 failed, 1 problem with the reports, 2 passed\n")
    order = ["no report of shard", "#### Failures", "AssertionError", "nox -s test_torch", "#### Flaky"]
    places = [rendered(text).replace("<h4>", "#### ").index(word) for word in order]
    assert places == sorted(places)
    page = rendered(text)
    assert "<td>2</td>" in page
    assert rule in page
    assert "<code>AssertionError: &lt;b&gt;no&lt;/b&gt; | `x`</code>" in page
    assert page.count("<table>") == 2


def test_a_pass_says_so() -> None:
    page = rendered(summary.markdown([results(case("t.py::x[a|b]", "flaky"))], title="T"))
    assert "<td><code>t.py::x[a|b]</code></td>" in page
    text = summary.markdown([results(case(seconds=0.9), seconds=1)], title="Tests")
    assert text.startswith("### Tests: 1 passed\n")
    assert "Failures" not in text
    assert "cannot be trusted" not in text


@given(st.lists(st.tuples(ANY, ANY, st.sampled_from(["failed", "flaky", "crashed", "passed"])), max_size=4))
def test_no_text_breaks_the_page(entries: list[tuple[str, str, Any]]) -> None:
    cases = [case(f"t.py::{name}", outcome, line=line, seconds=1) for name, line, outcome in entries]
    page = rendered(summary.markdown([results(*cases, problems=("p",))], title="T"))
    outcomes = [outcome for _, _, outcome in entries]
    failing = sum(outcome in {"failed", "crashed"} for outcome in outcomes)
    assert page.count("<li>") == 1 + failing
    assert page.count("<pre>") == failing
    assert page.count("<table>") == 1 + ("flaky" in outcomes)
    assert "<script" not in page
    assert "<img" not in page


@given(ANY)
def test_code_is_code(value: str) -> None:
    page = rendered(f"x {summary.code(value)} y | z")
    assert page.count("<code>") == 1
    assert page.endswith("</code> y | z</p>\n")


def test_thousands_of_failures_fit() -> None:
    cases = [case(f"t.py::T::test_{at}_{'x' * 300}", "failed", line="y" * 300) for at in range(5000)]
    text = summary.markdown([results(*cases)], title="T")
    assert len(text.encode()) < console.SUMMARY_LIMIT
    assert f"and {5000 - summary.MOST_FAILURES} more failures" in text
    assert text.startswith("### T: 5000 failed")


def test_the_data_of_a_run() -> None:
    cases = (
        case(outcome="failed", line="no", text="all of it", seconds=1.23456),
        case("a.py::f", "flaky", attempts=2, rule="nn.slow: Why."),
        case("a.py::s", "skipped", line="no GPU"),
    )
    made = summary.data("17", [results(*cases)])
    found = json.loads(made.model_dump_json())
    assert (found["run_id"], found["passed"], found["schema_version"]) == ("17", False, 1)
    (entry,) = found["tests"]
    assert (entry["stage"], entry["gpu_family"], entry["totals"]["failed"]) == (
        "test_torch",
        "gfx110X-all",
        1,
    )
    (failure,) = entry["failures"]
    assert failure["command"].startswith("nox -s test_torch")
    assert (failure["text"], failure["shard"], failure["seconds"]) == ("all of it", "2/6", 1.235)
    assert [(one["attempts"], one["rule"]) for one in entry["flaky"]] == [(2, "nn.slow: Why.")]
    assert entry["skipped"] == {"a.py::s": "no GPU"}
    assert not summary.data("17", []).passed
