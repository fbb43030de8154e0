import gzip
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.publish import folders, upload, wheels
from ci.publish.folders import Digests, pack
from core import files
from core.cli.options import Common
from core.errors import ArtifactError, MissingInputError
from core.stores import Store


@pytest.mark.parametrize(
    "name",
    [".kpack/a.whl", "a.log.part", "x~", "a/.hidden/b", "tmp/a", "a.TMP", "__pycache__/a.pyc", "b.lock"],
)
def test_hidden_and_linked_files_stay(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "build.log").write_text("x")
    path = tmp_path / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    (tmp_path / "in" / "secret.log").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "folder").symlink_to(tmp_path)
    found = folders.tree(tmp_path / "in", "17-linux/logs/g", Digests())
    assert [one.key for one in found] == ["17-linux/logs/g/deep/build.log"]
    assert "secret.log is a link and is left out" in capsys.readouterr().err


def test_large_logs_are_packed_and_nothing_else(tmp_path: Path) -> None:
    large = b"x" * (folders.PACKED_FROM + 1)
    for name in ("large.log", "large.tar"):
        (tmp_path / name).write_bytes(large)
    (tmp_path / "small.log").write_bytes(b"x")
    found = {one.key: one for one in folders.tree(tmp_path, "p", Digests())}
    expected = {"p/large.log.gz": True, "p/large.tar": False, "p/small.log": False}
    assert {key: one.packed for key, one in found.items()} == expected
    assert found["p/large.log.gz"].size < 10_000
    assert found["p/large.tar"].sha256 == files.sha256(tmp_path / "large.tar")


def test_wheels_lie_in_dist_where_there_is_one(tmp_path: Path, make_wheel: Callable[..., Path]) -> None:
    beside = make_wheel(tmp_path)
    make_wheel(tmp_path / ".kpack_staging")
    assert wheels.wheel_paths(tmp_path) == [beside]
    inside = make_wheel(tmp_path / "dist", "apex", "1.0")
    assert wheels.wheel_paths(tmp_path) == [inside]
    inside.unlink()
    with pytest.raises(MissingInputError, match="dist holds no wheel or sdist"):
        wheels.wheel_paths(tmp_path)


def test_a_folder_that_is_none_or_empty_is_an_error(common: Common, tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="is not a folder with files"):
        folders.walked(tmp_path)
    with pytest.raises(MissingInputError, match="is not a folder"):
        folders.walked(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(MissingInputError, match="holds no artifact"):
        upload.upload_artifacts(common, tmp_path, Digests())
    (tmp_path / "blas.tar.zst").write_bytes(b"x")
    with pytest.raises(ArtifactError, match=r"blas.tar.zst"):
        upload.upload_artifacts(common, tmp_path, Digests())


def test_artifacts_are_held_to_the_digest_beside_them(common: Common, store: Store, tmp_path: Path) -> None:
    path = tmp_path / "mine" / "blas_lib_gfx110X-all.tar.zst"
    path.parent.mkdir()
    path.write_bytes(b"archive")
    digest = files.sha256(path)
    beside = path.with_name(f"{path.name}.sha256sum")
    for text in (f"{digest}\n", f"{digest} *{path.name}\n"):
        upload.upload_artifacts(common, path.parent, Digests())
        assert store.read(f"17-linux/{path.name}") == b"archive"
        assert store.read(f"17-linux/{beside.name}") == text.encode()
        store.delete(f"17-linux/{beside.name}")
        beside.write_text(f"{digest} *{path.name}\n")
    beside.write_text("0" * 64)
    with pytest.raises(ArtifactError, match=r"blas_lib_gfx110X-all.tar.zst has the digest .* says 000"):
        upload.upload_artifacts(common, path.parent, Digests())


def test_a_builds_manifest_lies_beside_the_records(common: Common, store: Store, tmp_path: Path) -> None:
    path = tmp_path / "therock_manifest.json"
    with pytest.raises(MissingInputError, match="is not a build's therock_manifest"):
        upload.upload_manifest(common, path, "g", Digests())
    path.write_text("{}")
    upload.upload_manifest(common, path, "g", Digests())
    assert store.read(f"17-linux/manifests/g/{path.name}") == b"{}"
    other = path.rename(tmp_path / "build_torch.json")
    with pytest.raises(MissingInputError, match="records are uploaded with their run"):
        upload.upload_manifest(common, other, "g", Digests())


@pytest.fixture(name="path")
def path_fixture(tmp_path: Path) -> Path:
    path = tmp_path / "file.log"
    path.write_bytes(b"line\n" * 1000)
    past = time.time() - 60
    os.utime(path, (past, past))
    return path


def content(data: bytes) -> tuple[int, str]:
    return len(data), hashlib.sha256(data).hexdigest()


def found(known: Digests, path: Path, *, packed: bool = False) -> tuple[int, str]:
    (one,) = known.contents([(path, packed)])
    assert one.changed == path.stat().st_mtime_ns
    return one.size, one.sha256


def test_hashes_are_kept_until_a_change(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = tmp_path / "memory.json"
    assert found(Digests(memory=memory), path) == content(path.read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(files, "sha256", pytest.fail)
        assert found(Digests(memory=memory), path) == content(path.read_bytes())
    path.write_bytes(b"other")
    assert found(Digests(memory=memory), path) == content(b"other")


def test_a_file_written_in_this_moment_is_not_remembered(path: Path) -> None:
    path.write_bytes(b"1")
    known = Digests()
    assert found(known, path) == content(b"1")
    assert known.known == {}


def test_the_gzip_form_is_remembered(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = Digests()
    packed = found(known, path, packed=True)
    pack(path, tmp_path / "a.gz")
    assert packed == content((tmp_path / "a.gz").read_bytes())
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == path.read_bytes()
    assert found(known, path) == content(path.read_bytes())
    monkeypatch.setattr(folders, "pack", pytest.fail)
    assert found(known, path, packed=True) == packed


@pytest.mark.parametrize("text", ["{", '"x"', '{"/x": 5}'])
def test_a_broken_memory_is_none(text: str, path: Path, tmp_path: Path) -> None:
    (tmp_path / "memory.json").write_text(text.replace("/x", str(path)))
    assert found(Digests(memory=tmp_path / "memory.json"), path) == content(path.read_bytes())
