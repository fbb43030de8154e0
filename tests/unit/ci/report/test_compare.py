from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.report import model, page_of
from ci.report.compare import SOUND, Run, compare, history_of, thresholds
from ci.report.facts import read_run
from ci.report.html import render_history
from ci.report.text import history_tables
from core.cli.options import Common
from core.junit import Case, Document, Outcome
from core.run import records
from pytorch_build.test.reports import totals
from pytorch_build.test.results import Origin, Report
from tests.kit import page_runs as samples

GROUP, REF, PYTHON = "gfx900", "nightly", "cp312"
NAME = model.CellName(group=GROUP, torch_ref=REF, python=PYTHON)
TURNS = {"broken": "mended", "failing": "passing", "lost": "gained", "slower": "faster", "larger": "smaller"}
OTHER_WAY = TURNS | {there: here for here, there in TURNS.items()}


def page(
    state: model.State = "passed",
    *,
    seconds: float = 3600,
    passed: int = 90,
    failing: tuple[str, ...] = (),
    failed: int | None = None,
    tested: bool = True,
) -> model.Page:
    """Make a page of one cell with a build and tests."""
    place = f"test_smoke {NAME}"
    counts = (("passed", passed), ("skipped", 7), ("failed", len(failing) if failed is None else failed))
    lines = (
        model.CaseLine(test=one, outcome="failed", line="", text="", cells=(place,), seconds=0)
        for one in failing
    )
    run = model.StageTests(cell=NAME, stage="test_smoke", passed=not failing, totals=counts, seconds=1)
    ended: model.StageState = "ok" if state in SOUND else "failed" if state == "failed" else "missing"
    stages = (model.StageRun(stage="build_torch", state=ended, cause="a.cpp:7: no such type"),)
    return model.Page(
        run_id="1",
        platform="linux",
        cells=(
            model.Cell(name=NAME, state=state, reason=f"it is {state}", stages=stages, line=model.TimeLine()),
        ),
        builds=(model.Build(cell=NAME, stage="build_torch", seconds=seconds),),
        tests=model.RunTests(runs=(run,) if tested else (), failures=tuple(lines)),
    )


def told(before: model.Page, now: model.Page, kind: str = "") -> list[model.Change]:
    return [one for one in compare(before, now) if kind in {"", one.kind}]


def test_builds_and_wheels_are_told_where_they_differ_by_what_the_data_says() -> None:
    least = thresholds().build_seconds
    assert told(page(), page(seconds=3600 * (1 + least.relative) - 1)) == []
    assert told(page(seconds=1), page(seconds=least.absolute)) == []
    (slower,) = told(page(), page(seconds=5000))
    assert slower == model.Change(kind="slower", cell=NAME, what="build_torch", before=3600, now=5000)
    # the time of a build that failed is no measure
    broken = replace(page().builds[0], seconds=99_999, failed=True)
    assert told(page(), replace(page(), builds=(broken,))) == []
    before, now = (page_of(samples.run([GROUP], [REF], [PYTHON], grown=grown)) for grown in (0, 30 << 20))
    larger = told(before, now)
    assert {(one.kind, one.grown) for one in larger} == {("larger", 30 << 20)}
    assert {one.what for one in larger} == {"triton", "torch", "torchaudio", "torchvision", "apex"}


@pytest.mark.parametrize("state", model.STATES)
def test_a_cell_that_is_sound_no_more_is_told_with_the_reason(state: model.State) -> None:
    turned = [] if state in SOUND else [f"it is {state}"]
    assert [one.why for one in told(page(), page(state), "broken")] == turned
    assert [one.why for one in told(page(state), page(), "mended")] == turned
    assert told(page("failed"), page("incomplete")) == []


def test_tests_are_lost_where_fewer_ran_and_where_a_sound_cell_has_none() -> None:
    assert [(one.kind, one.grown) for one in told(page(), page(passed=80))] == [("lost", -10)]
    assert [(one.kind, one.now) for one in told(page(), page("untested", tested=False))] == [("lost", 0)]
    assert told(page(), page("failed", tested=False), "lost") == []


def test_a_test_fails_newly_only_where_it_is_known_that_it_did_not() -> None:
    (one,) = told(page(failing=("a",)), page(failing=("a", "b")), "failing")
    assert (one.cell, one.what, one.before, one.now) == (NAME, "b", "passed", "failed")
    # of 9 failures the record before names one
    assert told(page(failing=("a",), failed=9), page(failing=("a", "b")), "failing") == []
    assert told(page(tested=False), page(failing=("b",)), "failing") == []


pages = st.builds(
    page,
    st.sampled_from(model.STATES),
    seconds=st.floats(min_value=0, max_value=1e6),
    passed=st.integers(min_value=0, max_value=100),
    failing=st.sets(st.sampled_from("abc")).map(lambda found: tuple(sorted(found))),
    failed=st.integers(min_value=0, max_value=3),
    tested=st.booleans(),
)


@given(pages, pages)
def test_the_same_says_nothing_and_the_reverse_says_the_contrary(one: model.Page, other: model.Page) -> None:
    assert told(one, one) == told(other, other) == []
    back = [(OTHER_WAY[found.kind], found.cell, found.what, found.now) for found in told(other, one)]
    assert sorted(map(str, back)) == sorted(
        str((found.kind, found.cell, found.what, found.before)) for found in told(one, other)
    )
    alone = replace(other, cells=(replace(other.cells[0], name=replace(NAME, python="cp313")),))
    assert not {"broken", "mended"} & {found.kind for found in told(one, alone)}


def test_a_page_says_what_differs_from_the_run_before_by_its_records_alone(tmp_path: Path) -> None:
    """Tests of the run before are known without their reports: a record counts and names them."""
    built = samples.build("torch", GROUP, REF, PYTHON)
    inputs = {"files": {one.name: one.sha256 for one in built.files}}

    def run(run_id: str, *outcomes: Outcome) -> Common:
        common = Common(root=tmp_path, run_id=run_id)
        store = common.open_store()
        origin = Origin(stage="test_torch", torch_ref=REF, python=PYTHON, gpu_family=GROUP)
        cases = tuple(
            Case(test=f"test_nn.py::test_{at}", outcome=outcome, seconds=1, file="test_nn.py")
            for at, outcome in enumerate(outcomes)
        )
        report = Report(origin=origin, document=Document(cases=cases))
        status = {"status": "failed", "exit_code": 8} if "failed" in outcomes else {}
        details = {**totals(report), "tests": {"tests": 1, "existing": 1}}
        tested = samples.record("test_torch", GROUP, REF, PYTHON, details=details, inputs=inputs, **status)
        for record in (built, tested):
            records.write(store, common.outputs, GROUP, record)
        return common

    before = read_run(run("1", "passed", "passed", "skipped"), tests=False)
    page = page_of(read_run(run("2", "passed", "failed"), tests=False), before)
    assert [run.totals for run in page_of(before).tests.runs] == [(("passed", 2), ("skipped", 1))]
    assert page.against == "1"
    assert [(one.kind, one.what, one.why) for one in page.changes if one.kind != "broken"] == [
        ("failing", "test_nn.py::test_1", "test_torch")
    ]


def test_a_history_says_since_when_a_cell_fails_what_failed_first_and_what_it_took() -> None:
    states: tuple[model.State, ...] = ("incomplete", "failed", "passed", "failed", "passed")
    whole: list[tuple[Run, model.Page | None]] = [
        (Run(run_id=str(9 - at), address="../9"), page(state)) for at, state in enumerate(states)
    ]
    whole[2] = (Run(run_id="7", problems=("7-linux/manifests: <b>no JSON</b>",)), None)
    history = history_of("linux", whole)
    (line,) = history.lines
    assert (line.since, line.good, line.points[2]) == (3, 4, None)
    assert [one and one.seconds for one in line.points] == [None, None, None, None, 3600]
    assert line.points[3] is not None
    assert line.points[3].why == "build_torch: a.cpp:7: no such type"
    assert [[one.kind for one in run.changes] for run in history.runs[2:4]] == [[], ["broken"]]
    _, cells = history_tables(history)
    assert cells.rows == ((str(NAME), "incomplete", "6", "5", "build_torch: a.cpp:7: no such type"),)
    text = render_history(history)
    assert text == render_history(history)
    assert "&lt;b&gt;no JSON" in text
    assert f'href="../9#{NAME.anchor}"' in text
    assert render_history(history_of("linux", whole[2:3])).count("<article") == 0
