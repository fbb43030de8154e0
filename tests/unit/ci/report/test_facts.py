"""What is read of a run for its page, and which run came before it."""

from dataclasses import replace

import pytest

from ci.report import page_of
from ci.report.facts import RunFacts, earlier, has_built, previous, read_run, stored_runs
from core import junit
from core.cli.options import Common
from core.errors import MissingInputError, UsageError
from core.junit import Case, Document
from core.run import RunOutputs, records
from core.run.records import Record
from pytorch_build.test.results import Origin, Report, document_of
from tests.kit import page_runs
from tests.kit.group_cells import group_cell
from tests.kit.memory_store import MemoryStore

GROUP, REF, PYTHON = CELL = ("gfx900", "nightly", "cp312")


@pytest.fixture
def build(common: Common) -> Record:
    """A build that is in the store."""
    record = page_runs.build_record("torch", *CELL)
    records.write(common.open_store(), common.outputs, GROUP, record)
    return record


# --- Reading a run ---------------------------------------------------------------------------


def test_reads_the_records_of_every_group(common: Common, build: Record) -> None:
    other = page_runs.make_record("build_rocm", "gfx901")
    records.write(common.open_store(), common.outputs, "gfx901", other)

    facts = read_run(common)

    read = {group.name: [record for _, record in group.records] for group in facts.groups}
    assert read == {GROUP: [build], "gfx901": [other]}
    assert facts.problems == ()


def test_reads_the_records_of_one_family(common: Common, build: Record) -> None:
    other = page_runs.make_record("build_rocm", "gfx901")
    records.write(common.open_store(), common.outputs, "gfx901", other)

    (group,) = read_run(replace(common, gpu_family=GROUP)).groups

    assert [record for _, record in group.records] == [build]


def test_reads_the_records_of_one_ref_and_those_of_no_ref(common: Common, build: Record) -> None:
    of_other_ref = page_runs.build_record("torch", GROUP, "release/2.10", PYTHON)
    of_no_ref = page_runs.make_record("build_rocm", GROUP)
    for record in (of_other_ref, of_no_ref):
        records.write(common.open_store(), common.outputs, GROUP, record)

    (group,) = read_run(replace(common, torch_ref=REF)).groups

    assert {record.stage for _, record in group.records} == {"build_rocm", build.stage}
    assert {record.cell.torch_ref for _, record in group.records} == {None, REF}


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

    assert [record for _, record in group.records] == [build]
    ((_, step),) = group.unreadable
    assert step.stage in {"build_apex", "build_apex-nightly-cp312"}


def test_a_page_tells_that_a_record_is_unreadable(common: Common, unreadable: tuple[str, str]) -> None:
    key, _ = unreadable

    page = page_of(read_run(common))

    assert page.state == "unreadable"
    assert page.problems[0].where == key


@pytest.fixture
def _failed_test(common: Common, build: Record) -> None:
    """A report with a test that failed."""
    assert build.files
    case = Case(test="test_nn.py::test_a", outcome="failed", seconds=2, line="No.", file="test_nn.py")
    origin = Origin(stage="test_torch", torch_ref=REF, python=PYTHON)
    report = junit.write(document_of(Report(origin=origin, document=Document(cases=(case,)))))
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


# --- The runs of a store ---------------------------------------------------------------------

OUTPUTS = RunOutputs(run_id="1", platform="linux")


@pytest.fixture
def store() -> MemoryStore:
    """A store with three runs of CI, and what is none."""
    store = MemoryStore(moments={})
    for run_id in ("998", "99", "1000"):
        store.put_bytes(f"{run_id}-linux/manifests/g/a.json", b"")
        store.put_bytes(f"{run_id}-linux/python/g/a.whl", b"")
    for key in ("997-windows/b", "no id-linux/a", "python-deps/a"):
        store.put_bytes(key, b"")
    return store


def test_lists_runs_of_ci_by_their_numbers_in_one_request(store: MemoryStore) -> None:
    store.calls.clear()

    assert stored_runs(store, OUTPUTS) == ["1000", "998", "99"]
    assert len(store.calls) == 1


def test_lists_other_runs_first_the_newest_records_before_others(store: MemoryStore) -> None:
    for run_id in ("b-tree", "a-tree"):
        store.put_bytes(f"{run_id}-linux/manifests/g/a.json", b"")

    assert stored_runs(store, OUTPUTS) == ["a-tree", "b-tree", "1000", "998", "99"]


def test_earlier_runs_of_ci_have_smaller_numbers() -> None:
    run_ids = ["a-tree", "1000", "998", "99", "local"]

    assert earlier(run_ids, "1000") == ["998", "99"]


def test_all_runs_are_earlier_than_the_local_one() -> None:
    assert earlier(["a-tree", "1000", "local"], "local") == ["a-tree", "1000"]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ("gfx94X-dcgpu/build_torch-release-2.10-cp312.json", True),
        ("gfx94X-dcgpu/build_apex-release-2.10-cp312.failed.json", True),
        ("gfx94X-dcgpu/test_smoke-release-2.10-cp312.json", False),
        ("gfx94X-dcgpu-debug/build_torch-release-2.10-cp312.json", False),
        ("gfx94X-dcgpu/build_torch-my-release-2.10-cp312.json", False),
        ("gfx94X-dcgpu/build_torch-release-2.10-cp312t.json", False),
    ],
)
def test_a_run_built_a_cell_where_it_has_a_record_of_a_build(record: str, *, expected: bool) -> None:
    cell = group_cell(artifact_group="gfx94X-dcgpu", torch_ref="release/2.10", python_tag="cp312")

    assert has_built([f"7-linux/manifests/{record}"], [cell]) is expected


# --- The run before --------------------------------------------------------------------------


@pytest.fixture
def facts() -> RunFacts:
    """Run 9, a nightly release of one cell."""
    return page_runs.make_run([GROUP], [REF], [PYTHON], run_id="9")


@pytest.fixture
def releases() -> MemoryStore:
    """The runs before run 9: two nightly releases, and the last one for developers."""
    store = MemoryStore()
    for run_id, release_type in (("6", "nightly"), ("7", "nightly"), ("8", "dev")):
        outputs = RunOutputs(run_id=run_id, platform="linux")
        lock = page_runs.source_lock(REF).model_copy(update={"release_type": release_type})
        store.put_bytes(outputs.source_lock_key(REF), lock.model_dump_json().encode())
        records.write(store, outputs, GROUP, page_runs.build_record("torch", *CELL))
    return store


OUTPUTS_OF_9 = RunOutputs(run_id="9", platform="linux")


def test_the_run_before_is_of_the_same_release_type(releases: MemoryStore, facts: RunFacts) -> None:
    assert previous(releases, OUTPUTS_OF_9, facts) == "7"


def test_reads_only_source_locks_to_find_the_run_before(releases: MemoryStore, facts: RunFacts) -> None:
    previous(releases, OUTPUTS_OF_9, facts)

    reads = [key for call, key in releases.calls if call == "read"]
    assert reads == [
        "8-linux/manifests/source-lock-nightly.json",
        "7-linux/manifests/source-lock-nightly.json",
    ]
