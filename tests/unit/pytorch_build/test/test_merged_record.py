from pathlib import Path

import pytest

from core.errors import CheckError
from core.run import records
from core.run.records import Record
from core.stores import Store
from core.stores.directory import DirectoryStore
from pytorch_build.test.cell_results import CellResults
from pytorch_build.test.junit.reader import read_junit
from pytorch_build.test.merged_record import merge_shard_records
from pytorch_build.test.report import MERGED_SHARDS
from tests.kit.runs import run_outputs
from tests.kit.torch_halves import CELL, FIRST_HALF, SECOND_HALF, WHEELS, merge_halves, record_of_half

OUTPUTS = run_outputs("17")


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def record_of_whole(store: Store, cell_results: CellResults, *half_records: Record) -> Record:
    """Return the record that is made of those of the halves."""
    return merge_shard_records(
        half_records, cell_results, store=store, outputs=OUTPUTS, artifact_group="gfx942"
    )


def test_the_record_of_the_whole_has_what_a_promotion_reads(store: DirectoryStore) -> None:
    halves = (record_of_half(SECOND_HALF), record_of_half(FIRST_HALF))

    record = record_of_whole(store, merge_halves(), *halves)

    assert record.stage == "test_torch"
    assert record.status == "ok"
    assert record.cell == CELL
    assert record.inputs["files"] == WHEELS
    assert record.inputs["arguments"] == []
    assert record.inputs["gpu"] == [["gfx942"], ["gfx942"]]


def test_the_record_of_the_whole_has_the_totals_of_both_halves(store: DirectoryStore) -> None:
    halves = (record_of_half(FIRST_HALF), record_of_half(SECOND_HALF))

    record = record_of_whole(store, merge_halves(), *halves)

    assert record.seconds == 20
    assert record.details["tests"] == {"tests": 2, "failures": 0, "errors": 0, "skipped": 0}
    assert records.parse(records.serialize(record), where="a test") == record


def test_the_report_of_the_whole_has_the_tests_of_both_halves(store: DirectoryStore) -> None:
    halves = (record_of_half(FIRST_HALF), record_of_half(SECOND_HALF))

    record = record_of_whole(store, merge_halves("passed", "flaky"), *halves)

    document = read_junit(store.read(record.details["report"]["key"]))
    assert document.properties[MERGED_SHARDS] == "2"
    assert [case.outcome for case in document.cases] == ["passed", "flaky"]


def test_a_half_without_a_gpu_leaves_the_whole_without(store: DirectoryStore) -> None:
    halves = (record_of_half(FIRST_HALF), record_of_half(SECOND_HALF, gpu=[]))

    assert record_of_whole(store, merge_halves(), *halves).inputs["gpu"] == []


@pytest.mark.parametrize(
    ("half_records", "problem"),
    [
        pytest.param(
            [
                record_of_half(FIRST_HALF),
                record_of_half(SECOND_HALF, files={"torch-2.10-cp312.whl": "b" * 64}),
            ],
            "differ in files",
            id="other wheels",
        ),
        pytest.param(
            [record_of_half(FIRST_HALF), record_of_half(SECOND_HALF, arguments=["--other-gpu"])],
            "differ in arguments",
            id="other arguments",
        ),
        pytest.param(
            [record_of_half(FIRST_HALF), record_of_half(SECOND_HALF, selection=["-k", "x"])],
            "differ in selection",
            id="other selection",
        ),
        pytest.param(
            [record_of_half(FIRST_HALF), record_of_half(SECOND_HALF, installed=False)],
            "differ in installed",
            id="filled environment",
        ),
        pytest.param(
            [record_of_half(FIRST_HALF), record_of_half(SECOND_HALF, config="inductor")],
            "differ in config",
            id="other configuration",
        ),
        pytest.param([record_of_half(FIRST_HALF)], "test_torch-2-of-2", id="no record"),
        pytest.param(
            [record_of_half(FIRST_HALF, files={}), record_of_half(SECOND_HALF, files={})],
            "no wheels",
            id="no wheels",
        ),
    ],
)
def test_halves_that_tested_something_else_are_no_whole(
    store: DirectoryStore, half_records: list[Record], problem: str
) -> None:
    with pytest.raises(CheckError, match=problem):
        record_of_whole(store, merge_halves(), *half_records)


def test_a_failure_of_a_half_is_a_failure_of_the_whole(store: DirectoryStore) -> None:
    record = record_of_whole(store, merge_halves("passed", "failed"), record_of_half(FIRST_HALF))

    assert record.status == "failed"
    assert record.exit_code == CheckError.exit_code
    assert "t.py::2-0" in record.error
