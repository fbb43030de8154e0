from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from core.cell import GroupCell
from core.errors import DataError
from core.run import records
from core.run.records import FileRecord, Record
from tests.kit.memory_store import MemoryStore
from tests.kit.runs import run_outputs

RUN = run_outputs("17")
GROUP = "gfx110X-all"
WHEEL = FileRecord(name="a.whl", key="k/a.whl", size=3, sha256="0" * 64, distribution="a", version="1")


def record(
    step: str = "build_torch",
    *,
    files: Sequence[FileRecord] = (),
    inputs: Mapping[str, Any] | None = None,
    details: Mapping[str, Any] | None = None,
) -> Record:
    """Return the record of a step."""
    return Record(
        stage=step,
        run_id="17",
        platform="linux",
        cell=GroupCell(python="3.12", torch_ref="release/2.10", gpu_family=GROUP),
        started="2026-11-21T12:00:00+00:00",
        seconds=1.5,
        files=tuple(files),
        inputs=dict(inputs or {}),
        details=dict(details or {}),
    )


@pytest.fixture
def store() -> MemoryStore:
    """Return an empty store."""
    return MemoryStore()


def test_a_record_is_named_by_its_step_and_cell() -> None:
    assert record().name == "build_torch-release-2.10-cp312"
    assert records.record_name("build_rocm", GroupCell(gpu_family=GROUP)) == "build_rocm"


def test_reads_no_record_before_one_is_written(store: MemoryStore) -> None:
    assert records.read(store, RUN, GROUP, record().name) is None
    assert records.read_all(store, RUN, GROUP) == []


def test_reads_the_record_that_it_wrote(store: MemoryStore) -> None:
    written_record = record(files=[WHEEL], inputs={"commit": "abc"}, details={"hits": 3})

    records.write(store, RUN, GROUP, written_record)

    assert records.read(store, RUN, GROUP, written_record.name) == written_record


def test_parses_the_record_that_it_serialized() -> None:
    written_record = record(files=[WHEEL], inputs={"commit": "abc"}, details={"hits": 3})

    content = records.serialize(written_record)

    assert content.endswith(b"}\n")
    assert records.parse(content, where="here") == written_record


def test_reads_all_records_of_a_group_in_the_order_of_their_names(store: MemoryStore) -> None:
    records.write(store, RUN, GROUP, record("build_vision"))
    records.write(store, RUN, GROUP, record("build_audio"))
    records.write(store, RUN, "cpu", record("build_torch"))
    store.put_bytes(f"{RUN.manifests_prefix(GROUP)}/notes.txt", b"no record")

    assert [record.stage for record in records.read_all(store, RUN, GROUP)] == ["build_audio", "build_vision"]


CONTENT = records.serialize(record()).decode()


@pytest.mark.parametrize(
    ("text", "mentioned"),
    [
        ("{", ["record"]),
        ("[]", ["record"]),
        ('{"stage": "x"}', ["run_id"]),
        (CONTENT.replace('"exit_code": 0', '"exit_code": "no"'), ["exit_code"]),
        (CONTENT.replace('"schema_version": 1', '"schema_version": 2'), ["schema_version", "version 2"]),
    ],
    ids=["no JSON", "list", "field missing", "field of another type", "newer version"],
)
def test_names_the_document_and_the_field_of_a_faulty_record(text: str, mentioned: list[str]) -> None:
    with pytest.raises(DataError) as raised:
        records.parse(text, where="build.json")

    assert raised.value.message.startswith("build.json: ")
    assert all(name in raised.value.message for name in mentioned)
