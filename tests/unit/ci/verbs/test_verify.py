"""Verifying a wheel of a run: what is right, and each thing that can be wrong."""

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ci.promote import promotion
from ci.promote.documents import Decision, PromotedFile, Ruling
from ci.promote.facts import read_group
from ci.promote.staged_files import choose_files, plan_staging, stage_group
from ci.provenance.facts import statement_path
from ci.provenance.statements import write_provenance
from core.cell import GroupCell
from core.errors import (
    DataError,
    FatalError,
    MissingInputError,
    ProvenanceError,
    ServiceError,
    WheelError,
)
from core.run import RunOutputs, records
from core.run.records import FileRecord, Record
from core.stores import Store
from core.stores.directory import DirectoryStore
from core.wheel import distributions
from tests.kit import provenance
from tests.kit.front_doors import run_verb
from tests.kit.servers import served
from tests.kit.wheels import write_wheel

GROUP = "gfx94X-dcgpu"
VERSION = "2.10.0+rocm7.10.0"
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
        """The wheel in the store."""
        return self.store.root / self.file.key

    @property
    def record_key(self) -> str:
        """Where its record is."""
        return self.outputs.record_key(GROUP, self.record.name)

    @property
    def statement_key(self) -> str:
        """Where its statement is."""
        return f"{self.outputs.prefix}/{statement_path(GROUP, self.file.name)}"

    def put_json(self, key: str, value: Mapping[str, Any]) -> None:
        """Write a document."""
        self.store.put_bytes(key, json.dumps(value).encode())

    def write_record(self, **changes: Any) -> None:
        """Write the wheel's record with other values for some fields, which may make its name another one."""
        records.write(self.store, self.outputs, GROUP, self.record.model_copy(update=changes))

    def replace_record(self, **changes: Any) -> None:
        """Write another record in the place of the wheel's."""
        self.store.delete(self.record_key)
        self.write_record(**changes)

    def change_statement(self, *path: str | int, value: str) -> None:
        """Let the statement say something else in a place."""
        statement = json.loads(self.store.read(self.statement_key))
        place = statement
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        self.put_json(self.statement_key, statement)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    store = DirectoryStore(tmp_path / "runs")
    outputs = RunOutputs(run_id="123", platform="linux")
    path = write_wheel(tmp_path / "dist", version=VERSION, tag=TAG)
    file = distributions.publish(store, outputs, GROUP, path)
    record = provenance.torch_record().model_copy(update={"files": (file,)})
    records.write(store, outputs, GROUP, record)
    write_provenance(store, outputs)
    return Run(store=store, outputs=outputs, file=file, record=record)


def verify(*options: object) -> int:
    return run_verb("ci", "verify", *options)


# --- A wheel in a run ------------------------------------------------------------------------


def test_prints_a_verified_wheel_with_its_origin(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(run.wheel) == 0

    printed = capsys.readouterr().out
    assert printed.startswith(f"{run.file.name}: verified\n  sha256   {run.file.sha256}\n")
    assert f"  on       {provenance.WORKFLOW}\n" in printed
    # What people copy stands on a line of its own.
    assert f"\n           {provenance.TORCH_COMMIT}\n           git+{provenance.ORIGIN}\n" in printed


def test_verifies_a_wheel_behind_a_file_address(run: Run) -> None:
    assert verify(run.wheel.as_uri()) == 0


def test_no_statement_steers_the_terminal(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    builder = ("predicate", "runDetails", "builder", "id")
    run.change_statement(*builder, value="https://x/\x1b[2Jverified\u202e\n  sha256")

    assert verify(run.wheel) == 0

    printed = capsys.readouterr().out
    assert "https://x/\\u001b[2Jverified\\u202e\\n  sha256\n" in printed
    assert "\x1b" not in printed


def test_prints_a_verified_wheel_as_json(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify("--json", run.wheel) == 0

    (verified,) = json.loads(capsys.readouterr().out)
    assert verified["sha256"] == run.file.sha256
    assert verified["run_id"] == "123"
    (source,) = verified["sources"]
    assert source["commit"] == provenance.TORCH_COMMIT
    assert source["edited"] is False
    assert provenance.CORE.name in {material["name"] for material in verified["materials"]}


# --- A wheel elsewhere -----------------------------------------------------------------------


@pytest.fixture
def copied_wheel(run: Run, tmp_path: Path) -> Path:
    """A copy of the wheel outside of the store."""
    path = tmp_path / run.file.name
    path.write_bytes(run.wheel.read_bytes())
    return path


def test_verifies_a_copy_of_a_wheel_of_the_named_run(run: Run, copied_wheel: Path) -> None:
    assert verify(copied_wheel, "--run-id=123", f"--store={run.store.url}") == 0


@pytest.mark.parametrize(
    ("options", "place"),
    [
        (("--run-id=124", "--platform=linux"), "124-linux"),
        (("--run-id=123", "--platform=windows"), "123-windows"),
    ],
)
def test_names_the_run_that_has_no_record_of_a_copy(
    run: Run,
    copied_wheel: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    place: str,
) -> None:
    exit_code = verify(copied_wheel, *options, f"--store={run.store.url}")

    assert exit_code == MissingInputError.exit_code
    message = capsys.readouterr().err
    assert f"{run.store.url}/{place}" in message
    assert run.file.name in message


@pytest.fixture
def address(run: Run) -> Iterator[str]:
    """The address of the store."""
    with served(run.store.root) as address:
        yield address


def test_verifies_a_wheel_behind_an_address(
    run: Run, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify(f"{address}/{quote(run.file.key)}") == 0

    assert f"{run.file.name}: verified" in capsys.readouterr().out


def test_verifies_a_wheel_behind_an_address_by_a_named_run(run: Run, address: str) -> None:
    url = f"{address}/{quote(run.file.key)}"

    assert verify(url, "--run-id=123", f"--store={run.store.url}") == 0


def test_refuses_an_address_without_a_wheel(address: str) -> None:
    assert verify(f"{address}/no-such-1-py3-none-any.whl") == MissingInputError.exit_code


def test_names_a_record_that_is_missing_behind_an_address(
    run: Run, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run.store.delete(run.record_key)

    assert verify(f"{address}/{quote(run.file.key)}") == MissingInputError.exit_code

    assert "record" in capsys.readouterr().err


def test_names_a_statement_that_is_missing_behind_an_address(
    run: Run, address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run.store.delete(run.statement_key)

    assert verify(f"{address}/{quote(run.file.key)}") == MissingInputError.exit_code

    assert f"{address}/123-linux/provenance/{GROUP}/" in capsys.readouterr().err


def test_fails_where_nobody_serves_the_address(run: Run) -> None:
    with served(run.store.root) as address:
        url = f"{address}/{quote(run.file.key)}"

    assert verify(url) == ServiceError.exit_code


# --- What can be wrong -----------------------------------------------------------------------

STOPPED: dict[str, Any] = {"status": "failed", "exit_code": 130, "error": "interrupted", "files": ()}
FAILED: dict[str, Any] = {**STOPPED, "exit_code": 8, "error": "Two wheels.\nRemove one."}

COMMIT = ("predicate", "buildDefinition", "resolvedDependencies", 0, "digest", "gitCommit")


def add_member_to_wheel(run: Run) -> None:
    with zipfile.ZipFile(run.wheel, "a") as archive:
        archive.writestr("torch/backdoor.py", "")


def change_version_in_record(run: Run) -> None:
    run.write_record(files=(run.file.model_copy(update={"version": "2.11.0"}),))


def leave_only_an_upload(run: Run) -> None:
    run.replace_record(stage="upload-1", cell=GroupCell(), inputs={})
    run.store.delete(run.statement_key)


def fail_for_this_python(run: Run) -> None:
    other_cell = replace(run.record.cell, python="3.11")
    run.replace_record(**STOPPED, cell=other_cell)
    run.write_record(**FAILED)


def write_record_of_version_2(run: Run) -> None:
    document = json.loads(run.store.read(run.record_key))
    run.put_json(run.record_key, {**document, "schema_version": 2})


def cut_statement(run: Run) -> None:
    run.store.put_bytes(run.statement_key, run.store.read(run.statement_key)[:100])


Change = Callable[[Run], None]


@pytest.mark.parametrize(
    ("change", "error", "mention"),
    [
        pytest.param(add_member_to_wheel, ProvenanceError, "another SHA-256", id="changed wheel"),
        pytest.param(
            lambda run: run.change_statement("subject", 0, "name", value="apex-1.whl"),
            ProvenanceError,
            "apex-1.whl",
            id="statement about another file",
        ),
        pytest.param(
            lambda run: run.change_statement("subject", 0, "digest", "sha256", value="0" * 64),
            ProvenanceError,
            "0" * 64,
            id="statement with another digest",
        ),
        pytest.param(
            lambda run: run.change_statement("predicateType", value="https://x/v1"),
            ProvenanceError,
            "https://x/v1",
            id="statement of another kind",
        ),
        pytest.param(
            lambda run: run.change_statement(*COMMIT, value="f" * 40),
            ProvenanceError,
            f"manifests/{GROUP}/",
            id="statement with another commit",
        ),
        pytest.param(
            lambda run: run.write_record(seconds=3),
            ProvenanceError,
            "does not follow",
            id="record that is newer than the statement",
        ),
        pytest.param(change_version_in_record, ProvenanceError, VERSION, id="record with another version"),
        pytest.param(
            lambda run: run.store.delete(run.statement_key),
            MissingInputError,
            "no statement",
            id="no statement",
        ),
        pytest.param(leave_only_an_upload, MissingInputError, "an upload", id="only uploaded"),
        pytest.param(
            lambda run: run.store.delete(run.record_key),
            MissingInputError,
            "torch-2.10.0+rocm7.10.0",
            id="no record",
        ),
        pytest.param(
            lambda run: run.replace_record(**STOPPED),
            MissingInputError,
            "interrupted",
            id="interrupted build",
        ),
        pytest.param(fail_for_this_python, MissingInputError, "Two wheels.", id="failed build"),
        pytest.param(write_record_of_version_2, DataError, "schema_version", id="record of version 2"),
        pytest.param(cut_statement, DataError, ".intoto.json", id="statement cut off"),
    ],
)
def test_refuses_a_wheel_with_one_message(
    run: Run, capsys: pytest.CaptureFixture[str], change: Change, error: type[FatalError], mention: str
) -> None:
    change(run)

    assert verify(run.wheel) == error.exit_code

    printed = capsys.readouterr()
    assert mention in printed.err
    assert printed.err.count("error:") == 1
    assert printed.out == ""


def test_refuses_a_wheel_that_was_broken_when_it_was_recorded(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_wheel(tmp_path / "other", name="apex", version="1.0", tag=TAG)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("apex/unlisted.py", "")
    file = distributions.publish(run.store, run.outputs, GROUP, path)
    run.write_record(stage="build_apex", files=(file,))
    write_provenance(run.store, run.outputs)

    # Its digest is the recorded one.
    assert verify(run.store.root / file.key) == WheelError.exit_code

    assert "apex/unlisted.py" in capsys.readouterr().err


def test_a_build_counts_where_an_upload_names_the_same_bytes(run: Run) -> None:
    run.write_record(stage="a-upload", cell=GroupCell(), inputs={})

    assert verify(run.wheel) == 0


def test_stops_at_the_first_file_that_is_wrong(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    notes = run.store.root / "notes.txt"
    notes.write_text("")

    assert verify(run.wheel, notes, run.wheel) == WheelError.exit_code

    printed = capsys.readouterr()
    assert printed.out.count("verified") == 1
    assert "notes.txt" in printed.err


def test_refuses_a_file_that_does_not_exist(run: Run) -> None:
    assert verify(run.store.root / "absent.whl") == MissingInputError.exit_code


# --- A wheel that is handed out --------------------------------------------------------------


REASON = "test_torch failed: It broke."


def stage(run: Run, bucket: Store) -> PromotedFile:
    """Stage the run's wheel; return what would be promoted of it."""
    group = read_group(run.store, run.outputs, GROUP)
    staged_files = choose_files(group)
    stage_group(run.store, bucket, plan_staging(run.store, group, staged_files, ()))
    (staged_file,) = staged_files
    return PromotedFile(
        **run.file.model_dump(exclude={"key"}),
        key=f"v2/{GROUP}/{run.file.name}",
        family=GROUP,
        staged_key=staged_file.key,
        staged_sha256=staged_file.sha256,
    )


def release(run: Run, bucket: Store, *, from_version: str = "") -> Path:
    """Release the run's wheel in spite of a failed test; return its path."""
    file = stage(run, bucket)
    ruling = Ruling(
        family=GROUP,
        platform="linux",
        python="cp312",
        rule="override",
        overridden=(REASON,),
    )
    decision = Decision(
        set_name=f"torch-{VERSION}",
        identity="1",
        release_type="nightly",
        from_version=from_version,
        decided="2026-11-21T13:00:00+00:00",
        by="the release job",
        staging=(),
        rulings=(ruling,),
        files=(file,),
    )
    source = DirectoryStore(Path(bucket.url))
    source.put_file(file.key, run.wheel, sha256=file.sha256, replace=False)
    source.copy(f"{file.key}.metadata", run.store, f"{run.file.key}.metadata", sha256=file.metadata_sha256)
    promotion.carry_out(bucket, decision, source, clock=lambda: "2026-11-21T13:01:00+00:00")
    return Path(bucket.url, file.key)


@pytest.fixture
def bucket(tmp_path: Path) -> Store:
    """Return an empty store that wheels are handed out from."""
    return DirectoryStore(tmp_path / "bucket")


def test_compares_a_staged_wheel_with_the_run_that_was_staged(
    run: Run, bucket: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(bucket.url, stage(run, bucket).staged_key)

    assert verify(path) == 0

    printed = capsys.readouterr().out
    assert "run 123" in printed
    assert "released" not in printed


def test_says_by_which_decision_a_wheel_was_released(
    run: Run, bucket: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    path = release(run, bucket)

    assert verify("--json", path) == 0

    (verified,) = json.loads(capsys.readouterr().out)
    assert verified["run_id"] == "123"
    assert verified["release"] == {
        "decision": f"manifests/decisions/torch-{VERSION}/1.json",
        "set": f"torch-{VERSION}",
        "by": "the release job",
        "decided": "2026-11-21T13:00:00+00:00",
        "rules": ["override"],
        "overridden": [REASON],
    }


def test_tells_people_what_was_overridden(
    run: Run, bucket: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    path = release(run, bucket)

    assert verify(path) == 0

    printed = capsys.readouterr().out
    assert "by the release job" in printed
    assert f"although {REASON}" in printed


def test_rejects_a_wheel_that_no_decision_released(
    run: Run, bucket: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    stage(run, bucket)
    key = f"v2/{GROUP}/{run.file.name}"
    bucket.put_file(key, run.wheel, sha256=run.file.sha256, replace=False)

    assert verify(Path(bucket.url, key)) == MissingInputError.exit_code
    assert key in capsys.readouterr().err


def test_names_the_staged_wheel_of_one_that_was_rewritten(
    run: Run, bucket: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    path = release(run, bucket, from_version="7.10.0rc2")

    assert verify(path) == MissingInputError.exit_code
    assert f"v2-staging/{GROUP}/{run.file.name}" in capsys.readouterr().err
