"""Which files of folders are uploaded, and what lies beside them in the run."""

from pathlib import Path

import pytest

from ci.publish import folders
from ci.publish.folders import Folders
from ci.verbs import upload
from core.cli.options import Common
from core.errors import ArtifactError, MissingInputError
from core.stores import Store
from tests.kit import wheels
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


def upload_folders(common: Common, upload_folders: Folders) -> None:
    """Upload folders into the group g."""
    upload.put_all(common, folders.compare_folders(common, upload_folders, "g"))


# --- Wheels


def test_takes_wheels_from_the_folder_itself(tmp_path: Path) -> None:
    path = wheels.write_wheel(tmp_path)
    wheels.write_wheel(tmp_path / ".kpack_staging")

    assert folders.list_wheels(tmp_path) == [path]


def test_takes_wheels_from_dist_where_there_is_one(tmp_path: Path) -> None:
    wheels.write_wheel(tmp_path)
    path = wheels.write_wheel(tmp_path / "dist", name="apex", version="1.0")

    assert folders.list_wheels(tmp_path) == [path]


def test_rejects_a_dist_without_wheels(tmp_path: Path) -> None:
    wheels.write_wheel(tmp_path)
    (tmp_path / "dist").mkdir()

    with pytest.raises(MissingInputError, match="dist"):
        folders.list_wheels(tmp_path)


# --- Artifacts and manifests


def test_rejects_a_folder_without_artifacts(common: Common, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")

    with pytest.raises(MissingInputError, match="artifact"):
        upload_folders(common, Folders(artifacts=tmp_path))


def test_rejects_an_archive_whose_name_is_no_artifacts(common: Common, tmp_path: Path) -> None:
    (tmp_path / "blas.tar.zst").write_bytes(b"x")

    with pytest.raises(ArtifactError, match=r"blas\.tar\.zst"):
        upload_folders(common, Folders(artifacts=tmp_path))


def test_puts_an_artifact_with_its_digest_beside_it(
    common: Common,
    store: Store,
    tmp_path: Path,
) -> None:
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / ARTIFACT
    path.write_bytes(b"archive")

    upload_folders(common, Folders(artifacts=path.parent))

    assert store.read(f"17-linux/{ARTIFACT}") == b"archive"
    assert store.read(f"17-linux/{ARTIFACT}.sha256sum") == f"{sha256(path)}\n".encode()


def test_keeps_the_digest_file_that_a_build_wrote(
    common: Common,
    store: Store,
    tmp_path: Path,
) -> None:
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / ARTIFACT
    path.write_bytes(b"archive")
    digest_file = f"{sha256(path)} *{ARTIFACT}\n"
    path.with_name(f"{ARTIFACT}.sha256sum").write_text(digest_file, newline="\n")

    upload_folders(common, Folders(artifacts=path.parent))

    assert store.read(f"17-linux/{ARTIFACT}.sha256sum") == digest_file.encode()


def test_restores_the_digest_of_an_artifact_that_was_uploaded_before(
    common: Common,
    store: Store,
    tmp_path: Path,
) -> None:
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / ARTIFACT
    path.write_bytes(b"archive")
    upload_folders(common, Folders(artifacts=path.parent))
    store.delete(f"17-linux/{ARTIFACT}.sha256sum")

    upload_folders(common, Folders(artifacts=path.parent))

    assert store.read(f"17-linux/{ARTIFACT}.sha256sum") == f"{sha256(path)}\n".encode()


def test_rejects_an_artifact_that_differs_from_the_digest_beside_it(common: Common, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    path = tmp_path / "mine" / ARTIFACT
    path.write_bytes(b"archive")
    path.with_name(f"{ARTIFACT}.sha256sum").write_text("0" * 64)

    with pytest.raises(ArtifactError) as raised:
        upload_folders(common, Folders(artifacts=path.parent))

    assert ARTIFACT in raised.value.message
    assert sha256(path) in raised.value.message


def test_puts_a_builds_manifest_beside_the_records(
    common: Common,
    store: Store,
    tmp_path: Path,
) -> None:
    path = tmp_path / "therock_manifest.json"
    path.write_text("{}")

    upload_folders(common, Folders(manifest=path))

    assert store.read("17-linux/manifests/g/therock_manifest.json") == b"{}"


def test_rejects_a_manifest_that_does_not_exist(common: Common, tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="therock_manifest"):
        upload_folders(common, Folders(manifest=tmp_path / "therock_manifest.json"))


def test_rejects_a_record_in_the_place_of_a_manifest(common: Common, tmp_path: Path) -> None:
    path = tmp_path / "build_torch.json"
    path.write_text("{}")

    with pytest.raises(MissingInputError, match="build_torch"):
        upload_folders(common, Folders(manifest=path))
