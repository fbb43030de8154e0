from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ci.publish import folders, upload
from ci.publish.folders import Digests
from core import files
from core.errors import ArtifactError, MissingInputError, UsageError
from core.run.outputs import RunOutputs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OUTPUTS = RunOutputs(run_id="17", platform="linux")


@pytest.mark.parametrize(
    "name",
    [
        ".kpack_staging/a.whl",
        "a.log.part",
        "x~",
        "a/.hidden/b",
        "tmp/a",
        "a.TMP",
        "__pycache__/a.pyc",
        "b.lock",
    ],
)
def test_what_is_hidden_or_half_made_is_never_uploaded(name: str, tmp_path: Path) -> None:
    (tmp_path / "in" / "deep").mkdir(parents=True)
    (tmp_path / "in" / "deep" / "build.log").write_text("x")
    path = tmp_path / "in" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x")
    found = folders.tree(tmp_path / "in", "17-linux/logs/g", Digests())
    assert [one.key for one in found] == ["17-linux/logs/g/deep/build.log"]


def test_links_are_left_out_and_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.log").write_text("x")
    (tmp_path / "in" / "secret.log").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "in" / "folder").symlink_to(tmp_path)
    assert [one.key for one in folders.tree(tmp_path / "in", "p", Digests())] == ["p/a.log"]
    assert "secret.log is a link and is left out" in capsys.readouterr().err


def test_large_logs_are_packed_and_nothing_else(tmp_path: Path) -> None:
    large = b"x" * (folders.PACKED_FROM + 1)
    for name in ("large.log", "large.tar"):
        (tmp_path / name).write_bytes(large)
    (tmp_path / "small.log").write_bytes(b"x")
    found = {one.key: one for one in folders.tree(tmp_path, "p", Digests())}
    assert {key: one.packed for key, one in found.items()} == {
        "p/large.log.gz": True,
        "p/large.tar": False,
        "p/small.log": False,
    }
    assert found["p/large.log.gz"].size < 10_000
    assert found["p/large.tar"].sha256 == folders.sha256(tmp_path / "large.tar")


def test_wheels_lie_in_dist_where_there_is_one(tmp_path: Path, make_wheel: Callable[..., Path]) -> None:
    beside = make_wheel(tmp_path)
    make_wheel(tmp_path / ".kpack_staging")
    assert upload.wheel_paths(tmp_path) == [beside]
    inside = make_wheel(tmp_path / "dist", "apex", "1.0")
    assert upload.wheel_paths(tmp_path) == [inside]
    inside.unlink()
    with pytest.raises(MissingInputError, match="dist holds no wheel or sdist"):
        upload.wheel_paths(tmp_path)


def test_a_folder_that_is_none_or_empty_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="holds no file to upload"):
        folders.walked(tmp_path)
    with pytest.raises(MissingInputError, match="is no folder"):
        folders.walked(tmp_path / "none")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(MissingInputError, match="holds no artifact"):
        upload.archives(tmp_path, OUTPUTS, Digests())


def test_artifacts_are_held_against_the_digest_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "blas_lib_gfx110X-all.tar.zst"
    path.write_bytes(b"archive")
    (one,) = upload.archives(tmp_path, OUTPUTS, Digests())
    assert (one.item.key, one.item.replace) == (f"17-linux/{path.name}", False)
    assert one.sidecar == f"{folders.sha256(path)}\n".encode()
    beside = tmp_path / f"{path.name}.sha256sum"
    beside.write_text(f"{folders.sha256(path)} *{path.name}\n")
    assert upload.archives(tmp_path, OUTPUTS, Digests())[0].sidecar == beside.read_bytes()
    beside.write_text("0" * 64)
    with pytest.raises(ArtifactError, match=r"blas_lib_gfx110X-all.tar.zst has the digest .* says 000"):
        upload.archives(tmp_path, OUTPUTS, Digests())


def test_an_artifact_named_otherwise_is_refused(tmp_path: Path) -> None:
    (tmp_path / "blas.tar.zst").write_bytes(b"x")
    with pytest.raises(ArtifactError, match=r"blas.tar.zst"):
        upload.archives(tmp_path, OUTPUTS, Digests())


def test_a_builds_manifest_lies_among_the_records_under_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "therock_manifest.json"
    with pytest.raises(MissingInputError, match="is no file"):
        upload.manifest_item(path, OUTPUTS, "g", Digests())
    path.write_text("{}")
    assert upload.manifest_item(path, OUTPUTS, "g", Digests()).key == f"17-linux/manifests/g/{path.name}"
    other = path.rename(tmp_path / "build_torch.json")
    with pytest.raises(UsageError, match=r"not named therock_manifest.json"):
        upload.manifest_item(other, OUTPUTS, "g", Digests())
