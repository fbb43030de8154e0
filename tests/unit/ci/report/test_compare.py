"""What differs between two runs."""

from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.report import model
from ci.report.compare import SLOWER_PART, SLOWER_SECONDS, SOUND, compare_pages
from ci.report.facts import RunFacts, read_run
from ci.report.page import make_page
from core.cli.options import Common
from core.run import records
from pytorch_build.test.junit.document import Case, Document, Outcome
from pytorch_build.test.record import details_of_report
from pytorch_build.test.report import Report, ReportOrigin
from tests.kit import page_runs
from tests.kit.cell_pages import CELL_NAME, make_cell_page

GROUP = "gfx900"
REF = "nightly"
PYTHON = "cp312"
CELL = (GROUP, REF, PYTHON)

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


def changes_of_kind(
    previous_page: model.RunPage, page: model.RunPage, kind: model.ChangeKind
) -> list[model.PageChange]:
    return [change for change in compare_pages(previous_page, page) if change.kind == kind]


# --- Builds and wheels -----------------------------------------------------------------------


def test_a_build_is_not_slower_up_to_the_thresholds() -> None:
    little_slower = make_cell_page(seconds=3600 * (1 + SLOWER_PART) - 1)

    assert compare_pages(make_cell_page(), little_slower) == ()
    # A build of a second may take many times as long.
    assert compare_pages(make_cell_page(seconds=1), make_cell_page(seconds=SLOWER_SECONDS)) == ()


def test_a_slower_build_is_a_change() -> None:
    (change,) = compare_pages(make_cell_page(), make_cell_page(seconds=5000))

    assert change == model.PageChange(
        kind="slower",
        cell=CELL_NAME,
        what="build_torch",
        before=3600,
        now=5000,
    )


def test_the_time_of_a_failed_build_is_not_compared() -> None:
    failed_build = replace(make_cell_page().builds[0], seconds=99_999, failed=True)

    assert compare_pages(make_cell_page(), replace(make_cell_page(), builds=(failed_build,))) == ()


def test_larger_wheels_are_changes() -> None:
    previous_page = make_page(page_runs.make_run([GROUP], [REF], [PYTHON]))
    page = make_page(page_runs.make_run([GROUP], [REF], [PYTHON], grown=30 * MEBIBYTE))

    changes = compare_pages(previous_page, page)

    assert {(change.kind, change.grown) for change in changes} == {("larger", 30 * MEBIBYTE)}
    distributions = {"triton", "torch", "torchaudio", "torchvision", "apex"}
    assert set(map(attrgetter("what"), changes)) == distributions


# --- Cells and tests -------------------------------------------------------------------------


@pytest.mark.parametrize("state", sorted(set(model.STATES) - SOUND))
def test_a_cell_that_lacks_something_now_is_broken(state: model.State) -> None:
    (change,) = changes_of_kind(make_cell_page(), make_cell_page(state), "broken")

    assert change.why == f"it is {state}"


@pytest.mark.parametrize("state", sorted(set(model.STATES) - SOUND))
def test_a_cell_that_lacked_something_before_is_mended(state: model.State) -> None:
    (change,) = changes_of_kind(make_cell_page(state), make_cell_page(), "mended")

    assert change.why == f"it is {state}"


@pytest.mark.parametrize("state", sorted(SOUND))
def test_a_cell_that_stays_sound_is_no_change(state: model.State) -> None:
    assert compare_pages(make_cell_page(), make_cell_page(state)) == ()


def test_a_cell_that_is_broken_in_another_way_is_no_change() -> None:
    assert compare_pages(make_cell_page("failed"), make_cell_page("incomplete")) == ()


def test_tests_are_lost_where_fewer_ran() -> None:
    (change,) = compare_pages(make_cell_page(), make_cell_page(passed=80))

    assert change.kind == "lost"
    assert change.grown == -10


def test_tests_are_lost_where_a_sound_cell_has_none() -> None:
    (change,) = compare_pages(make_cell_page(), make_cell_page("untested", tested=False))

    assert change.kind == "lost"
    assert change.now == 0


def test_tests_of_a_failed_cell_are_not_lost() -> None:
    assert changes_of_kind(make_cell_page(), make_cell_page("failed", tested=False), "lost") == []


def test_a_test_that_passed_before_fails_newly() -> None:
    previous_page = make_cell_page(failing=("a",))

    (change,) = changes_of_kind(previous_page, make_cell_page(failing=("a", "b")), "failing")

    assert change.cell == CELL_NAME
    assert change.what == "b"
    assert change.before == "passed"
    assert change.now == "failed"


@pytest.mark.parametrize(
    "previous_page",
    [make_cell_page(failing=("a",), failed=9), make_cell_page(tested=False)],
    ids=["names one of nine failures", "has no tests"],
)
def test_a_test_that_may_have_failed_before_does_not_fail_newly(previous_page: model.RunPage) -> None:
    assert changes_of_kind(previous_page, make_cell_page(failing=("a", "b")), "failing") == []


pages = st.builds(
    make_cell_page,
    st.sampled_from(model.STATES),
    seconds=st.floats(min_value=0, max_value=1e6),
    passed=st.integers(min_value=0, max_value=100),
    failing=st.sets(st.sampled_from("abc")).map(sorted),
    failed=st.integers(min_value=0, max_value=3),
    tested=st.booleans(),
)


@given(pages)
def test_a_run_does_not_differ_from_itself(any_page: model.RunPage) -> None:
    assert compare_pages(any_page, any_page) == ()


@given(pages, pages)
def test_swapped_runs_have_the_opposite_changes(first: model.RunPage, second: model.RunPage) -> None:
    changes = [(change.kind, change.what, change.before) for change in compare_pages(first, second)]
    swapped_changes = [
        (OPPOSITES[change.kind], change.what, change.now) for change in compare_pages(second, first)
    ]

    assert sorted(map(str, swapped_changes)) == sorted(map(str, changes))


@given(pages, pages)
def test_a_cell_of_one_run_alone_is_no_change(first: model.RunPage, second: model.RunPage) -> None:
    cell_of_other_python = replace(second.cells[0], name=replace(CELL_NAME, python="3.13"))

    changes = compare_pages(first, replace(second, cells=(cell_of_other_python,)))

    assert {"broken", "mended"}.isdisjoint(map(attrgetter("kind"), changes))


# --- The page of a run, held against the run before ------------------------------------------


def write_tested_run(root: Path, run_id: str, *outcomes: Outcome) -> RunFacts:
    """Write the records of a torch and its tests; return the run as it is read without reports."""
    common = Common(root=root, run_id=run_id)
    build = page_runs.build_record("torch", *CELL)

    cases = tuple(
        Case(
            test=f"test_nn.py::test_{number}",
            outcome=outcome,
            seconds=1,
            file="test_nn.py",
        )
        for number, outcome in enumerate(outcomes)
    )
    origin = ReportOrigin(
        stage="test_torch",
        torch_ref=REF,
        python=PYTHON,
        gpu_family=GROUP,
    )
    report = Report(origin=origin, document=Document(cases=cases))
    has_failed = "failed" in outcomes
    tests = page_runs.make_record(
        "test_torch",
        *CELL,
        status="failed" if has_failed else "ok",
        exit_code=8 if has_failed else 0,
        inputs={"files": {wheel.name: wheel.sha256 for wheel in build.files}},
        details={**details_of_report(report), "tests": {"tests": 1, "existing": 1}},
    )

    for record in (build, tests):
        records.write(common.open_store(), common.outputs, GROUP, record)
    return read_run(common, tests=False)


def test_records_alone_tell_the_tests_of_a_run(tmp_path: Path) -> None:
    facts = write_tested_run(tmp_path, "1", "passed", "passed", "skipped")

    (tests,) = make_page(facts).tests.runs
    assert tests.totals == (("passed", 2), ("skipped", 1))


def test_a_page_names_tests_that_fail_newly(tmp_path: Path) -> None:
    previous_facts = write_tested_run(tmp_path, "1", "passed", "passed", "skipped")
    facts = write_tested_run(tmp_path, "2", "passed", "failed")

    page_of_run = make_page(facts, previous_facts)

    assert page_of_run.against == "1"
    (change,) = [change for change in page_of_run.changes if change.kind == "failing"]
    assert change.what == "test_nn.py::test_1"
    assert change.why == "test_torch"
