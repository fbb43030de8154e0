import hashlib
import io
import stat
import zipfile
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.archive import zips
from core.archive.zips import MemberError, MemberStream, Span, chunks, span_of, unsafe_kind, unsafe_path
from core.errors import WheelError

UNIX = 3

Described = tuple[io.BytesIO, zipfile.ZipInfo, Span]


def deflate(content: bytes) -> bytes:
    """Return a deflate stream without the head and tail of zlib's format."""
    return zlib.compress(content)[2:-4]


def describe(content: bytes, raw: bytes, *, method: int = zipfile.ZIP_DEFLATED) -> Described:
    """Return bytes as the member of an archive that declares to hold the content."""
    info = zipfile.ZipInfo("a")
    info.compress_type = method
    info.file_size = len(content)
    info.CRC = zlib.crc32(content)
    info.compress_size = len(raw)
    return io.BytesIO(raw), info, Span(header=0, start=0, end=len(raw))


# Members in pieces


@given(st.binary(max_size=5000))
def test_reads_a_compressed_member(content: bytes) -> None:
    assert b"".join(chunks(*describe(content, deflate(content)))) == content


@given(st.binary(max_size=5000))
def test_reads_a_stored_member(content: bytes) -> None:
    assert b"".join(chunks(*describe(content, content, method=zipfile.ZIP_STORED))) == content


def test_reads_a_large_member_in_pieces() -> None:
    content = bytes(range(256)) * 20_000

    pieces = list(chunks(*describe(content, deflate(content))))

    assert b"".join(pieces) == content
    assert max(map(len, pieces)) <= zips.CHUNK


@pytest.mark.parametrize(
    ("declared", "raw", "mentioned"),
    [
        (b"abc", deflate(b"abcd"), "more data than the 3"),
        (b"abcd", deflate(b"abc"), "3 bytes of the 4"),
        (b"abc", deflate(b"abd"), "CRC"),
        (b"abc" * 100, deflate(b"abc" * 100)[:-3], "without an end"),
        (b"abc", deflate(b"abc") + b"x", "behind the end"),
        (b"abc", b"\xff\xff\xff", "damaged"),
    ],
    ids=["more data", "less data", "other data", "cut off", "data behind", "no stream"],
)
def test_tells_what_is_wrong_with_a_member(declared: bytes, raw: bytes, mentioned: str) -> None:
    with pytest.raises(MemberError, match=mentioned):
        list(chunks(*describe(declared, raw)))


def test_stops_a_bomb_at_its_declared_size() -> None:
    pieces = chunks(*describe(b"x" * 1000, deflate(bytes(4_000_000))))

    with pytest.raises(MemberError, match="more data than the 1000"):
        next(pieces)


def test_tells_that_an_archive_is_cut_off() -> None:
    stream, info, span = describe(b"abc", b"abc", method=zipfile.ZIP_STORED)
    stream.truncate(2)

    with pytest.raises(MemberError, match="cut off"):
        list(chunks(stream, info, span))


@pytest.mark.parametrize("content", [b"PK" + bytes(100), b"PK\x03\x04"], ids=["zeros", "cut off"])
def test_tells_that_a_directory_leads_to_no_member(content: bytes) -> None:
    info = zipfile.ZipInfo("a")
    info.header_offset = 0

    with pytest.raises(MemberError, match="no local header"):
        span_of(io.BytesIO(content), info)


# Members that installers refuse


@pytest.mark.parametrize(
    ("name", "reason"),
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
def test_tells_why_a_path_is_unsafe(name: str, reason: str) -> None:
    assert reason in unsafe_path(name)


@pytest.mark.parametrize(
    ("mode", "flags", "reason"),
    [
        (stat.S_IFREG | 0o644, 0, ""),
        (0, 0, ""),
        (stat.S_IFDIR | 0o755, 0, ""),
        (stat.S_IFLNK | 0o777, 0, "a symbolic link"),
        (stat.S_IFIFO, 0, "neither a file nor a folder"),
        (stat.S_IFREG, 1, "encrypted"),
    ],
    ids=["file", "no mode", "folder", "link", "pipe", "encrypted"],
)
def test_tells_why_a_kind_of_member_is_unsafe(mode: int, flags: int, reason: str) -> None:
    info = zipfile.ZipInfo("a")
    info.create_system = UNIX
    info.external_attr = mode << 16
    info.flag_bits = flags

    assert unsafe_kind(info) == reason


def test_a_folder_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match=tmp_path.name), zips.opened(tmp_path):
        pytest.fail("It was opened.")


# Members as files

# More than two pieces of noise, and zeros that compress well.
CONTENT = hashlib.shake_256(b"member").digest(600_000) + bytes(100_000)
METHODS = [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for archives that no test changes."""
    return tmp_path_factory.mktemp("archives")


@cache
def write_archive(folder: Path, *, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """Return an archive whose second member has the content."""
    path = folder / f"{method}.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("other", b"before")
        archive.writestr("member", CONTENT)
    return path


def open_member(path: Path) -> MemberStream:
    """Open the second member of an archive as a file."""
    with zipfile.ZipFile(path) as archive:
        return MemberStream(path, archive.getinfo("member"))


READS = st.lists(
    st.tuples(st.integers(0, len(CONTENT) + 10), st.integers(-1, 400_000)), min_size=1, max_size=6
)


@given(reads=READS, kept=st.sampled_from([0, 1000, 200_000, 64 << 20]), method=st.sampled_from(METHODS))
def test_reads_at_any_place_as_from_a_file(
    folder: Path, reads: Sequence[tuple[int, int]], kept: int, method: int
) -> None:
    path = write_archive(folder, method=method)
    file = io.BytesIO(CONTENT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zips, "KEPT", kept)
        with open_member(path) as stream:
            for offset, size in reads:
                assert stream.seek(offset) == file.seek(offset)
                assert stream.read(size) == file.read(size)
                assert stream.tell() == file.tell()


def test_seeks_from_the_end(folder: Path) -> None:
    with open_member(write_archive(folder)) as stream:
        assert stream.seek(-4, io.SEEK_END) == len(CONTENT) - 4
        assert stream.read() == CONTENT[-4:]


def test_seeks_from_the_current_place(folder: Path) -> None:
    with open_member(write_archive(folder)) as stream:
        stream.seek(10)
        stream.seek(5, io.SEEK_CUR)

        assert stream.read(3) == CONTENT[15:18]


def test_names_a_damaged_member_and_its_archive(folder: Path, tmp_path: Path) -> None:
    content = bytearray(write_archive(folder).read_bytes())
    content[400_000] ^= 0xFF
    damaged = tmp_path / "demo.zip"
    damaged.write_bytes(content)

    with open_member(damaged) as stream, pytest.raises(WheelError, match=r"demo\.zip: member"):
        stream.read()
