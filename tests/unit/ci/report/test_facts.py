from dataclasses import replace

import pytest

from ci.report import page_of
from ci.report.facts import earlier, has_built, previous, read_run, stored_runs
from ci.report.model import CellName
from core import junit
from core.cli.options import Common
from core.errors import MissingInputError, UsageError
from core.junit import Case, Document
from core.run import RunOutputs, records
from pytorch_build.test.results import Origin, Report, document_of
from tests.kit import page_runs as samples
from tests.kit.memory_store import MemoryStore

GROUP = "gfx900"


@pytest.fixture(name="built")
def built_fixture(common: Common) -> records.Record:
    record = samples.build("torch", GROUP, "nightly", "cp312")
    records.write(common.open_store(), common.outputs, GROUP, record)
    return record


def put(common: Common, name: str, content: bytes) -> str:
    key = f"{common.outputs.manifests_prefix(GROUP)}/{name}"
    common.open_store().put_bytes(key, content)
    return key


def report_of_tests(common: Common, *cases: Case) -> None:
    origin = Origin(stage="test_torch", torch_ref="nightly", python="cp312")
    content = junit.write(document_of(Report(origin=origin, document=Document(cases=cases))))
    key = f"{common.outputs.reports_prefix(GROUP)}/torch-nightly-cp312.xml"
    common.open_store().put_bytes(key, content)


def test_records_and_locks_of_every_group_are_read(common: Common, built: records.Record) -> None:
    lock = samples.lock("nightly")
    common.open_store().put_bytes(common.outputs.source_lock_key("nightly"), lock.model_dump_json().encode())
    other = samples.record("build_rocm", "gfx901")
    records.write(common.open_store(), common.outputs, "gfx901", other)
    facts = read_run(common)
    expected = [(GROUP, [built]), ("gfx901", [other])]
    assert [(group.name, [one for _, one in group.records]) for group in facts.groups] == expected
    assert facts.locks == {"nightly": lock}
    assert facts.problems == ()
    assert [group.name for group in read_run(replace(common, gpu_family=GROUP)).groups] == [GROUP]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "Invalid JSON"),
        (b"[]", "should be an object"),
        (b'{"schema_version": 2, "stage": "build_apex"}', "record of version 2"),
        (b'{"schema_version": 1, "stage": "build_apex"}', "Field required"),
        (b'{"schema_version": "\\ud800", "stage": ["x"], "cell": 3}', "Invalid JSON"),
        (b"\xff\xfe", "Invalid JSON"),
        (b'{"stage": 1e999', "Invalid JSON"),
    ],
)
def test_what_is_no_record_of_this_version_is_told_and_stops_nothing(
    common: Common, built: records.Record, content: bytes, said: str
) -> None:
    key = put(common, "build_apex-nightly-cp312.json", content)
    (group,) = read_run(common).groups
    assert [one for _, one in group.records] == [built]
    (odd,) = group.problems
    assert odd.where == key
    assert said in odd.what
    assert odd.hint
    ((_, run),) = group.unreadable
    assert run.stage in {"build_apex", "build_apex-nightly-cp312"}
    page = page_of(read_run(common))
    assert (page.state, page.problems[0].where) == ("unreadable", key)


def test_one_ref_is_read_with_what_is_no_refs(common: Common, built: records.Record) -> None:
    other = samples.build("torch", GROUP, "release/2.10", "cp312")
    rocm = samples.record("build_rocm", GROUP)
    for record in (other, rocm):
        records.write(common.open_store(), common.outputs, GROUP, record)
    (group,) = read_run(replace(common, torch_ref="nightly")).groups
    expected = {"build_rocm": "", built.stage: "nightly"}
    assert {one.stage: one.cell.torch_ref for _, one in group.records} == expected
    with pytest.raises(UsageError, match="Did you mean 'nightly'"):
        read_run(replace(common, torch_ref="nihgtly"))


def test_results_come_from_reports_where_these_are_read(common: Common, built: records.Record) -> None:
    assert built.files
    failing = Case(test="test_nn.py::test_a", outcome="failed", seconds=2, line="No.", file="test_nn.py")
    report_of_tests(common, failing)
    (tests,) = read_run(common).groups[0].tests
    assert (tests.torch_ref, tests.python, tests.totals["failed"]) == ("nightly", "cp312", 1)
    assert read_run(common, tests=False).groups[0].tests == ()


def test_what_cannot_be_read_or_is_not_there_is_told(common: Common, built: records.Record) -> None:
    assert built.files
    with pytest.raises(MissingInputError, match="has no group 'gfx90'") as caught:
        read_run(replace(common, gpu_family="gfx90"))
    assert GROUP in caught.value.hint
    key = common.outputs.source_lock_key("nightly")
    common.open_store().put_bytes(key, b"{}")
    facts = read_run(common)
    assert (facts.locks, facts.problems[0].where, facts.groups[0].tests) == ({}, key, ())


def test_runs_of_ci_are_in_the_order_of_their_numbers_and_others_in_that_of_their_records() -> None:
    store = MemoryStore(moments={})
    for run_id in ("998", "99", "1000"):
        for name in ("linux/manifests/g/a.json", "linux/python/g/a.whl"):
            store.put_bytes(f"{run_id}-{name}", b"")
    for name in ("997-windows/b", "no id-linux/a", "python-deps/a"):
        store.put_bytes(name, b"")
    outputs, before = RunOutputs(run_id="1", platform="linux"), len(store.calls)
    assert stored_runs(store, outputs) == ["1000", "998", "99"]
    assert len(store.calls) - before == 1
    for run_id in ("b-tree", "a-tree"):
        store.put_bytes(f"{run_id}-linux/manifests/g/a.json", b"")
    runs = stored_runs(store, outputs)
    assert runs == ["a-tree", "b-tree", "1000", "998", "99"]
    assert earlier([*runs, "local"], "1000") == ["998", "99"]
    assert earlier([*runs, "local"], "local") == runs


BUILT = "7-linux/manifests/gfx94X-dcgpu/build_torch-release-2.10-cp312.json"


@pytest.mark.parametrize(
    ("record", "built"),
    [
        ("gfx94X-dcgpu/build_apex-release-2.10-cp312.failed.json", True),
        ("gfx94X-dcgpu/test_smoke-release-2.10-cp312.json", False),
        ("gfx94X-dcgpu-debug/build_torch-release-2.10-cp312.json", False),
        ("gfx94X-dcgpu/build_torch-my-release-2.10-cp312.json", False),
        ("gfx94X-dcgpu/build_torch-release-2.10-cp312t.json", False),
    ],
)
def test_a_cell_is_built_where_a_build_of_its_is_there_or_failed(record: str, *, built: bool) -> None:
    cells = [CellName(group="gfx94X-dcgpu", torch_ref="release/2.10", python="cp312")]
    assert has_built([BUILT], cells)
    assert has_built([f"7-linux/manifests/{record}"], cells) is built


def test_the_run_before_is_of_the_same_release_type() -> None:
    store, facts = MemoryStore(), samples.run([GROUP], ["nightly"], ["cp312"], run_id="9")
    for run_id, kind in (("6", "nightly"), ("7", "nightly"), ("8", "dev")):
        lock = samples.lock("nightly").model_copy(update={"release_type": kind})
        outputs = RunOutputs(run_id=run_id, platform="linux")
        store.put_bytes(outputs.source_lock_key("nightly"), lock.model_dump_json().encode())
        records.write(store, outputs, GROUP, samples.build("torch", GROUP, "nightly", "cp312"))
    assert previous(store, RunOutputs(run_id="9", platform="linux"), facts) == "7"
    assert [key for call, key in store.calls if call == "read"] == [
        f"{run_id}-linux/manifests/source-lock-nightly.json" for run_id in ("8", "7")
    ]
