"""Statements and bills of materials: read by the frameworks' own libraries and schemas, and written once."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ci.provenance import facts
from ci.provenance.statements import sbom, serialized, statement, write_provenance
from ci.verbs.provenance import report
from core.errors import ConflictError, DataError, MissingInputError, StoreError
from core.run import RunOutputs, records
from core.stores import Outcome, Store
from core.stores.directory import DirectoryStore
from tests.kit import provenance as samples
from tests.kit.front_doors import run_ci
from tests.kit.page_runs import digest
from tests.kit.provenance_schemas import problems_of_bill, validate_statement


def of(run: Any, name: str) -> dict[str, Any]:
    made = next(one for one in facts.made_files(run) if one.file.name == name)
    return statement(run, made)


@pytest.mark.parametrize(
    "file", [samples.ROCM, samples.CORE, samples.TRITON, samples.TORCH], ids=lambda one: one.distribution
)
def test_every_statement_is_one(file: Any) -> None:
    validate_statement(serialized(of(samples.run(), file.name)))


def test_it_says_what_was_asked_for_and_who_built() -> None:
    said = of(samples.run(), samples.TORCH.name)
    assert said["subject"] == [{"name": samples.TORCH.name, "digest": {"sha256": samples.TORCH.sha256}}]
    definition, details = said["predicate"]["buildDefinition"], said["predicate"]["runDetails"]
    assert definition["externalParameters"] == {
        "stage": "build_torch",
        "torch_ref": samples.REF,
        "gpu_family": samples.GROUP,
        "python": "cp312",
        "platform": "linux",
        "version": samples.TORCH.version,
        "rocm_version": "7.10.0",
        "rocm_extras": [],
        "gpu_targets": ["gfx942"],
        "flags": {"USE_MAGMA": "0"},
    }
    expected = {"python": "3.12.4", "code": digest("code"), "input_digest": digest("inputs")}
    assert definition["internalParameters"] == expected
    assert definition["resolvedDependencies"][0] == {
        "name": "torch",
        "uri": f"git+{samples.ORIGIN}@{samples.TORCH_COMMIT}",
        "digest": {"gitCommit": samples.TORCH_COMMIT},
        "annotations": {"role": "source", "ref": "release/2.10"},
    }
    assert details["builder"] == {"id": samples.WORKFLOW}
    assert details["metadata"] == {
        "invocationId": samples.BUILDER["invocation"],
        "startedOn": "2026-11-20T22:00:00Z",
        "finishedOn": "2026-11-20T22:01:31Z",
    }
    key = f"manifests/{samples.GROUP}/build_torch-release-2.10-cp312.json"
    assert details["byproducts"][0] == {
        "name": key,
        "digest": {"sha256": samples.recorded(samples.torch_record()).document.sha256},
    }


def test_a_machine_of_ones_own_claims_to_be_no_workflow() -> None:
    details = of(samples.run(), samples.TRITON.name)["predicate"]["runDetails"]
    assert details["builder"]["id"].endswith("#a-machine-of-ones-own")
    assert details["metadata"]["invocationId"].startswith("down-stream/123-linux/manifests/")


def test_what_a_later_version_records_is_kept() -> None:
    run = samples.run(torch=samples.torch_record(compiler={"name": "clang"}))
    internal = of(run, samples.TORCH.name)["predicate"]["buildDefinition"]["internalParameters"]
    assert internal["compiler"] == {"name": "clang"}
    validate_statement(serialized(of(run, samples.TORCH.name)))


def test_the_same_records_give_the_same_bytes() -> None:
    first = serialized(of(samples.run(), samples.TORCH.name))
    # a record that was read back has its keys in another order
    again = records.parse(records.serialize(samples.torch_record(code=digest("code"))), where="here")
    shuffled = again.model_copy(update={"inputs": dict(reversed(again.inputs.items()))})
    assert serialized(of(samples.run(torch=again), samples.TORCH.name)) == first
    assert samples.recorded(shuffled).document.sha256 != samples.recorded(again).document.sha256


PLACE = f"python/{samples.GROUP}"


def bill_of(run: Any) -> dict[str, Any]:
    return sbom(run, facts.made_files(run))


def component(bill: dict[str, Any], ref: str) -> dict[str, Any]:
    found: dict[str, Any] = next(one for one in bill["components"] if one["bom-ref"] == ref)
    return found


def test_it_is_one_by_the_schema_and_every_edge_leads_to_a_component() -> None:
    bill = bill_of(samples.run())
    assert problems_of_bill(serialized(bill)) == ""
    refs = [one["bom-ref"] for one in bill["components"]]
    assert len(refs) == len(set(refs))
    assert {one["ref"] for one in bill["dependencies"]} == {"run", *refs}
    assert {to for one in bill["dependencies"] for to in one.get("dependsOn", ())} <= set(refs)
    edges = {one["ref"]: one.get("dependsOn", []) for one in bill["dependencies"]}
    assert edges["run"] == sorted(ref for ref in refs if ref.startswith("python/"))
    wheel = edges[f"{PLACE}/{samples.TORCH.name}"]
    assert f"git+{samples.ORIGIN}@{samples.TORCH_COMMIT}" in wheel
    assert f"{PLACE}/{samples.TRITON.name}" in wheel


def test_components_are_named_as_others_name_them() -> None:
    bill = bill_of(samples.run())
    wheel = component(bill, f"{PLACE}/{samples.TORCH.name}")
    assert (wheel["name"], wheel["version"]) == ("torch", samples.TORCH.version)
    assert wheel["hashes"] == [{"alg": "SHA-256", "content": samples.TORCH.sha256}]
    assert wheel["purl"].startswith("pkg:pypi/torch@2.10.0%2Brocm7.10.0?file_name=")
    urls = {one["type"]: one["url"] for one in wheel["externalReferences"]}
    assert urls["attestation"].startswith(f"provenance/{samples.GROUP}/torch-2.10.0%2Brocm")
    assert urls["build-meta"] == f"manifests/{samples.GROUP}/build_torch-release-2.10-cp312.json"
    source = component(bill, f"git+{samples.ORIGIN}@{samples.TORCH_COMMIT}")
    assert source["purl"] == f"pkg:github/rocm/pytorch@{samples.TORCH_COMMIT}"
    assert source["version"] == samples.TORCH_COMMIT
    assert source["externalReferences"] == [{"type": "vcs", "url": samples.ORIGIN}]
    assert {one["name"]: one["licenses"] for one in bill["components"] if "licenses" in one} == {
        "rocm-sdk-core": [{"expression": "Apache-2.0 WITH LLVM-exception AND MIT"}],
        "torch": [{"expression": "BSD-3-Clause"}],
        "triton": [{"license": {"name": "MIT License"}}],
    }


def test_the_serial_follows_the_content_and_the_time_the_last_stage() -> None:
    first = bill_of(samples.run())
    assert serialized(first) == serialized(bill_of(samples.run()))
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[0-9a-f-]{17}", first["serialNumber"])
    assert first["metadata"]["timestamp"] == "2026-11-20T22:01:31Z"
    other = bill_of(samples.run(torch=samples.torch_record(code="x")))
    apex = samples.record("build_apex", samples.file("apex-1.whl", "apex", "1"), seconds=9000)
    assert other["serialNumber"] == first["serialNumber"]
    assert bill_of(samples.run(apex))["serialNumber"] != first["serialNumber"]


def test_what_was_uploaded_is_listed_with_nothing_below_it() -> None:
    upload = samples.record("upload-1", samples.file("own-1-py3-none-any.whl", "own", "1"), python="", ref="")
    bill = bill_of(samples.run(upload))
    assert problems_of_bill(serialized(bill)) == ""
    wheel = component(bill, f"{PLACE}/own-1-py3-none-any.whl")
    assert [one["type"] for one in wheel["externalReferences"]] == ["build-meta"]
    assert {"ref": wheel["bom-ref"]} in bill["dependencies"]


OUTPUTS, GROUP = samples.OUTPUTS, samples.GROUP
BILL = f"{OUTPUTS.prefix}/{facts.SBOM}"


@pytest.fixture
def empty(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


@pytest.fixture
def store(empty: DirectoryStore) -> DirectoryStore:
    fill(empty)
    return empty


def fill(store: Store, outputs: RunOutputs = OUTPUTS, *more: records.Record) -> None:
    for one in (*samples.rocm_records(), samples.triton_record(), samples.torch_record(), *more):
        records.write(store, outputs, GROUP, one)
    store.put_bytes(outputs.source_lock_key(samples.REF), samples.lock().model_dump_json().encode())


def content(store: Store) -> dict[str, bytes]:
    return {stored.key: store.read(stored.key) for stored in store.list("")}


def statement_key(name: str, outputs: RunOutputs = OUTPUTS) -> str:
    return f"{outputs.prefix}/{facts.statement_path(GROUP, name)}"


def test_every_built_file_has_a_statement_and_the_run_a_bill(store: DirectoryStore) -> None:
    written = write_provenance(store, OUTPUTS)
    assert [outcome for _, outcome in written.made] == ["written"] * 4
    assert (written.sbom, written.sbom_outcome, written.without) == (BILL, "written", ())
    said = json.loads(store.read(statement_key(samples.TORCH.name)))
    assert said["subject"][0]["digest"] == {"sha256": samples.TORCH.sha256}
    digest = said["predicate"]["runDetails"]["byproducts"][0]
    assert store.digest(f"{OUTPUTS.prefix}/{digest['name']}") == digest["digest"]["sha256"]
    used = said["predicate"]["buildDefinition"]["resolvedDependencies"]
    (lock,) = (one for one in used if one["name"].startswith("manifests/source-lock"))
    assert store.digest(f"{OUTPUTS.prefix}/{lock['name']}") == lock["digest"]["sha256"]
    assert json.loads(store.read(BILL))["specVersion"] == "1.6"


def test_again_nothing_is_written_and_what_is_lost_comes_back_the_same(store: DirectoryStore) -> None:
    write_provenance(store, OUTPUTS)
    before = content(store)
    again = write_provenance(store, OUTPUTS)
    assert ({outcome for _, outcome in again.made}, again.sbom_outcome) == ({"unchanged"}, "unchanged")
    store.delete(BILL)
    store.delete(statement_key(samples.CORE.name))
    write_provenance(store, OUTPUTS)
    assert content(store) == before


def test_a_group_gets_its_own_statements_and_the_bill_stays_whole(store: DirectoryStore) -> None:
    own = samples.record("build_torch", samples.file("torch-3.whl", "torch", "3", group="cpu"))
    records.write(store, OUTPUTS, "cpu", own)
    written = write_provenance(store, OUTPUTS, "cpu")
    assert [one.file.name for one, _ in written.made] == ["torch-3.whl"]
    assert not store.list(f"{OUTPUTS.prefix}/provenance/{GROUP}")
    names = {one["name"] for one in json.loads(store.read(BILL))["components"]}
    assert {"torch", "triton", "rocm-sdk-core"} <= names
    with pytest.raises(MissingInputError, match="no records of group 'gfx94X'") as caught:
        write_provenance(store, OUTPUTS, "gfx94X")
    assert "gfx94X-dcgpu" in caught.value.hint


def test_a_run_without_builds_is_an_error(empty: DirectoryStore) -> None:
    with pytest.raises(MissingInputError, match="Run 123 has no records in"):
        write_provenance(empty, OUTPUTS)
    records.write(empty, OUTPUTS, GROUP, samples.record("build_torch", status="failed", exit_code=130))
    with pytest.raises(MissingInputError, match="no stage that made files"):
        write_provenance(empty, OUTPUTS)
    assert len(empty.list("")) == 1
    upload = samples.record("upload-1", samples.file("own-1.whl", "own", "1"), python="", ref="")
    records.write(empty, OUTPUTS, GROUP, upload)
    with pytest.raises(MissingInputError, match="no record of a build: only uploads"):
        write_provenance(empty, OUTPUTS)
    fill(empty)
    assert [one.file.name for one in write_provenance(empty, OUTPUTS).without] == ["own-1.whl"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"schema_version": 2}', "schema_version: It is a record of version 2"),
        (records.serialize(samples.torch_record(rocm="7.10.0")), "inputs: rocm"),
    ],
)
def test_another_groups_records_only_keep_the_bill_from_being_written(
    store: DirectoryStore, text: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A developer's out/ may hold what an earlier version left."""
    store.put_bytes(OUTPUTS.record_key("cpu", "build_torch"), text)
    written = write_provenance(store, OUTPUTS, GROUP)
    assert len(written.made) == 4
    assert (written.sbom_outcome, store.find(BILL)) == (None, None)
    report(store, written)
    told = capsys.readouterr().err
    assert "sbom.cdx.json is not written" in told
    assert said in told
    with pytest.raises(DataError, match=said):
        write_provenance(store, OUTPUTS)


@pytest.mark.parametrize("run_id", ["local", "123"])
def test_only_the_local_run_loses_statements_of_absent_files(empty: DirectoryStore, run_id: str) -> None:
    outputs = RunOutputs(run_id=run_id, platform="linux")
    fill(empty, outputs)
    old = statement_key("torch-1.whl", outputs)
    empty.put_bytes(old, b"{}")
    assert write_provenance(empty, outputs).removed == ((old,) if run_id == "local" else ())
    assert (empty.find(old) is None) is (run_id == "local")


def test_a_second_job_reads_the_records_again(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another job's wheel appears, and its bill is written, while this one makes its own."""
    whole = facts.read_run
    apex = samples.record("build_apex", samples.file("apex-1.whl", "apex", "1"))
    asked: list[str] = []

    def read_run(store: Store, outputs: RunOutputs, known: Any, group: str) -> Any:
        found = whole(store, outputs, known, group)
        if not asked:
            asked.append("first")
            records.write(store, outputs, GROUP, apex)
            write_provenance(store, outputs)
        return found

    monkeypatch.setattr(facts, "read_run", read_run)
    assert write_provenance(store, OUTPUTS).sbom_outcome == "unchanged"
    assert "apex" in {one["name"] for one in json.loads(store.read(BILL))["components"]}


def test_what_is_not_a_record_and_a_record_that_vanishes_are_nothing(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_bytes(f"{OUTPUTS.manifests_prefix(GROUP)}/therock_manifest.json", b"{}")
    failed = samples.record("build_apex", status="failed", exit_code=8, error="No wheel.")
    records.write(store, OUTPUTS, GROUP, failed)
    listing = DirectoryStore.list

    def listed(store: DirectoryStore, prefix: str, **options: Any) -> Any:
        found = listing(store, prefix, **options)
        store.delete(OUTPUTS.record_key(GROUP, f"{failed.name}.failed"))
        return found

    monkeypatch.setattr(DirectoryStore, "list", listed)
    assert len(write_provenance(store, OUTPUTS).made) == 4


def test_constant_conflicts_end_in_an_error(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    put = DirectoryStore.put_bytes

    def put_bytes(store: DirectoryStore, key: str, data: bytes, **options: Any) -> Outcome:
        if "if_match" in options:
            raise ConflictError("somebody was faster")
        return put(store, key, data, **options)

    monkeypatch.setattr(DirectoryStore, "put_bytes", put_bytes)
    with pytest.raises(StoreError, match="was written by others 64 times"):
        write_provenance(store, OUTPUTS)


def test_the_verb_says_what_it_wrote(empty: DirectoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = RunOutputs(run_id="123", platform="linux")
    upload = samples.record("upload-1", samples.file("own-1.whl", "own", "1"), python="", ref="")
    fill(empty, outputs, upload)
    words = ["provenance", "--run-id=123", f"--store={empty.url}", f"--gpu-family={GROUP}"]
    assert run_ci(*words, "--dry-run") == 0
    assert not empty.list(f"{outputs.prefix}/provenance")
    capsys.readouterr()
    assert run_ci(*words) == 0
    said = capsys.readouterr().err
    assert "own-1.whl: no statement, as no build's record names it (upload-1)" in said
    assert f"sbom     {empty.url_of(f'{outputs.prefix}/{facts.SBOM}')} (written)" in said
    assert "provenance: 4 of 4 statements written" in said
