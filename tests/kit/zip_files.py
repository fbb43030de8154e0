"""Zip files written header by header, as careless writers and hostile hands write them.

Format: APPNOTE.TXT of PKWARE. `REFUSED` and `ACCEPTED` are what installers do with wheels of such a form.
"""

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.kit.wheels import add_record, wheel_filename, wheel_members

STORED = 0
DEFLATED = 8
DESCRIPTOR_FLAG = 0x8
UTF8_FLAG = 0x800
MOST_32 = 0xFFFFFFFF
REGULAR_FILE = 0o100644 << 16
MADE_ON_UNIX = 3 << 8 | 20


@dataclass(frozen=True, kw_only=True)
class RawMember:
    """A member and its two headers; what is None is as it ought to be.

    `gap` are bytes before its local header, `descriptor` those behind its data, and `offset` where the
    central directory says that it begins.
    """

    name: bytes
    content: bytes
    method: int = DEFLATED
    flags: int = 0
    version: int = 20
    central_extra: bytes = b""
    central_size: int | None = None
    central_packed_size: int | None = None
    local_name: bytes | None = None
    local_flags: int | None = None
    local_method: int | None = None
    local_extra: bytes = b""
    local_crc: int | None = None
    local_size: int | None = None
    local_packed_size: int | None = None
    gap: bytes = b""
    descriptor: bytes = b""
    offset: int | None = None

    @property
    def packed(self) -> bytes:
        """Its data as it lies in the archive."""
        if self.method == STORED:
            return self.content
        deflater = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        return deflater.compress(self.content) + deflater.flush()

    @property
    def crc(self) -> int:
        """The CRC of its content."""
        return zlib.crc32(self.content)

    def local_part(self) -> bytes:
        """Return its local header, its data and what is behind it."""
        name = self.name if self.local_name is None else self.local_name
        header = struct.pack(
            "<4s5H3I2H",
            b"PK\x03\x04",
            self.version,
            or_default(self.local_flags, self.flags),
            or_default(self.local_method, self.method),
            0,
            0x21,
            or_default(self.local_crc, self.crc),
            or_default(self.local_packed_size, len(self.packed)),
            or_default(self.local_size, len(self.content)),
            len(name),
            len(self.local_extra),
        )
        return header + name + self.local_extra + self.packed + self.descriptor

    def central_part(self, offset: int) -> bytes:
        """Return its header in the central directory."""
        header = struct.pack(
            "<4s6H3I5H2I",
            b"PK\x01\x02",
            MADE_ON_UNIX,
            self.version,
            self.flags,
            self.method,
            0,
            0x21,
            self.crc,
            or_default(self.central_packed_size, len(self.packed)),
            or_default(self.central_size, len(self.content)),
            len(self.name),
            len(self.central_extra),
            0,
            0,
            0,
            REGULAR_FILE,
            or_default(self.offset, offset) & MOST_32,
        )
        return header + self.name + self.central_extra


def or_default(value: int | None, default: int) -> int:
    """Return a value, or the default where there is none."""
    return default if value is None else value


def zip_bytes(
    members: Sequence[RawMember],
    *,
    comment: bytes = b"",
    tail: bytes = b"",
    before_directory: bytes = b"",
    after_entries: bytes = b"",
    count: int | None = None,
    start_shift: int = 0,
    zip64: bool = False,
) -> bytes:
    """Return an archive of members, with an end record that is right but for `count` and `start_shift`.

    `after_entries` belongs to the central directory; `tail` comes behind the comment.
    """
    content = b""
    directory = b""
    for member in members:
        content += member.gap
        directory += member.central_part(len(content))
        content += member.local_part()
    content += before_directory
    directory += after_entries

    number = len(members) if count is None else count
    start = len(content) + start_shift
    content += directory
    if zip64:
        end64 = len(content)
        content += struct.pack(
            "<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, number, number, len(directory), start
        )
        content += struct.pack("<4sIQI", b"PK\x06\x07", 0, end64, 1)
    content += struct.pack(
        "<4s4H2IH", b"PK\x05\x06", 0, 0, number, number, len(directory), start, len(comment)
    )
    return content + comment + tail


def extra_field(kind: int, data: bytes, *, length: int | None = None) -> bytes:
    """Return an extra field, which may say a false length."""
    return struct.pack("<HH", kind, or_default(length, len(data))) + data


def zip64_field(*values: int) -> bytes:
    """Return the extra field for values that need 64 bits."""
    return extra_field(0x0001, struct.pack(f"<{len(values)}Q", *values))


def descriptor(member: RawMember, *, crc: int | None = None, signature: bytes = b"PK\x07\x08") -> bytes:
    """Return the descriptor behind a member's data."""
    return signature + struct.pack(
        "<3I", or_default(crc, member.crc), len(member.packed), len(member.content)
    )


def streamed(member: RawMember) -> RawMember:
    """Return a member as a writer leaves it that cannot go back: its sizes are behind its data."""
    return replace(
        member,
        flags=DESCRIPTOR_FLAG,
        local_crc=0,
        local_size=0,
        local_packed_size=0,
        descriptor=descriptor(member),
    )


MODULE = RawMember(name=b"demo/__init__.py", content=b"x = 1\n" * 9)
FURTHER_MODULE = RawMember(name=b"demo/more.py", content=b"y = 1\n" * 9)
SIZE = len(MODULE.content)
PACKED_SIZE = len(MODULE.packed)

Form = Callable[[Sequence[RawMember]], bytes]
"""Writes the members of a wheel, of which the first one is `MODULE`."""


def with_first(first: RawMember) -> Form:
    """Return the form of an archive with a changed first member."""
    return lambda members: zip_bytes([first, *members[1:]])


def without_directory_entry(members: Sequence[RawMember]) -> bytes:
    """Return an archive with a member that only its local header tells of."""
    return zip_bytes([replace(members[0], gap=FURTHER_MODULE.local_part()), *members[1:]])


ACCEPTED: Mapping[str, Form] = {
    "plain": zip_bytes,
    "stored": lambda members: zip_bytes([replace(member, method=STORED) for member in members]),
    "another order": lambda members: zip_bytes([*members[1:], members[0]]),
    "comment": lambda members: zip_bytes(members, comment=b"made by hand"),
    "zeros behind the end": lambda members: zip_bytes(members, tail=bytes(20)),
    "extra fields": with_first(
        replace(
            MODULE,
            local_extra=extra_field(0x5455, bytes(5)),
            central_extra=extra_field(0x5455, bytes(5)) + extra_field(0x7875, bytes(11)),
        )
    ),
    "padding in an extra field": with_first(replace(MODULE, local_extra=bytes(3))),
    "descriptor": lambda members: zip_bytes([streamed(member) for member in members]),
    "descriptor without a signature": with_first(
        replace(streamed(MODULE), descriptor=descriptor(MODULE, signature=b""))
    ),
    "ZIP64 sizes in both headers": with_first(
        replace(
            MODULE,
            local_size=MOST_32,
            local_packed_size=MOST_32,
            local_extra=zip64_field(SIZE, PACKED_SIZE),
            central_size=MOST_32,
            central_packed_size=MOST_32,
            central_extra=zip64_field(SIZE, PACKED_SIZE),
        )
    ),
    "ZIP64 sizes in the local header": with_first(
        replace(
            MODULE,
            local_size=MOST_32,
            local_packed_size=MOST_32,
            local_extra=zip64_field(SIZE, PACKED_SIZE),
        )
    ),
    "sizes twice in the local header": with_first(
        replace(MODULE, local_extra=zip64_field(SIZE, PACKED_SIZE))
    ),
    "ZIP64 end record": lambda members: zip_bytes(members, zip64=True),
}

REFUSED: Mapping[str, Form] = {
    "local ZIP64 field that nobody needs": with_first(replace(MODULE, local_extra=zip64_field(77))),
    "central ZIP64 field that nobody needs": with_first(replace(MODULE, central_extra=zip64_field(77))),
    "sizes twice in the central directory": with_first(
        replace(MODULE, central_extra=zip64_field(SIZE, PACKED_SIZE))
    ),
    "ZIP64 field with a value too many": with_first(
        replace(MODULE, local_size=MOST_32, local_extra=zip64_field(SIZE, PACKED_SIZE))
    ),
    "no ZIP64 field": with_first(replace(MODULE, central_size=MOST_32)),
    "another ZIP64 size": with_first(
        replace(
            MODULE,
            local_size=MOST_32,
            local_packed_size=MOST_32,
            local_extra=zip64_field(SIZE + 1, PACKED_SIZE),
        )
    ),
    "local extra field cut off": with_first(
        replace(MODULE, local_extra=extra_field(0x5455, b"abc", length=200))
    ),
    "central extra field cut off": with_first(
        replace(MODULE, central_extra=extra_field(0x5455, b"abc", length=200))
    ),
    "extra field twice": with_first(replace(MODULE, local_extra=extra_field(0x5455, b"abc") * 2)),
    "another size in the local header": with_first(replace(MODULE, local_size=99)),
    "another packed size in the local header": with_first(replace(MODULE, local_packed_size=9)),
    "another CRC in the local header": with_first(replace(MODULE, local_crc=9)),
    "another name in the local header": with_first(replace(MODULE, local_name=b"demo/__init_2.py")),
    "a longer name in the local header": with_first(replace(MODULE, local_name=b"demo/__init___.py")),
    "another method in the local header": with_first(replace(MODULE, local_method=STORED)),
    "encrypted": with_first(replace(MODULE, flags=1)),
    "descriptor that only the local header tells of": with_first(
        replace(streamed(MODULE), flags=0, local_flags=DESCRIPTOR_FLAG)
    ),
    "descriptor that only the directory tells of": with_first(
        replace(MODULE, flags=DESCRIPTOR_FLAG, local_flags=0)
    ),
    "no descriptor": with_first(replace(streamed(MODULE), descriptor=b"")),
    "another CRC in the descriptor": with_first(
        replace(streamed(MODULE), descriptor=descriptor(MODULE, crc=7))
    ),
    "descriptor behind stored data": with_first(streamed(replace(MODULE, method=STORED))),
    "data behind the end record": lambda members: zip_bytes(members, tail=b"garbage"),
    "data before the archive": lambda members: zip_bytes(
        [replace(members[0], gap=b"#!/bin/sh\n"), *members[1:]]
    ),
    "data between members": lambda members: zip_bytes(
        [members[0], replace(members[1], gap=b"gap"), *members[2:]]
    ),
    "data before the directory": lambda members: zip_bytes(members, before_directory=b"gap"),
    "data in the directory": lambda members: zip_bytes(members, after_entries=b"more"),
    "member that is in no directory": without_directory_entry,
    "directory before its place": lambda members: zip_bytes(members, start_shift=-8),
    "directory behind its place": lambda members: zip_bytes(members, start_shift=8),
    "member count too small": lambda members: zip_bytes(members, count=len(members) - 1),
    "member count too large": lambda members: zip_bytes(members, count=len(members) + 1),
    "archive in the comment": lambda members: zip_bytes(members, comment=zip_bytes([FURTHER_MODULE])),
    "name twice": lambda members: zip_bytes([*members, replace(members[0], content=b"x = 2\n")]),
    "empty name": lambda members: zip_bytes([*members, RawMember(name=b"", content=b"x")]),
    "control character in a name": lambda members: zip_bytes(
        [*members, RawMember(name=b"demo/\x1b[2J.py", content=b"x")]
    ),
    "zero in a name": lambda members: zip_bytes([*members, RawMember(name=b"demo/a\0b.py", content=b"x")]),
    "name in an unknown encoding": lambda members: zip_bytes(
        [*members, RawMember(name=b"demo/\xe4.py", content=b"x")]
    ),
    "name that is no UTF-8": lambda members: zip_bytes(
        [*members, RawMember(name=b"demo/\xe4.py", content=b"x", flags=UTF8_FLAG)]
    ),
    "negative offset": with_first(replace(MODULE, offset=-1)),
    "offset outside of the file": with_first(replace(MODULE, offset=1 << 30)),
    "offset of another member": with_first(replace(MODULE, offset=len(MODULE.local_part()))),
    "data of another member": lambda members: zip_bytes(
        [
            replace(
                members[0],
                method=STORED,
                central_size=SIZE + 99,
                central_packed_size=SIZE + 99,
                local_size=SIZE + 99,
                local_packed_size=SIZE + 99,
            ),
            *members[1:],
        ]
    ),
    "folder with data": lambda members: zip_bytes([*members, RawMember(name=b"demo/folder/", content=b"x")]),
    "cut off": lambda members: zip_bytes(members)[:-30],
    "no zip file": lambda _members: b"<html>",
    "empty file": lambda _members: b"",
}


def write_form(folder: Path, form: Form, *, name: str = "demo", version: str = "1.0") -> Path:
    """Write a wheel in a form; its RECORD is right."""
    files = {"demo/__init__.py": MODULE.content}
    recorded = add_record(wheel_members(name=name, version=version, tag="py3-none-any", files=files))
    members = [RawMember(name=path.encode(), content=content) for path, content in recorded.items()]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / wheel_filename(name=name, version=version, tag="py3-none-any")
    path.write_bytes(form(members))
    return path
