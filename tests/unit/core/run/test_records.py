from pathlib import Path
from typing import Any

import pytest

from core.errors import DataError
from core.run import RunOutputs, records
from core.run.records import Cell, FileRecord, Record
from core.stores.directory import DirectoryStore

OUTPUTS = RunOutputs(run_id="17", platform="linux")
GROUP = "gfx110X-all"


def record(stage: str = "build_torch", **facts: Any) -> Record:
    cell = Cell(python="cp312", torch_ref="release/2.10", gpu_family=GROUP)
    values = {"run_id": "17", "platform": "linux", "cell": cell, "started": records.now(), "seconds": 1.5}
    return Record(stage=stage, **{**values, **facts})


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def test_a_record_is_named_by_its_stage_and_cell() -> None:
    assert record().name == "build_torch-release-2.10-cp312"
    assert records.record_name("build_rocm", Cell(gpu_family=GROUP)) == "build_rocm"


def test_what_is_written_reads_back(store: DirectoryStore) -> None:
    one = FileRecord(name="a.whl", key="k/a.whl", size=3, sha256="0" * 64, distribution="a", version="1")
    written = record(inputs={"commit": "abc"}, details={"hits": 3}, files=(one,))
    assert records.read(store, OUTPUTS, GROUP, written.name) is None
    assert records.read_all(store, OUTPUTS, GROUP) == []
    records.write(store, OUTPUTS, GROUP, written)
    assert records.read(store, OUTPUTS, GROUP, written.name) == written
    assert records.parse(records.serialize(written), where="here") == written
    assert records.serialize(written).endswith(b"}\n")


def test_all_records_of_a_group_are_read_by_name(store: DirectoryStore) -> None:
    for stage in ("build_vision", "build_audio"):
        records.write(store, OUTPUTS, GROUP, record(stage))
    records.write(store, OUTPUTS, "cpu", record("build_torch"))
    store.put_bytes(f"{OUTPUTS.manifests_prefix(GROUP)}/notes.txt", b"no record")
    assert [one.stage for one in records.read_all(store, OUTPUTS, GROUP)] == ["build_audio", "build_vision"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", r"build\.json: record: Invalid JSON"),
        ("[]", r"build\.json: record: "),
        ('{"stage": "x"}', r"build\.json: run_id: Field required"),
        (
            records.serialize(record()).replace(b'"exit_code": 0', b'"exit_code": "no"').decode(),
            r"build\.json: exit_code: ",
        ),
        (
            records.serialize(record()).replace(b'"schema_version": 1', b'"schema_version": 2').decode(),
            r"build\.json: schema_version: It is a record of version 2, and this version reads 1",
        ),
    ],
)
def test_what_is_no_record_is_named(text: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        records.parse(text, where="build.json")
