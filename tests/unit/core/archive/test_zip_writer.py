import io
import struct
import zipfile
from pathlib import Path

import pytest

from core.archive import Member
from core.archive.zip_writer import HashingStream, ZipWriter
from core.archive.zips import ZipArchive, ZipMember, read_archive
from core.errors import WheelError

FOUR_GIB = 1 << 32
MARKER = FOUR_GIB - 1
ZIP64_END = b"PK\6\6"
ZIP64_LOCATOR = b"PK\6\7"


def test_names_an_archive_that_is_cut_off_while_it_is_copied(tmp_path: Path) -> None:
    path = tmp_path / "original.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("b/data", bytes(range(256)) * 99)

    original = read_archive(path)
    member = original.by_name["b/data"]
    writer = ZipWriter(HashingStream(io.BytesIO()))
    with path.open("r+b") as stream:
        stream.truncate(member.start + 1)
        with pytest.raises(WheelError) as raised:
            writer.copy(original, stream, member, name="b/data", sha256=b"")

    assert "original.whl" in raised.value.message
    assert "b/data" in raised.value.message


def test_archives_beyond_four_gibibytes_are_readable(tmp_path: Path) -> None:
    path = tmp_path / "large.zip"
    with path.open("wb") as raw:
        # A hole in the file in the place of four gigabytes of members.
        raw.seek(FOUR_GIB)
        stream = HashingStream(raw)
        stream.size = FOUR_GIB
        writer = ZipWriter(stream)
        writer.add([Member(name="a", source=b"x"), Member(name="b", source=b"yy")])
        writer.finish()

    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == {"a": b"x", "b": b"yy"}


def test_a_directory_of_65536_members_has_the_markers_of_zip64(tmp_path: Path) -> None:
    source = tmp_path / "one.zip"
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("empty", b"")
    original = read_archive(source)
    path = tmp_path / "many.zip"

    # Copies, because they are the quickest members to write.
    with path.open("wb") as raw, source.open("rb") as stream:
        writer = ZipWriter(HashingStream(raw))
        for number in range(0x10000):
            writer.copy(
                original,
                stream,
                original.members[0],
                name=str(number),
                sha256=b"",
            )
        writer.finish()

    content = path.read_bytes()
    zip64_end = content.rindex(ZIP64_END)
    # The number of members stands at 32 (APPNOTE 4.3.14).
    (count,) = struct.unpack_from("<Q", content, zip64_end + 32)
    assert count == 0x10000
    assert ZIP64_LOCATOR in content[zip64_end:]
    assert len(read_archive(path).members) == 0x10000


def test_a_member_whose_size_is_the_marker_of_zip64_has_a_field_for_it() -> None:
    raw = io.BytesIO()
    writer = ZipWriter(HashingStream(raw))
    # It is a copy of a member that says so of itself; its bytes do not matter here.
    original = ZipArchive(path=Path("original.whl"), members=())
    member = ZipMember(
        name="a",
        size=MARKER,
        packed_size=0,
        method=zipfile.ZIP_DEFLATED,
        crc=0,
        mode=0,
        dos_date=0,
        dos_time=0,
        header=0,
        start=0,
    )

    writer.copy(original, io.BytesIO(), member, name="a", sha256=b"")
    writer.finish()

    field = struct.pack("<HHQQ", 1, 16, MARKER, 0)
    assert raw.getvalue().count(field) == 2


def test_a_directory_names_only_the_values_that_overflow() -> None:
    offset = 1 << 33
    raw = io.BytesIO()
    stream = HashingStream(raw)
    writer = ZipWriter(stream)
    writer.add([Member(name="a", source=b"x")])
    stream.size = offset
    writer.add([Member(name="b", source=b"x")])
    writer.finish()

    content = raw.getvalue()
    assert content.count(b"PK\1\2") == 2
    assert content.count(struct.pack("<HHQ", 1, 8, offset)) == 1
