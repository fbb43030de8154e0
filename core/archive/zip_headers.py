"""The members of a zip file, read from its headers as strictly as the strictest installer reads them.

Python's `zipfile` believes the central directory and skips the rest. uv reads an archive from front to back
and refuses it where local headers, central directory and end record do not tell the same: such a wheel
works with pip and cannot be installed by uv (uv 19440, pytorch 189748, pypa/wheel 692). Whatever uv refuses
is refused here, and so are archives that two readers could understand differently.

The pass reads the raw headers, because `zipfile.ZipInfo` has lost what it judges: whether a size was in its
own field or in a ZIP64 one. Rules: uv's crates `uv-extract` and `astral_async_zip`. Format: APPNOTE.TXT.
"""

import io
import struct
import unicodedata
import zlib
from collections.abc import Mapping, Sequence
from typing import BinaryIO, NamedTuple

STORED = 0
DEFLATED = 8
UTF8_FLAG = 0x800
MOST_16 = 0xFFFF
MOST_32 = 0xFFFFFFFF
"""In a 32-bit field: the value is in a ZIP64 field."""

LOCAL = struct.Struct("<4sHHHHHIIIHH")
CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
END = struct.Struct("<4sHHHHIIH")
END64 = struct.Struct("<4sQHHIIQQQQ")
LOCATOR64 = struct.Struct("<4sIQI")
LOCAL_SIGNATURE = b"PK\x03\x04"
CENTRAL_SIGNATURE = b"PK\x01\x02"
END_SIGNATURE = b"PK\x05\x06"
END64_SIGNATURE = b"PK\x06\x06"
LOCATOR64_SIGNATURE = b"PK\x06\x07"
ZIP64_FIELD = 0x0001
END64_REMAINDER = 44
"""What a ZIP64 end record says of its own size: the part behind that field."""

_DESCRIPTOR_SIGNATURE = b"PK\x07\x08"
_UNICODE_PATH_FIELD = 0x7075
_EXTRA = struct.Struct("<HH")
_ENCRYPTED_FLAGS = 0x2041  # plain, strong, and an encrypted directory
_DESCRIPTOR_FLAG = 0x8
_PATCHED_FLAG = 0x20
_NEWEST_VERSION = 63
_UNIX = 3
# Flags, method, time, date, CRC, sizes and the name's length have one layout in both headers of a member.
_SHARED_OF_LOCAL = slice(6, 28)
_SHARED_OF_CENTRAL = slice(8, 30)
_NO_EXTRA = b"\0\0"
# Large wheels have some ten thousand members, in a directory of some megabytes.
_MOST_MEMBERS = 1 << 18
_MOST_DIRECTORY = 64 << 20
# A comment with one of these bytes could hold a second archive, which another reader would find first.
_BYTES_OF_HEADERS = bytes(range(1, 9))


class HeaderError(Exception):
    """An archive whose headers contradict each other. Callers name the archive."""


class MemberError(Exception):
    """A member that is not what its header says. Callers name the archive and the member."""


class ZipMember(NamedTuple):
    """A member: its name, its sizes in bytes, and where its header and its data begin in the archive.

    `mode` are the file type and permissions of Unix, and 0 for the type of a member from elsewhere. A tuple,
    because an archive has thousands of members, and many a reader asks for one of them.
    """

    name: str
    size: int
    packed_size: int
    method: int
    crc: int
    mode: int
    dos_date: int
    dos_time: int
    header: int
    start: int

    @property
    def end(self) -> int:
        """Where its data ends in the archive."""
        return self.start + self.packed_size

    @property
    def modified(self) -> tuple[int, int, int, int, int, int]:
        """Year, month, day, hour, minute and second, to two seconds."""
        year = (self.dos_date >> 9) + 1980
        month = self.dos_date >> 5 & 0xF
        day = self.dos_date & 0x1F
        hour = self.dos_time >> 11
        minute = self.dos_time >> 5 & 0x3F
        second = (self.dos_time & 0x1F) * 2
        return (year, month, day, hour, minute, second)

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder, which its name says."""
        return self.name.endswith("/")

    @property
    def is_executable(self) -> bool:
        """Whether it has an executable bit."""
        return bool(self.mode & 0o111)


class _LocalHeader(NamedTuple):
    signature: bytes
    version: int
    flags: int
    method: int
    time: int
    date: int
    crc: int
    packed_size: int
    size: int
    name_length: int
    extra_length: int


class _CentralHeader(NamedTuple):
    signature: bytes
    made_by: int
    version: int
    flags: int
    method: int
    time: int
    date: int
    crc: int
    packed_size: int
    size: int
    name_length: int
    extra_length: int
    comment_length: int
    disk: int
    internal_attributes: int
    external_attributes: int
    offset: int


class _EndRecord(NamedTuple):
    signature: bytes
    disk: int
    directory_disk: int
    members_on_disk: int
    members: int
    directory_size: int
    directory_start: int
    comment_length: int


class _EndRecord64(NamedTuple):
    signature: bytes
    remainder: int
    made_by: int
    version: int
    disk: int
    directory_disk: int
    members_on_disk: int
    members: int
    directory_size: int
    directory_start: int


class _Directory(NamedTuple):
    """Where the central directory lies, and how many members it lists."""

    start: int
    size: int
    members: int


class _ListedMember(NamedTuple):
    """A member as the central directory lists it, with the values of its ZIP64 field."""

    header: _CentralHeader
    raw_header: bytes
    raw_name: bytes
    name: str
    size: int
    packed_size: int
    offset: int


def read_members(stream: BinaryIO) -> list[ZipMember]:
    """Return the members of an archive in the order of its central directory.

    Raises:
        HeaderError: An installer would refuse the archive, or two readers would read it differently.
    """
    directory = _find_directory(stream)
    listed_members = _read_directory(stream, directory)
    _require_distinct_names(listed_members)

    starts = _find_data(stream, listed_members, directory.start)
    return [_member(listed_member, starts[listed_member.offset]) for listed_member in listed_members]


def _find_directory(stream: BinaryIO) -> _Directory:
    file_size = stream.seek(0, io.SEEK_END)
    tail_start = max(0, file_size - END.size - MOST_16)
    stream.seek(tail_start)
    tail = stream.read()

    place = tail.rfind(END_SIGNATURE)
    if place < 0 or len(tail) - place < END.size:
        raise HeaderError("It has no end record: it is no zip file, or it is cut off")
    end_record = _EndRecord(*END.unpack_from(tail, place))
    _check_rest(tail[place + END.size :], end_record.comment_length)

    end = tail_start + place
    directory = _Directory(
        start=end_record.directory_start,
        size=end_record.directory_size,
        members=end_record.members,
    )
    stream.seek(max(0, end - LOCATOR64.size))
    locator = stream.read(LOCATOR64.size)
    if end >= LOCATOR64.size and locator.startswith(LOCATOR64_SIGNATURE):
        end_of_locator = end
        _signature, _disk, end, _disks = LOCATOR64.unpack(locator)
        directory = _read_end_record64(stream, end, end_of_locator - LOCATOR64.size, end_record)

    if end_record.disk != end_record.directory_disk or end_record.members_on_disk != end_record.members:
        raise HeaderError("It is one part of several")
    if directory.start + directory.size != end:
        raise HeaderError("Its central directory is not where its end record says")
    if directory.members > _MOST_MEMBERS or directory.size > _MOST_DIRECTORY:
        raise HeaderError(f"It lists {directory.members} members, more than any wheel has")
    return directory


def _check_rest(rest: bytes, comment_length: int) -> None:
    """Judge what follows the end record: a comment, and zeros, with which some writers fill up."""
    comment = rest[:comment_length]
    if len(comment) < comment_length:
        raise HeaderError("It is cut off within its comment")
    if rest[comment_length:].strip(b"\0"):
        raise HeaderError("It has data behind its end record")
    if comment.translate(None, _BYTES_OF_HEADERS) != comment:
        raise HeaderError("It has a comment that could hold another archive")


def _read_end_record64(
    stream: BinaryIO,
    start: int,
    stop: int,
    short_record: _EndRecord,
) -> _Directory:
    """Read the ZIP64 end record, which fills the bytes up to its locator."""
    if start + END64.size != stop:
        raise HeaderError("Its ZIP64 end record is not where its locator says")
    stream.seek(start)
    record = _EndRecord64(*END64.unpack(stream.read(END64.size)))
    if record.signature != END64_SIGNATURE or record.remainder != END64_REMAINDER:
        raise HeaderError("Its ZIP64 end record is damaged")

    shared_fields = (
        (short_record.members_on_disk, record.members_on_disk, MOST_16),
        (short_record.members, record.members, MOST_16),
        (short_record.directory_size, record.directory_size, MOST_32),
        (short_record.directory_start, record.directory_start, MOST_32),
    )
    for short_value, value, marker in shared_fields:
        if short_value not in {marker, value}:
            raise HeaderError("Its two end records differ")
    return _Directory(
        start=record.directory_start,
        size=record.directory_size,
        members=record.members,
    )


def _read_directory(stream: BinaryIO, directory: _Directory) -> list[_ListedMember]:
    stream.seek(directory.start)
    content = stream.read(directory.size)

    listed_members: list[_ListedMember] = []
    position = 0
    for _number in range(directory.members):
        if len(content) - position < CENTRAL.size:
            raise HeaderError("Its central directory lists fewer members than its end record says")
        raw_header = content[position : position + CENTRAL.size]
        header = _CentralHeader(*CENTRAL.unpack(raw_header))
        if header.signature != CENTRAL_SIGNATURE:
            raise HeaderError("Its central directory is damaged")

        name_end = position + CENTRAL.size + header.name_length
        extra_end = name_end + header.extra_length
        raw_name = content[position + CENTRAL.size : name_end]
        extra = content[name_end:extra_end]
        listed_members.append(_read_listed(header, raw_header, raw_name, extra))
        position = extra_end + header.comment_length

    if position != len(content):
        raise HeaderError("Its central directory has data that belongs to no member")
    return listed_members


def _read_listed(
    header: _CentralHeader,
    raw_header: bytes,
    raw_name: bytes,
    extra: bytes,
) -> _ListedMember:
    size = header.size
    packed_size = header.packed_size
    offset = header.offset
    try:
        name = _decode_name(header.flags, raw_name)
        # Most members have no extra fields and need none.
        if extra or MOST_32 in {size, packed_size, offset}:
            fields = _split_extra(extra)
            _check_unicode_path(fields, raw_name)
            size, packed_size, offset = _with_zip64((size, packed_size, offset), fields.get(ZIP64_FIELD))
        _check_central_header(header, name, size)
    except MemberError as problem:
        raise HeaderError(f"{_readable(raw_name)} has {problem}") from problem
    return _ListedMember(
        header=header,
        raw_header=raw_header,
        raw_name=raw_name,
        name=name,
        size=size,
        packed_size=packed_size,
        offset=offset,
    )


def _readable(raw_name: bytes) -> str:
    """Return a name for a message, without what a terminal would obey."""
    return ascii(raw_name.decode("utf-8", "replace"))


def _decode_name(flags: int, raw_name: bytes) -> str:
    if not raw_name:
        raise MemberError("an empty name")
    try:
        name = raw_name.decode("utf-8" if flags & UTF8_FLAG else "ascii")
    except UnicodeDecodeError:
        raise MemberError("a name that is neither ASCII nor marked as UTF-8") from None
    if not name.isprintable() and any(unicodedata.category(letter).startswith("C") for letter in name):
        raise MemberError("a control character in its name")
    return name


def _split_extra(extra: bytes) -> Mapping[int, bytes]:
    """Return the extra fields by their kind; up to three bytes behind them are padding."""
    fields: dict[int, bytes] = {}
    position = 0
    while position + _EXTRA.size <= len(extra):
        kind, length = _EXTRA.unpack_from(extra, position)
        position += _EXTRA.size
        if position + length > len(extra):
            raise MemberError("an extra field that is cut off")
        if kind in fields:
            raise MemberError(f"the extra field {kind:#06x} twice")
        fields[kind] = extra[position : position + length]
        position += length
    return fields


def _check_unicode_path(fields: Mapping[int, bytes], raw_name: bytes) -> None:
    """Refuse a second name in an extra field: some readers take that one, and others the first."""
    field = fields.get(_UNICODE_PATH_FIELD)
    if field is None:
        return
    crc_of_name = struct.pack("<I", zlib.crc32(raw_name))
    if field[:1] != b"\x01" or field[1:5] != crc_of_name or field[5:] != raw_name:
        raise MemberError("another name in an extra field")


def _with_zip64(values: Sequence[int], field: bytes | None) -> list[int]:
    """Return a header's values, where those that are `MOST_32` come from the ZIP64 field.

    The field has to hold these values and no others. A writer that adds the field always, or that
    leaves it behind when it turned out not to be needed, makes what uv refuses.
    """
    overflowed = values.count(MOST_32)
    if field is None:
        if overflowed:
            raise MemberError("no ZIP64 field for a value that needs one")
        return list(values)
    if len(field) != 8 * overflowed:
        raise MemberError("a ZIP64 field that its other values do not ask for")

    long_values = list(struct.unpack(f"<{overflowed}Q", field))
    return [long_values.pop(0) if value == MOST_32 else value for value in values]


def _check_central_header(
    header: _CentralHeader,
    name: str,
    size: int,
) -> None:
    if header.disk:
        raise MemberError("its data in another part of the archive")
    if header.version & 0xFF > _NEWEST_VERSION:
        raise MemberError(f"a need for version {header.version / 10} of the format")
    if header.flags & _ENCRYPTED_FLAGS:
        raise MemberError("encrypted data")
    if header.flags & _PATCHED_FLAG:
        raise MemberError("data that is a patch")
    if name.endswith("/") and (size or header.crc):
        raise MemberError("data, though it is a folder")


def _require_distinct_names(listed_members: Sequence[_ListedMember]) -> None:
    names: set[str] = set()
    for listed_member in listed_members:
        if listed_member.name in names:
            raise HeaderError(f"{_readable(listed_member.raw_name)} is in the archive twice")
        names.add(listed_member.name)


def _find_data(
    stream: BinaryIO, listed_members: Sequence[_ListedMember], directory_start: int
) -> dict[int, int]:
    """Return where each member's data begins, by the offset of its header.

    Members have to follow each other without a gap: what lies between them is in no directory, and a reader
    that goes from front to back would take it for a member.
    """
    starts: dict[int, int] = {}
    position = 0
    for listed_member in sorted(listed_members, key=lambda listed_member: listed_member.offset):
        try:
            _check_place(listed_member.offset, position, directory_start)
            start, position = _read_local_header(stream, listed_member, directory_start)
        except MemberError as problem:
            raise HeaderError(f"{_readable(listed_member.raw_name)} has {problem}") from problem
        starts[listed_member.offset] = start

    if position != directory_start:
        raise HeaderError("It has data before its central directory that belongs to no member")
    return starts


def _check_place(
    offset: int,
    expected_offset: int,
    directory_start: int,
) -> None:
    if offset > directory_start:
        raise MemberError("a header outside of the archive")
    if offset < expected_offset:
        raise MemberError("bytes that belong to another member, too")
    if offset > expected_offset:
        raise MemberError("data before it that belongs to no member")


def _read_local_header(
    stream: BinaryIO, listed_member: _ListedMember, directory_start: int
) -> tuple[int, int]:
    """Return where a member's data begins, and where the next member does."""
    stream.seek(listed_member.offset)
    content = stream.read(LOCAL.size + len(listed_member.raw_name))
    if _repeats_central_header(content, listed_member):
        start = listed_member.offset + len(content)
        return start, _end_of_data(start, listed_member, directory_start)
    if len(content) < LOCAL.size or not content.startswith(LOCAL_SIGNATURE):
        raise MemberError("no local header where the central directory says")
    header = _LocalHeader(*LOCAL.unpack_from(content))
    if header.name_length != len(listed_member.raw_name) or content[LOCAL.size :] != listed_member.raw_name:
        raise MemberError("another name in its local header than in the central directory")

    fields = _split_extra(stream.read(header.extra_length)) if header.extra_length else {}
    _check_unicode_path(fields, listed_member.raw_name)
    _compare_headers(header, listed_member, fields.get(ZIP64_FIELD))

    start = listed_member.offset + LOCAL.size + header.name_length + header.extra_length
    end = _end_of_data(start, listed_member, directory_start)
    if header.flags & _DESCRIPTOR_FLAG:
        end += _read_descriptor(stream, end, listed_member, is_zip64=ZIP64_FIELD in fields)
    return start, end


def _repeats_central_header(content: bytes, listed_member: _ListedMember) -> bool:
    """Return whether a local header says what the central one does, byte for byte, and nothing else.

    That of most members does, and to compare bytes is much faster than to take both apart.
    """
    return (
        content.startswith(LOCAL_SIGNATURE)
        and content[LOCAL.size :] == listed_member.raw_name
        and content[_SHARED_OF_LOCAL] == listed_member.raw_header[_SHARED_OF_CENTRAL]
        and content[_SHARED_OF_LOCAL.stop : LOCAL.size] == _NO_EXTRA
        and not listed_member.header.flags & _DESCRIPTOR_FLAG
        and MOST_32 not in {listed_member.size, listed_member.packed_size}
    )


def _end_of_data(start: int, listed_member: _ListedMember, directory_start: int) -> int:
    end = start + listed_member.packed_size
    if end > directory_start:
        raise MemberError("data that goes on behind the archive's members")
    return end


def _compare_headers(
    header: _LocalHeader,
    listed_member: _ListedMember,
    zip64_field: bytes | None,
) -> None:
    meaningful_flags = _ENCRYPTED_FLAGS | _PATCHED_FLAG | _DESCRIPTOR_FLAG
    if not listed_member.raw_name.isascii():
        meaningful_flags |= UTF8_FLAG
    if (header.flags ^ listed_member.header.flags) & meaningful_flags:
        raise MemberError("other flags in its local header than in the central directory")
    if header.method != listed_member.header.method:
        raise MemberError("another compression method in its local header than in the central directory")

    sizes = [header.size, header.packed_size]
    # uv lets this one pass: sizes twice, and both times right
    if zip64_field != struct.pack("<QQ", *sizes):
        sizes = _with_zip64(sizes, zip64_field)
    local_values = (header.crc, *sizes)
    central_values = (
        listed_member.header.crc,
        listed_member.size,
        listed_member.packed_size,
    )
    for local_value, central_value in zip(local_values, central_values, strict=True):
        # With a descriptor the writer did not know them yet.
        is_postponed = bool(header.flags & _DESCRIPTOR_FLAG) and not local_value
        if local_value != central_value and not is_postponed:
            raise MemberError("another size or CRC in its local header than in the central directory")


def _read_descriptor(
    stream: BinaryIO,
    position: int,
    listed_member: _ListedMember,
    *,
    is_zip64: bool,
) -> int:
    """Return the length of the descriptor behind a member's data, which has to repeat CRC and sizes."""
    if listed_member.header.method == STORED:
        raise MemberError("a data descriptor behind stored data, whose end no reader finds")
    values = struct.Struct("<IQQ" if is_zip64 else "<III")
    stream.seek(position)
    content = stream.read(len(_DESCRIPTOR_SIGNATURE) + values.size)
    signature_length = 0
    if content.startswith(_DESCRIPTOR_SIGNATURE):
        signature_length = len(_DESCRIPTOR_SIGNATURE)

    expected = values.pack(listed_member.header.crc, listed_member.packed_size, listed_member.size)
    if content[signature_length : signature_length + values.size] != expected:
        raise MemberError("a data descriptor that differs from the central directory")
    return signature_length + values.size


def _member(listed_member: _ListedMember, start: int) -> ZipMember:
    header = listed_member.header
    mode = header.external_attributes >> 16
    if header.made_by >> 8 != _UNIX:
        mode &= 0o7777
    return ZipMember(
        name=listed_member.name,
        size=listed_member.size,
        packed_size=listed_member.packed_size,
        method=header.method,
        crc=header.crc,
        mode=mode,
        dos_date=header.date,
        dos_time=header.time,
        header=listed_member.offset,
        start=start,
    )
