import hashlib
import io
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.archive import zips
from core.archive.zips import MemberError, MemberStream, Span, chunks, span_of, unsafe_kind, unsafe_path
from core.errors import WheelError


def member(
    data: bytes, raw: bytes, method: int = zipfile.ZIP_DEFLATED
) -> tuple[io.BytesIO, zipfile.ZipInfo, Span]:
    """Describe `raw` as a member that holds `data`."""
    info = zipfile.ZipInfo("a")
    info.compress_type, info.file_size, info.CRC = method, len(data), zlib.crc32(data)
    info.compress_size = len(raw)
    return io.BytesIO(raw), info, Span(header=0, start=0, end=len(raw))


def deflated(data: bytes) -> bytes:
    return zlib.compress(data)[2:-4]


@given(st.binary(max_size=5000), st.booleans())
def test_what_is_compressed_is_read(data: bytes, stored: bool) -> None:  # noqa: FBT001 - a parameter
    method = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    assert b"".join(chunks(*member(data, data if stored else deflated(data), method))) == data


def test_members_larger_than_a_chunk() -> None:
    data = bytes(range(256)) * 20_000
    pieces = list(chunks(*member(data, deflated(data))))
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) <= zips.CHUNK


@pytest.mark.parametrize(
    ("data", "raw", "words"),
    [
        (b"abc", deflated(b"abcd"), "more data than the 3 bytes"),
        (b"abcd", deflated(b"abc"), "3 bytes of the 4"),
        (b"abc", deflated(b"abd"), "its CRC does not match"),
        (b"abc" * 100, deflated(b"abc" * 100)[:-3], "without an end"),
        (b"abc", deflated(b"abc") + b"x", "behind the end"),
        (b"abc", b"\xff\xff\xff", "damaged deflate stream"),
    ],
)
def test_members_that_lie(data: bytes, raw: bytes, words: str) -> None:
    with pytest.raises(MemberError, match=words):
        list(chunks(*member(data, raw)))


def test_a_bomb_is_stopped_at_its_declared_size() -> None:
    pieces = chunks(*member(b"x" * 1000, deflated(bytes(50_000_000))))
    with pytest.raises(MemberError, match="more data than the 1000 bytes"):
        next(pieces)


def test_an_archive_cut_off() -> None:
    stream, info, span = member(b"abc", b"abc", zipfile.ZIP_STORED)
    stream.truncate(2)
    with pytest.raises(MemberError, match="cut off"):
        list(chunks(stream, info, span))


def test_a_directory_that_points_elsewhere() -> None:
    info = zipfile.ZipInfo("a")
    info.header_offset = 0
    for data in (b"PK" + bytes(100), b"PK\x03\x04"):
        with pytest.raises(MemberError, match="no local header"):
            span_of(io.BytesIO(data), info)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "empty"),
        ("a\0b", "cut-off"),
        ("a\\b", "backslash"),
        ("/a", "absolute"),
        ("c:a", "absolute"),
        ("a/../b", "leaves"),
        ("..", "leaves"),
        ("a//b", "shortest"),
        ("a/./b", "shortest"),
    ],
)
def test_unsafe_names(name: str, why: str) -> None:
    assert why in unsafe_path(name)


@pytest.mark.parametrize(
    ("mode", "flags", "why"),
    [
        (stat.S_IFREG | 0o644, 0, ""),
        (0, 0, ""),
        (stat.S_IFDIR | 0o755, 0, ""),
        (stat.S_IFLNK | 0o777, 0, "a symbolic link"),
        (stat.S_IFIFO, 0, "neither a file nor a folder"),
        (stat.S_IFREG, 1, "encrypted"),
    ],
)
def test_kinds(mode: int, flags: int, why: str) -> None:
    info = zipfile.ZipInfo("a")
    info.create_system, info.external_attr, info.flag_bits = 3, mode << 16, flags
    assert unsafe_kind(info) == why


def test_folders_are_no_archives(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match="could not be read"), zips.opened(tmp_path):
        pass


DATA = hashlib.shake_256(b"member").digest(3_000_000) + bytes(500_000)


def archive(folder: Path, method: int = zipfile.ZIP_DEFLATED) -> tuple[Path, zipfile.ZipInfo]:
    path = folder / "demo.zip"
    with zipfile.ZipFile(path, "w", method) as made:
        made.writestr("other", b"before")
        made.writestr("member", DATA)
    with zipfile.ZipFile(path) as read:
        return path, read.getinfo("member")


@settings(max_examples=30)
@given(
    reads=st.lists(
        st.tuples(st.integers(0, len(DATA) + 10), st.integers(-1, 2_000_000)), min_size=1, max_size=6
    ),
    kept=st.sampled_from([0, 1000, 1 << 20, 64 << 20]),
    method=st.sampled_from([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED]),
)
def test_random_reads_are_those_of_a_file(reads: Sequence[tuple[int, int]], kept: int, method: int) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(zips, "KEPT", kept)
        plain = io.BytesIO(DATA)
        with MemberStream(*archive(Path(folder), method)) as stream:
            for offset, size in reads:
                assert stream.seek(offset) == plain.seek(offset)
                assert stream.read(size) == plain.read(size)
                assert stream.tell() == plain.tell()


def test_seeks_are_relative_to_the_place_and_the_end(tmp_path: Path) -> None:
    with MemberStream(*archive(tmp_path)) as stream:
        assert stream.seek(-4, io.SEEK_END) == len(DATA) - 4
        assert stream.read() == DATA[-4:]
        stream.seek(10)
        stream.seek(5, io.SEEK_CUR)
        assert stream.read(3) == DATA[15:18]


def test_a_damaged_member_is_named(tmp_path: Path) -> None:
    path, info = archive(tmp_path)
    data = bytearray(path.read_bytes())
    data[2_000_000] ^= 0xFF
    path.write_bytes(bytes(data))
    with MemberStream(path, info) as stream, pytest.raises(WheelError, match=r"demo\.zip: member has"):
        stream.read()
