"""Indexes of any directory, written from the wheels and sdists themselves."""

import json
import os
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from ci.publish import buckets
from ci.publish.index import FolderSource, write_index
from ci.publish.index.files import StoredFile
from core.errors import MissingInputError, WheelError
from core.files import sha256
from core.stores.directory import DirectoryStore
from tests.kit import wheels
from tests.kit.front_doors import run_ci

PYTHON_FIELD = (("Requires-Python", ">=3.11"),)


def index_directory(folder: Path) -> int:
    """Write the index of a directory; return the exit code."""
    return run_ci("index", "--directory", folder)


def read_flat_page(folder: Path) -> str:
    return (folder / "index.html").read_text()


def sidecar_of(wheel: Path) -> Path:
    """Return where the metadata of a wheel lies beside it (PEP 658)."""
    return wheel.with_name(f"{wheel.name}.metadata")


def json_entry(folder: Path, project: str) -> dict[str, Any]:
    """Return what a project's JSON page says of its only file."""
    path = folder / "simple" / project / "index.json"
    page = json.loads(path.read_text())
    (file,) = page["files"]
    return dict(file)


# What is listed


def test_lists_wheels_and_sdists_with_their_digests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = wheels.write_wheel(tmp_path, name="torch", version="2.10.0+rocm7.1")
    sdist = wheels.write_sdist(tmp_path, name="rocm", version="7.1")
    (tmp_path / "notes.txt").write_text("notes")

    assert index_directory(tmp_path) == 0

    page = read_flat_page(tmp_path)
    assert f"#sha256={sha256(wheel)}" in page
    assert f"#sha256={sha256(sdist)}" in page
    assert "notes" not in page
    assert "2 files, 7 pages" in capsys.readouterr().err


def test_writes_the_metadata_of_a_wheel_beside_it(tmp_path: Path) -> None:
    wheel = wheels.write_wheel(tmp_path, name="torch", metadata_fields=PYTHON_FIELD)

    assert index_directory(tmp_path) == 0

    sidecar = sidecar_of(wheel)
    members = wheels.read_members(wheel)
    assert sidecar.read_bytes() == members["torch-2.10.0+rocm7.1.dist-info/METADATA"]
    assert json_entry(tmp_path, "torch")["core-metadata"] == {"sha256": sha256(sidecar)}


def test_lists_the_python_that_files_require(tmp_path: Path) -> None:
    wheels.write_wheel(tmp_path, name="torch", metadata_fields=PYTHON_FIELD)
    wheels.write_sdist(tmp_path, name="rocm", metadata_fields=PYTHON_FIELD)

    assert index_directory(tmp_path) == 0

    assert json_entry(tmp_path, "torch")["requires-python"] == ">=3.11"
    assert json_entry(tmp_path, "rocm")["requires-python"] == ">=3.11"


# Indexes that are written again


def modification_times(folder: Path) -> dict[Path, int]:
    """Return when each file below a folder was written, in nanoseconds."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.*")}


def test_writes_no_file_where_nothing_has_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheels.write_wheel(tmp_path)
    assert index_directory(tmp_path) == 0
    times_before = modification_times(tmp_path)

    assert index_directory(tmp_path) == 0

    assert modification_times(tmp_path) == times_before
    assert "unchanged, 1 file" in capsys.readouterr().err


def test_a_dry_run_in_a_copy_of_a_folder_finds_its_pages_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "folder"
    wheels.write_wheel(folder)
    assert index_directory(folder) == 0
    # The files of a copy have other ETags, which JSON pages remember.
    copied_folder = tmp_path / "elsewhere" / "folder"
    shutil.copytree(folder, copied_folder)

    assert run_ci("index", "--directory", copied_folder, "--dry-run") == 0

    assert "unchanged, 1 file" in capsys.readouterr().err


def replace_module(folder: Path) -> None:
    """Write a wheel of the same name with another module."""
    wheels.write_wheel(folder, files={"torch.py": "OTHER = 1\n"})


def replace_metadata(folder: Path) -> None:
    """Write a wheel of the same name with other metadata."""
    wheels.write_wheel(folder, metadata_fields=(("Summary", "new"),))


def make_a_minute_older(folder: Path) -> None:
    wheel = folder / wheels.wheel_filename()
    a_minute_before = wheel.stat().st_mtime - 60
    os.utime(wheel, (a_minute_before, a_minute_before))


def delete_sidecar(folder: Path) -> None:
    wheel = folder / wheels.wheel_filename()
    sidecar_of(wheel).unlink()


CHANGES: Mapping[str, Callable[[Path], None]] = {
    "another module": replace_module,
    "other metadata": replace_metadata,
    "an older time": make_a_minute_older,
    "no sidecar": delete_sidecar,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_describes_a_file_as_it_is_now(tmp_path: Path, change: Callable[[Path], None]) -> None:
    wheel = wheels.write_wheel(tmp_path)
    assert index_directory(tmp_path) == 0
    change(tmp_path)

    assert index_directory(tmp_path) == 0

    page = read_flat_page(tmp_path)
    metadata_digest = sha256(sidecar_of(wheel))
    assert f"#sha256={sha256(wheel)}" in page
    assert f'data-core-metadata="sha256={metadata_digest}"' in page


def test_reads_only_files_that_are_new(tmp_path: Path) -> None:
    torch = wheels.write_wheel(tmp_path, name="torch", version="2.9.0")
    assert index_directory(tmp_path) == 0
    listed_digest = sha256(torch)

    # Other bytes of the same size and time: had they been read, the wheel would be refused.
    status = torch.stat()
    torch.write_bytes(b"x" * status.st_size)
    os.utime(torch, ns=(status.st_atime_ns, status.st_mtime_ns))
    wheels.write_wheel(tmp_path, name="torch", version="2.10.0")

    assert index_directory(tmp_path) == 0

    page = read_flat_page(tmp_path)
    assert f"#sha256={listed_digest}" in page
    assert "torch-2.10.0-" in page


def test_removes_the_pages_of_a_project_without_files(tmp_path: Path) -> None:
    wheels.write_wheel(tmp_path, name="torch")
    apex = wheels.write_wheel(tmp_path, name="apex")
    assert index_directory(tmp_path) == 0
    apex.unlink()

    assert index_directory(tmp_path) == 0

    apex_page = tmp_path / "simple/apex/index.html"
    assert not apex_page.exists()
    assert "apex" not in read_flat_page(tmp_path)


# What is refused


def test_rejects_a_wheel_that_was_renamed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = wheels.write_wheel(tmp_path, name="torch", version="2.9.0")
    wheel.rename(tmp_path / "torch-2.10.0-py3-none-any.whl")

    assert index_directory(tmp_path) == WheelError.exit_code

    assert "torch-2.10.0-py3-none-any.whl" in capsys.readouterr().err
    assert not (tmp_path / "index.html").exists()


def source_of(folder: Path) -> FolderSource:
    return FolderSource(store=DirectoryStore(folder), directory=folder)


def refusal_of(folder: Path) -> str:
    """Return why the index of a folder is not written."""
    source = source_of(folder)
    with pytest.raises(WheelError) as raised:
        write_index(source.store, "", source, title="t")
    return raised.value.message


@pytest.mark.parametrize(
    "filename",
    ["torch-2.10.0-py3-none-any.whl", "torch-2.10.0.tar.gz"],
    ids=["wheel", "sdist"],
)
def test_reports_a_listed_file_that_has_disappeared(tmp_path: Path, filename: str) -> None:
    listed_file = StoredFile(filename, size=1, modified=0, etag="etag")

    with pytest.raises(MissingInputError):
        source_of(tmp_path).describe_file(listed_file, "", ())


def test_rejects_a_wheel_with_the_metadata_of_another(tmp_path: Path) -> None:
    wheels.write_broken_wheel(tmp_path, defect="other name in METADATA")

    message = refusal_of(tmp_path)

    assert wheels.wheel_filename() in message
    assert "stranger" in message


def test_rejects_a_wheel_with_the_metadata_of_another_version(tmp_path: Path) -> None:
    members = wheels.wheel_members(name="torch", version="2.9.0", tag="py3-none-any")
    metadata = wheels.metadata_text(name="torch", version="2.10.0")
    members["torch-2.9.0.dist-info/METADATA"] = metadata.encode()
    filename = "torch-2.9.0-py3-none-any.whl"
    wheels.write_members(tmp_path / filename, wheels.add_record(members))

    message = refusal_of(tmp_path)

    assert filename in message
    assert "torch 2.10.0" in message


def test_rejects_an_sdist_with_the_metadata_of_another(tmp_path: Path) -> None:
    sdist = wheels.write_sdist(tmp_path, name="other", version="7.1")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    sdist.unlink()
    with tarfile.open(tmp_path / "rocm-7.1.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "other-7.1", "rocm-7.1")

    message = refusal_of(tmp_path)

    assert "rocm-7.1.tar.gz" in message
    assert "other 7.1" in message


@pytest.mark.parametrize("content", [b"no archive", b""], ids=["other bytes", "empty"])
@pytest.mark.parametrize(
    "filename",
    ["torch-1.0-py3-none-any.whl", "torch-1.0.tar.gz"],
    ids=["wheel", "sdist"],
)
def test_rejects_a_file_that_is_no_archive(tmp_path: Path, filename: str, content: bytes) -> None:
    (tmp_path / filename).write_bytes(content)

    assert "torch-1.0" in refusal_of(tmp_path)


def test_rejects_an_sdist_without_metadata(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "rocm-7.1.tar.gz", "w:gz"):
        pass

    assert "PKG-INFO" in refusal_of(tmp_path)


def test_rejects_a_directory_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "absent"

    assert index_directory(folder) == MissingInputError.exit_code

    assert str(folder) in capsys.readouterr().err
    assert not folder.exists()


def test_rejects_an_empty_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert index_directory(tmp_path) == MissingInputError.exit_code

    assert str(tmp_path) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_writes_nothing_to_a_bucket_whose_server_writes_pages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = "s3://served-bucket"
    monkeypatch.setattr(buckets, "server_writes_pages", lambda _data, store: store == bucket)

    assert run_ci("index", "--run-id", "9", "--store", bucket) == 0

    assert bucket in capsys.readouterr().err
