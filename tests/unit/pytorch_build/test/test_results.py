from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import junit
from core.junit import OUTCOMES, Case, Document, Suite, read
from pytorch_build.test.results import (
    EXISTING,
    LEFT_OUT,
    MAY_SKIP,
    Origin,
    Report,
    document_of,
    merged,
    report_of,
)
from pytorch_build.test.shards import Shard

TORCH = Origin(
    stage="test_torch", torch_ref="release/2.10", python="cp312", gpu_family="gfx110X-all", run_id="17"
)


def case(test: str = "t.py::A::x", outcome: Any = "passed", **facts: Any) -> Case:
    facts = {"file": test.partition("::")[0], **facts}
    return Case(test=test, outcome=outcome, **facts)


def report(*cases: Case, shard: str = "", suites: Mapping[str, Suite] | None = None, **facts: Any) -> Report:
    index, _, count = shard.partition("/")
    stamp = facts.pop("timestamp", "")
    problems, properties = facts.pop("problems", ()), facts.pop("properties", {})
    return Report(
        origin=facts.pop("origin", TORCH),
        document=Document(
            cases=cases, suites=suites or {}, problems=problems, timestamp=stamp, properties=properties
        ),
        shard=Shard(index=int(index), count=int(count)) if shard else None,
        **facts,
    )


def test_names_of_reports() -> None:
    assert TORCH.name == "torch-release-2.10-cp312"
    assert Origin(stage="test_torch", python="cp312", config="default").name == "torch-cp312"
    assert Origin(stage="test_torch", torch_ref="nightly", config="inductor").name == "torch-nightly-inductor"
    assert str(TORCH) == "test_torch release/2.10 gfx110X-all cp312"


def test_shards_are_merged() -> None:
    first = report(case("a.py::x"), case("a.py::y", "failed"), shard="1/2")
    second = report(case("b.py::x", "flaky"), shard="2/2")
    (tested,) = merged([second, first])
    expected = [("a.py::x", "1/2"), ("a.py::y", "1/2"), ("b.py::x", "2/2")]
    assert [(one.test, shard) for one, shard in tested.cases] == expected
    assert tested.problems == ()
    assert tested.shards == 2
    assert [one.test for one, _ in tested.failing] == ["a.py::y"]
    assert not tested.passed
    # a file in two shards adds up, and one that failed as a whole is not a test
    whole = {"t.py": Suite(seconds=2, properties={EXISTING: "2"})}
    first = report(case("t.py::A::x"), shard="1/2", suites=whole)
    (tested,) = merged([first, report(case("t.py::B::y"), shard="2/2", suites=whole)])
    assert (tested.passed, tested.seconds) == (True, 4)
    (tested,) = merged([report(case("t.py::x"), case("t.py", "crashed"), shard="1/1")])
    assert (tested.passed, tested.problems) == (False, ())
    # cells are kept apart
    other = Origin(stage="test_torch", torch_ref="nightly", python="cp312")
    cells = merged([report(case(outcome="failed")), report(case(), origin=other)])
    assert [(one.origin, one.passed) for one in cells] == [(other, True), (TORCH, False)]


A, B = case("a.py::x"), case("b.py::x")
SKIPPED = [case(f"t.py::{at}", "skipped") for at in range(90)]
TWO = {"t.py": Suite(properties={EXISTING: "2"})}


@pytest.mark.parametrize(
    ("reports", "problem"),
    [
        ([report(A, shard="1/2")], "no report of shard 2/2"),
        ([report(A, shard="3/9")], "no report of shard 1/9, 2/9, 4/9 and 5 more"),
        ([report(A, shard="1/1"), report(B, shard="1/1")], "shard 1/1 reported 2 times"),
        ([report(A, shard="1/1"), report(B, shard="1/2")], "shards of 1 and of 2"),
        ([report(A, shard="1/2"), report(A, shard="2/2")], "a.py::x ran in more than one shard"),
        ([report(A, shard="1/1"), report(B, where="odd.xml")], "odd.xml names no shard"),
        ([report(A, shard="1/2", plan="p"), report(B, shard="2/2", plan="q")], "from different durations"),
        ([report(A, properties={LEFT_OUT: "2 of 3 test files did not run"})], "2 of 3 test files"),
        ([report(A, case("t.py::y", "flaky"), properties={MAY_SKIP: "0"})], "1 tests were skipped or tried"),
        ([report(A, *SKIPPED, properties={MAY_SKIP: "50"})], "90 tests were skipped or tried again by no"),
        ([report(A, problems=("cut off",), where="a.xml")], "a.xml: cut off"),
        ([report()], "no test ran"),
        ([report(case(outcome="skipped"), case("t.py::A::y", "xfailed"))], "all 2 tests were skipped"),
        ([report(case(), suites=TWO, shard="1/1")], "t.py has 2 tests, and 1 are reported"),
    ],
)
def test_what_is_no_pass_is_told(reports: Sequence[Report], problem: str) -> None:
    (tested,) = merged(reports)
    assert not tested.passed
    assert any(problem in said for said in tested.problems)


def test_reports_of_one_shard_are_attempts_in_their_order() -> None:
    second = report(case(outcome="passed"), timestamp="2026-01-01T00:00:02", where="a.xml")
    first = report(case(outcome="failed", line="no"), timestamp="2026-01-01T00:00:01", where="b.xml")
    (tested,) = merged([second, first])
    assert [(one.outcome, one.attempts, one.line) for one, _ in tested.cases] == [("flaky", 2, "no")]
    assert tested.passed


def test_what_a_report_says_of_its_shard_survives_being_written() -> None:
    def again(one: Report) -> Report:
        return report_of(read(junit.write(document_of(one))), Origin())

    empty = again(report(shard="2/2", properties={MAY_SKIP: "0"}))
    (tested,) = merged([again(report(case(), shard="1/2")), empty])
    assert tested.passed
    (tested,) = merged([again(report(shard="1/2", properties={MAY_SKIP: "0"})), empty])
    assert tested.problems == ("no test ran",)
    one = report(case(), shard="2/6", plan="abc")
    read_back = again(one)
    assert read_back.origin == TORCH
    assert (read_back.shard, read_back.plan) == (one.shard, "abc")
    said = Document(cases=(case(),), properties={"shard": "7/6"})
    (tested,) = merged([report_of(said, TORCH)])
    assert tested.problems == ("it names '7/6' as its shard",)
    # ROCm's reports name no stage, and a whole version of Python
    rocm = Document(cases=(case(),), properties={"python": "3.12.1"})
    assert report_of(rocm, Origin(stage="test_rocm", python="cp312")).origin.python == "cp312"


RESULTS = st.dictionaries(
    st.integers(0, 30).map(lambda at: f"t{at % 3}.py::T::test_{at}"), st.sampled_from(OUTCOMES), min_size=1
)


@given(results=RESULTS, count=st.integers(1, 5), data=st.data())
def test_merging_loses_and_invents_nothing(results: dict[str, Any], count: int, data: st.DataObject) -> None:
    shards: list[list[Case]] = [[] for _ in range(count)]
    for test, outcome in results.items():
        at = data.draw(st.integers(0, count - 1))
        rule = "a rule" if outcome == "flaky" else ""
        shards[at].append(case(test, outcome, line="" if outcome == "passed" else "why", rule=rule))
    reports = [
        report(*cases, shard=f"{at}/{count}", properties={MAY_SKIP: "100"})
        for at, cases in enumerate(shards, start=1)
    ]
    written = [report_of(read(junit.write(document_of(one))), Origin()) for one in reports]
    (tested,) = merged(data.draw(st.permutations(written)))
    assert {one.test: one.outcome for one, _ in tested.cases} == results
    assert len(tested.cases) == len(results)
    good = {"passed", "flaky"} & set(results.values())
    bad = {one for one in results.values() if one in junit.FAILING}
    assert bool(tested.failing) == bool(bad)
    assert tested.passed == (bool(good) and not bad)
    # without any one of them, it is no pass
    (less,) = merged(written[1:]) if count > 1 else (tested,)
    assert count == 1 or not less.passed
