import io
import struct
import zipfile
from pathlib import Path

import pytest

from core.archive import Member, zips
from core.archive.zips import HashingStream, ZipWriter, span_of
from core.errors import WheelError


def test_an_archive_that_is_cut_off_meanwhile_is_named(tmp_path: Path) -> None:
    path = tmp_path / "original.whl"
    with path.open("wb") as raw:
        writer = ZipWriter(HashingStream(raw))
        writer.add([Member(name="a", source=b"a"), Member(name="b/data", source=bytes(range(256)) * 99)])
        writer.finish()
    with zipfile.ZipFile(path) as archive, path.open("r+b") as stream:
        info = archive.getinfo("b/data")
        span = span_of(stream, info)
        stream.truncate(span.start + 1)
        with pytest.raises(WheelError, match=r"original\.whl is cut off within b/data"):
            ZipWriter(HashingStream(io.BytesIO())).copy(path, stream, info, span, name="b/data", sha256=b"")


def test_archives_beyond_four_gigabytes_are_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The limits shrink instead of the file growing: readers go by the markers, not by the sizes.
    monkeypatch.setattr(zips, "_U16", 1)
    content = [Member(name=f"m{number}", source=b"x" * number) for number in range(5)]
    path = tmp_path / "z.zip"
    with path.open("wb") as raw:
        stream = zips.HashingStream(raw)
        archive = zips.ZipWriter(stream)
        archive.add(content)
        archive.finish()
    data = path.read_bytes()
    assert b"PK\6\6" in data
    assert b"PK\6\7" in data
    # Python reads the zip64 end record wherever it finds one.
    with zipfile.ZipFile(path) as read:
        assert len(read.namelist()) == 5
        assert read.testzip() is None


def test_central_entries_name_only_the_values_that_overflow() -> None:
    raw, big = io.BytesIO(), 1 << 33
    stream = HashingStream(raw)
    writer = ZipWriter(stream)
    writer.add([Member(name="a", source=b"x")])
    stream.size = big
    writer.add([Member(name="b", source=b"x")])
    writer.finish()
    data = raw.getvalue()
    assert data.count(b"PK\1\2") == 2
    assert data.count(struct.pack("<HHQ", 1, 8, big)) == 1
