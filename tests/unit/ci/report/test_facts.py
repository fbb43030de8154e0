"""What is read of a run for its page."""

from dataclasses import replace

import pytest

from ci.report.facts import read_run
from ci.report.page import make_page
from core.cli.options import Common
from core.errors import MissingInputError, UsageError
from core.run import records
from core.run.records import Record
from pytorch_build.test.junit.document import Case, Document
from pytorch_build.test.junit.writer import write_junit
from pytorch_build.test.report import Report, ReportOrigin, document_to_write
from tests.kit import page_runs

GROUP = "gfx900"
REF = "nightly"
PYTHON = "cp312"
CELL = (GROUP, REF, PYTHON)


@pytest.fixture
def build(common: Common) -> Record:
    """A build that is in the store."""
    record = page_runs.build_record("torch", *CELL)
    records.write(common.open_store(), common.outputs, GROUP, record)
    return record


# --- Reading a run ---------------------------------------------------------------------------


def test_reads_the_records_of_every_group(common: Common, build: Record) -> None:
    rocm_build = page_runs.make_record("build_rocm", "gfx901")
    records.write(common.open_store(), common.outputs, "gfx901", rocm_build)

    facts = read_run(common)

    read = {group.name: list(group.records) for group in facts.groups}
    assert read == {GROUP: [build], "gfx901": [rocm_build]}
    assert facts.problems == ()


def test_reads_the_records_of_one_family(common: Common, build: Record) -> None:
    rocm_build = page_runs.make_record("build_rocm", "gfx901")
    records.write(common.open_store(), common.outputs, "gfx901", rocm_build)

    (group,) = read_run(replace(common, gpu_family=GROUP)).groups

    assert list(group.records) == [build]


def test_reads_the_records_of_one_ref_and_those_of_no_ref(common: Common, build: Record) -> None:
    of_other_ref = page_runs.build_record("torch", GROUP, "release/2.10", PYTHON)
    of_no_ref = page_runs.make_record("build_rocm", GROUP)
    for record in (of_other_ref, of_no_ref):
        records.write(common.open_store(), common.outputs, GROUP, record)

    (group,) = read_run(replace(common, torch_ref=REF)).groups

    assert {record.stage for record in group.records} == {"build_rocm", build.stage}
    assert {record.cell.torch_ref for record in group.records} == {None, REF}


@pytest.mark.usefixtures("build")
def test_suggests_the_ref_that_is_meant(common: Common) -> None:
    with pytest.raises(UsageError, match="'nightly'"):
        read_run(replace(common, torch_ref="nihgtly"))


@pytest.mark.usefixtures("build")
def test_refuses_a_group_that_the_run_does_not_have(common: Common) -> None:
    with pytest.raises(MissingInputError, match="'gfx90'") as caught:
        read_run(replace(common, gpu_family="gfx90"))

    assert GROUP in caught.value.hint


@pytest.mark.usefixtures("build")
def test_reads_source_locks(common: Common) -> None:
    lock = page_runs.source_lock(REF)
    common.open_store().put_bytes(common.outputs.source_lock_key(REF), lock.model_dump_json().encode())

    assert read_run(common).locks == {REF: lock}


@pytest.mark.usefixtures("build")
def test_a_source_lock_that_is_none_is_a_problem(common: Common) -> None:
    key = common.outputs.source_lock_key(REF)
    common.open_store().put_bytes(key, b"{}")

    facts = read_run(common)

    assert facts.locks == {}
    assert [problem.where for problem in facts.problems] == [key]


@pytest.fixture(
    params=[
        (b"", "JSON"),
        (b"[]", "object"),
        (b'{"schema_version": 2, "stage": "build_apex"}', "version 2"),
        (b'{"schema_version": 1, "stage": "build_apex"}', "required"),
        (b'{"schema_version": "\\ud800", "stage": ["x"], "cell": 3}', "JSON"),
        (b"\xff\xfe", "JSON"),
        (b'{"stage": 1e999', "JSON"),
    ],
    ids=["empty", "a list", "version 2", "incomplete", "wrong types", "no UTF-8", "cut off"],
)
def unreadable(request: pytest.FixtureRequest, common: Common, build: Record) -> tuple[str, str]:
    """A file that is no record beside a build: its key, and what is wrong with it."""
    assert build.files
    content, reason = request.param
    key = f"{common.outputs.manifests_prefix(GROUP)}/build_apex-nightly-cp312.json"
    common.open_store().put_bytes(key, content)
    return key, reason


def test_a_file_that_is_no_record_is_a_problem(common: Common, unreadable: tuple[str, str]) -> None:
    key, reason = unreadable

    (group,) = read_run(common).groups

    (problem,) = group.problems
    assert problem.where == key
    assert reason in problem.what
    assert problem.hint


def test_a_file_that_is_no_record_hides_no_other(
    common: Common, build: Record, unreadable: tuple[str, str]
) -> None:
    assert unreadable

    (group,) = read_run(common).groups

    assert list(group.records) == [build]
    ((_, step),) = group.unreadable
    assert step.stage in {"build_apex", "build_apex-nightly-cp312"}


def test_a_page_tells_that_a_record_is_unreadable(common: Common, unreadable: tuple[str, str]) -> None:
    key, _ = unreadable

    page = make_page(read_run(common))

    assert page.state == "unreadable"
    assert page.problems[0].where == key


@pytest.fixture
def _failed_test(common: Common, build: Record) -> None:
    """A report with a test that failed."""
    assert build.files
    case = Case(
        test="test_nn.py::test_a",
        outcome="failed",
        seconds=2,
        line="No.",
        file="test_nn.py",
    )
    origin = ReportOrigin(
        stage="test_torch",
        torch_ref=REF,
        python=PYTHON,
    )
    report = write_junit(document_to_write(Report(origin=origin, document=Document(cases=(case,)))))
    key = f"{common.outputs.reports_prefix(GROUP)}/torch-nightly-cp312.xml"
    common.open_store().put_bytes(key, report)


@pytest.mark.usefixtures("_failed_test")
def test_reads_test_results_from_reports(common: Common) -> None:
    (tests,) = read_run(common).groups[0].tests

    assert tests.torch_ref == REF
    assert tests.python == PYTHON
    assert tests.totals["failed"] == 1


@pytest.mark.usefixtures("_failed_test")
def test_leaves_reports_unread_where_results_do_not_matter(common: Common) -> None:
    assert read_run(common, tests=False).groups[0].tests == ()
