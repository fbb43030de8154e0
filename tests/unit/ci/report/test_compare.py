"""What differs between two runs, and what the last runs of a store have in common."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.report import model, page_of
from ci.report.compare import SOUND, Run, compare, history_of, thresholds
from ci.report.facts import RunFacts, read_run
from ci.report.html import render_history
from ci.report.text import history_tables
from core.cli.options import Common
from core.junit import Case, Document, Outcome
from core.run import records
from pytorch_build.test.reports import details_of
from pytorch_build.test.results import Origin, Report
from tests.kit import page_runs
from tests.kit.group_cells import group_cell

GROUP, REF, PYTHON = CELL = ("gfx900", "nightly", "cp312")
CELL_NAME = group_cell(artifact_group=GROUP, torch_ref=REF, python_tag=PYTHON)

MEBIBYTE = 1 << 20

# What a change is called where the two runs are swapped.
OPPOSITES = {
    "broken": "mended",
    "failing": "passing",
    "lost": "gained",
    "slower": "faster",
    "larger": "smaller",
}
OPPOSITES |= {opposite: kind for kind, opposite in OPPOSITES.items()}


def state_of_build(state: model.State) -> model.StageState:
    """Return how the build of a cell ended."""
    if state in SOUND:
        return "ok"
    return "failed" if state == "failed" else "missing"


def page(
    state: model.State = "passed",
    *,
    seconds: float = 3600,
    passed: int = 90,
    failing: Sequence[str] = (),
    failed: int | None = None,
    tested: bool = True,
) -> model.Page:
    """Return the page of one cell with a build and tests.

    `failing` are the failed tests that it names, and `failed` how many there were, if more.
    """
    failures = tuple(
        model.CaseLine(
            test=test,
            outcome="failed",
            line="",
            text="",
            cells=(f"test_smoke {model.cell_text(CELL_NAME)}",),
            seconds=0,
        )
        for test in failing
    )
    tests = model.StageTests(
        cell=CELL_NAME,
        stage="test_smoke",
        passed=not failing,
        totals=(
            ("passed", passed),
            ("skipped", 7),
            ("failed", len(failing) if failed is None else failed),
        ),
        seconds=1,
    )
    build = model.StageRun(stage="build_torch", state=state_of_build(state), cause="a.cpp:7: no such type")
    cell = model.Progress(
        name=CELL_NAME, state=state, reason=f"it is {state}", stages=(build,), line=model.TimeLine()
    )
    return model.Page(
        run_id="1",
        platform="linux",
        cells=(cell,),
        builds=(model.Build(cell=CELL_NAME, stage="build_torch", seconds=seconds),),
        tests=model.RunTests(runs=(tests,) if tested else (), failures=failures),
    )


def changes_of_kind(before: model.Page, now: model.Page, kind: model.Kind) -> list[model.Change]:
    return [change for change in compare(before, now) if change.kind == kind]


# --- Builds and wheels -----------------------------------------------------------------------


def test_a_build_is_not_slower_up_to_the_thresholds_of_the_data() -> None:
    threshold = thresholds().build_seconds
    little_slower = page(seconds=3600 * (1 + threshold.relative) - 1)

    assert compare(page(), little_slower) == ()
    # A build of a second may take many times as long.
    assert compare(page(seconds=1), page(seconds=threshold.absolute)) == ()


def test_a_slower_build_is_a_change() -> None:
    (change,) = compare(page(), page(seconds=5000))

    assert change == model.Change(kind="slower", cell=CELL_NAME, what="build_torch", before=3600, now=5000)


def test_the_time_of_a_failed_build_is_not_compared() -> None:
    failed_build = replace(page().builds[0], seconds=99_999, failed=True)

    assert compare(page(), replace(page(), builds=(failed_build,))) == ()


def test_larger_wheels_are_changes() -> None:
    before = page_of(page_runs.make_run([GROUP], [REF], [PYTHON]))
    now = page_of(page_runs.make_run([GROUP], [REF], [PYTHON], grown=30 * MEBIBYTE))

    changes = compare(before, now)

    assert {(change.kind, change.grown) for change in changes} == {("larger", 30 * MEBIBYTE)}
    distributions = {"triton", "torch", "torchaudio", "torchvision", "apex"}
    assert {change.what for change in changes} == distributions


# --- Cells and tests -------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(set(model.STATES) - SOUND))
def test_a_cell_that_lacks_something_now_is_broken(state: model.State) -> None:
    (change,) = changes_of_kind(page(), page(state), "broken")

    assert change.why == f"it is {state}"


@pytest.mark.parametrize("state", sorted(set(model.STATES) - SOUND))
def test_a_cell_that_lacked_something_before_is_mended(state: model.State) -> None:
    (change,) = changes_of_kind(page(state), page(), "mended")

    assert change.why == f"it is {state}"


@pytest.mark.parametrize("state", sorted(SOUND))
def test_a_cell_that_stays_sound_is_no_change(state: model.State) -> None:
    assert compare(page(), page(state)) == ()


def test_a_cell_that_is_broken_in_another_way_is_no_change() -> None:
    assert compare(page("failed"), page("incomplete")) == ()


def test_tests_are_lost_where_fewer_ran() -> None:
    (change,) = compare(page(), page(passed=80))

    assert change.kind == "lost"
    assert change.grown == -10


def test_tests_are_lost_where_a_sound_cell_has_none() -> None:
    (change,) = compare(page(), page("untested", tested=False))

    assert change.kind == "lost"
    assert change.now == 0


def test_tests_of_a_failed_cell_are_not_lost() -> None:
    assert changes_of_kind(page(), page("failed", tested=False), "lost") == []


def test_a_test_that_passed_before_fails_newly() -> None:
    before = page(failing=("a",))

    (change,) = changes_of_kind(before, page(failing=("a", "b")), "failing")

    assert change.cell == CELL_NAME
    assert change.what == "b"
    assert change.before == "passed"
    assert change.now == "failed"


@pytest.mark.parametrize(
    "before",
    [page(failing=("a",), failed=9), page(tested=False)],
    ids=["names one of nine failures", "has no tests"],
)
def test_a_test_that_may_have_failed_before_does_not_fail_newly(before: model.Page) -> None:
    assert changes_of_kind(before, page(failing=("a", "b")), "failing") == []


pages = st.builds(
    page,
    st.sampled_from(model.STATES),
    seconds=st.floats(min_value=0, max_value=1e6),
    passed=st.integers(min_value=0, max_value=100),
    failing=st.sets(st.sampled_from("abc")).map(sorted),
    failed=st.integers(min_value=0, max_value=3),
    tested=st.booleans(),
)


@given(pages)
def test_a_run_does_not_differ_from_itself(any_page: model.Page) -> None:
    assert compare(any_page, any_page) == ()


@given(pages, pages)
def test_swapped_runs_have_the_opposite_changes(first: model.Page, second: model.Page) -> None:
    changes = [(change.kind, change.what, change.before) for change in compare(first, second)]
    swapped_changes = [(OPPOSITES[change.kind], change.what, change.now) for change in compare(second, first)]

    assert sorted(map(str, swapped_changes)) == sorted(map(str, changes))


@given(pages, pages)
def test_a_cell_of_one_run_alone_is_no_change(first: model.Page, second: model.Page) -> None:
    cell_of_other_python = replace(second.cells[0], name=replace(CELL_NAME, python="3.13"))

    changes = compare(first, replace(second, cells=(cell_of_other_python,)))

    assert not {"broken", "mended"} & {change.kind for change in changes}


# --- The page of a run, held against the run before ------------------------------------------


def write_tested_run(root: Path, run_id: str, *outcomes: Outcome) -> RunFacts:
    """Write the records of a torch and its tests; return the run as it is read without reports."""
    common = Common(root=root, run_id=run_id)
    build = page_runs.build_record("torch", *CELL)

    cases = tuple(
        Case(test=f"test_nn.py::test_{number}", outcome=outcome, seconds=1, file="test_nn.py")
        for number, outcome in enumerate(outcomes)
    )
    origin = Origin(stage="test_torch", torch_ref=REF, python=PYTHON, gpu_family=GROUP)
    report = Report(origin=origin, document=Document(cases=cases))
    has_failed = "failed" in outcomes
    tests = page_runs.make_record(
        "test_torch",
        *CELL,
        status="failed" if has_failed else "ok",
        exit_code=8 if has_failed else 0,
        inputs={"files": {wheel.name: wheel.sha256 for wheel in build.files}},
        details={**details_of(report), "tests": {"tests": 1, "existing": 1}},
    )

    for record in (build, tests):
        records.write(common.open_store(), common.outputs, GROUP, record)
    return read_run(common, tests=False)


def test_records_alone_tell_the_tests_of_a_run(tmp_path: Path) -> None:
    facts = write_tested_run(tmp_path, "1", "passed", "passed", "skipped")

    (tests,) = page_of(facts).tests.runs
    assert tests.totals == (("passed", 2), ("skipped", 1))


def test_a_page_names_tests_that_fail_newly(tmp_path: Path) -> None:
    before = write_tested_run(tmp_path, "1", "passed", "passed", "skipped")
    now = write_tested_run(tmp_path, "2", "passed", "failed")

    page_of_run = page_of(now, before)

    assert page_of_run.against == "1"
    (change,) = [change for change in page_of_run.changes if change.kind == "failing"]
    assert change.what == "test_nn.py::test_1"
    assert change.why == "test_torch"


# --- The history of a store ------------------------------------------------------------------

UNREADABLE = Run(run_id="7", problems=("7-linux/manifests: <b>no JSON</b>",))


@pytest.fixture
def runs() -> list[tuple[Run, model.Page | None]]:
    """Five runs, the newest first; the third could not be read."""
    states: tuple[model.State, ...] = ("incomplete", "failed", "passed", "failed", "passed")
    runs: list[tuple[Run, model.Page | None]] = []
    for number, state in zip(range(9, 4, -1), states, strict=True):
        runs.append((Run(run_id=str(number), address=f"../{number}"), page(state)))
    runs[2] = (UNREADABLE, None)
    return runs


def test_a_history_tells_since_when_a_cell_fails(runs: list[tuple[Run, model.Page | None]]) -> None:
    (line,) = history_of("linux", runs).lines

    assert line.since == 3
    assert line.good == 4


def test_a_history_has_the_time_of_sound_builds_and_the_reason_of_failures(
    runs: list[tuple[Run, model.Page | None]],
) -> None:
    (line,) = history_of("linux", runs).lines

    newest, failed, unreadable, first_failed, sound = line.points
    assert newest is not None
    assert newest.seconds is None
    assert failed is not None
    assert unreadable is None
    assert first_failed is not None
    assert first_failed.why == "build_torch: a.cpp:7: no such type"
    assert sound is not None
    assert sound.seconds == 3600


def test_a_history_compares_each_run_with_the_one_before(
    runs: list[tuple[Run, model.Page | None]],
) -> None:
    history = history_of("linux", runs)

    assert history.runs[2].changes == ()
    assert [change.kind for change in history.runs[3].changes] == ["broken"]


def test_a_history_is_printed_with_a_line_for_each_cell(
    runs: list[tuple[Run, model.Page | None]],
) -> None:
    _, cells = history_tables(history_of("linux", runs))

    reason = "build_torch: a.cpp:7: no such type"
    assert cells.rows == ((model.cell_text(CELL_NAME), "incomplete", "6", "5", reason),)


def test_a_history_has_a_page_with_links_to_its_runs(
    runs: list[tuple[Run, model.Page | None]],
) -> None:
    html = render_history(history_of("linux", runs))

    assert f'href="../9#{model.anchor(CELL_NAME)}"' in html
    assert "&lt;b&gt;no JSON" in html
    assert html == render_history(history_of("linux", runs))


def test_a_history_of_unreadable_runs_has_no_cells() -> None:
    html = render_history(history_of("linux", [(UNREADABLE, None)]))

    assert "<article" not in html
