from __future__ import annotations

import hashlib
import io
import zipfile
from typing import TYPE_CHECKING

import pytest

from core.errors import MissingInputError, WheelError
from core.zip_writer import HashingStream, Member, ZipWriter

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = {"a/tool": b"#!/bin/sh\n" * 500, "b/data": b"\x00\x01" * 4000, "c/empty": b"", "d/other": b"x" * 99}
DIGESTS = {name: hashlib.sha256(data).digest() for name, data in CONTENT.items()}


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "original.whl"
    with path.open("wb") as raw:
        writer = ZipWriter(HashingStream(raw), epoch=1_700_000_000, level=9)
        writer.add(
            [Member(name=name, source=data, executable=name == "a/tool") for name, data in CONTENT.items()]
        )
        writer.finish()
    return path


def compressed(path: Path | io.BytesIO, name: str) -> bytes:
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(name)
        stream = archive.fp
        assert stream is not None
        stream.seek(info.header_offset + 30 + len(info.filename.encode()))
        return stream.read(info.compress_size)


def test_members_are_taken_over_as_they_are(original: Path) -> None:
    raw = io.BytesIO()
    stream = HashingStream(raw)
    writer = ZipWriter(stream)
    wanted = {name: DIGESTS[name] for name in ("b/data", "a/tool", "c/empty")}
    copied = writer.copy_from(original, wanted)
    added = writer.add([Member(name="new", source=b"new")])
    writer.finish()
    assert [(one.name, one.size) for one in copied] == [("a/tool", 5000), ("b/data", 8000), ("c/empty", 0)]
    assert all(one.sha256 == DIGESTS[one.name] for one in copied)
    assert added[0].name == "new"
    assert stream.sha256 == hashlib.sha256(raw.getvalue()).hexdigest()
    with zipfile.ZipFile(raw) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == ["a/tool", "b/data", "c/empty", "new"]
        assert archive.read("a/tool") == CONTENT["a/tool"]
        assert archive.getinfo("a/tool").external_attr >> 16 == 0o100755
        assert archive.getinfo("b/data").external_attr >> 16 == 0o100644
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    for name in wanted:
        assert compressed(raw, name) == compressed(original, name)


def test_a_member_that_is_not_there_is_named(original: Path) -> None:
    with pytest.raises(WheelError, match=r"original\.whl holds no z"):
        ZipWriter(HashingStream(io.BytesIO())).copy_from(original, {"z": b""})


def test_an_archive_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="absent"):
        ZipWriter(HashingStream(io.BytesIO())).copy_from(tmp_path / "absent", {})


def test_hostile_names_are_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "evil.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../evil", b"x")
    with pytest.raises(WheelError, match="leaves its folder"):
        ZipWriter(HashingStream(io.BytesIO())).copy_from(path, {"../evil": b""})


def test_a_header_that_is_not_there_is_noticed(original: Path) -> None:
    data = bytearray(original.read_bytes())
    data[30] ^= 1  # the first letter of the first local header's name
    original.write_bytes(data)
    with pytest.raises(WheelError, match="another name in its local header"):
        ZipWriter(HashingStream(io.BytesIO())).copy_from(original, {"a/tool": b""})
