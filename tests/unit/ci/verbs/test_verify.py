"""`verify` on a run that was left by stages: what is right, and each thing that can be wrong."""

import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ci.provenance.facts import statement_path
from ci.provenance.statements import write_provenance
from core.errors import DataError, MissingInputError, ProvenanceError, ServiceError, WheelError
from core.run import RunOutputs, records
from core.stores.directory import DirectoryStore
from core.wheel import distributions
from tests.kit import provenance as samples
from tests.kit.front_doors import run_ci
from tests.kit.servers import served

GROUP, VERSION = "gfx94X-dcgpu", "2.10.0+rocm7.10.0"
TAG = "cp312-cp312-linux_x86_64"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run with one torch wheel, its record and its statement."""

    store: DirectoryStore
    outputs: RunOutputs
    file: records.FileRecord
    record: records.Record

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
    return run_ci("verify", *words)


def test_a_wheel_in_a_run_is_verified_with_its_origin(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(run.wheel) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{run.file.name}: verified\n  sha256   {run.file.sha256}\n")
    assert f"  on       {samples.WORKFLOW}\n" in said
    # what the user copies stands on a line of its own
    assert f"\n           {samples.TORCH_COMMIT}\n           git+{samples.ORIGIN}\n" in said
    assert verify(run.wheel.as_uri()) == 0


def test_no_statement_changes_the_terminal(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    builder = ("predicate", "runDetails", "builder", "id")
    altered(run, *builder, to="https://x/\x1b[2Jverified\u202e\n  sha256")
    assert verify(run.wheel) == 0
    told = capsys.readouterr().out
    assert "https://x/\\u001b[2Jverified\\u202e\\n  sha256\n" in told
    assert "\x1b" not in told


def test_as_json(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify("--json", run.wheel) == 0
    (known,) = json.loads(capsys.readouterr().out)
    assert known["sources"][0]["commit"] == samples.TORCH_COMMIT
    assert known["sources"][0]["edited"] is False
    assert (known["sha256"], known["run_id"]) == (run.file.sha256, "123")
    assert samples.CORE.name in {one["name"] for one in known["materials"]}


def test_a_file_elsewhere_or_named_run(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / run.file.name
    copy.write_bytes(run.wheel.read_bytes())
    assert verify(copy, "--run-id=123", f"--store={run.store.url}") == 0
    for run_id, platform, other in (("124", "linux", "124-linux"), ("123", "windows", "123-windows")):
        words = (f"--run-id={run_id}", f"--platform={platform}", f"--store={run.store.url}")
        assert verify(copy, *words) == MissingInputError.exit_code
        said = capsys.readouterr().err
        assert f"No record of {run.store.url}/{other} names {run.file.name}." in said
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


def altered(run: Run, *path: str | int, to: str) -> None:
    """Let the statement say something else in a place."""
    said = place = run.statement()
    for step in path[:-1]:
        place = place[step]  # type: ignore[index]
    place[path[-1]] = to  # type: ignore[index]
    run.put(run.statement_key, said)


def rerecorded(run: Run, *, gone: bool = False, **changes: Any) -> None:
    """Write another record, beside the run's or in its place."""
    if gone:
        run.store.delete(run.record_key)
    records.write(run.store, run.outputs, GROUP, run.record.model_copy(update=changes))


def backdoor(run: Run) -> None:
    with zipfile.ZipFile(run.wheel, "a") as archive:
        archive.writestr("torch/backdoor.py", "")


def only_uploaded(run: Run) -> None:
    rerecorded(run, gone=True, stage="upload-1", cell=records.Cell(), inputs={})
    run.store.delete(run.statement_key)


INTERRUPTED: dict[str, Any] = {"status": "failed", "exit_code": 130, "error": "interrupted", "files": ()}
FAILED = INTERRUPTED | {"exit_code": 8, "error": "Two wheels.\nRemove one."}


def failed_for_this_python(run: Run) -> None:
    rerecorded(run, gone=True, **INTERRUPTED, cell=run.record.cell.model_copy(update={"python": "cp311"}))
    rerecorded(run, **FAILED)


def another_schema(run: Run) -> None:
    run.put(run.record_key, json.loads(run.store.read(run.record_key)) | {"schema_version": 2})


def alter(*path: str | int, to: str) -> Callable[[Run], None]:
    return lambda run: altered(run, *path, to=to)


COMMIT = ("predicate", "buildDefinition", "resolvedDependencies", 0, "digest", "gitCommit")
BEGUN = "build_torch, begun 2026-11-20T22:00:00+00:00, was interrupted."
SCHEMA = "schema_version: It is a record of version 2, and this version reads 1"
# what is done to the run, and what the one message says
FORGED: dict[str, tuple[Callable[[Run], object], str]] = {
    "digest": (backdoor, "has another SHA-256 than its record manifests/"),
    "subject": (alter("subject", 0, "name", to="apex-1.whl"), "is about another file: apex-1.whl"),
    "file": (alter("subject", 0, "digest", "sha256", to="0" * 64), "the statement  " + "0" * 64),
    "predicate": (alter("predicateType", to="https://x/v1"), "is not provenance but 'https://x/v1'"),
    "written again": (lambda run: rerecorded(run, seconds=3), "does not follow from the record manifests/"),
    "commit": (alter(*COMMIT, to="f" * 40), f"and the record manifests/{GROUP}/"),
    "version": (
        lambda run: rerecorded(run, files=(run.file.model_copy(update={"version": "2.11.0"}),)),
        f"its version is '{VERSION}', and its record",
    ),
}
MISSING: dict[str, tuple[Callable[[Run], object], str]] = {
    "no statement": (
        lambda run: run.store.delete(run.statement_key),
        "has no statement.\nWrite the run's statements again",
    ),
    "uploaded": (only_uploaded, "which is of an upload: nothing says how it was built"),
    "no record": (lambda run: run.store.delete(run.record_key), "names torch-2.10.0+rocm7.10.0"),
    "interrupted": (lambda run: rerecorded(run, gone=True, **INTERRUPTED), BEGUN),
    "failed": (failed_for_this_python, "failed (Two wheels.)"),
}
BROKEN: dict[str, tuple[Callable[[Run], object], str]] = {
    "schema": (another_schema, SCHEMA),
    "cut": (
        lambda run: run.store.put_bytes(run.statement_key, run.store.read(run.statement_key)[:100]),
        ".intoto.json",
    ),
}
ERRORS = ((FORGED, ProvenanceError), (MISSING, MissingInputError), (BROKEN, DataError))
WRONG = {name: (*row, error) for rows, error in ERRORS for name, row in rows.items()}


@pytest.mark.parametrize("what", WRONG)
def test_each_wrong_thing_is_one_message(run: Run, what: str, capsys: pytest.CaptureFixture[str]) -> None:
    change, said, error = WRONG[what]
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
    rerecorded(run, stage="build_apex", files=(file,))
    write_provenance(run.store, run.outputs)
    assert verify(run.store.root / file.key) == WheelError.exit_code
    assert "apex/unlisted.py" in capsys.readouterr().err


def test_a_build_counts_where_an_upload_names_the_same_bytes(run: Run) -> None:
    rerecorded(run, stage="a-upload", cell=records.Cell(), inputs={})
    assert verify(run.wheel) == 0


def test_the_first_file_that_is_wrong_ends_it(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    other = run.store.root / "notes.txt"
    other.write_text("")
    assert verify(run.wheel, other, run.wheel) == WheelError.exit_code
    told = capsys.readouterr()
    assert told.out.count("verified") == 1
    assert "notes.txt is neither a wheel nor an sdist." in told.err
    assert verify(run.store.root / "absent.whl") == MissingInputError.exit_code
