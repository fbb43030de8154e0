"""The few facts of a PE file (a DLL or program of Windows) that packaging decides by.

Format: Microsoft's PE Format page: the optional header's data directories 0 (exports), 1 (imports)
and 13 (delay imports). What a file imports late is needed, too: only later.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from core.errors import ArtifactError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAGIC = b"MZ"
AMD64, ARM64 = 0x8664, 0xAA64
_PE = b"PE\0\0"
_AT_PE = 0x3C
_COFF = struct.Struct("<HHIIIHH")
_PE32_PLUS = 0x20B
_AT_DIRECTORIES = 112  # of a PE32+ optional header; the count of directories lies before
_DIRECTORY = struct.Struct("<II")
_SECTION = struct.Struct("<8sIIIIIIHHI")
_IMPORT = struct.Struct("<IIIII")
_DELAY = struct.Struct("<IIIIIIII")
_EXPORTS, _IMPORTS, _DELAYED = 0, 1, 13
_DLL = 0x2000
_MOST_IMPORTS, _MOST_NAME, _MOST_SECTIONS, _MOST_HEADER = 4096, 512, 96, 1 << 16


@dataclass(frozen=True, kw_only=True)
class PeFacts:
    """What a PE file says of itself.

    Attributes:
        machine: The COFF machine: `AMD64`, `ARM64` …
        dll: Whether it is a DLL, not a program.
        name: The name that its export table gives it, or empty.
        needed: Names of the DLLs that it imports from, in order.
        delayed: The same for those that are loaded when they are first called.
        sections: Where each section lies in the file: its name -> offset and bytes that it fills.
    """

    machine: int
    dll: bool
    name: str = ""
    needed: tuple[str, ...] = ()
    delayed: tuple[str, ...] = ()
    sections: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Section:
    name: str
    address: int
    size: int
    offset: int
    filled: int


def read_needs(stream: BinaryIO, name: str) -> PeFacts | None:
    """Read the facts of a 64-bit PE file.

    Returns:
        The facts; None for anything else, such as a program of MS-DOS or a 32-bit file.
    """
    stream.seek(0)
    head = stream.read(_AT_PE + 4)
    if not head.startswith(MAGIC) or len(head) < _AT_PE + 4:
        return None
    try:
        at = struct.unpack_from("<I", head, _AT_PE)[0]
        if at > _MOST_HEADER or _read(stream, at, len(_PE)) != _PE:
            return None
        return _facts(stream, at + len(_PE))
    except (struct.error, ValueError) as problem:
        raise ArtifactError(f"{name} is a damaged PE file: {problem}.", hint="Get it again.") from problem


def _facts(stream: BinaryIO, at: int) -> PeFacts | None:
    machine, sections, _, _, _, size, flags = _COFF.unpack(_read(stream, at, _COFF.size))
    optional = _read(stream, at + _COFF.size, size)
    if size < _AT_DIRECTORIES or struct.unpack_from("<H", optional)[0] != _PE32_PLUS:
        return None
    if sections > _MOST_SECTIONS:
        raise ValueError(f"{sections} sections")
    table = _read(stream, at + _COFF.size + size, sections * _SECTION.size)
    places = [
        _Section(
            name=one[0].rstrip(b"\0").decode("latin-1"),
            address=one[2],
            size=max(one[1], one[3]),
            offset=one[4],
            filled=min(one[1] or one[3], one[3]),
        )
        for one in _SECTION.iter_unpack(table)
    ]
    count = struct.unpack_from("<I", optional, _AT_DIRECTORIES - 4)[0]
    room = (size - _AT_DIRECTORIES) // _DIRECTORY.size
    directories = [
        _DIRECTORY.unpack_from(optional, _AT_DIRECTORIES + index * _DIRECTORY.size)[0]
        for index in range(min(count, room))
    ]
    return PeFacts(
        machine=machine,
        dll=bool(flags & _DLL),
        name=_export_name(stream, places, directories),
        needed=tuple(_names(stream, places, directories, _IMPORTS, _IMPORT, 3)),
        delayed=tuple(_names(stream, places, directories, _DELAYED, _DELAY, 1)),
        sections={one.name: (one.offset, one.filled) for one in places},
    )


def _export_name(stream: BinaryIO, places: Sequence[_Section], directories: Sequence[int]) -> str:
    address = directories[_EXPORTS] if directories else 0
    if not address:
        return ""
    return _text(stream, places, struct.unpack("<I", _read(stream, _place(places, address) + 12, 4))[0])


def _names(
    stream: BinaryIO,
    places: Sequence[_Section],
    directories: Sequence[int],
    which: int,
    form: struct.Struct,
    field: int,
) -> Iterator[str]:
    """Read the DLL names of an import table; it ends with an entry of zeros."""
    address = directories[which] if which < len(directories) else 0
    if not address:
        return
    at = _place(places, address)
    for index in range(_MOST_IMPORTS):
        name = form.unpack(_read(stream, at + index * form.size, form.size))[field]
        if not name:
            return
        yield _text(stream, places, name)
    raise ValueError("an import table without an end")


def _text(stream: BinaryIO, places: Sequence[_Section], address: int) -> str:
    stream.seek(_place(places, address))
    text, end, _ = stream.read(_MOST_NAME).partition(b"\0")
    if not end or not text:
        raise ValueError("a name without an end")
    return text.decode("ascii")


def _place(places: Sequence[_Section], address: int) -> int:
    """Find where in the file some memory comes from."""
    for one in places:
        if one.address <= address < one.address + one.size:
            return one.offset + address - one.address
    raise ValueError(f"an address outside of its sections ({address:#x})")


def _read(stream: BinaryIO, offset: int, size: int) -> bytes:
    stream.seek(offset)
    data = stream.read(size)
    if len(data) != size:
        raise ValueError("it is cut off")
    return data
