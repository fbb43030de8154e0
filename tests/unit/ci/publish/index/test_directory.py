import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.publish import buckets
from ci.publish.index import Files, write_index
from core import files
from core.archive import Member
from core.errors import WheelError
from core.stores.directory import DirectoryStore
from core.wheel.writer import WheelSpec, metadata_text, write_sdist, write_wheel
from tests.kit.front_doors import run_ci


def call(folder: Path, *words: str) -> int:
    return run_ci("index", "--directory", str(folder), *words)


def make_sdist(folder: Path, name: str, version: str, *, says: str = "") -> Path:
    fields = [("Name", says or name), ("Version", version), ("Requires-Python", ">=3.11")]
    return write_sdist(folder, name, version, [], metadata=metadata_text(fields)).path


def test_any_directory_gets_pages_and_sidecars_from_the_files_themselves(
    tmp_path: Path, make_wheel: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    wheel = make_wheel(tmp_path, "torch", "2.10.0+rocm7.1", fields=[("Requires-Python", ">=3.11")])
    sdist = make_sdist(tmp_path, "rocm", "7.1")
    (tmp_path / "notes.txt").write_text("kept")
    assert call(tmp_path) == 0
    page = (tmp_path / "index.html").read_text()
    assert all(f"#sha256={files.sha256(path)}" in page for path in (wheel, sdist))
    sidecar = tmp_path / f"{wheel.name}.metadata"
    listed = json.loads((tmp_path / "simple/torch/index.json").read_text())["files"][0]
    assert listed["core-metadata"] == {"sha256": files.sha256(sidecar)}
    assert listed["requires-python"] == ">=3.11"
    assert (
        json.loads((tmp_path / "simple/rocm/index.json").read_text())["files"][0]["requires-python"]
        == ">=3.11"
    )
    assert "2 files, 7 pages written" in capsys.readouterr().err
    assert call(tmp_path) == 0
    assert "index: unchanged, 2 files" in capsys.readouterr().err


def test_only_new_files_are_read_and_what_went_goes(
    tmp_path: Path, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_wheel(tmp_path, "apex", "1.0")
    make_wheel(tmp_path, "torch", "2.9.0")
    assert call(tmp_path) == 0
    new = make_wheel(tmp_path, "torch", "2.10.0")
    old.unlink()
    hashed: list[str] = []
    digest = files.sha256

    def noted(path: Path) -> str:
        hashed.append(path.name)
        return digest(path)

    monkeypatch.setattr(files, "sha256", noted)
    assert call(tmp_path) == 0
    assert hashed == [new.name]
    assert not (tmp_path / "simple/apex/index.html").exists()
    assert "apex" not in (tmp_path / "index.html").read_text()


def test_a_file_that_was_replaced_is_read_again(tmp_path: Path, make_wheel: Callable[..., Path]) -> None:
    make_wheel(tmp_path, "torch", "2.9.0")
    assert call(tmp_path) == 0
    path = make_wheel(tmp_path, "torch", "2.9.0", content="OTHER = 1", fields=[("Summary", "new")])
    assert call(tmp_path) == 0
    page = (tmp_path / "index.html").read_text()
    assert f"#sha256={files.sha256(path)}" in page
    assert f'data-core-metadata="sha256={files.sha256(tmp_path / f"{path.name}.metadata")}"' in page


def test_a_name_that_lies_about_its_metadata_is_refused(
    tmp_path: Path, make_wheel: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_wheel(tmp_path, "torch", "2.9.0")
    path.rename(tmp_path / "torch-2.10.0-py3-none-any.whl")
    assert call(tmp_path) == WheelError.exit_code
    assert "does not carry the file's name and version" in capsys.readouterr().err
    assert not (tmp_path / "index.html").exists()


def refused(folder: Path, says: str) -> None:
    store = DirectoryStore(folder)
    with pytest.raises(WheelError, match=says):
        write_index(store, "", Files(store=store, folder=folder), title="t")


def test_metadata_of_another_distribution_is_refused(tmp_path: Path) -> None:
    metadata = "Metadata-Version: 2.1\nName: torch\nVersion: 2.10.0\n"
    spec = WheelSpec(distribution="torch", version="2.9.0", tag="py3-none-any", metadata=metadata)
    write_wheel(tmp_path / "wheel", spec, [Member(name="torch.py", source=b"")])
    refused(tmp_path / "wheel", r"torch-2\.9\.0.* in its METADATA that it is torch 2\.10\.0")
    (tmp_path / "sdist").mkdir()
    make_sdist(tmp_path / "sdist", "rocm", "7.1", says="other")
    refused(tmp_path / "sdist", r"rocm-7\.1.* PKG-INFO says other 7\.1")


@pytest.mark.parametrize("content", [b"no archive", b""])
@pytest.mark.parametrize("name", ["torch-1.0-py3-none-any.whl", "torch-1.0.tar.gz"])
def test_what_is_no_wheel_or_sdist_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    refused(tmp_path, r"torch-1\.0")


def test_an_sdist_without_metadata_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "rocm-7.1.tar.gz", "w:gz"):
        pass
    refused(tmp_path, "holds no PKG-INFO")


def test_no_directory_and_an_empty_one_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(tmp_path / "none") == 4
    assert call(tmp_path) == 4
    said = capsys.readouterr().err
    assert "is not a directory" in said
    assert "holds no wheel or sdist" in said
    assert list(tmp_path.iterdir()) == []


def test_where_the_server_writes_pages_the_client_writes_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(buckets, "server_writes_pages", lambda _data, store: store == "s3://theirs")
    assert run_ci("index", "--run-id", "9", "--store", "s3://theirs") == 0
    assert "the server behind s3://theirs writes its pages; nothing to do" in capsys.readouterr().err
