"""Uploads of a user's folders and of runs: what is put, refused, and told."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.publish.folders import Folders, compare_folders
from ci.verbs import index, upload
from core.cli.options import Common
from core.errors import MissingInputError, StoreError, UsageError, WheelError
from core.run import RunOutputs
from core.run.job_files import JobFiles
from core.run.records import FileRecord
from core.stores import Store
from core.stores.directory import DirectoryStore
from tests.kit.front_doors import run_verb
from tests.kit.memory_store import MemoryStore
from tests.kit.small_runs import GROUP
from tests.kit.wheels import sha256, write_broken_wheel, write_wheel

OTHER_BYTES = {"torch.py": "other"}


def digests_of(store: Store) -> Mapping[str, str]:
    """Return all that a store holds: key to digest."""
    return {stored_object.key: store.digest(stored_object.key) for stored_object in store.list("")}


def upload_folder(common: Common, folder: Path) -> Sequence[FileRecord]:
    """Upload the wheels of a folder into the group."""
    return upload.put_all(common, compare_folders(common, Folders(wheels=folder), GROUP))[GROUP]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the user's, for wheels."""
    return tmp_path / "mine"


# --- A folder of wheels ----------------------------------------------------------------------


def test_refuses_other_bytes_before_anything_is_written(
    common: Common,
    store: Store,
    folder: Path,
) -> None:
    write_wheel(folder)
    upload_folder(common, folder)
    digests = digests_of(store)
    write_wheel(folder, files=OTHER_BYTES)
    write_wheel(folder, name="apex", version="1.10.0")

    with pytest.raises(StoreError, match="torch-"):
        upload_folder(common, folder)

    assert digests_of(store) == digests


def test_replaces_the_metadata_of_a_replaced_wheel(tmp_path: Path, folder: Path) -> None:
    local = Common(root=tmp_path)
    write_wheel(folder, requires=["numpy>=1"])
    upload_folder(local, folder)
    write_wheel(folder, requires=["numpy>=2"])

    (wheel,) = upload_folder(local, folder)

    assert local.open_store().digest(f"{wheel.key}.metadata") == wheel.metadata_sha256


def test_replaces_the_metadata_of_a_wheel_whose_upload_was_killed(tmp_path: Path, folder: Path) -> None:
    local = Common(root=tmp_path)
    write_wheel(folder, requires=["numpy>=1"])
    (earlier_wheel,) = upload_folder(local, folder)
    path = write_wheel(folder, requires=["numpy>=2"])
    local.open_store().put_file(earlier_wheel.key, path, sha256=sha256(path), replace=True)

    (wheel,) = upload_folder(local, folder)

    assert local.open_store().digest(f"{wheel.key}.metadata") == wheel.metadata_sha256


def test_names_every_wheel_with_other_bytes(common: Common, folder: Path) -> None:
    write_wheel(folder)
    write_wheel(folder, name="rocm", version="7.1")
    upload_folder(common, folder)
    write_wheel(folder, files=OTHER_BYTES)
    write_wheel(folder, name="rocm", version="7.1", files={"rocm.py": "other"})

    with pytest.raises(StoreError, match="2 keys") as caught:
        upload_folder(common, folder)

    assert "rocm-7.1" in caught.value.message
    assert "torch-2.10.0" in caught.value.message


def test_a_wheel_with_another_name_in_its_metadata_stops_the_upload(
    common: Common,
    store: Store,
    folder: Path,
) -> None:
    write_wheel(folder, name="apex", version="1.10.0")
    write_broken_wheel(folder, defect="other name in METADATA")

    with pytest.raises(WheelError, match="stranger"):
        upload_folder(common, folder)

    assert store.list("") == []


def test_a_wheel_of_another_platform_stops_the_upload(
    common: Common,
    store: Store,
    folder: Path,
) -> None:
    write_wheel(folder)
    write_wheel(folder, tag="cp312-cp312-win_amd64")

    with pytest.raises(WheelError, match="win_amd64"):
        upload_folder(common, folder)

    assert store.list("") == []


def test_uploads_wheels_of_the_named_platform(store: Store, folder: Path) -> None:
    write_wheel(folder, tag="cp312-cp312-win_amd64")
    arguments = ("--input-dir", folder, "--artifact-group", GROUP, "--run-id", "17", "--store", store.url)

    assert run_verb("ci", "upload", *arguments, "--platform", "windows") == 0

    assert {stored_object.key.split("/")[0] for stored_object in store.list("")} == {"17-windows"}


def test_an_uploaded_file_is_a_copy(tmp_path: Path, folder: Path) -> None:
    common = Common(run_id="42", root=tmp_path)
    wheel = write_wheel(folder)
    (file,) = upload_folder(common, folder)
    content = wheel.read_bytes()

    # As cp and editors do: the same file, other bytes.
    write_wheel(folder, files={"torch.py": "other = True"})

    assert (tmp_path / "out" / file.key).read_bytes() == content
    with pytest.raises(StoreError, match="torch-"):
        upload_folder(common, folder)


@pytest.mark.parametrize(
    ("arguments", "group"),
    [
        (["--input-dir", "mine", "--gpu-family", "gfx942;gfx1100"], "gfx942-gfx1100"),
        (["--packages-dir", "mine", "--artifact-group", "gfx942-debug"], "gfx942-debug"),
    ],
)
def test_uploads_a_folder_into_the_named_group(
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    group: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write_wheel(folder)

    assert run_verb("ci", "upload", "--store", tmp_path / "s", *arguments) == 0

    groups = {stored_object.key.split("/")[2] for stored_object in DirectoryStore(tmp_path / "s").list("")}
    assert groups == {group}


def test_refuses_a_folder_without_a_group(tmp_path: Path, folder: Path) -> None:
    write_wheel(folder)

    exit_code = run_verb("ci", "upload", "--store", tmp_path / "s", "--input-dir", folder)

    assert exit_code == UsageError.exit_code


def test_refuses_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    arguments = ("--input-packages-dir", tmp_path / "nothing", "--gpu-family", "cpu")

    exit_code = run_verb("ci", "upload", "--store", tmp_path / "s", *arguments)

    assert exit_code == MissingInputError.exit_code


# --- How much a store is asked ---------------------------------------------------------------


def requests_of_second_upload(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    wheels: int,
) -> int:
    """Upload wheels twice; return how many requests the second time took, pages included."""
    store = MemoryStore(folder_pages=False)
    monkeypatch.setattr(Common, "open_store", lambda _: store)
    common = Common(root=root, run_id="17", store="s3://bucket")
    for number in range(wheels):
        write_wheel(root / "wheels", name=f"project{number}", version="1")
    upload.write_pages(common, {GROUP: upload_folder(common, root / "wheels")})
    store.calls.clear()

    upload.write_pages(common, {GROUP: upload_folder(common, root / "wheels")})

    return len(store.calls)


def test_an_upload_of_unchanged_wheels_makes_no_request_for_each(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for_one_wheel = requests_of_second_upload(tmp_path / "one", monkeypatch, wheels=1)
    for_six_wheels = requests_of_second_upload(tmp_path / "six", monkeypatch, wheels=6)

    assert for_six_wheels == for_one_wheel


# --- Dry runs --------------------------------------------------------------------------------


def test_a_dry_run_names_files_and_writes_nothing(
    tmp_path: Path,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wheel = write_wheel(folder)

    upload_folder(Common(root=tmp_path, run_id="17", dry_run=True), folder)

    printed = capsys.readouterr().err
    assert f"/python/{GROUP}/{wheel.name}" in printed
    assert "1 file would be put" in printed
    assert not (tmp_path / "out").exists()


def test_a_dry_run_refuses_other_bytes_too(common: Common, folder: Path) -> None:
    write_wheel(folder)
    upload_folder(common, folder)
    write_wheel(folder, files=OTHER_BYTES)

    with pytest.raises(StoreError, match="torch-"):
        upload_folder(replace(common, dry_run=True), folder)


@pytest.fixture
def printed_without_store(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """What a dry run prints where the store does not answer."""
    monkeypatch.setattr(upload, "is_reachable", lambda _: False)
    write_wheel(folder)
    arguments = ("--input-dir", folder, "--artifact-group", GROUP, "--run-id", "17")
    assert run_verb("ci", "upload", "--store", "s3://nobody", "--dry-run", *arguments) == 0
    return capsys.readouterr().err


def test_a_dry_run_without_the_store_says_so(printed_without_store: str) -> None:
    assert "s3://nobody cannot be read" in printed_without_store
    assert "package_find_links_url" not in printed_without_store


def test_a_dry_run_without_the_store_lists_keys_in_the_order_of_writes(printed_without_store: str) -> None:
    lines = [line for line in printed_without_store.splitlines() if line.startswith("would write")]

    keys = [line.split()[2].removeprefix("s3://nobody/17-linux/") for line in lines]

    wheel = "torch-2.10.0+rocm7.1-py3-none-any.whl"
    assert keys[:2] == [f"python/g/{wheel}", f"python/g/{wheel}.metadata"]
    assert keys[2].startswith("manifests/g/upload-")
    assert keys.index("python/g/simple/torch/index.html") < keys.index("python/g/index.html")


# --- What is told ----------------------------------------------------------------------------


@pytest.fixture
def server_options(
    store: Store,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Sequence[Any]:
    """The options of an upload to a store whose pages a server writes."""
    monkeypatch.setattr(index, "left_to_server", lambda _: True)
    monkeypatch.setattr(upload, "_SERVER_SECONDS", 0.0)
    write_wheel(folder)
    run = ("--artifact-group", GROUP, "--run-id", "17")
    return ("--store", store.url, "--input-dir", folder, *run)


def test_names_a_page_that_the_server_has_not_written(
    server_options: Sequence[Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_verb("ci", "upload", *server_options) == MissingInputError.exit_code

    message = capsys.readouterr().err
    assert "torch-2.10.0" in message
    assert "package_find_links_url" not in message


def test_tells_the_address_of_a_page_that_the_server_has_written(
    server_options: Sequence[Any],
    store: Store,
    outputs: RunOutputs,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_verb("ci", "upload", *server_options)
    index.write_pages(store, outputs, GROUP)

    assert run_verb("ci", "upload", *server_options) == 0

    assert "package_find_links_url: file://" in capsys.readouterr().err


OUTPUTS = RunOutputs(run_id="17", platform="linux", address="https://b.s3.amazonaws.com")


def file_record(name: str, version: str = "1.0+rocm7.1") -> FileRecord:
    filename = f"{name}-{version}-py3-none-any.whl"
    return FileRecord(
        name=filename,
        key=f"{OUTPUTS.python_prefix(GROUP)}/{filename}",
        size=5,
        sha256="0" * 64,
        distribution=name,
        version=version,
    )


@pytest.fixture
def summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a job's summary."""
    path = tmp_path / "summary"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    return path


def test_a_summary_links_wheels_and_pins_versions(summary: Path) -> None:
    upload.summarize(OUTPUTS, GROUP, [file_record("apex"), file_record("torch")])

    summary_text = summary.read_text(encoding="utf-8")
    prefix = "https://b.s3.amazonaws.com/17-linux/python/g"
    assert f"pip install 'torch==1.0+rocm7.1' --find-links '{prefix}/index.html'" in summary_text
    assert f"(<{prefix}/apex-1.0%2Brocm7.1-py3-none-any.whl>)" in summary_text


@pytest.mark.parametrize(("name", "extras"), [("torch", "device-all"), ("rocm", "libraries,device-all")])
def test_a_summary_installs_device_code_by_extras(
    summary: Path,
    name: str,
    extras: str,
) -> None:
    devices = [file_record("amd-torch-device-gfx942"), file_record("rocm-sdk-device-gfx942")]

    upload.summarize(OUTPUTS, GROUP, [file_record(name), *devices])

    assert f"pip install '{name}[{extras}]==1.0+rocm7.1'" in summary.read_text(encoding="utf-8")


def test_a_summary_lists_200_wheels_and_counts_the_others(summary: Path) -> None:
    upload.summarize(OUTPUTS, GROUP, [file_record(f"a{number}") for number in range(250)])

    assert "50 more" in summary.read_text(encoding="utf-8")


def test_an_index_that_is_not_served_has_no_address(tmp_path: Path, summary: Path) -> None:
    outputs = tmp_path / "outputs"

    upload.set_outputs(JobFiles(outputs=outputs), OUTPUTS, [GROUP], has_index=False)
    upload.summarize(OUTPUTS, GROUP, [file_record("torch")], has_index=False)

    assert "package_index_url" not in outputs.read_text()
    assert "/simple/" not in summary.read_text(encoding="utf-8")


def test_the_output_of_one_group_is_its_address(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"

    upload.set_outputs(JobFiles(outputs=outputs), OUTPUTS, [GROUP], has_index=True)

    lines = outputs.read_text().splitlines()
    assert lines[1] == OUTPUTS.python_find_links_url(GROUP)
    assert lines[4] == OUTPUTS.python_index_url(GROUP)


def test_the_output_of_several_groups_maps_them_to_their_addresses(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"

    upload.set_outputs(JobFiles(outputs=outputs), OUTPUTS, ["g", "h"], has_index=True)

    addresses = json.loads(outputs.read_text().splitlines()[1])
    assert addresses == {group: OUTPUTS.python_find_links_url(group) for group in ("g", "h")}
