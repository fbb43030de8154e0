"""The few facts of a PE file (a DLL or program of Windows) that packaging decides by.

Format: Microsoft's PE Format page: the optional header's data directories 0 (exports), 1 (imports)
and 13 (delay imports). What a file imports late is needed, too: only later.
"""

import io
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple

from core.binaries import read_at, refused_where_damaged

MAGIC = b"MZ"
AMD64 = 0x8664
_PE = b"PE\0\0"
_AT_PE = 0x3C
_COFF = struct.Struct("<HHIIIHH")
_PE32_PLUS = 0x20B
_AT_DIRECTORIES = 112  # of a PE32+ optional header; the count of directories lies before
_DIRECTORY = struct.Struct("<II")
_SECTION = struct.Struct("<8sIIIIIIHHI")
_IMPORT = struct.Struct("<IIIII")
_DELAY = struct.Struct("<IIIIIIII")
_SYMBOL = 18
_EXPORTS, _CERTIFICATES = 0, 4
_IMPORTS = (1, _IMPORT, 3)  # the directory, its entries, and which field is the name
_DELAYED = (13, _DELAY, 1)
_DLL = 0x2000
_MOST_IMPORTS, _MOST_NAME, _MOST_SECTIONS, _MOST_HEADER = 4096, 512, 96, 1 << 16


@dataclass(frozen=True, kw_only=True)
class PeFacts:
    """What a PE file says of itself: its COFF machine, the name its export table gives it, needed DLLs.

    `delayed` are DLLs that are loaded when they are first called; `sections` are offset and filled bytes.
    """

    machine: int
    dll: bool
    name: str = ""
    needed: tuple[str, ...] = ()
    delayed: tuple[str, ...] = ()
    sections: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def read_needs(stream: BinaryIO, name: str) -> PeFacts | None:
    """Read the facts of a 64-bit PE file; None for anything else, such as a program of MS-DOS."""
    stream.seek(0)
    head = stream.read(_AT_PE + 4)
    if not head.startswith(MAGIC) or len(head) < _AT_PE + 4:
        return None
    with refused_where_damaged(name, "PE"):
        at = struct.unpack_from("<I", head, _AT_PE)[0]
        if at > _MOST_HEADER or read_at(stream, at, len(_PE)) != _PE:
            return None
        return _facts(stream, at + len(_PE))


def _facts(stream: BinaryIO, at: int) -> PeFacts | None:
    machine, sections, _, symbols, count, size, flags = _COFF.unpack(read_at(stream, at, _COFF.size))
    optional = read_at(stream, at + _COFF.size, size)
    if size < _AT_DIRECTORIES or struct.unpack_from("<H", optional)[0] != _PE32_PLUS:
        return None
    if sections > _MOST_SECTIONS:
        raise ValueError(f"{sections} sections")
    table = [*_SECTION.iter_unpack(read_at(stream, at + _COFF.size + size, sections * _SECTION.size))]
    places = [
        _Section(
            name.rstrip(b"\0").decode("latin-1"),
            address,
            max(memory, size),
            offset,
            min(memory or size, size),
        )
        for name, memory, address, size, offset, *_ in table
    ]
    directory_count = struct.unpack_from("<I", optional, _AT_DIRECTORIES - 4)[0]
    room = (size - _AT_DIRECTORIES) // _DIRECTORY.size
    directories = [
        _DIRECTORY.unpack_from(optional, _AT_DIRECTORIES + index * _DIRECTORY.size)
        for index in range(min(directory_count, room))
    ]
    # certificates alone are named by where they lie in the file
    ends = [sum(one) for one in directories[_CERTIFICATES : _CERTIFICATES + 1]]
    ends += [offset + size for _, _, _, size, offset, *_ in table]
    if symbols:  # with their names behind them, as MinGW leaves them
        names = symbols + count * _SYMBOL
        ends.append(names + int.from_bytes(read_at(stream, names, 4), "little"))
    if max(ends, default=0) > stream.seek(0, io.SEEK_END):
        raise ValueError("it is cut off")
    tables = _Tables(stream, places, [address for address, _ in directories])
    return PeFacts(
        machine=machine,
        dll=bool(flags & _DLL),
        name=tables.export_name(),
        needed=tuple(tables.imports(*_IMPORTS)),
        delayed=tuple(tables.imports(*_DELAYED)),
        sections={one.name: (one.offset, one.filled) for one in places},
    )


class _Section(NamedTuple):
    name: str
    address: int
    size: int
    offset: int
    filled: int


class _Tables(NamedTuple):
    """The data directories' tables, found by the sections that hold them."""

    stream: BinaryIO
    sections: list[_Section]
    directories: list[int]

    def export_name(self) -> str:
        address = self.directories[_EXPORTS] if self.directories else 0
        if not address:
            return ""
        return self._text(struct.unpack("<I", read_at(self.stream, self._place(address) + 12, 4))[0])

    def imports(self, which: int, form: struct.Struct, field: int) -> Iterator[str]:
        """Return the DLL names of an import table; it ends with an entry of zeros."""
        address = self.directories[which] if which < len(self.directories) else 0
        if not address:
            return
        at = self._place(address)
        for index in range(_MOST_IMPORTS):
            name = form.unpack(read_at(self.stream, at + index * form.size, form.size))[field]
            if not name:
                return
            yield self._text(name)
        raise ValueError("an import table without an end")

    def _text(self, address: int) -> str:
        self.stream.seek(self._place(address))
        text, end, _ = self.stream.read(_MOST_NAME).partition(b"\0")
        if not end or not text:
            raise ValueError("a name without an end")
        return text.decode("ascii")

    def _place(self, address: int) -> int:
        """Find where in the file some memory comes from."""
        for one in self.sections:
            if one.address <= address < one.address + one.size:
                return one.offset + address - one.address
        raise ValueError(f"an address outside of its sections ({address:#x})")
