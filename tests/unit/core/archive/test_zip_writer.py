from __future__ import annotations

import hashlib
import io
import zipfile
from typing import TYPE_CHECKING

import pytest

from core.archive import Member
from core.archive.zip_reader import span_of
from core.archive.zip_writer import HashingStream, ZipWriter
from core.errors import WheelError

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
    wanted = ("a/tool", "b/data", "c/empty")
    with zipfile.ZipFile(original) as archive, original.open("rb") as source:
        found = [archive.getinfo(name) for name in wanted]
        copied = [
            writer.copy(
                original,
                source,
                one,
                span_of(source, one),
                name=one.filename,
                sha256=DIGESTS[one.filename],
            )
            for one in found
        ]
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


def test_an_archive_that_is_cut_off_meanwhile_is_named(original: Path) -> None:
    with zipfile.ZipFile(original) as archive, original.open("r+b") as stream:
        info = archive.getinfo("b/data")
        span = span_of(stream, info)
        stream.truncate(span.start + 1)
        with pytest.raises(WheelError, match=r"original\.whl is cut off within b/data"):
            ZipWriter(HashingStream(io.BytesIO())).copy(
                original, stream, info, span, name="b/data", sha256=b""
            )
