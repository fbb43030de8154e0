"""Which files of local folders are uploaded, under which keys, and how their digests are remembered."""

import gzip
import hashlib
import os
import time
from pathlib import Path

import pytest

from ci.publish import folders, upload
from ci.publish import wheels as wheel_uploads
from ci.publish.folders import Digests, pack
from core.cli.options import Common
from core.errors import ArtifactError, MissingInputError
from core.stores import Store
from tests.kit import repos, wheels
from tests.kit.wheels import sha256

ARTIFACT = "blas_lib_gfx110X-all.tar.zst"


@pytest.fixture
def common(tmp_path: Path) -> Common:
    """Return the options of a run whose store is a folder."""
    return Common(root=tmp_path, run_id="17", platform="linux")


@pytest.fixture
def store(common: Common) -> Store:
    """Return the run's store."""
    return common.open_store()


# Trees of files


@pytest.mark.parametrize(
    "name",
    [".kpack/a.whl", "a.log.part", "x~", "a/.hidden/b", "tmp/a", "a.TMP", "__pycache__/a.pyc", "b.lock"],
)
def test_leaves_out_hidden_and_temporary_files(name: str, tmp_path: Path) -> None:
    repos.write_files(tmp_path, {"deep/build.log": "x", name: "x"})

    items = folders.tree(tmp_path, "17-linux/logs/g", Digests())

    assert [item.key for item in items] == ["17-linux/logs/g/deep/build.log"]


@pytest.mark.parametrize("target", ["elsewhere", "."], ids=["file", "folder"])
def test_leaves_out_links_and_names_them(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repos.write_files(tmp_path / "in", {"build.log": "x"})
    (tmp_path / "elsewhere").write_text("secret")
    (tmp_path / "in" / "secret.log").symlink_to(tmp_path / target)

    items = folders.tree(tmp_path / "in", "p", Digests())

    assert [item.key for item in items] == ["p/build.log"]
    assert "secret.log is a link" in capsys.readouterr().err


def test_packs_large_logs_and_nothing_else(tmp_path: Path) -> None:
    large = b"x" * (folders.PACKED_FROM + 1)
    (tmp_path / "large.log").write_bytes(large)
    (tmp_path / "large.tar").write_bytes(large)
    (tmp_path / "small.log").write_bytes(b"x")

    items = {item.key: item for item in folders.tree(tmp_path, "p", Digests())}

    assert {key: item.packed for key, item in items.items()} == {
        "p/large.log.gz": True,
        "p/large.tar": False,
        "p/small.log": False,
    }
    assert items["p/large.log.gz"].size < 10_000
    assert items["p/large.tar"].sha256 == sha256(tmp_path / "large.tar")


@pytest.mark.parametrize("name", ["empty", "absent"])
def test_rejects_a_folder_without_files(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(MissingInputError, match=name):
        folders.walked(tmp_path / name)


# Wheels


def test_takes_wheels_from_the_folder_itself(tmp_path: Path) -> None:
    path = wheels.write_wheel(tmp_path)
    wheels.write_wheel(tmp_path / ".kpack_staging")

    assert wheel_uploads.wheel_paths(tmp_path) == [path]


def test_takes_wheels_from_dist_where_there_is_one(tmp_path: Path) -> None:
    wheels.write_wheel(tmp_path)
    path = wheels.write_wheel(tmp_path / "dist", name="apex", version="1.0")

    assert wheel_uploads.wheel_paths(tmp_path) == [path]


def test_rejects_a_dist_without_wheels(tmp_path: Path) -> None:
    wheels.write_wheel(tmp_path)
    (tmp_path / "dist").mkdir()

    with pytest.raises(MissingInputError, match="dist"):
        wheel_uploads.wheel_paths(tmp_path)


# Artifacts and manifests


def test_rejects_a_folder_without_artifacts(common: Common, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")

    with pytest.raises(MissingInputError, match="artifact"):
        upload.upload_artifacts(common, tmp_path, Digests())


def test_rejects_an_archive_whose_name_is_no_artifacts(common: Common, tmp_path: Path) -> None:
    (tmp_path / "blas.tar.zst").write_bytes(b"x")

    with pytest.raises(ArtifactError, match=r"blas\.tar\.zst"):
        upload.upload_artifacts(common, tmp_path, Digests())


def test_puts_an_artifact_with_its_digest_beside_it(common: Common, store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / ARTIFACT
    path.write_bytes(b"archive")

    upload.upload_artifacts(common, path.parent, Digests())

    assert store.read(f"17-linux/{ARTIFACT}") == b"archive"
    assert store.read(f"17-linux/{ARTIFACT}.sha256sum") == f"{sha256(path)}\n".encode()


def test_keeps_the_digest_file_that_a_build_wrote(common: Common, store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / ARTIFACT
    path.write_bytes(b"archive")
    written = f"{sha256(path)} *{ARTIFACT}\n"
    path.with_name(f"{ARTIFACT}.sha256sum").write_text(written)

    upload.upload_artifacts(common, path.parent, Digests())

    assert store.read(f"17-linux/{ARTIFACT}.sha256sum") == written.encode()


def test_restores_the_digest_of_an_artifact_that_was_uploaded_before(
    common: Common, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / ARTIFACT
    path.write_bytes(b"archive")
    upload.upload_artifacts(common, path.parent, Digests())
    store.delete(f"17-linux/{ARTIFACT}.sha256sum")

    upload.upload_artifacts(common, path.parent, Digests())

    assert store.read(f"17-linux/{ARTIFACT}.sha256sum") == f"{sha256(path)}\n".encode()


def test_rejects_an_artifact_that_differs_from_the_digest_beside_it(common: Common, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / ARTIFACT
    path.write_bytes(b"archive")
    path.with_name(f"{ARTIFACT}.sha256sum").write_text("0" * 64)

    with pytest.raises(ArtifactError) as raised:
        upload.upload_artifacts(common, path.parent, Digests())

    assert ARTIFACT in raised.value.message
    assert sha256(path) in raised.value.message


def test_puts_a_builds_manifest_beside_the_records(common: Common, store: Store, tmp_path: Path) -> None:
    path = tmp_path / "therock_manifest.json"
    path.write_text("{}")

    upload.upload_manifest(common, path, "g", Digests())

    assert store.read("17-linux/manifests/g/therock_manifest.json") == b"{}"


def test_rejects_a_manifest_that_does_not_exist(common: Common, tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="therock_manifest"):
        upload.upload_manifest(common, tmp_path / "therock_manifest.json", "g", Digests())


def test_rejects_a_record_in_the_place_of_a_manifest(common: Common, tmp_path: Path) -> None:
    path = tmp_path / "build_torch.json"
    path.write_text("{}")

    with pytest.raises(MissingInputError, match="build_torch"):
        upload.upload_manifest(common, path, "g", Digests())


# Remembered digests


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Write a log that was last changed a minute ago."""
    path = tmp_path / "file.log"
    path.write_bytes(b"line\n" * 1000)
    past = time.time() - 60
    os.utime(path, (past, past))
    return path


def replace_unnoticed(path: Path) -> None:
    """Change a file's bytes and none of what a listing of its folder tells.

    So a digest that is still the old one was remembered, and not computed.
    """
    status = path.stat()
    path.write_bytes(b"LINE\n" * 1000)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def size_and_digest(digests: Digests, path: Path, *, packed: bool = False) -> tuple[int, str]:
    """Return what is known of a file, or of its gzip form."""
    (content,) = digests.contents([(path, packed)])
    assert content.changed == path.stat().st_mtime_ns
    return content.size, content.sha256


def test_remembers_a_digest_from_one_upload_to_the_next(log: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    first = size_and_digest(Digests(memory=memory), log)
    assert first == (5000, sha256(log))
    replace_unnoticed(log)

    assert size_and_digest(Digests(memory=memory), log) == first


def test_computes_the_digest_of_a_changed_file(log: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    size_and_digest(Digests(memory=memory), log)
    log.write_bytes(b"other")

    assert size_and_digest(Digests(memory=memory), log) == (5, hashlib.sha256(b"other").hexdigest())


def test_does_not_remember_a_file_that_was_written_in_this_moment(log: Path) -> None:
    # It may be written again within the same tick of its time.
    log.write_bytes(b"1")
    digests = Digests()

    assert size_and_digest(digests, log) == (1, hashlib.sha256(b"1").hexdigest())
    assert digests.known == {}


def test_knows_the_size_and_digest_of_the_gzip_form(log: Path, tmp_path: Path) -> None:
    packed_log = tmp_path / "a.gz"
    pack(log, packed_log)

    digest = size_and_digest(Digests(), log, packed=True)

    assert digest == (packed_log.stat().st_size, sha256(packed_log))
    assert gzip.decompress(packed_log.read_bytes()) == log.read_bytes()


def test_remembers_the_gzip_form_beside_the_file(log: Path) -> None:
    digests = Digests()
    packed = size_and_digest(digests, log, packed=True)
    plain = size_and_digest(digests, log)
    replace_unnoticed(log)

    assert size_and_digest(digests, log, packed=True) == packed
    assert size_and_digest(digests, log) == plain
    assert packed != plain


@pytest.mark.parametrize("text", ["{", '"x"', '{"PATH": 5}'])
def test_computes_digests_where_the_memory_is_broken(text: str, log: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    memory.write_text(text.replace("PATH", str(log)))

    assert size_and_digest(Digests(memory=memory), log) == (5000, sha256(log))
