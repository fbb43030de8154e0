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
from core.archive.zips import (
    MemberError,
    MemberStream,
    ZipMember,
    chunks,
    read_archive,
    unsafe_kind,
    unsafe_path,
)
from core.errors import MissingInputError, WheelError
from tests.kit.wheels import write_wheel


def deflate(content: bytes) -> bytes:
    """Return a deflate stream without the head and tail of zlib's format."""
    return zlib.compress(content)[2:-4]


def member_of(
    content: bytes,
    raw: bytes,
    *,
    method: int = zipfile.ZIP_DEFLATED,
    mode: int = 0,
) -> ZipMember:
    """Return bytes at the beginning of a file as a member that declares to hold the content."""
    return ZipMember(
        name="a",
        size=len(content),
        packed_size=len(raw),
        method=method,
        crc=zlib.crc32(content),
        mode=mode,
        dos_date=0,
        dos_time=0,
        header=0,
        start=0,
    )


def read_member(content: bytes, raw: bytes, *, method: int = zipfile.ZIP_DEFLATED) -> list[bytes]:
    """Return what is read of a member in pieces."""
    return list(chunks(io.BytesIO(raw), member_of(content, raw, method=method)))


# Members in pieces


@given(st.binary(max_size=5000))
def test_reads_a_compressed_member(content: bytes) -> None:
    assert b"".join(read_member(content, deflate(content))) == content


@given(st.binary(max_size=5000))
def test_reads_a_stored_member(content: bytes) -> None:
    assert b"".join(read_member(content, content, method=zipfile.ZIP_STORED)) == content


def test_reads_a_large_member_in_pieces() -> None:
    content = bytes(range(256)) * 20_000

    pieces = read_member(content, deflate(content))

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
        read_member(declared, raw)


def test_stops_a_bomb_at_its_declared_size() -> None:
    raw = deflate(bytes(4_000_000))
    pieces = chunks(io.BytesIO(raw), member_of(b"x" * 1000, raw))

    with pytest.raises(MemberError, match="more data than the 1000"):
        next(pieces)


def test_tells_that_an_archive_is_cut_off() -> None:
    member = member_of(b"abc", b"abc", method=zipfile.ZIP_STORED)

    with pytest.raises(MemberError, match="cut off"):
        list(chunks(io.BytesIO(b"ab"), member))


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
    assert reason in (unsafe_path(name) or "")


@pytest.mark.parametrize("name", ["a", "a/b", "a/b/", "a..b", ".a", "a b"])
def test_a_plain_path_is_safe(name: str) -> None:
    assert unsafe_path(name) is None


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        (stat.S_IFREG | 0o644, None),
        (0, None),
        (stat.S_IFDIR | 0o755, None),
        (stat.S_IFLNK | 0o777, "a symbolic link"),
        (stat.S_IFIFO, "neither a file nor a folder"),
    ],
    ids=["file", "no mode", "folder", "link", "pipe"],
)
def test_tells_why_a_kind_of_member_is_unsafe(mode: int, reason: str | None) -> None:
    assert unsafe_kind(member_of(b"", b"", mode=mode)) == reason


def test_a_folder_is_no_archive(tmp_path: Path) -> None:
    with pytest.raises(WheelError, match=tmp_path.name):
        read_archive(tmp_path)


def test_an_archive_that_is_not_there_is_a_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="gone"):
        read_archive(tmp_path / "gone.whl")


def test_lists_members_as_the_standard_library_does(tmp_path: Path) -> None:
    wheel = write_wheel(
        tmp_path, files={"torch/a.py": "x" * 99, "torch/bin/tool": "#!/bin/sh", "torch/ä.py": ""}
    )

    members = read_archive(wheel).members

    with zipfile.ZipFile(wheel) as archive:
        infos = archive.infolist()
    for member, info in zip(members, infos, strict=True):
        assert member.name == info.filename
        assert member.size == info.file_size
        assert member.packed_size == info.compress_size
        assert member.crc == info.CRC
        assert member.modified == info.date_time
        # Only on Unix does zipfile write the type of a file, too.
        assert stat.S_IMODE(member.mode) == stat.S_IMODE(info.external_attr >> 16)
        assert member.is_executable == (member.name == "torch/bin/tool")


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
    return MemberStream(path, read_archive(path).by_name["member"])


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
