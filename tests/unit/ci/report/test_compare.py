from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.report import page_of
from ci.report.compare import SOUND, compare, thresholds
from ci.report.facts import read_run
from ci.report.model import (
    Build,
    Cell,
    CellName,
    Change,
    Comparison,
    Page,
    TestLine,
    TestRun,
    Tests,
    TimeLine,
)
from core.cli.options import Common
from core.junit import Case, Document
from core.run import records
from pytorch_build.test.reports import put_report, totals
from pytorch_build.test.results import Origin, Report
from tests import page_samples as samples

if TYPE_CHECKING:
    from pathlib import Path

    from ci.report.model import State
    from core.junit import Outcome

GROUP, REF, PYTHON = "gfx900", "nightly", "cp312"
NAME = CellName(group=GROUP, torch_ref=REF, python=PYTHON)
SAME = Comparison(against="1")
PAIRS = {"broken": "mended", "slower": "faster", "larger": "smaller", "lost": "gained", "failing": "passing"}
TURNED = PAIRS | {there: here for here, there in PAIRS.items()}
STATES: tuple[State, ...] = ("passed", "untested", "incomplete", "interrupted", "unreadable", "failed")


def page(
    *,
    state: State = "passed",
    seconds: float = 3600,
    passed: int = 90,
    failing: tuple[str, ...] = (),
    **more: Any,
) -> Page:
    """Make a page of one cell with a build and tests."""
    place = f"test_smoke {NAME}"
    counts = (("passed", passed), ("skipped", 7), ("failed", more.get("failed", len(failing))))
    lines = (
        TestLine(test=one, outcome="failed", line="", text="", cells=(place,), seconds=0) for one in failing
    )
    run = TestRun(cell=NAME, stage="test_smoke", passed=not failing, totals=counts, seconds=1)
    return Page(
        run_id="1",
        platform="linux",
        cells=(Cell(name=NAME, state=state, reason=f"it is {state}", stages=(), line=TimeLine()),),
        builds=(Build(cell=NAME, stage="build_torch", seconds=seconds),),
        tests=Tests(runs=(run,) if more.get("tested", True) else (), failures=tuple(lines)),
    )


def told(now: Page, before: Page) -> dict[str, Any]:
    found = compare(now, before)
    return {
        one.name: value
        for one in fields(found)
        if one.name != "against" and (value := getattr(found, one.name))
    }


def test_builds_and_wheels_are_told_where_they_differ_by_more_than_the_data_says() -> None:
    least = thresholds().build_seconds
    assert told(page(seconds=3600 * (1 + least.relative) - 1), page()) == {}
    assert told(page(seconds=least.absolute), page(seconds=1)) == {}
    (slower,) = told(page(seconds=5000), page())["slower"]
    assert slower == Change(cell=NAME, what="build_torch", before=3600, now=5000)
    before, now = (page_of(samples.run([GROUP], [REF], [PYTHON], grown=grown)) for grown in (0, 30 << 20))
    larger = told(now, before)["larger"]
    assert {one.grown for one in larger} == {30 << 20}
    assert {one.what for one in larger} == {"triton", "torch", "torchaudio", "torchvision", "apex"}


def test_a_build_that_failed_is_not_compared_by_its_time() -> None:
    broken = replace(page().builds[0], seconds=99_999, failed=True)
    assert told(replace(page(), builds=(broken,)), page()) == {}


@pytest.mark.parametrize("state", STATES)
def test_a_cell_that_is_sound_no_more_is_told_with_the_reason(state: State) -> None:
    assert [one.why for one in compare(page(state=state), page()).broken] == (
        [] if state in SOUND else [f"it is {state}"]
    )
    assert [(one.before, one.now, one.why) for one in compare(page(), page(state=state)).mended] == (
        [] if state in SOUND else [(state, "passed", f"it is {state}")]
    )
    assert "broken" not in told(page(state="failed"), page(state=state if state not in SOUND else "failed"))


def test_tests_are_lost_where_fewer_ran_and_where_a_sound_cell_has_none() -> None:
    (lost,) = told(page(passed=80), page())["lost"]
    assert (lost.what, lost.before, lost.now) == ("test_smoke", 90, 80)
    (lost,) = told(page(tested=False, state="untested"), page())["lost"]
    assert lost.now == 0
    assert "lost" not in told(page(tested=False, state="failed"), page())


def test_a_test_fails_newly_only_where_it_is_known_that_it_did_not() -> None:
    (one,) = told(page(failing=("a", "b")), page(failing=("a",)))["failing"]
    assert one == Change(cell=NAME, what="b", before="passed", now="failed", why="test_smoke")
    # of 9 failures the record before names one
    assert "failing" not in told(page(failing=("a", "b")), page(failing=("a",), failed=9))
    assert "failing" not in told(page(failing=("b",)), page(tested=False))


def test_cells_of_one_run_alone_are_no_change() -> None:
    other = replace(page(state="failed").cells[0], name=replace(NAME, python="cp313"))
    assert told(replace(page(), cells=(*page().cells, other)), page()) == {}


pages = st.builds(
    page,
    state=st.sampled_from(STATES),
    seconds=st.floats(min_value=0, max_value=1e6),
    passed=st.integers(min_value=0, max_value=100),
    failing=st.sets(st.sampled_from("abc")).map(lambda found: tuple(sorted(found))),
    failed=st.integers(min_value=0, max_value=3),
    tested=st.booleans(),
)


@given(pages, pages)
def test_the_same_says_nothing_and_the_other_way_round_says_the_contrary(one: Page, other: Page) -> None:
    assert compare(one, one) == compare(other, other) == SAME
    there, back = told(one, other), told(other, one)
    assert {TURNED[name] for name in there} == set(back)
    for name in there:
        assert len(there[name]) == len(back[TURNED[name]])
        assert {getattr(one, "cell", "") for one in there[name]} == {
            getattr(one, "cell", "") for one in back[TURNED[name]]
        }


def test_a_page_says_what_differs_from_the_run_before_by_its_records_alone(tmp_path: Path) -> None:
    """Tests of the run before are known without their reports: a record counts and names them."""

    built = samples.build("torch", GROUP, REF, PYTHON)
    inputs = {"files": {one.name: one.sha256 for one in built.files}}

    def run(run_id: str, *outcomes: Outcome) -> Common:
        common = Common(root=tmp_path, run_id=run_id)
        for at, outcome in enumerate(outcomes, 1):
            origin = Origin(stage="test_torch", torch_ref=REF, python=PYTHON, gpu_family=GROUP)
            case = Case(test=f"test_nn.py::test_{at}", outcome=outcome, seconds=1, file="test_nn.py")
            report = Report(origin=origin, document=Document(cases=(case,)))
            put_report(common.open_store(), common.outputs, GROUP, report)
            status = {"status": "failed", "exit_code": 8} if case.failing else {}
            stage = f"test_torch-{at}-of-{len(outcomes)}"
            record = samples.record(
                stage, GROUP, REF, PYTHON, details=totals(report), inputs=inputs, **status
            )
            records.write(common.open_store(), common.outputs, GROUP, record)
        records.write(common.open_store(), common.outputs, GROUP, built)
        return common

    before = read_run(run("1", "passed", "passed", "skipped"), tests=False)
    now = read_run(run("2", "passed", "failed"), tests=False)
    changes = page_of(now, before).changes
    assert changes is not None
    assert [(one.cell, one.what, one.why) for one in changes.failing] == [
        (NAME, "test_nn.py::test_2", "test_torch")
    ]
    assert (changes.against, changes.lost, changes.gained) == ("1", (), ())
    assert [run.totals for run in page_of(before).tests.runs] == [(("passed", 2), ("skipped", 1))]
