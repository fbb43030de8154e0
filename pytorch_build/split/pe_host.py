"""The PE side of a split: as `pytorch_build.split.elf_host`, for DLLs of Windows.

The device code has a section of its own, which keeps its place in memory and loses its bytes; the
reference gets a section behind the others. Format: Microsoft's PE Format page.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytorch_build.split.places import (
    SPLIT_MAGIC,
    WRAPPER,
    AlreadySplitError,
    Cut,
    FatFile,
    SplitError,
    Wrapper,
    up,
    wrappers_in,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytorch_build.check.bundles import Data

REFERENCE = ".kpackrf"
_FATBIN, _WRAPPERS = ".hip_fat", ".hipFatB"
_COFF = struct.Struct("<HHIIIHH")
_SECTION = struct.Struct("<8sIIIIIIHHI")
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_AT_PE, _PE32_PLUS = 0x3C, 0x20B
# Offsets in a PE32+ optional header.
_IMAGE_BASE, _ALIGNMENTS, _IMAGE_SIZE, _CHECKSUM, _DIRECTORIES = 24, 32, 56, 64, 112
_CERTIFICATES, _BASE_RELOCATIONS, _DEBUG = 4, 5, 6
_INITIALIZED_READABLE = 0x40000040
_DIR64 = 10
_DEBUG_ENTRY, _AT_DEBUG_POINTER = 28, 24


@dataclass(frozen=True, kw_only=True)
class _Section:
    name: str
    at: int
    size: int
    address: int
    filled: int
    offset: int


@dataclass(frozen=True, kw_only=True)
class _Pe:
    coff: int
    optional: int
    base: int
    alignment: int
    file_alignment: int
    sections: tuple[_Section, ...]
    data: Data

    def section(self, name: str) -> _Section | None:
        return next((one for one in self.sections if one.name == name), None)

    def directory(self, which: int) -> tuple[int, int]:
        count = _U32.unpack_from(self.data, self.optional + _DIRECTORIES - 4)[0]
        if which >= count:
            return 0, 0
        at = self.optional + _DIRECTORIES + 8 * which
        return _U32.unpack_from(self.data, at)[0], _U32.unpack_from(self.data, at + 4)[0]

    def offset(self, address: int) -> int:
        for one in self.sections:
            if one.address <= address < one.address + one.filled:
                return one.offset + address - one.address
        raise SplitError(f"an address outside of its sections ({address:#x})")


def read(data: Data) -> FatFile | None:
    """Find the device code of a DLL, and who registers it."""
    pe = _parsed(data)
    fatbin, wrappers = pe.section(_FATBIN), pe.section(_WRAPPERS)
    if pe.section(REFERENCE) is not None:
        raise AlreadySplitError
    if fatbin is None or not fatbin.filled:
        return None
    if wrappers is None:
        raise SplitError(f"it has {_FATBIN} and no {_WRAPPERS} that registers it")
    size = min(wrappers.size, wrappers.filled)
    found = []
    for at, value in wrappers_in(data, wrappers.offset, size):
        place = value - pe.base - fatbin.address
        if not 0 <= place < fatbin.size:
            raise SplitError(f"a wrapper points outside of {_FATBIN} ({value:#x})")
        found.append(Wrapper(at=at, bundle=place))
    _require_no_other(pe, fatbin, {wrapper.at + 8 for wrapper in found})
    return FatFile(start=fatbin.offset, size=min(fatbin.size, fatbin.filled), wrappers=tuple(found))


def reference_in(data: Data) -> bytes | None:
    """Return the reference of a DLL whose device code was moved; None for any other."""
    pe = _parsed(data)
    section, wrappers = pe.section(REFERENCE), pe.section(_WRAPPERS)
    if section is None:
        return None
    end = wrappers.offset + min(wrappers.size, wrappers.filled) if wrappers else 0
    for at in range(wrappers.offset, end, WRAPPER.size) if wrappers else ():
        magic, _, address, _ = WRAPPER.unpack_from(data, at)
        if magic != SPLIT_MAGIC or address != pe.base + section.address:
            raise SplitError(f"a wrapper of its device code does not point to {REFERENCE}")
    return bytes(data[section.offset : section.offset + section.filled])


def without_code(data: Data, fat: FatFile, indexes: Mapping[int, int], reference: bytes) -> Cut:
    """Say what a DLL becomes without its device code; as `elf_host.without_code`."""
    pe = _parsed(data)
    fatbin = next(one for one in pe.sections if one.offset == fat.start and one.filled)
    length = fatbin.filled
    table_end = pe.sections[-1].at + _SECTION.size
    first = min(one.offset for one in pe.sections if one.filled)
    if table_end + _SECTION.size > first:
        raise SplitError("its headers have no room for another section")
    cut_size = len(data) - length
    at = up(cut_size, pe.file_alignment)
    address = up(max(one.address + max(one.size, one.filled) for one in pe.sections), pe.alignment)
    room = up(len(reference), pe.file_alignment)
    row = (REFERENCE.encode(), len(reference), address, room, at, 0, 0, 0, 0, _INITIALIZED_READABLE)
    edits = [
        (table_end, _SECTION.pack(*row)),
        (pe.coff + 2, struct.pack("<H", len(pe.sections) + 1)),
        (pe.optional + _IMAGE_SIZE, _U32.pack(up(address + len(reference), pe.alignment))),
        (pe.optional + _CHECKSUM, bytes(4)),
        (fatbin.at + 16, bytes(8)),
        *_moved_pointers(pe, fatbin.offset, length),
    ]
    for wrapper in fat.wrappers:
        pointer = _U64.pack(pe.base + address) + _U64.pack(indexes[wrapper.bundle])
        edits += [(wrapper.at, SPLIT_MAGIC), (wrapper.at + 8, pointer)]
    tail = bytes(at - cut_size) + reference.ljust(room, b"\0")
    return Cut(start=fatbin.offset, length=length, edits=tuple(edits), tail=tail)


def _moved_pointers(pe: _Pe, start: int, length: int) -> list[tuple[int, bytes]]:
    """Correct what holds offsets in the file: sections, symbols, debug data; a signature goes."""
    places = [one.at + 20 for one in pe.sections if one.filled and one.offset > start]
    symbols = pe.coff + 8
    if _U32.unpack_from(pe.data, symbols)[0] > start:
        places.append(symbols)
    address, size = pe.directory(_DEBUG)
    for entry in range(0, size, _DEBUG_ENTRY) if address else ():
        place = pe.offset(address) + entry + _AT_DEBUG_POINTER
        if _U32.unpack_from(pe.data, place)[0] > start:
            places.append(place)
    edits = [(place, _U32.pack(_U32.unpack_from(pe.data, place)[0] - length)) for place in places]
    if any(pe.directory(_CERTIFICATES)):
        edits.append((pe.optional + _DIRECTORIES + 8 * _CERTIFICATES, bytes(8)))
    return edits


def _require_no_other(pe: _Pe, fatbin: _Section, pointers: set[int]) -> None:
    """Refuse a DLL where something besides the wrappers points into the device code."""
    address, size = pe.directory(_BASE_RELOCATIONS)
    position, end = (pe.offset(address), pe.offset(address) + size) if address else (0, 0)
    low = pe.base + fatbin.address
    while position < end:
        page, length = _U32.unpack_from(pe.data, position)[0], _U32.unpack_from(pe.data, position + 4)[0]
        if not length:
            raise SplitError("its base relocations are damaged")
        for (entry,) in struct.iter_unpack("<H", pe.data[position + 8 : position + length]):
            if entry >> 12 != _DIR64:
                continue
            place = pe.offset(page + (entry & 0xFFF))
            if place not in pointers and low <= _U64.unpack_from(pe.data, place)[0] < low + fatbin.size:
                raise SplitError(f"something besides its wrappers points into {_FATBIN} ({place:#x})")
        position += length


def _parsed(data: Data) -> _Pe:
    try:
        coff = _U32.unpack_from(data, _AT_PE)[0] + 4
        _, count, _, _, _, size, _ = _COFF.unpack_from(data, coff)
        optional = coff + _COFF.size
        if struct.unpack_from("<H", data, optional)[0] != _PE32_PLUS:
            raise SplitError("its device code is in a 32-bit file")
        sections = []
        for index in range(count):
            at = optional + size + index * _SECTION.size
            name, virtual, address, filled, offset, *_ = _SECTION.unpack_from(data, at)
            text = name.rstrip(b"\0").decode("latin-1")
            sections.append(
                _Section(name=text, at=at, size=virtual, address=address, filled=filled, offset=offset)
            )
        base = _U64.unpack_from(data, optional + _IMAGE_BASE)[0]
        alignments = struct.unpack_from("<II", data, optional + _ALIGNMENTS)
    except struct.error as problem:
        raise SplitError(f"it is a damaged PE file ({problem})") from problem
    return _Pe(
        coff=coff,
        optional=optional,
        base=base,
        alignment=alignments[0],
        file_alignment=alignments[1],
        sections=tuple(sections),
        data=data,
    )
