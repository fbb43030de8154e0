from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ci.provenance import facts, statements
from ci.provenance.facts import SBOM, statement_path
from ci.provenance.statements import write_provenance
from ci.verbs.provenance import report
from core import parallel
from core.cli.frontdoor import Verb, main
from core.errors import ConflictError, DataError, MissingInputError, StoreError
from core.run import records
from core.run.outputs import RunOutputs
from core.stores.directory import DirectoryStore
from tests import provenance_samples as samples

if TYPE_CHECKING:
    from pathlib import Path

    from core.run.records import Record
    from core.stores import Outcome, Store

OUTPUTS, GROUP = samples.OUTPUTS, samples.GROUP
BILL = f"{OUTPUTS.prefix}/{SBOM}"


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


def fill(store: Store, outputs: RunOutputs = OUTPUTS, *more: Record) -> None:
    for one in (*samples.rocm_records(), samples.triton_record(), samples.torch_record(), *more):
        records.write(store, outputs, GROUP, one)
    store.put_bytes(outputs.source_lock_key(samples.REF), samples.lock().model_dump_json().encode())


def content(store: Store) -> dict[str, bytes]:
    return {stored.key: store.read(stored.key) for stored in store.list("")}


def statement_key(name: str, outputs: RunOutputs = OUTPUTS) -> str:
    return f"{outputs.prefix}/{statement_path(GROUP, name)}"


def test_every_built_file_has_a_statement_and_the_run_a_bill(store: DirectoryStore) -> None:
    fill(store)
    written = write_provenance(store, OUTPUTS)
    assert [outcome for _, outcome in written.made] == ["written"] * 4
    assert (written.sbom, written.sbom_outcome, written.without) == (BILL, "written", ())
    said = json.loads(store.read(statement_key(samples.TORCH.name)))
    assert said["subject"][0]["digest"] == {"sha256": samples.TORCH.sha256}
    digest = said["predicate"]["runDetails"]["byproducts"][0]
    assert store.digest(f"{OUTPUTS.prefix}/{digest['name']}") == digest["digest"]["sha256"]
    locks = [
        one
        for one in said["predicate"]["buildDefinition"]["resolvedDependencies"]
        if one["name"].startswith("manifests/source-lock")
    ]
    assert [store.digest(f"{OUTPUTS.prefix}/{one['name']}") for one in locks] == [
        locks[0]["digest"]["sha256"]
    ]
    assert json.loads(store.read(BILL))["specVersion"] == "1.6"


def test_again_nothing_is_written_and_what_is_lost_comes_back_the_same(store: DirectoryStore) -> None:
    fill(store)
    write_provenance(store, OUTPUTS)
    before = content(store)
    again = write_provenance(store, OUTPUTS)
    assert ({outcome for _, outcome in again.made}, again.sbom_outcome) == ({"unchanged"}, "unchanged")
    store.delete(BILL)
    store.delete(statement_key(samples.CORE.name))
    write_provenance(store, OUTPUTS)
    assert content(store) == before


def test_a_group_gets_its_own_statements_and_the_bill_stays_whole(store: DirectoryStore) -> None:
    fill(store)
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


def test_what_was_only_uploaded_has_none(store: DirectoryStore) -> None:
    upload = samples.record("upload-1", samples.file("own-1.whl", "own", "1"), python="", ref="")
    records.write(store, OUTPUTS, GROUP, upload)
    with pytest.raises(MissingInputError, match="no record of a build: only uploads"):
        write_provenance(store, OUTPUTS)
    fill(store)
    assert [one.file.name for one in write_provenance(store, OUTPUTS).without] == ["own-1.whl"]


def test_a_run_without_records_is_an_error(store: DirectoryStore) -> None:
    with pytest.raises(MissingInputError, match="Run 123 has no records in"):
        write_provenance(store, OUTPUTS)
    records.write(store, OUTPUTS, GROUP, samples.record("build_torch", status="failed", exit_code=130))
    with pytest.raises(MissingInputError, match="no stage that made files"):
        write_provenance(store, OUTPUTS)
    assert len(store.list("")) == 1


def test_a_record_of_another_schema_stops_it_before_anything_is_written(store: DirectoryStore) -> None:
    fill(store)
    key = OUTPUTS.record_key(GROUP, "build_apex")
    store.put_bytes(key, b'{"schema_version": 2, "stage": "build_apex"}')
    before = content(store)
    with pytest.raises(DataError, match=r"build_apex\.json: schema_version: It is a record of version 2"):
        write_provenance(store, OUTPUTS)
    assert content(store) == before


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
    fill(store)
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


def test_what_a_rocm_build_says_of_itself_is_no_record(store: DirectoryStore) -> None:
    fill(store)
    store.put_bytes(f"{OUTPUTS.manifests_prefix(GROUP)}/therock_manifest.json", b"{}")
    assert len(write_provenance(store, OUTPUTS).made) == 4


@pytest.mark.parametrize("run_id", ["local", "123"])
def test_only_the_local_run_loses_statements_of_files_that_are_gone(
    store: DirectoryStore, run_id: str
) -> None:
    outputs = RunOutputs(run_id=run_id, platform="linux")
    fill(store, outputs)
    old = statement_key("torch-1.whl", outputs)
    store.put_bytes(old, b"{}")
    assert write_provenance(store, outputs).removed == ((old,) if run_id == "local" else ())
    assert (store.find(old) is None) is (run_id == "local")


def test_a_job_that_was_second_reads_the_records_again(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job's wheel appears, and its bill is written, while this one makes its own."""
    fill(store)
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

    monkeypatch.setattr(statements, "read_run", read_run)
    assert write_provenance(store, OUTPUTS).sbom_outcome == "unchanged"
    assert "apex" in {one["name"] for one in json.loads(store.read(BILL))["components"]}


def test_a_failures_record_that_goes_meanwhile_is_nothing(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    failed = samples.record("build_apex", status="failed", exit_code=8, error="No wheel.")
    records.write(store, OUTPUTS, GROUP, failed)
    listing = DirectoryStore.list

    def listed(store: DirectoryStore, prefix: str, **options: Any) -> Any:
        found = listing(store, prefix, **options)
        store.delete(OUTPUTS.record_key(GROUP, f"{failed.name}.failed"))
        return found

    monkeypatch.setattr(DirectoryStore, "list", listed)
    assert len(write_provenance(store, OUTPUTS).made) == 4


def test_any_number_of_jobs_may_end_at_once(store: DirectoryStore) -> None:
    fill(store)
    groups = [f"gfx{number}" for number in range(12)]

    def end(group: str) -> None:
        file = samples.file(f"torch-2+{group}.whl", "torch", f"2+{group}", group=group)
        records.write(store, OUTPUTS, group, samples.record("build_torch", file))
        write_provenance(store, OUTPUTS, group)

    parallel.each(end, groups, jobs=len(groups))
    names = {one["version"] for one in json.loads(store.read(BILL))["components"] if one["name"] == "torch"}
    assert {f"2+{group}" for group in groups} <= names
    assert len(store.list(f"{OUTPUTS.prefix}/provenance")) == len(groups)


def test_somebody_who_writes_all_the_time_ends_it(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    put = DirectoryStore.put_bytes

    def put_bytes(store: DirectoryStore, key: str, data: bytes, **options: Any) -> Outcome:
        if "if_match" in options:
            raise ConflictError("somebody was faster")
        return put(store, key, data, **options)

    monkeypatch.setattr(DirectoryStore, "put_bytes", put_bytes)
    with pytest.raises(StoreError, match="was written by others 64 times"):
        write_provenance(store, OUTPUTS)


VERBS = (Verb("provenance", "ci.verbs.provenance", ""),)


def test_the_verb_says_what_it_wrote(store: DirectoryStore, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = RunOutputs(run_id="123", platform="linux")
    upload = samples.record("upload-1", samples.file("own-1.whl", "own", "1"), python="", ref="")
    fill(store, outputs, upload)
    words = ["provenance", "--run-id=123", f"--store={store.url}", f"--gpu-family={GROUP}"]
    assert main("ci", "", VERBS, [*words, "--dry-run"]) == 0
    assert not store.list(f"{outputs.prefix}/provenance")
    capsys.readouterr()
    assert main("ci", "", VERBS, words) == 0
    said = capsys.readouterr().err
    assert f"{samples.TORCH.name}  {samples.TORCH_COMMIT[:12]}  written" in " ".join(said.split(" ")).replace(
        "   ", "  "
    )
    assert "own-1.whl: no statement, as no build's record names it (upload-1)" in said
    assert f"sbom     {store.url_of(f'{outputs.prefix}/{SBOM}')} (written)" in said
    assert "provenance: 4 of 4 statements written" in said
