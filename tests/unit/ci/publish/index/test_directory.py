"""Indexes of any directory, written from the wheels and sdists themselves."""

import json
import os
import shutil
import tarfile
from collections.abc import Callable
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
    return run_ci("index", "--directory", str(folder))


def json_entry(folder: Path, project: str) -> dict[str, Any]:
    """Return what a project's JSON page says of its only file."""
    page = json.loads((folder / "simple" / project / "index.json").read_text())
    (file,) = page["files"]
    return dict(file)


def test_lists_wheels_and_sdists_with_their_digests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = wheels.write_wheel(tmp_path, name="torch", version="2.10.0+rocm7.1")
    sdist = wheels.write_sdist(tmp_path, name="rocm", version="7.1")
    (tmp_path / "notes.txt").write_text("kept")

    assert index_directory(tmp_path) == 0

    page = (tmp_path / "index.html").read_text()
    for path in (wheel, sdist):
        assert f"#sha256={sha256(path)}" in page
    assert "notes" not in page
    assert "2 files, 7 pages" in capsys.readouterr().err


def test_writes_the_metadata_of_a_wheel_beside_it(tmp_path: Path) -> None:
    wheel = wheels.write_wheel(tmp_path, name="torch", metadata_fields=PYTHON_FIELD)

    assert index_directory(tmp_path) == 0

    sidecar = tmp_path / f"{wheel.name}.metadata"
    members = wheels.read_members(wheel)
    assert sidecar.read_bytes() == members["torch-2.10.0+rocm7.1.dist-info/METADATA"]
    assert json_entry(tmp_path, "torch")["core-metadata"] == {"sha256": sha256(sidecar)}


def test_lists_the_python_that_files_require(tmp_path: Path) -> None:
    wheels.write_wheel(tmp_path, name="torch", metadata_fields=PYTHON_FIELD)
    wheels.write_sdist(tmp_path, name="rocm", metadata_fields=PYTHON_FIELD)

    assert index_directory(tmp_path) == 0

    assert json_entry(tmp_path, "torch")["requires-python"] == ">=3.11"
    assert json_entry(tmp_path, "rocm")["requires-python"] == ">=3.11"


def test_says_that_nothing_has_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheels.write_wheel(tmp_path)
    assert index_directory(tmp_path) == 0
    times_before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")}

    assert index_directory(tmp_path) == 0

    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.*")} == times_before
    assert "unchanged, 1 file" in capsys.readouterr().err


def test_a_dry_run_tells_of_no_page_that_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheels.write_wheel(tmp_path / "folder")
    assert index_directory(tmp_path / "folder") == 0
    # The files of a copy have other ETags, which JSON pages remember.
    shutil.copytree(tmp_path / "folder", tmp_path / "elsewhere" / "folder")

    assert run_ci("index", "--directory", str(tmp_path / "elsewhere" / "folder"), "--dry-run") == 0

    assert "unchanged, 1 file" in capsys.readouterr().err


def replace_wheel(folder: Path) -> None:
    """Write other bytes of the same name."""
    wheels.write_wheel(folder, files={"torch.py": "OTHER = 1\n"})


def replace_metadata(folder: Path) -> None:
    """Write other metadata of the same name."""
    wheels.write_wheel(folder, metadata_fields=(("Summary", "new"),))


def make_older(folder: Path) -> None:
    """Set a time of a minute before."""
    path = folder / wheels.wheel_filename()
    past = path.stat().st_mtime - 60
    os.utime(path, (past, past))


def lose_sidecar(folder: Path) -> None:
    """Take the metadata beside a wheel away."""
    (folder / f"{wheels.wheel_filename()}.metadata").unlink()


@pytest.mark.parametrize(
    "change", [replace_wheel, replace_metadata, make_older, lose_sidecar], ids=lambda change: change.__name__
)
def test_describes_a_file_as_it_is_now(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = wheels.write_wheel(tmp_path)
    assert index_directory(tmp_path) == 0
    change(tmp_path)

    assert index_directory(tmp_path) == 0

    page = (tmp_path / "index.html").read_text()
    sidecar = tmp_path / f"{path.name}.metadata"
    assert f"#sha256={sha256(path)}" in page
    assert f'data-core-metadata="sha256={sha256(sidecar)}"' in page


def test_reads_only_files_that_are_new(tmp_path: Path) -> None:
    torch = wheels.write_wheel(tmp_path, name="torch", version="2.9.0")
    assert index_directory(tmp_path) == 0
    digest = sha256(torch)
    # Bytes that no listing shows to be others: who reads them lists another digest, or refuses them.
    status = torch.stat()
    torch.write_bytes(b"x" * status.st_size)
    os.utime(torch, ns=(status.st_atime_ns, status.st_mtime_ns))
    wheels.write_wheel(tmp_path, name="torch", version="2.10.0")

    assert index_directory(tmp_path) == 0

    page = (tmp_path / "index.html").read_text()
    assert f"#sha256={digest}" in page
    assert "torch-2.10.0-" in page


def test_removes_the_pages_of_a_project_that_went(tmp_path: Path) -> None:
    wheels.write_wheel(tmp_path, name="torch")
    apex = wheels.write_wheel(tmp_path, name="apex")
    assert index_directory(tmp_path) == 0
    apex.unlink()

    assert index_directory(tmp_path) == 0

    assert not (tmp_path / "simple/apex/index.html").exists()
    assert "apex" not in (tmp_path / "index.html").read_text()


# What is refused


def test_rejects_a_wheel_that_was_renamed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wheels.write_wheel(tmp_path, name="torch", version="2.9.0")
    path.rename(tmp_path / "torch-2.10.0-py3-none-any.whl")

    assert index_directory(tmp_path) == WheelError.exit_code

    assert "torch-2.10.0-py3-none-any.whl" in capsys.readouterr().err
    assert not (tmp_path / "index.html").exists()


def read_refusal(folder: Path) -> str:
    """Index what must not be indexed; return the error."""
    store = DirectoryStore(folder)
    with pytest.raises(WheelError) as raised:
        write_index(store, "", FolderSource(store=store, directory=folder), title="t")
    return raised.value.message


@pytest.mark.parametrize("filename", ["torch-2.10.0-py3-none-any.whl", "torch-2.10.0.tar.gz"])
def test_a_file_that_disappears_meanwhile_is_missing(tmp_path: Path, filename: str) -> None:
    source = FolderSource(store=DirectoryStore(tmp_path), directory=tmp_path)

    with pytest.raises(MissingInputError):
        source.describe_file(StoredFile(filename, 1, 0, "etag"), "", ())


def test_rejects_a_wheel_with_the_metadata_of_another(tmp_path: Path) -> None:
    wheels.write_broken_wheel(tmp_path, defect="other name in METADATA")

    message = read_refusal(tmp_path)

    assert wheels.wheel_filename() in message
    assert "stranger" in message


def test_rejects_a_wheel_with_the_metadata_of_another_version(tmp_path: Path) -> None:
    tag = "py3-none-any"
    members = wheels.wheel_members(name="torch", version="2.9.0", tag=tag)
    metadata = wheels.metadata_text(name="torch", version="2.10.0")
    members["torch-2.9.0.dist-info/METADATA"] = metadata.encode()
    path = tmp_path / wheels.wheel_filename(version="2.9.0", tag=tag)
    wheels.write_members(path, wheels.add_record(members))

    message = read_refusal(tmp_path)

    assert path.name in message
    assert "torch 2.10.0" in message


def test_rejects_an_sdist_with_the_metadata_of_another(tmp_path: Path) -> None:
    path = wheels.write_sdist(tmp_path, name="other", version="7.1")
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    path.unlink()
    with tarfile.open(tmp_path / "rocm-7.1.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "other-7.1", "rocm-7.1")

    message = read_refusal(tmp_path)

    assert "rocm-7.1.tar.gz" in message
    assert "other 7.1" in message


@pytest.mark.parametrize("content", [b"no archive", b""], ids=["other bytes", "empty"])
@pytest.mark.parametrize("name", ["torch-1.0-py3-none-any.whl", "torch-1.0.tar.gz"])
def test_rejects_a_file_that_is_no_archive(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)

    assert "torch-1.0" in read_refusal(tmp_path)


def test_rejects_an_sdist_without_metadata(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "rocm-7.1.tar.gz", "w:gz"):
        pass

    assert "PKG-INFO" in read_refusal(tmp_path)


@pytest.mark.parametrize("name", ["none", "empty"], ids=["no directory", "an empty one"])
def test_rejects_a_directory_without_files(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()

    assert index_directory(tmp_path / name) == MissingInputError.exit_code

    assert str(tmp_path / name) in capsys.readouterr().err
    assert list((tmp_path / "empty").iterdir()) == []


def test_writes_nothing_where_the_server_writes_pages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(buckets, "server_writes_pages", lambda _data, store: store == "s3://theirs")

    assert run_ci("index", "--run-id", "9", "--store", "s3://theirs") == 0
    assert "s3://theirs" in capsys.readouterr().err
