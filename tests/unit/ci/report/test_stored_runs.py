"""The runs that a store holds, and which one came before a run."""

import pytest

from ci.report.facts import RunFacts
from ci.report.stored_runs import find_previous_run, has_built, list_runs, runs_before
from core.run import RunOutputs, records
from tests.kit import page_runs
from tests.kit.group_cells import group_cell
from tests.kit.memory_store import MemoryStore

GROUP = "gfx900"
REF = "nightly"
PYTHON = "cp312"
CELL = (GROUP, REF, PYTHON)
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

    assert list_runs(store, OUTPUTS) == ["1000", "998", "99"]
    assert len(store.calls) == 1


def test_lists_other_runs_first_the_newest_records_before_others(store: MemoryStore) -> None:
    for run_id in ("b-tree", "a-tree"):
        store.put_bytes(f"{run_id}-linux/manifests/g/a.json", b"")

    assert list_runs(store, OUTPUTS) == ["a-tree", "b-tree", "1000", "998", "99"]


def test_earlier_runs_of_ci_have_smaller_numbers() -> None:
    run_ids = ["a-tree", "1000", "998", "99", "local"]

    assert runs_before(run_ids, "1000") == ["998", "99"]


def test_all_runs_are_earlier_than_the_local_one() -> None:
    assert runs_before(["a-tree", "1000", "local"], "local") == ["a-tree", "1000"]


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
    cell = group_cell(
        artifact_group="gfx94X-dcgpu",
        torch_ref="release/2.10",
        python_tag="cp312",
    )

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
    assert find_previous_run(releases, OUTPUTS_OF_9, facts) == "7"


def test_reads_only_source_locks_to_find_the_run_before(releases: MemoryStore, facts: RunFacts) -> None:
    find_previous_run(releases, OUTPUTS_OF_9, facts)

    assert releases.keys_of_calls("read") == (
        "8-linux/manifests/source-lock-nightly.json",
        "7-linux/manifests/source-lock-nightly.json",
    )
