"""Runs that are uploaded from another store: what is put, refused, and kept."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ci.publish.folders import Folders, compare_folders
from ci.publish.local_files import Digests
from ci.publish.runs import SourceRun, compare_run
from ci.verbs import index, upload
from core.cell import GroupCell
from core.cli import options
from core.cli.options import Common
from core.errors import MissingInputError, StoreError
from core.run import RunOutputs, records
from core.run.records import FileRecord, Record
from core.status import Pending, UpToDate
from core.stores import Store
from core.wheel import distributions
from tests.kit.front_doors import look_at_verb, run_verb
from tests.kit.memory_store import MemoryStore
from tests.kit.runs import STARTED, write_record
from tests.kit.small_runs import GROUP, publish_wheel
from tests.kit.wheels import write_wheel

OTHER_BYTES = {"torch.py": "other"}


def digests_of(store: Store) -> Mapping[str, str]:
    """Return all that a store holds: key to digest."""
    return {stored_object.key: store.digest(stored_object.key) for stored_object in store.list("")}


def upload_folder(common: Common, folder: Path) -> Sequence[FileRecord]:
    """Upload the wheels of a folder into the group."""
    return upload.put_all(common, compare_folders(common, Folders(wheels=folder), GROUP))[GROUP]


def upload_group(common: Common, store: Store) -> Sequence[FileRecord]:
    """Upload the group of a run that lies in another store."""
    source = source_run(common, store, replace(common, store="out", external_repo="").outputs)
    return upload.put_all(common, compare_run(common, source, ["wheels"], GROUP))[GROUP]


def source_run(common: Common, store: Store, outputs: RunOutputs) -> SourceRun:
    """Return a run that is uploaded from another store."""
    return SourceRun(store=store, outputs=outputs, cache=common.cache / "fetched", digests=Digests())


# --- A run -----------------------------------------------------------------------------------


@pytest.fixture
def target(tmp_path: Path) -> Common:
    """The same run in another store."""
    return Common(root=tmp_path, run_id="17", store="elsewhere")


def test_a_newer_upload_replaces_files_of_the_local_run(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    local = Common(root=tmp_path)
    store = local.open_store()
    built_wheel = publish_wheel(store, local.outputs, tmp_path / "built")
    write_wheel(folder, files=OTHER_BYTES)

    (uploaded,) = upload_folder(local, folder)

    assert uploaded.sha256 != built_wheel.sha256
    assert index.write_pages(store, local.outputs, GROUP).file_count == 1
    elsewhere = Common(root=tmp_path, store="elsewhere")
    assert [file.sha256 for file in upload_group(elsewhere, store)] == [uploaded.sha256]


def test_refuses_a_file_that_differs_from_its_record(
    store: Store,
    outputs: RunOutputs,
    tmp_path: Path,
    target: Common,
) -> None:
    wheel = publish_wheel(store, outputs, tmp_path)
    store.put_bytes(wheel.key, b"other")

    with pytest.raises(StoreError, match="record"):
        upload_group(target, store)

    assert target.open_store().list("") == []


def test_refuses_a_group_without_records(
    store: Store,
    outputs: RunOutputs,
    tmp_path: Path,
    target: Common,
) -> None:
    path = write_wheel(tmp_path)
    distributions.publish(store, outputs, GROUP, path)

    with pytest.raises(MissingInputError, match="group g"):
        upload_group(target, store)


def test_a_record_goes_as_it_is(
    store: Store,
    outputs: RunOutputs,
    tmp_path: Path,
    target: Common,
) -> None:
    publish_wheel(store, outputs, tmp_path)
    (record_key,) = [stored_object.key for stored_object in store.list(outputs.manifests_prefix(GROUP))]
    # As another version of this program may have written it.
    document = store.read(record_key).replace(b"\n", b"\n ")
    store.put_bytes(record_key, document)

    upload_group(target, store)

    assert target.open_store().read(record_key) == document


def test_a_record_names_the_keys_of_the_folder_that_it_goes_to(
    store: Store,
    outputs: RunOutputs,
    tmp_path: Path,
    target: Common,
) -> None:
    wheel = publish_wheel(store, outputs, tmp_path)
    fork = replace(target, external_repo="down-stream/")

    (uploaded,) = upload_group(fork, store)

    assert uploaded.key == f"down-stream/{wheel.key}"
    (record,) = records.read_all(fork.open_store(), fork.outputs, GROUP)
    assert record.files == (uploaded,)
    assert fork.open_store().digest(uploaded.key) == wheel.sha256


@pytest.fixture
def uploaded_run(
    store: Store,
    outputs: RunOutputs,
    tmp_path: Path,
    target: Common,
    monkeypatch: pytest.MonkeyPatch,
) -> Store:
    """The store that a run of two groups and a source lock was uploaded to."""
    publish_wheel(store, outputs, tmp_path, group="cpu")
    publish_wheel(store, outputs, tmp_path, group="gfx110X-all")
    store.put_bytes(outputs.source_lock_key("nightly"), b"{}")
    monkeypatch.setattr(options, "common_from", lambda _arguments: target)
    assert run_verb("ci", "upload") == 0
    return target.open_store()


def test_uploads_the_run_in_out_with_its_locks(store: Store, uploaded_run: Store) -> None:
    uploaded = digests_of(uploaded_run)

    assert digests_of(store).items() <= uploaded.items()


@pytest.mark.parametrize("group", ["cpu", "gfx110X-all"])
def test_writes_the_pages_of_every_group(
    outputs: RunOutputs,
    uploaded_run: Store,
    group: str,
) -> None:
    assert uploaded_run.find(f"{outputs.python_prefix(group)}/index.html") is not None


@pytest.mark.usefixtures("uploaded_run")
def test_a_look_finds_nothing_to_do_where_the_run_was_uploaded() -> None:
    assert look_at_verb("ci", "upload") == UpToDate()


def test_a_look_finds_a_page_that_is_gone(uploaded_run: Store, outputs: RunOutputs) -> None:
    page = f"{outputs.python_prefix('cpu')}/index.html"
    uploaded_run.delete(page)

    status = look_at_verb("ci", "upload")

    assert isinstance(status, Pending)
    assert f"{page} would be written" in status.reasons
    assert uploaded_run.find(page) is None, "a look writes nothing"


def test_refuses_another_source_lock(
    store: Store,
    outputs: RunOutputs,
    uploaded_run: Store,
) -> None:
    # What the stages of a run took their commits from never changes.
    key = outputs.source_lock_key("nightly")
    store.put_bytes(key, b"{ }")

    assert run_verb("ci", "upload") == StoreError.exit_code

    assert uploaded_run.read(key) == b"{}"


def test_refuses_another_source_lock_before_anything_is_written(
    store: Store,
    outputs: RunOutputs,
    uploaded_run: Store,
    tmp_path: Path,
) -> None:
    digests = digests_of(uploaded_run)
    store.put_bytes(outputs.source_lock_key("nightly"), b"{ }")
    publish_wheel(store, outputs, tmp_path, group="gfx120X-all")

    assert run_verb("ci", "upload") == StoreError.exit_code

    assert digests_of(uploaded_run) == digests


# --- Records and reports of tests ------------------------------------------------------------


def write_step(
    store: Store,
    outputs: RunOutputs,
    step: str,
    *,
    group: str = GROUP,
    error: str = "",
) -> None:
    write_record(
        store,
        outputs,
        step=step,
        family=group,
        python="cp312",
        torch_ref="nightly",
        error=error or None,
    )


def upload_kinds(target: Common, store: Store, outputs: RunOutputs, *kinds: str) -> None:
    """Upload some kinds of what a run left in the group."""
    source = source_run(target, store, outputs)
    assert upload.put_all(target, compare_run(target, source, kinds, GROUP)) == {}


def states_of(target: Common, group: str = GROUP) -> set[tuple[str, str]]:
    """Return the steps that a run has records of, and how they ended."""
    all_records = records.read_all(target.open_store(), target.outputs, group)
    return {(record.stage, record.status) for record in all_records}


def test_a_test_that_passed_here_replaces_a_failure_there(
    store: Store,
    outputs: RunOutputs,
    target: Common,
) -> None:
    write_step(target.open_store(), target.outputs, "test_smoke", error="No GPU.")
    write_step(store, outputs, "test_smoke")

    upload_kinds(target, store, outputs, "tests")

    assert states_of(target) == {("test_smoke", "ok")}


def test_a_failed_test_is_uploaded_until_it_passes(
    store: Store,
    outputs: RunOutputs,
    target: Common,
) -> None:
    write_step(store, outputs, "test_torch-1-of-2", error="It broke.")
    upload_kinds(target, store, outputs, "tests")
    states_of_failure = states_of(target)

    # Tested again, as a job is run again.
    write_step(store, outputs, "test_torch-1-of-2")
    upload_kinds(target, store, outputs, "tests")

    assert states_of_failure == {("test_torch-1-of-2", "failed")}
    assert states_of(target) == {("test_torch-1-of-2", "ok")}


def test_uploads_reports_of_tests(
    store: Store,
    outputs: RunOutputs,
    target: Common,
) -> None:
    report = f"{outputs.reports_prefix(GROUP)}/smoke.xml"
    store.put_bytes(report, b"<testsuites/>")
    write_step(store, outputs, "test_smoke")

    upload_kinds(target, store, outputs, "reports", "tests")

    assert target.open_store().read(report) == b"<testsuites/>"


def test_logs_of_one_name_in_several_folders_stay_apart(outputs: RunOutputs, target: Common) -> None:
    # A store whose files are fetched.
    remote_store = MemoryStore()
    logs = {
        f"{outputs.logs_prefix(GROUP)}/blas/build.log": b"blas",
        f"{outputs.logs_prefix(GROUP)}/fft/build.log": b"fft",
    }
    for key, content in logs.items():
        remote_store.put_bytes(key, content)

    upload_kinds(target, remote_store, outputs, "logs")

    assert {key: target.open_store().read(key) for key in logs} == logs


def test_a_failure_after_the_last_success_stays(
    store: Store,
    outputs: RunOutputs,
    tmp_path: Path,
    target: Common,
) -> None:
    publish_wheel(store, outputs, tmp_path)
    (record,) = records.read_all(store, outputs, GROUP)
    failure = record.model_copy(update={"status": "failed", "files": (), "exit_code": 6})
    records.write(store, outputs, GROUP, failure)

    for _attempt in range(2):
        upload.put_all(target, compare_run(target, source_run(target, store, outputs), upload.KINDS, GROUP))

        assert states_of(target) == {(record.stage, "ok"), (record.stage, "failed")}


def test_a_success_replaces_the_failure_before_it_though_its_upload_was_killed(
    store: Store,
    outputs: RunOutputs,
    tmp_path: Path,
    target: Common,
) -> None:
    publish_wheel(store, outputs, tmp_path)
    upload_group(target, store)
    (record,) = records.read_all(store, outputs, GROUP)
    failure = record.model_copy(update={"status": "failed", "files": (), "exit_code": 6})
    # The record was written, and its failure not yet deleted.
    records.write(target.open_store(), target.outputs, GROUP, failure)

    upload_group(target, store)

    assert states_of(target) == {(record.stage, "ok")}


def test_a_builds_record_does_not_go_with_tests(
    store: Store,
    outputs: RunOutputs,
    target: Common,
) -> None:
    write_step(store, outputs, "build_torch")
    write_step(store, outputs, "test_smoke")

    upload_kinds(target, store, outputs, "logs", "reports", "tests")

    assert states_of(target) == {("test_smoke", "ok")}


def test_manifests_are_records_of_failed_builds_in_their_group_alone(
    store: Store,
    outputs: RunOutputs,
    target: Common,
) -> None:
    for group in (GROUP, "other"):
        write_step(store, outputs, "test_smoke", group=group)
        write_step(store, outputs, "test_rocm", group=group, error="It broke.")
        write_step(store, outputs, "build_torch", group=group, error="It broke.")

    upload_kinds(target, store, outputs, "manifests")

    assert states_of(target) == {("build_torch", "failed")}
    assert states_of(target, "other") == set()


# --- The same wheel, built twice -------------------------------------------------------------


def upload_triton(
    root: Path,
    machine: str,
    *,
    content: str,
    torch_ref: str = "nightly",
    input_digest: str = "same",
) -> Sequence[FileRecord]:
    """Build triton on a machine of its own, and upload it to a store that all share."""
    common = Common(root=root / machine, run_id="17")
    store = common.open_store()
    path = write_wheel(common.root / "dist", name="triton", version="3.6.0", files={"triton.py": content})
    file = distributions.publish(store, common.outputs, GROUP, path)
    record = Record(
        stage="build_triton",
        run_id="17",
        platform=common.outputs.platform,
        cell=GroupCell(python="3.12", torch_ref=torch_ref),
        started=STARTED,
        seconds=1,
        files=(file,),
        input_digest=input_digest,
    )
    records.write(store, common.outputs, GROUP, record)
    return upload_group(replace(common, store=str(root / "shared")), store)


@pytest.fixture
def shared(tmp_path: Path) -> Common:
    return Common(root=tmp_path, run_id="17", store="shared")


def test_keeps_the_first_of_wheels_from_the_same_inputs(tmp_path: Path, shared: Common) -> None:
    first = upload_triton(tmp_path, "first", content="first")
    digests = digests_of(shared.open_store())

    assert upload_triton(tmp_path, "second", content="second") == first

    assert digests_of(shared.open_store()) == digests


def test_records_the_first_wheel_for_another_ref_with_the_same_inputs(
    tmp_path: Path,
    shared: Common,
    capsys: pytest.CaptureFixture[str],
) -> None:
    first = upload_triton(tmp_path, "first", content="first")

    second = upload_triton(tmp_path, "second", content="second", torch_ref="release/2.13")

    assert second == first
    all_records = records.read_all(shared.open_store(), shared.outputs, GROUP)
    assert {record.name: record.files for record in all_records} == {
        "build_triton-nightly-cp312": tuple(first),
        "build_triton-release-2.13-cp312": tuple(first),
    }
    assert index.write_pages(shared.open_store(), shared.outputs, GROUP).file_count == 1
    assert "build_triton-nightly-cp312" in capsys.readouterr().err


@pytest.mark.parametrize("input_digest", ["other", ""])
def test_refuses_another_wheel_from_other_inputs(tmp_path: Path, input_digest: str) -> None:
    upload_triton(tmp_path, "first", content="first")

    with pytest.raises(StoreError, match=r"triton-3\.6\.0"):
        upload_triton(tmp_path, "second", content="second", input_digest=input_digest)
