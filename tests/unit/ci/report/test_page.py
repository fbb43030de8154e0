"""The page of a run as a value: what its records, locks and tests say together."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ci.report.cells import make_cells, stages_of_cells
from ci.report.facts import RunFacts
from ci.report.html import render
from ci.report.model import BuildRow, CellProgress, RunPage, WheelRow
from ci.report.names import cell_text
from ci.report.page import make_page
from ci.report.text import make_markdown, make_tables
from ci.tables import Table
from ci.verbs.notify import failure_of_record
from core.run.records import Record
from tests.kit import page_runs
from tests.kit.group_cells import group_cell
from tests.kit.page_runs import make_record

GROUP = "gfx900"
REF = "nightly"
PYTHON = "cp312"
CELL = (GROUP, REF, PYTHON)
CELL_NAME = group_cell(
    artifact_group=GROUP,
    torch_ref=REF,
    python_tag=PYTHON,
)
THREE_FAMILIES = ("gfx900", "gfx901", "gfx902")


def run_of(*records: Record, locked: bool = True) -> RunFacts:
    """Return a run of one group with these records, and with a source lock or without."""
    run = page_runs.make_run([GROUP], [REF], [PYTHON])
    in_order_of_keys = sorted(records, key=lambda record: record.name)
    group = replace(run.groups[0], records=tuple(in_order_of_keys), tests=())
    return replace(run, groups=(group,), locks=run.locks if locked else {})


def page_of_records(*records: Record) -> RunPage:
    return make_page(run_of(*records))


def wheel_of(page: RunPage, distribution: str = "torch") -> WheelRow:
    """Return the wheel of a distribution."""
    (wheel,) = [wheel for wheel in page.wheels if wheel.distribution == distribution]
    return wheel


def build_of(page: RunPage, step: str = "build_torch") -> BuildRow:
    (build,) = [build for build in page.builds if build.stage == step]
    return build


def cell_of(run: RunFacts) -> CellProgress:
    """Return the one cell of a run."""
    (cell,) = make_page(run).cells
    return cell


def builds(*, without: Sequence[str] = ()) -> list[Record]:
    """Return the builds of the cell, in order."""
    records: list[Record] = []
    for component in page_runs.BUILDS:
        if component not in without:
            record = page_runs.build_record(component, *CELL)
            records.append(record)
    return records


def builds_with_torch(**changes: Any) -> list[Record]:
    """Return the builds of the cell; that of torch has other values for some fields."""
    records = builds()
    records[1] = records[1].model_copy(update=changes)
    return records


def smoke(**facts: Any) -> Record:
    """Return the smoke tests of the cell, which ran after its builds."""
    return page_runs.smoke_record(*CELL, started=page_runs.moment(20_000), **facts)


def failed(step: str, exit_code: int = 8, error: str = "It broke.") -> Record:
    return make_record(
        step,
        *CELL,
        status="failed",
        exit_code=exit_code,
        error=error,
    )


INTERRUPTED = 130


# --- How good a cell is ----------------------------------------------------------------------

A_PART_OF_THE_TESTS = {"tests": {"tests": 1, "existing": 91, "unexplained": 0}}


@pytest.mark.parametrize(
    ("records", "state", "reason"),
    [
        ([*builds(), smoke()], "passed", ""),
        (builds(), "untested", "test_smoke has no record"),
        ([*builds(without=["apex"]), smoke()], "incomplete", "build_apex has no record"),
        (
            [*builds(without=["apex"]), failed("build_apex", INTERRUPTED)],
            "interrupted",
            "build_apex was interrupted",
        ),
        ([*builds(without=["apex"]), failed("build_apex")], "failed", "build_apex failed"),
        # The last attempt counts, whatever an earlier one left.
        ([*builds(), smoke(), failed("build_torch")], "failed", "build_torch failed"),
        ([*builds(), smoke(status="failed"), smoke(grown=1)], "failed", "test_smoke failed"),
        ([*builds(), smoke(grown=1)], "untested", "other bytes than the run has of apex-1.10.0"),
        ([*builds(), smoke(details=A_PART_OF_THE_TESTS)], "untested", "1 of 91 tests ran"),
        ([*builds(), smoke(inputs={"installed": False})], "untested", "test_smoke"),
    ],
    ids=[
        "all passed",
        "no tests",
        "no apex",
        "apex interrupted",
        "apex failed",
        "torch failed after tests",
        "tests failed and passed",
        "tests of other bytes",
        "a part of the tests",
        "tests of what was installed before",
    ],
)
def test_a_cell_is_as_good_as_its_worst_stage(records: Sequence[Record], state: str, reason: str) -> None:
    cell = cell_of(run_of(*records))

    assert cell.name == CELL_NAME
    assert cell.state == state
    assert reason in cell.reason
    assert bool(cell.reason) == bool(reason)


def test_stages_of_a_family_are_told_apart_by_their_python() -> None:
    first = make_record("test_rocm", GROUP, python="cp311")
    second = make_record("test_rocm", GROUP, python="cp312", status="failed")

    page = page_of_records(first, second)

    of_311, of_312 = page.groups[0].stages
    assert of_311.stage == "test_rocm cp311"
    assert of_311.state == "ok"
    assert of_312.stage == "test_rocm cp312"
    assert of_312.state == "failed"
    html = render(page)
    assert html.count("</span> test_rocm cp311") == 1
    assert html.count("</span> test_rocm cp312") == 1


def missing_stages(cell: CellProgress) -> list[str]:
    return [run.stage for run in cell.stages if run.state == "missing"]


def test_the_source_lock_tells_which_stages_are_missing() -> None:
    cell = cell_of(run_of(*builds(without=["apex"])))

    assert missing_stages(cell) == ["build_apex", "test_smoke"]


def test_other_cells_tell_which_stages_are_missing_without_a_source_lock() -> None:
    of_other_python = page_runs.build_record("apex", GROUP, REF, "cp313")

    records = [*builds(without=["apex", "audio"]), of_other_python]

    page = make_page(run_of(*records, locked=False))

    assert missing_stages(page.cells[0]) == ["build_apex", "test_smoke"]


def test_a_run_of_an_edited_tree_lacks_only_what_it_set_out_to_build() -> None:
    torch = page_runs.build_record("torch", *CELL)
    edited = torch.model_copy(update={"inputs": {"source": {"tree": "/mine", "commit": "1"}}})
    run = run_of(edited, smoke())

    of_own_tree = cell_of(replace(run, run_id="local-mine"))
    of_local_run = cell_of(replace(run, run_id="local"))

    assert "build_apex" not in of_own_tree.reason
    assert "build_apex" in of_local_run.reason


def test_a_test_of_staged_wheels_is_no_build_of_an_edited_tree() -> None:
    staged_inputs = {**smoke().inputs, "source": "staging (s3://tree-releases/v2-staging/g)"}
    staged_test = smoke().model_copy(update={"inputs": staged_inputs})

    run = run_of(*builds(without=["apex"]), staged_test)
    cell = cell_of(replace(run, run_id="17"))

    assert "build_apex" in cell.reason


@pytest.mark.parametrize(
    ("tests", "reason"),
    [(smoke(), "2 tests failed"), (smoke(status="failed"), "1 test of test_smoke failed")],
    ids=["passed", "failed"],
)
def test_failed_tests_are_the_one_reason_of_their_cell(tests: Record, reason: str) -> None:
    run = run_of(*builds(), tests)
    (cell,) = make_cells(run, stages_of_cells(run), (), {CELL_NAME: {"test_smoke": reason}})

    assert cell.reason == reason


def test_names_every_stage_of_tests_that_failed() -> None:
    names = ("test_torch", "test_torch_distributed", "test_torch_inductor")
    failed_test = smoke(status="failed")
    failed_tests = [failed_test.model_copy(update={"stage": name}) for name in names]
    failing = {
        "test_torch_distributed": "1 test of test_torch_distributed failed",
        "test_torch_inductor": "2 tests of test_torch_inductor failed",
    }

    run = run_of(*builds(), smoke(), *failed_tests)
    (cell,) = make_cells(run, stages_of_cells(run), (), {CELL_NAME: failing})

    assert cell.reason == (
        "test_torch failed and 1 test of test_torch_distributed failed "
        "and 2 tests of test_torch_inductor failed"
    )


@pytest.fixture(scope="module")
def page_of_three_families() -> RunPage:
    """The page of nine cells; tests failed in some."""
    return make_page(page_runs.make_run(THREE_FAMILIES, [REF]))


def test_a_cell_with_failed_tests_has_failed(page_of_three_families: RunPage) -> None:
    failed_cells = {run.cell for run in page_of_three_families.tests.runs if not run.passed}

    assert failed_cells
    states = {cell.state for cell in page_of_three_families.cells if cell.name in failed_cells}
    assert states == {"failed"}


# --- Wheels ----------------------------------------------------------------------------------


def test_a_wheel_has_its_source_and_its_place() -> None:
    page = make_page(page_runs.make_run([GROUP], [REF], [PYTHON]))

    torch = wheel_of(page)
    assert torch.commit == page_runs.digest(REF, "torch")[:40]
    assert torch.origin == page_runs.ORIGIN
    assert torch.path == f"../python/{GROUP}/{torch.name.replace('+', '%2B')}"
    assert torch.grown is None


def test_a_wheel_and_its_folders_know_how_they_grew() -> None:
    facts = page_runs.make_run([GROUP], [REF], [PYTHON], grown=1000)
    previous_facts = page_runs.make_run([GROUP], [REF], [PYTHON], run_id="122")

    page = make_page(facts, previous_facts)

    assert page.against == "122"
    torch = wheel_of(page)
    assert torch.grown == 1000
    (lib,) = [folder for folder in torch.folders if folder.path == "torch/lib"]
    assert lib.grown == 1000 * 8 // 10 + 1000


def test_names_a_wheel_that_the_same_cell_had_before() -> None:
    previous_facts = run_of(*builds(), page_runs.build_record("apex", GROUP, REF, "cp313"))

    page = make_page(run_of(*builds(without=["apex"])), previous_facts)

    (name,) = page.gone
    assert name.startswith("apex-1.10.0")
    assert "cp312" in name


@pytest.fixture
def page_with_device_code() -> RunPage:
    """The page of a torch whose device code is a wheel of its own."""
    (host,) = page_runs.build_record("torch", *CELL).files
    device = page_runs.wheel_record(GROUP, "amd-torch-device-gfx900", host.version, PYTHON, 9)
    return page_of_records(*builds_with_torch(files=(host, device), details={}), smoke())


def test_device_code_is_a_part_of_its_wheel(page_with_device_code: RunPage) -> None:
    torch = wheel_of(page_with_device_code)
    device = wheel_of(page_with_device_code, "amd-torch-device-gfx900")

    position = page_with_device_code.wheels.index(torch)
    assert page_with_device_code.wheels[position + 1] == device

    assert torch.part_of == ""
    assert torch.extra == "device-all"
    assert device.part_of == "torch"
    assert device.extra == ""
    assert f"part of torch: </span>{device.name}" in render(page_with_device_code)


def test_a_command_installs_device_code_by_an_extra(page_with_device_code: RunPage) -> None:
    torch = wheel_of(page_with_device_code)

    requirement = f"torch[device-all]=={torch.version}"

    assert requirement in page_with_device_code.cells[0].requirements
    assert requirement in render(page_with_device_code)


def test_the_lock_tells_the_commit_that_a_record_does_not(page_with_device_code: RunPage) -> None:
    commit = page_runs.source_lock(REF).projects["torch"].commit

    assert wheel_of(page_with_device_code).commit == commit
    assert wheel_of(page_with_device_code, "amd-torch-device-gfx900").commit == commit


@pytest.mark.parametrize(
    "contents",
    [
        "x",
        {"torch": 1},
        {},
        None,
        [1],
        {"no": {"a": "b"}},
        {"no": {"a": [1, "2", 3]}},
    ],
)
def test_contents_that_make_no_sense_are_not_shown(contents: object) -> None:
    build = page_runs.build_record("torch", *CELL)

    for details in ({"contents": {build.files[0].name: contents}}, {"contents": contents}):
        page = page_of_records(build.model_copy(update={"details": details}))
        assert page.wheels[0].folders == ()


EDITED_TREE = {
    "tree": "/mine",
    "commit": "a" * 40,
    "diff": "b" * 64,
    "edited": 3,
}


def test_a_wheel_of_an_edited_tree_says_so() -> None:
    page = page_of_records(*builds_with_torch(details={"source": EDITED_TREE}), smoke())

    assert wheel_of(page).edited == "edited tree, 3 files differ"
    assert wheel_of(page, "apex").edited == ""
    assert "edited tree, 3 files differ" in render(page)
    assert "edited tree, 3 files differ" in make_markdown(page)


def test_a_failed_build_of_an_edited_tree_says_so() -> None:
    source = {**EDITED_TREE, "edited": 1}
    build = failed("build_torch").model_copy(update={"inputs": {"source": source}})

    assert "edited tree, 1 file differs" in render(page_of_records(build))


# --- Sources ---------------------------------------------------------------------------------


def test_compares_changed_sources_of_two_runs() -> None:
    previous_facts = replace(
        run_of(*builds()),
        locks={REF: page_runs.source_lock(REF, torch_seed="other")},
        run_id="122",
    )

    page = make_page(run_of(*builds()), previous_facts)
    sources = {source.project: source for source in page.sources}

    assert [name for name, source in sources.items() if source.changed] == ["torch"]
    torch = sources["torch"]
    expected = f"{page_runs.ORIGIN}/compare/{torch.commit_before}...{torch.commit}"
    assert torch.compare == expected
    assert sources["audio"].compare == ""


# --- Builds ----------------------------------------------------------------------------------


def table_of_builds(page: RunPage) -> Table:
    for table in make_tables(page):
        if table.title == "the longest builds":
            return table
    pytest.fail("The page has no table of builds.")


def test_a_build_has_the_memory_of_its_largest_process() -> None:
    torch = page_of_records(*builds()).builds[0]

    assert torch.stage == "build_torch"
    assert torch.memory is not None
    assert torch.memory.peak == 3 * page_runs.GIB


def test_the_memory_of_a_whole_machine_is_not_taken_for_a_builds() -> None:
    used = 96 * page_runs.GIB
    memory = {"peak": used, "total": 128 * page_runs.GIB, "used": [used]}

    page = page_of_records(*builds_with_torch(details={"memory": memory}))

    assert build_of(page).memory is None
    assert page.problems == ()


def test_details_that_make_no_sense_are_a_problem() -> None:
    torch = page_runs.build_record("torch", *CELL)
    build = torch.model_copy(update={"details": {"memory": "much"}})

    page = page_of_records(build)

    assert page.builds[0].memory is None
    assert "details.memory" in page.problems[-1].what


def test_a_failed_build_comes_first_and_says_how_far_it_came() -> None:
    reached = {"done": 4100, "total": 6000, "failed": ["aten/a.o", "aten/b.o"]}
    build = failed("build_torch").model_copy(update={"details": {"reached": reached}})

    page = page_of_records(build, *builds(without=["torch"]))

    assert page.builds[0].failed
    assert not page.builds[1].failed
    table = table_of_builds(page)
    assert table.columns[-1] == "failed"
    assert table.rows[0][1].startswith("failed after")
    reach = "at command 4100 of 6000 making aten/a.o, aten/b.o"
    assert table.rows[0][-1] == reach
    assert f"It failed {reach}." in render(page)


def test_builds_have_no_column_for_failures_where_none_failed() -> None:
    table = table_of_builds(page_of_records(*builds()))

    assert table.columns[-1] == "memory"


@pytest.fixture(scope="module")
def page_with_borrowed_build() -> RunPage:
    """The page of a run that took its triton from another run."""
    triton = builds()[0].model_copy(
        update={
            "details": {"borrowed": "7"},
            "started": "2020-01-01T00:00:00Z",
            "log": "7-linux/logs/g/x.log",
        }
    )
    return page_of_records(triton, *builds(without=["triton"]))


def test_a_borrowed_build_takes_none_of_the_runs_time(page_with_borrowed_build: RunPage) -> None:
    page = page_with_borrowed_build

    assert page.elapsed < 86_400
    assert page.started > page_runs.moment(0)
    assert "build_triton" not in {bar.stage for bar in page.cells[0].line.bars}
    assert "build_triton" not in {build.stage for build in page.builds}


def test_a_borrowed_build_names_its_run_and_has_no_log_here(page_with_borrowed_build: RunPage) -> None:
    html = render(page_with_borrowed_build)

    assert html.count("taken from run 7") == 2
    assert "x.log" not in html


def test_a_build_for_a_part_of_its_family_names_the_rest() -> None:
    (torch,) = [record for record in builds() if record.stage == "build_torch"]
    torch = torch.model_copy(update={"details": {"left_out_targets": ["gfx1101", "gfx1102"]}})

    html = render(page_of_records(torch, *builds(without=["torch"])))

    assert "without gfx1101, gfx1102" in html


# --- Tests -----------------------------------------------------------------------------------


def test_the_same_test_of_several_cells_is_told_once(page_of_three_families: RunPage) -> None:
    tests = page_of_three_families.tests

    (flaky,) = tests.flaky
    assert len(flaky.cells) == 9
    assert len(tests.slowest) == 10
    failed_runs = [run for run in tests.runs if not run.passed]
    assert {len(case.cells) for case in tests.failures} == {len(failed_runs)}


def test_results_of_other_bytes_count_for_nothing() -> None:
    results = page_runs.group_of_tests(*CELL).model_copy(update={"stage": "test_smoke", "passed": True})
    run = run_of(*builds(), smoke(grown=1))

    group = replace(run.groups[0], tests=(results,))
    page = make_page(replace(run, groups=(group,)))

    assert "out of date" in page.tests.runs[0].missing
    assert page.cells[0].state == "untested"
    assert page.problems == ()
    assert "it ran on other bytes than the run has of apex" in render(page)


def test_a_failure_on_other_bytes_is_not_the_cells() -> None:
    page = page_of_records(
        *builds(),
        smoke(
            grown=1,
            status="failed",
            error="No.",
        ),
    )

    assert page.cells[0].state == "untested"


# --- Commands that install -------------------------------------------------------------------

OTHER_ROCM = {"rocm": ["7.2.4", "split", {"rocm-7.2.4.tar.gz": "a" * 64}]}
ROCM_OPTIONS = ["--extra-index-url", "https://rocm.example/v2/gfx900/"]


def test_shows_how_to_install_a_cell() -> None:
    assert "pip install torch==" in render(page_of_records(*builds(), smoke()))


def test_shows_no_command_for_wheels_whose_rocm_the_run_does_not_hold() -> None:
    html = render(page_of_records(*builds_with_torch(inputs=OTHER_ROCM)))

    assert "pip install" not in html
    assert "<code>rocm-7.2.4.tar.gz</code>, which this run does not hold" in html


def test_a_command_has_the_options_that_lead_to_rocm() -> None:
    torch = builds_with_torch(inputs=OTHER_ROCM, details={"rocm_options": ROCM_OPTIONS})

    html = render(page_of_records(*torch))
    assert f"</var> <span>{ROCM_OPTIONS[0]}</span> {ROCM_OPTIONS[1]}</pre>" in html


@pytest.mark.parametrize(("step", "exit_code"), [("build_torch", 8), ("build_audio", INTERRUPTED)])
def test_shows_no_command_for_wheels_that_are_older_than_a_failure(step: str, exit_code: int) -> None:
    page = page_of_records(*builds(), smoke(), failed(step, exit_code))

    assert page.cells[0].requirements == ()
    assert "pip install torch" not in render(page)


def test_does_not_say_what_wheels_lack_that_are_older_than_a_failure() -> None:
    records = builds_with_torch(inputs=OTHER_ROCM, details={})

    html = render(page_of_records(*records, failed("build_torch")))

    assert "does not hold" not in html
    assert "To be installed" not in html


# --- Problems --------------------------------------------------------------------------------


def test_a_page_has_the_error_that_others_are_told() -> None:
    run = page_runs.broken_run()
    last_record = run.groups[0].records[-1]

    assert make_page(run).problems[0].what == failure_of_record(last_record).error


def test_tells_what_failed_before_what_was_stopped() -> None:
    stopped = failed("build_triton", INTERRUPTED, "Stopped.")

    page = page_of_records(stopped, failed("build_torch"))

    failure, interruption = page.problems
    assert failure.what == "It broke."
    assert interruption.what == "Stopped."


def test_tells_the_same_error_of_several_cells_once() -> None:
    of_other_python = make_record("build_torch", GROUP, REF, "cp313", status="failed", error="It broke.")

    (problem,) = page_of_records(failed("build_torch"), of_other_python).problems

    assert problem.where == f"build_torch {cell_text(CELL_NAME)}"
    assert problem.also == (f"build_torch {GROUP} {REF} cp313",)


def test_names_a_failed_test_with_the_command_that_repeats_it(page_of_three_families: RunPage) -> None:
    problems = page_of_three_families.problems

    problem = problems[0]
    assert problem.where.startswith("test_torch")

    assert problem.what == "test_nn.py::TestNN::test_conv0: AssertionError: Tensors differ"
    assert problem.again == "nox -s test_torch -- --run-id 123 -k test_conv0"
    assert page_of_three_families.state == "failed"


def test_the_order_of_records_does_not_matter() -> None:
    run = page_runs.make_run(["gfx900", "gfx901"], ["nightly", "release/2.10"], [PYTHON])

    page = make_page(run)
    page_of_reversed = make_page(replace(run, groups=run.groups[::-1]))

    assert page.cells == page_of_reversed.cells
    assert page.wheels == page_of_reversed.wheels
    assert page.sources == page_of_reversed.sources
