"""Statements and bills of materials: read by the frameworks' own libraries and schemas, and written once."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ci.provenance import facts
from ci.provenance.facts import RunRecords
from ci.provenance.statements import sbom, serialized, statement, write_provenance
from ci.verbs.provenance import report
from core.errors import ConflictError, DataError, MissingInputError, StoreError
from core.run import RunOutputs, records
from core.run.records import FileRecord
from core.status import Pending, UpToDate
from core.stores.directory import DirectoryStore
from tests.kit import provenance as samples
from tests.kit.front_doors import look_at_verb, run_ci
from tests.kit.memory_store import MemoryStore
from tests.kit.provenance import GROUP, RUN, digest_of
from tests.kit.provenance_schemas import problems_of_bill, validate_statement

TORCH_RECORD_PATH = f"manifests/{GROUP}/build_torch-release-2.10-cp312.json"
TORCH_SOURCE = f"git+{samples.ORIGIN}@{samples.TORCH_COMMIT}"
BILL_KEY = f"{RUN.prefix}/{facts.SBOM}"


def statement_of(
    run: RunRecords,
    file: FileRecord,
) -> dict[str, Any]:
    """Return the statement of a file of a run."""
    run_files = facts.run_files(run)
    run_file = next(run_file for run_file in run_files if run_file.file.name == file.name)
    return statement(run, run_file)


def bill_of(run: RunRecords) -> dict[str, Any]:
    """Return the bill of materials of a run."""
    return sbom(run, facts.run_files(run))


# Statements


@pytest.mark.parametrize(
    "file", [samples.ROCM, samples.CORE, samples.TRITON, samples.TORCH], ids=lambda file: file.distribution
)
def test_writes_statements_that_their_schemas_accept(file: FileRecord) -> None:
    validate_statement(serialized(statement_of(samples.run_records(), file)))


@pytest.fixture(scope="module")
def torch_statement() -> dict[str, Any]:
    """Return the statement of torch."""
    return statement_of(samples.run_records(), samples.TORCH)


def test_names_the_file_by_its_digest(torch_statement: dict[str, Any]) -> None:
    assert torch_statement["subject"] == [
        {"name": samples.TORCH.name, "digest": {"sha256": samples.TORCH.sha256}}
    ]


def test_names_what_was_asked_for(torch_statement: dict[str, Any]) -> None:
    assert torch_statement["predicate"]["buildDefinition"]["externalParameters"] == {
        "stage": "build_torch",
        "torch_ref": samples.TORCH_REF,
        "gpu_family": GROUP,
        "python": "cp312",
        "platform": "linux",
        "version": samples.TORCH.version,
        "rocm_version": "7.10.0",
        "rocm_extras": [],
        "gpu_targets": ["gfx942"],
        "flags": {"USE_MAGMA": "0"},
    }


def test_names_what_the_build_used_besides(torch_statement: dict[str, Any]) -> None:
    assert torch_statement["predicate"]["buildDefinition"]["internalParameters"] == {
        "python": "3.12.4",
        "code": digest_of("code"),
        "input_digest": digest_of("inputs"),
    }


def test_names_the_source_first(torch_statement: dict[str, Any]) -> None:
    assert torch_statement["predicate"]["buildDefinition"]["resolvedDependencies"][0] == {
        "name": "torch",
        "uri": TORCH_SOURCE,
        "digest": {"gitCommit": samples.TORCH_COMMIT},
        "annotations": {"role": "source", "ref": "release/2.10"},
    }


def test_names_who_built_and_when(torch_statement: dict[str, Any]) -> None:
    details = torch_statement["predicate"]["runDetails"]

    assert details["builder"] == {"id": samples.WORKFLOW}
    assert details["metadata"] == {
        "invocationId": samples.BUILDER["invocation"],
        "startedOn": "2026-11-20T22:00:00Z",
        "finishedOn": "2026-11-20T22:01:31Z",
    }


def test_names_the_record_by_its_digest(torch_statement: dict[str, Any]) -> None:
    record = samples.recorded(samples.torch_record())

    assert torch_statement["predicate"]["runDetails"]["byproducts"][0] == {
        "name": TORCH_RECORD_PATH,
        "digest": {"sha256": record.document.sha256},
    }


def test_claims_no_workflow_for_a_developers_build() -> None:
    details = statement_of(samples.run_records(), samples.TRITON)["predicate"]["runDetails"]

    assert details["builder"]["id"] == facts.LOCAL_BUILDER
    assert details["metadata"]["invocationId"].startswith("down-stream/123-linux/manifests/")


def test_keeps_inputs_that_a_later_version_records() -> None:
    run = samples.run_records(torch=samples.torch_record({"compiler": {"name": "clang"}}))

    torch_statement = statement_of(run, samples.TORCH)

    parameters = torch_statement["predicate"]["buildDefinition"]["internalParameters"]
    assert parameters["compiler"] == {"name": "clang"}
    validate_statement(serialized(torch_statement))


def test_writes_the_same_bytes_for_a_record_that_was_read_back(torch_statement: dict[str, Any]) -> None:
    # Its keys have another order.
    read_record = records.parse(records.serialize(samples.torch_record()), where="here")

    read_statement = statement_of(samples.run_records(torch=read_record), samples.TORCH)

    assert serialized(read_statement) == serialized(torch_statement)


def test_names_the_bytes_of_a_record_and_not_what_it_says() -> None:
    record = samples.torch_record()
    reordered = record.model_copy(update={"inputs": dict(reversed(record.inputs.items()))})

    assert samples.recorded(reordered).document.sha256 != samples.recorded(record).document.sha256


# Bills of materials


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    """Return the bill of materials of the run."""
    return bill_of(samples.run_records())


def component(bill: dict[str, Any], ref: str) -> dict[str, Any]:
    """Return a component of a bill."""
    return next(dict(part) for part in bill["components"] if part["bom-ref"] == ref)


def wheel_ref(file: FileRecord) -> str:
    """Return what a bill calls a file."""
    return f"python/{GROUP}/{file.name}"


def test_writes_a_bill_that_its_schema_accepts(bill: dict[str, Any]) -> None:
    assert problems_of_bill(serialized(bill)) == ""


def test_every_dependency_is_between_components(bill: dict[str, Any]) -> None:
    refs = [part["bom-ref"] for part in bill["components"]]
    edges = {edge["ref"]: edge.get("dependsOn", []) for edge in bill["dependencies"]}

    assert len(refs) == len(set(refs))
    assert edges.keys() == {"run", *refs}
    for targets in edges.values():
        assert set(targets) <= set(refs)


def test_a_run_depends_on_its_files_and_these_on_their_materials(bill: dict[str, Any]) -> None:
    edges = {edge["ref"]: edge.get("dependsOn", []) for edge in bill["dependencies"]}

    files = (samples.ROCM, samples.CORE, samples.TRITON, samples.TORCH)
    assert edges["run"] == sorted(wheel_ref(file) for file in files)
    assert {TORCH_SOURCE, wheel_ref(samples.TRITON)} <= set(edges[wheel_ref(samples.TORCH)])


def test_names_a_wheel_as_others_name_it(bill: dict[str, Any]) -> None:
    torch = component(bill, wheel_ref(samples.TORCH))

    assert torch["name"] == "torch"
    assert torch["version"] == samples.TORCH.version
    assert torch["hashes"] == [{"alg": "SHA-256", "content": samples.TORCH.sha256}]
    assert torch["purl"].startswith("pkg:pypi/torch@2.10.0%2Brocm7.10.0?file_name=")


def test_leads_from_a_wheel_to_its_statement_and_its_record(bill: dict[str, Any]) -> None:
    references = component(bill, wheel_ref(samples.TORCH))["externalReferences"]

    urls = {reference["type"]: reference["url"] for reference in references}
    assert urls["attestation"].startswith(f"provenance/{GROUP}/torch-2.10.0%2Brocm")
    assert urls["build-meta"] == TORCH_RECORD_PATH


def test_names_a_source_as_others_name_it(bill: dict[str, Any]) -> None:
    source = component(bill, TORCH_SOURCE)

    assert source["purl"] == f"pkg:github/rocm/pytorch@{samples.TORCH_COMMIT}"
    assert source["version"] == samples.TORCH_COMMIT
    assert source["externalReferences"] == [{"type": "vcs", "url": samples.ORIGIN}]


def test_names_licences_as_expressions_where_they_are(bill: dict[str, Any]) -> None:
    licences = {part["name"]: part["licenses"] for part in bill["components"] if "licenses" in part}

    assert licences == {
        "rocm-sdk-core": [{"expression": "Apache-2.0 WITH LLVM-exception AND MIT"}],
        "torch": [{"expression": "BSD-3-Clause"}],
        "triton": [{"license": {"name": "MIT License"}}],
    }


def test_lists_an_uploaded_file_with_nothing_below_it() -> None:
    bill = bill_of(samples.run_records(samples.upload_record()))

    wheel = component(bill, wheel_ref(samples.UPLOADED))
    assert problems_of_bill(serialized(bill)) == ""
    assert [reference["type"] for reference in wheel["externalReferences"]] == ["build-meta"]
    assert {"ref": wheel["bom-ref"]} in bill["dependencies"]


def test_writes_the_same_bill_for_the_same_records(bill: dict[str, Any]) -> None:
    assert serialized(bill_of(samples.run_records())) == serialized(bill)


def test_dates_a_bill_by_the_last_step(bill: dict[str, Any]) -> None:
    assert bill["metadata"]["timestamp"] == "2026-11-20T22:01:31Z"


def test_gives_a_bill_a_serial_number_of_its_content(bill: dict[str, Any]) -> None:
    same_content = bill_of(samples.run_records(torch=samples.torch_record({"code": "x"})))
    other_content = bill_of(samples.run_records(samples.apex_record(seconds=9000)))

    number = bill["serialNumber"]
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f-]{17}", number)
    assert same_content["serialNumber"] == number
    assert other_content["serialNumber"] != number


# Writing


@pytest.fixture
def empty() -> MemoryStore:
    """Return a store without anything."""
    return MemoryStore()


@pytest.fixture
def store(empty: MemoryStore) -> MemoryStore:
    """Return a store with the records of the run."""
    samples.write_run(empty)
    return empty


def statement_key(file: FileRecord, run: RunOutputs = RUN) -> str:
    """Return where a file's statement lies."""
    return f"{run.prefix}/{facts.statement_path(GROUP, file.name)}"


def test_writes_a_statement_of_every_built_file_and_a_bill(store: MemoryStore) -> None:
    written = write_provenance(store, RUN)

    assert list(written.statements.values()) == ["written"] * 4
    assert written.sbom_key == BILL_KEY
    assert written.sbom_outcome == "written"
    assert written.without_statement == []
    assert json.loads(store.objects[BILL_KEY])["specVersion"] == "1.6"


def test_names_documents_of_the_store_by_their_digests(store: MemoryStore) -> None:
    write_provenance(store, RUN)

    predicate = json.loads(store.objects[statement_key(samples.TORCH)])["predicate"]
    record = predicate["runDetails"]["byproducts"][0]
    dependencies = predicate["buildDefinition"]["resolvedDependencies"]
    (lock,) = [part for part in dependencies if part["name"].startswith("manifests/source-lock")]
    for document in (record, lock):
        assert store.digest(f"{RUN.prefix}/{document['name']}") == document["digest"]["sha256"]


def test_writes_nothing_where_nothing_has_changed(store: MemoryStore) -> None:
    write_provenance(store, RUN)
    objects_before = dict(store.objects)

    written = write_provenance(store, RUN)

    assert set(written.statements.values()) == {"unchanged"}
    assert written.sbom_outcome == "unchanged"
    assert store.objects == objects_before


@pytest.mark.parametrize("key", [BILL_KEY, statement_key(samples.CORE)], ids=["bill", "statement"])
def test_restores_what_was_lost_to_the_byte(
    store: MemoryStore,
    key: str,
) -> None:
    write_provenance(store, RUN)
    objects_before = dict(store.objects)
    store.delete(key)

    write_provenance(store, RUN)

    assert store.objects == objects_before


def test_writes_statements_of_one_group_and_the_bill_of_all(store: MemoryStore) -> None:
    file = samples.file_record(
        name="torch-3.whl",
        distribution="torch",
        version="3",
        group="cpu",
    )
    samples.write_record(store, samples.step_record("build_torch", file), group="cpu")

    written = write_provenance(store, RUN, "cpu")

    assert list(written.statements) == [f"{RUN.prefix}/provenance/cpu/torch-3.whl.intoto.json"]
    assert store.list(f"{RUN.prefix}/provenance/{GROUP}") == []
    names = {part["name"] for part in json.loads(store.objects[BILL_KEY])["components"]}
    assert {"torch", "triton", "rocm-sdk-core"} <= names


def test_proposes_a_group_for_an_unknown_one(store: MemoryStore) -> None:
    with pytest.raises(MissingInputError, match="'gfx94X'") as raised:
        write_provenance(store, RUN, "gfx94X")

    assert GROUP in raised.value.hint


def test_rejects_a_run_without_records(empty: MemoryStore) -> None:
    with pytest.raises(MissingInputError, match="Run 123"):
        write_provenance(empty, RUN)


def test_rejects_a_run_in_which_every_build_failed(empty: MemoryStore) -> None:
    samples.write_record(empty, samples.step_record("build_torch", status="failed"))
    objects_before = dict(empty.objects)

    with pytest.raises(MissingInputError):
        write_provenance(empty, RUN)

    assert empty.objects == objects_before


def test_rejects_a_run_of_uploads_alone(empty: MemoryStore) -> None:
    samples.write_record(empty, samples.upload_record())

    with pytest.raises(MissingInputError, match="upload"):
        write_provenance(empty, RUN)


def test_names_the_files_without_a_statement(empty: MemoryStore) -> None:
    samples.write_run(empty, extra_records=[samples.upload_record()])

    written = write_provenance(empty, RUN)

    assert [run_file.file.name for run_file in written.without_statement] == [samples.UPLOADED.name]


UNREADABLE_RECORDS = pytest.mark.parametrize(
    ("content", "phrase"),
    [
        (b'{"schema_version": 2}', "schema_version"),
        (records.serialize(samples.torch_record({"rocm": "7.10.0"})), "inputs: rocm"),
    ],
    ids=["of another version", "of another form"],
)


@UNREADABLE_RECORDS
def test_writes_no_bill_where_another_groups_record_cannot_be_read(
    store: MemoryStore,
    content: bytes,
    phrase: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A developer's out/ may hold what an earlier version left."""
    store.put_bytes(RUN.record_key("cpu", "build_torch"), content)

    written = write_provenance(store, RUN, GROUP)
    report(store, written)

    assert len(written.statements) == 4
    assert written.sbom_outcome is None
    assert BILL_KEY not in store.objects
    messages = capsys.readouterr().err
    assert facts.SBOM in messages
    assert phrase in messages


@UNREADABLE_RECORDS
def test_rejects_a_run_with_a_record_that_cannot_be_read(
    store: MemoryStore,
    content: bytes,
    phrase: str,
) -> None:
    store.put_bytes(RUN.record_key("cpu", "build_torch"), content)

    with pytest.raises(DataError, match=phrase):
        write_provenance(store, RUN)


@pytest.mark.parametrize(("run_id", "is_removed"), [("local", True), ("123", False)])
def test_removes_statements_of_absent_files_in_a_local_run_alone(
    empty: MemoryStore,
    run_id: str,
    *,
    is_removed: bool,
) -> None:
    run = RunOutputs(run_id=run_id, platform="linux")
    samples.write_run(empty, run)
    absent_file = samples.file_record(
        name="torch-1.whl",
        distribution="torch",
        version="1",
    )
    key = statement_key(absent_file, run)
    empty.put_bytes(key, b"{}")

    written = write_provenance(empty, run)

    assert list(written.removed_keys) == ([key] if is_removed else [])
    assert (key not in empty.objects) is is_removed


# Several jobs


def test_lists_the_wheel_of_a_job_that_finished_meanwhile(store: MemoryStore) -> None:
    """Another job's wheel appears, and its bill is written, while this one writes its own."""

    def finish_another_job(_number: int, _key: str) -> None:
        store.on_write = lambda _number, _key: None
        samples.write_record(store, samples.apex_record())
        write_provenance(store, RUN)

    store.on_write = finish_another_job

    assert write_provenance(store, RUN).sbom_outcome == "unchanged"
    components = json.loads(store.objects[BILL_KEY])["components"]
    assert "apex" in {part["name"] for part in components}


def test_does_not_take_the_manifest_of_a_rocm_build_for_a_record(store: MemoryStore) -> None:
    store.put_bytes(f"{RUN.manifests_prefix(GROUP)}/therock_manifest.json", b"{}")

    assert len(write_provenance(store, RUN).statements) == 4


def test_does_without_a_record_that_vanishes_after_it_was_listed(store: MemoryStore) -> None:
    failed_record = samples.apex_record(status="failed")
    samples.write_record(store, failed_record)
    failed_key = RUN.record_key(GROUP, f"{failed_record.name}.failed")
    assert failed_key in store.objects

    def delete_before_reading(call: str, key: str) -> None:
        if call == "read" and key == failed_key:
            store.objects.pop(key, None)

    store.before = delete_before_reading

    assert len(write_provenance(store, RUN).statements) == 4
    assert failed_key not in store.objects


def test_gives_up_where_others_always_come_first(empty: MemoryStore) -> None:
    # One record is enough, and read many times.
    samples.write_record(empty, samples.rocm_record())

    def write_first(call: str, key: str) -> None:
        if call == "put" and key == BILL_KEY:
            empty.objects[key] = str(len(empty.calls)).encode()

    empty.before = write_first

    with pytest.raises(StoreError) as raised:
        write_provenance(empty, RUN)

    assert facts.SBOM in raised.value.message
    # A conflict is handled by trying again, and this must not be.
    assert not isinstance(raised.value, ConflictError)


# The verb


@pytest.fixture
def run_folder(tmp_path: Path) -> DirectoryStore:
    """Return a folder with the records of the run, and of an upload."""
    store = DirectoryStore(tmp_path / "store")
    samples.write_run(store, VERBS_RUN, extra_records=[samples.upload_record()])
    return store


VERBS_RUN = RunOutputs(run_id="123", platform="linux")


def run_provenance(store: DirectoryStore, *options: str) -> int:
    """Write the provenance of the run; return the exit code."""
    return run_ci("provenance", "--run-id=123", f"--store={store.url}", f"--gpu-family={GROUP}", *options)


def test_dry_run_writes_nothing(run_folder: DirectoryStore) -> None:
    assert run_provenance(run_folder, "--dry-run") == 0
    assert run_folder.list(f"{VERBS_RUN.prefix}/provenance") == []


def test_a_look_finds_nothing_to_do_where_statements_were_written(run_folder: DirectoryStore) -> None:
    options = ("--run-id=123", f"--store={run_folder.url}", f"--gpu-family={GROUP}")
    assert isinstance(look_at_verb("ci", "provenance", *options), Pending)
    assert run_folder.list(f"{VERBS_RUN.prefix}/provenance") == [], "a look writes nothing"

    run_provenance(run_folder)

    assert look_at_verb("ci", "provenance", *options) == UpToDate()


def test_says_what_was_written_and_what_has_no_statement(
    run_folder: DirectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_provenance(run_folder) == 0

    messages = capsys.readouterr().err
    assert f"{samples.UPLOADED.name}: no statement" in messages
    assert f"{run_folder.url_of(f'{VERBS_RUN.prefix}/{facts.SBOM}')} (written)" in messages
    assert "4 of 4 statements written" in messages
