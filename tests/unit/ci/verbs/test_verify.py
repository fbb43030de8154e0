"""`verify` on a run that was left by stages: what is right, and each thing that can be wrong."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from ci.provenance.facts import statement_path
from ci.provenance.statements import write_provenance
from core.cli.frontdoor import Verb, main
from core.errors import DataError, MissingInputError, ProvenanceError, ServiceError, WheelError
from core.run import records
from core.run.outputs import RunOutputs
from core.run.records import Cell, Record
from core.stores.directory import DirectoryStore
from core.wheel import distributions
from tests import provenance_samples as samples
from tests.folders import served

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from core.run.records import FileRecord

VERBS = (Verb("verify", "ci.verbs.verify", ""),)
GROUP, VERSION = "gfx94X-dcgpu", "2.10.0+rocm7.10.0"
TAG = "cp312-cp312-linux_x86_64"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run with one torch wheel, its record and its statement."""

    store: DirectoryStore
    outputs: RunOutputs
    file: FileRecord
    record: Record

    @property
    def wheel(self) -> Path:
        return self.store.root / self.file.key

    @property
    def record_key(self) -> str:
        return self.outputs.record_key(GROUP, self.record.name)

    @property
    def statement_key(self) -> str:
        return f"{self.outputs.prefix}/{statement_path(GROUP, self.file.name)}"

    def statement(self) -> dict[str, Any]:
        said: dict[str, Any] = json.loads(self.store.read(self.statement_key))
        return said

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        self.store.put_bytes(key, json.dumps(value).encode())


@pytest.fixture(name="run")
def run_fixture(tmp_path: Path, make_wheel: Callable[..., Path]) -> Run:
    store, outputs = DirectoryStore(tmp_path / "runs"), RunOutputs(run_id="123", platform="linux")
    path = make_wheel(tmp_path / "dist", "torch", VERSION, tag=TAG)
    file = distributions.publish(store, outputs, GROUP, path)
    record = samples.torch_record().model_copy(update={"files": (file,)})
    records.write(store, outputs, GROUP, record)
    write_provenance(store, outputs)
    return Run(store=store, outputs=outputs, file=file, record=record)


def verify(*words: object) -> int:
    return main("ci", "", VERBS, ["verify", *map(str, words)])


def test_a_wheel_in_a_run_is_verified_and_says_where_it_came_from(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(run.wheel) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{run.file.name}: verified\n  sha256   {run.file.sha256}\n")
    assert f"  on       {samples.WORKFLOW}\n" in said
    # what a person copies stands on a line of its own
    assert f"\n           {samples.TORCH_COMMIT}\n           git+{samples.ORIGIN}\n" in said
    assert verify(run.wheel.as_uri()) == 0


def test_nothing_that_a_statement_says_changes_the_terminal(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run.statement()
    said["predicate"]["runDetails"]["builder"]["id"] = "https://x/\x1b[2Jverified\u202e\n  sha256"
    run.put(run.statement_key, said)
    assert verify(run.wheel) == 0
    told = capsys.readouterr().out
    assert "https://x/\\u001b[2Jverified\\u202e\\n  sha256\n" in told
    assert "\x1b" not in told


def test_a_run_of_the_other_platform_is_named(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / run.file.name
    copy.write_bytes(run.wheel.read_bytes())
    words = ("--run-id=123", f"--store={run.store.url}", "--platform=windows")
    assert verify(copy, *words) == MissingInputError.exit_code
    assert f"No record of {run.store.url}/123-windows names" in capsys.readouterr().err


def test_as_json(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify("--json", run.wheel) == 0
    (known,) = json.loads(capsys.readouterr().out)
    assert known["sources"][0]["commit"] == samples.TORCH_COMMIT
    assert known["sources"][0]["edited"] is False
    assert (known["sha256"], known["run_id"]) == (run.file.sha256, "123")
    assert samples.CORE.name in {one["name"] for one in known["materials"]}


def test_a_file_from_elsewhere_is_held_against_the_run_that_is_named(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / run.file.name
    copy.write_bytes(run.wheel.read_bytes())
    assert verify(copy, "--run-id=123", f"--store={run.store.url}") == 0
    assert verify(copy, "--run-id=124", f"--store={run.store.url}") == MissingInputError.exit_code
    said = capsys.readouterr().err
    assert f"No record of {run.store.url}/124-linux names {run.file.name}." in said
    assert "--run-id" in said


def test_a_wheel_behind_an_address_is_verified(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with served(run.store.root) as address:
        assert verify(f"{address}/{quote(run.file.key)}") == 0
        assert f"{run.file.name}: verified" in capsys.readouterr().out
        assert verify(f"{address}/{quote(run.file.key)}", "--run-id=123", f"--store={run.store.url}") == 0
        assert verify(f"{address}/no-such-1-py3-none-any.whl") == MissingInputError.exit_code
        run.store.delete(run.record_key)
        capsys.readouterr()
        assert verify(f"{address}/{quote(run.file.key)}") == MissingInputError.exit_code
        assert "The record that" in capsys.readouterr().err
        run.store.delete(run.statement_key)
        assert verify(f"{address}/{quote(run.file.key)}") == MissingInputError.exit_code
        assert f"has no statement {address}/123-linux/provenance/{GROUP}/" in capsys.readouterr().err
    assert verify(f"{address}/{quote(run.file.key)}") == ServiceError.exit_code


def wrong_digest(run: Run) -> None:
    with zipfile.ZipFile(run.wheel, "a") as archive:
        archive.writestr("torch/backdoor.py", "")


def another_subject(run: Run) -> None:
    said = run.statement()
    said["subject"][0]["name"] = "apex-1.whl"
    run.put(run.statement_key, said)


def another_file_of_the_name(run: Run) -> None:
    said = run.statement()
    said["subject"][0]["digest"]["sha256"] = "0" * 64
    run.put(run.statement_key, said)


def another_predicate(run: Run) -> None:
    run.put(run.statement_key, run.statement() | {"predicateType": "https://example.com/v1"})


def record_written_again(run: Run) -> None:
    records.write(run.store, run.outputs, GROUP, run.record.model_copy(update={"seconds": 3}))


def another_commit(run: Run) -> None:
    said = run.statement()
    used = said["predicate"]["buildDefinition"]["resolvedDependencies"]
    used[0]["digest"]["gitCommit"] = "f" * 40
    run.put(run.statement_key, said)


def record_of_another_version(run: Run) -> None:
    file = run.file.model_copy(update={"version": "2.11.0"})
    records.write(run.store, run.outputs, GROUP, run.record.model_copy(update={"files": (file,)}))


def no_statement(run: Run) -> None:
    run.store.delete(run.statement_key)


def only_uploaded(run: Run) -> None:
    run.store.delete(run.record_key)
    upload = run.record.model_copy(update={"stage": "upload-1", "cell": Cell(), "inputs": {}})
    records.write(run.store, run.outputs, GROUP, upload)
    run.store.delete(run.statement_key)


def no_record(run: Run) -> None:
    run.store.delete(run.record_key)


def interrupted(run: Run) -> None:
    run.store.delete(run.record_key)
    ended = {"status": "failed", "exit_code": 130, "error": "interrupted", "files": ()}
    records.write(run.store, run.outputs, GROUP, run.record.model_copy(update=ended))


def failed_for_this_python(run: Run) -> None:
    run.store.delete(run.record_key)
    other = run.record.cell.model_copy(update={"python": "cp311"})
    ended: dict[str, Any] = {"status": "failed", "exit_code": 130, "error": "interrupted", "files": ()}
    records.write(run.store, run.outputs, GROUP, run.record.model_copy(update={**ended, "cell": other}))
    ended |= {"exit_code": 8, "error": "Two wheels.\nRemove one."}
    records.write(run.store, run.outputs, GROUP, run.record.model_copy(update=ended))


def another_schema(run: Run) -> None:
    run.put(run.record_key, json.loads(run.store.read(run.record_key)) | {"schema_version": 2})


def cut_statement(run: Run) -> None:
    run.store.put_bytes(run.statement_key, run.store.read(run.statement_key)[:100])


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (wrong_digest, ProvenanceError, "has another SHA-256 than its record manifests/"),
        (another_subject, ProvenanceError, "is about another file: apex-1.whl"),
        (another_file_of_the_name, ProvenanceError, "the statement  " + "0" * 64),
        (another_predicate, ProvenanceError, "is not provenance but 'https://example.com/v1'"),
        (record_written_again, ProvenanceError, "does not follow from the record manifests/"),
        (another_commit, ProvenanceError, f"and the record manifests/{GROUP}/"),
        (record_of_another_version, ProvenanceError, f"its version is '{VERSION}', and its record"),
        (no_statement, MissingInputError, "has no statement.\nWrite the run's statements again"),
        (only_uploaded, MissingInputError, "which is of an upload: nothing says how it was built"),
        (no_record, MissingInputError, "names torch-2.10.0+rocm7.10.0"),
        (interrupted, MissingInputError, "build_torch, begun 2026-11-20T22:00:00+00:00, was interrupted."),
        (failed_for_this_python, MissingInputError, "failed (Two wheels.)"),
        (another_schema, DataError, "schema_version: It is a record of version 2, and this version reads 1"),
        (cut_statement, DataError, ".intoto.json"),
    ],
    ids=lambda one: getattr(one, "__name__", None),
)
def test_what_is_wrong_is_one_message_with_a_code_of_its_own(
    run: Run, change: Callable[[Run], None], error: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(run)
    assert verify(run.wheel) == error.exit_code
    told = capsys.readouterr()
    assert said in told.err
    assert (told.out, told.err.count("error:")) == ("", 1)


def test_a_wheel_whose_record_holds_what_its_own_record_does_not(
    run: Run, tmp_path: Path, make_wheel: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Digests agree, and yet the wheel is broken: its build was."""
    path = make_wheel(tmp_path / "other", "apex", "1.0", tag=TAG)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("apex/unlisted.py", "")
    file = distributions.publish(run.store, run.outputs, GROUP, path)
    apex = run.record.model_copy(update={"stage": "build_apex", "files": (file,)})
    records.write(run.store, run.outputs, GROUP, apex)
    write_provenance(run.store, run.outputs)
    assert verify(run.store.root / file.key) == WheelError.exit_code
    assert "apex/unlisted.py" in capsys.readouterr().err


def test_a_build_counts_where_an_upload_names_the_same_bytes(run: Run) -> None:
    upload = run.record.model_copy(update={"stage": "a-upload", "cell": Cell(), "inputs": {}})
    records.write(run.store, run.outputs, GROUP, upload)
    assert verify(run.wheel) == 0


def test_the_first_file_that_is_wrong_ends_it(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    other = run.store.root / "notes.txt"
    other.write_text("")
    assert verify(run.wheel, other, run.wheel) == WheelError.exit_code
    told = capsys.readouterr()
    assert told.out.count("verified") == 1
    assert "notes.txt is neither a wheel nor an sdist." in told.err
    assert verify(run.store.root / "absent.whl") == MissingInputError.exit_code
