from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from typing import TYPE_CHECKING

import pytest

from core.archive import Member
from core.errors import MissingInputError, WheelError
from core.wheel import editor
from core.wheel.editor import edit_sdist
from core.wheel.writer import write_sdist

if TYPE_CHECKING:
    from pathlib import Path

NAME = "demo-1.0rc1.tar.gz"
INFO = "Metadata-Version: 2.2\nName: demo\nVersion: 1.0rc1\n"
CONTENT = {"src/demo.py": b"__version__ = '1.0rc1'\n", "run.sh": b"#!/bin/sh\n", "data.bin": b"\0\1"}


def finalize(_member: str, content: bytes) -> bytes:
    return content.replace(b"1.0rc1", b"1.0")


def written(folder: Path, version: str = "1.0rc1", info: str = INFO) -> Path:
    members = [Member(name=n, source=d, executable=n.endswith(".sh")) for n, d in CONTENT.items()]
    return write_sdist(folder, "demo", version, members, metadata=info).path


def tar(folder: Path, *entries: tarfile.TarInfo | tuple[str, bytes]) -> Path:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for entry in [("demo-1.0rc1/PKG-INFO", INFO.encode()), *entries]:
            if isinstance(entry, tarfile.TarInfo):
                archive.addfile(entry)
                continue
            info = tarfile.TarInfo(entry[0])
            info.size = len(entry[1])
            archive.addfile(info, io.BytesIO(entry[1]))
    path = folder / NAME
    path.write_bytes(gzip.compress(raw.getvalue()))
    return path


def test_the_version_changes_and_nothing_else(tmp_path: Path) -> None:
    done = edit_sdist(written(tmp_path), tmp_path / "new", version="1.0", edit=finalize)
    assert done.file.path == tmp_path / "new" / "demo-1.0.tar.gz"
    assert done.changed == ("PKG-INFO", "src/demo.py")
    with tarfile.open(done.file.path) as archive:
        found = {one.name: (archive.extractfile(one), one.mode) for one in archive}
        contents = {name: (stream.read(), mode) for name, (stream, mode) in found.items() if stream}
    assert contents == {
        "demo-1.0/PKG-INFO": (INFO.replace("1.0rc1", "1.0").encode(), 0o644),
        "demo-1.0/src/demo.py": (b"__version__ = '1.0'\n", 0o644),
        "demo-1.0/run.sh": (b"#!/bin/sh\n", 0o755),
        "demo-1.0/data.bin": (b"\0\1", 0o644),
    }


def test_the_result_is_what_a_build_of_the_release_would_write(tmp_path: Path) -> None:
    done = edit_sdist(written(tmp_path), tmp_path / "new", version="1.0", edit=finalize)
    back = edit_sdist(
        done.file.path,
        tmp_path / "back",
        version="1.0rc1",
        edit=lambda _, data: data.replace(b"1.0", b"1.0rc1"),
    )
    assert back.file.sha256 == hashlib.sha256(written(tmp_path / "again").read_bytes()).hexdigest()


def test_folders_of_the_tar_are_left_out(tmp_path: Path) -> None:
    folder = tarfile.TarInfo("demo-1.0rc1/src")
    folder.type = tarfile.DIRTYPE
    source = tar(tmp_path, folder, ("demo-1.0rc1/src/a.py", b"a"))
    done = edit_sdist(source, tmp_path / "new", version="1.0", edit=finalize)
    with tarfile.open(done.file.path) as archive:
        assert archive.getnames() == ["demo-1.0/PKG-INFO", "demo-1.0/src/a.py"]


def link() -> tarfile.TarInfo:
    info = tarfile.TarInfo("demo-1.0rc1/link")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return info


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (("demo-1.0rc1/../../escape", b""), "leaves its folder"),
        (("/etc/escape", b""), "absolute path"),
        (("other/file", b""), "outside demo-1.0rc1"),
        (("demo-1.0rc1/PKG-INFO", b""), "twice"),
        (link(), "neither a file nor a folder"),
    ],
)
def test_hostile_sdists_are_refused(
    tmp_path: Path, entry: tarfile.TarInfo | tuple[str, bytes], said: str
) -> None:
    with pytest.raises(WheelError, match=said):
        edit_sdist(tar(tmp_path, entry), tmp_path / "new", version="1.0", edit=finalize)
    assert not (tmp_path / "new").exists()


def test_one_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(editor, "LIMIT", 4096)
    source = tar(tmp_path, ("demo-1.0rc1/zeros", bytes(8000)))
    with pytest.raises(WheelError, match="unpacks to more than 4096 bytes"):
        edit_sdist(source, tmp_path / "new", version="1.0", edit=finalize)


@pytest.mark.parametrize(
    "damage",
    [b"", b"no gzip", gzip.compress(b"no tar"), gzip.compress(bytes(9999))[:30]],
    ids=("empty", "no gzip", "no tar", "cut off"),
)
def test_damaged_ones_are_refused(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / NAME).write_bytes(damage)
    with pytest.raises(WheelError, match=r"not a readable sdist|holds no PKG-INFO"):
        edit_sdist(tmp_path / NAME, tmp_path / "new", version="1.0", edit=finalize)


def test_metadata_that_is_no_utf8(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="PKG-INFO is not UTF-8"):
        edit_sdist(written(tmp_path), tmp_path / "new", version="1.0", edit=lambda _, data: data + b"\xff")


def test_one_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError):
        edit_sdist(tmp_path / NAME, tmp_path / "new", version="1.0", edit=finalize)
