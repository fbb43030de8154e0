"""The PE side of a split: DLLs of Windows.

The device code has a section of its own, which keeps its place in memory and loses its bytes; the
reference gets a section behind the others. Format: Microsoft's PE Format page.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from pytorch_build.split.library import POINTER, SPLIT_MAGIC, Cut, FatFile, Library, Section, SplitError, up

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytorch_build.check.bundles import Data

_COFF = struct.Struct("<HHIIIHH")
_SECTION = struct.Struct("<8sIIIIIIHHI")
_U16, _U32, _U64 = struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")
_AT_PE, _PE32_PLUS = 0x3C, 0x20B
# Offsets in a PE32+ optional header.
_IMAGE_BASE, _ALIGNMENTS, _IMAGE_SIZE, _CHECKSUM, _DIRECTORIES = 24, 32, 56, 64, 112
_CERTIFICATES, _BASE_RELOCATIONS, _DEBUG = 4, 5, 6
_INITIALIZED_READABLE = 0x40000040
_DIR64 = 10
_DEBUG_ENTRY, _AT_DEBUG_POINTER = 28, 24


class PeLibrary(Library):
    """A DLL of Windows."""

    FATBIN, WRAPPERS, REFERENCE = ".hip_fat", ".hipFatB", ".kpackrf"

    def __init__(self, data: Data) -> None:
        try:
            self.coff = _U32.unpack_from(data, _AT_PE)[0] + 4
            _, count, _, _, _, size, _ = _COFF.unpack_from(data, self.coff)
            self.optional = self.coff + _COFF.size
            if _U16.unpack_from(data, self.optional)[0] != _PE32_PLUS:
                raise SplitError("its device code is in a 32-bit file")
            table = self.optional + size
            sections = tuple(
                _section(data, at) for at in range(table, table + count * _SECTION.size, _SECTION.size)
            )
            base = _U64.unpack_from(data, self.optional + _IMAGE_BASE)[0]
            alignments = struct.unpack_from("<II", data, self.optional + _ALIGNMENTS)
        except struct.error as problem:
            raise SplitError(f"it is a damaged PE file ({problem})") from problem
        super().__init__(data, sections, base)
        self.alignment, self.file_alignment = alignments

    def _u32(self, at: int) -> int:
        value: int = _U32.unpack_from(self.data, at)[0]
        return value

    def _directory(self, which: int) -> tuple[int, int]:
        if which >= self._u32(self.optional + _DIRECTORIES - 4):
            return 0, 0
        at = self.optional + _DIRECTORIES + 8 * which
        return self._u32(at), self._u32(at + 4)

    def _offset(self, address: int) -> int:
        for one in self.sections:
            if one.address <= address < one.address + one.filled:
                return one.offset + address - one.address
        raise SplitError(f"an address outside of its sections ({address:#x})")

    def _relocations(self, wrappers: Section, fatbin: Section) -> Mapping[int, tuple[int | None, int]]:
        pointers = {at + POINTER for at, _, _ in self._wrappers(wrappers)}
        address, size = self._directory(_BASE_RELOCATIONS)
        position, end = (self._offset(address), self._offset(address) + size) if address else (0, 0)
        low = self.base + fatbin.address
        while position < end:
            page, length = self._u32(position), self._u32(position + 4)
            if not length:
                raise SplitError("its base relocations are damaged")
            for (entry,) in _U16.iter_unpack(self.data[position + 8 : position + length]):
                if entry >> 12 != _DIR64:
                    continue
                place = self._offset(page + (entry & 0xFFF))
                value = _U64.unpack_from(self.data, place)[0]
                if place not in pointers and low <= value < low + fatbin.size:
                    raise SplitError(f"something besides its wrappers points into {self.FATBIN} ({place:#x})")
            position += length
        return {}

    def without_code(self, fat: FatFile, indexes: Mapping[int, int], reference: bytes) -> Cut:
        """Return the DLL without its device code; `indexes` are those of bundles by offset."""
        fatbin = next(one for one in self.sections if one.offset == fat.start and one.filled)
        length = fatbin.filled
        table_end = self.sections[-1].at + _SECTION.size
        if table_end + _SECTION.size > min(one.offset for one in self.sections if one.filled):
            raise SplitError("its headers have no room for another section")
        cut_size = len(self.data) - length
        at = up(cut_size, self.file_alignment)
        address = up(max(one.address + max(one.size, one.filled) for one in self.sections), self.alignment)
        room = up(len(reference), self.file_alignment)
        row = (self.REFERENCE.encode(), len(reference), address, room, at, 0, 0, 0, 0, _INITIALIZED_READABLE)
        edits = [
            (table_end, _SECTION.pack(*row)),
            (self.coff + 2, _U16.pack(len(self.sections) + 1)),
            (self.optional + _IMAGE_SIZE, _U32.pack(up(address + len(reference), self.alignment))),
            (self.optional + _CHECKSUM, bytes(4)),
            (fatbin.at + 16, bytes(8)),
            *self._moved_pointers(fatbin.offset, length),
        ]
        for wrapper in fat.wrappers:
            pointer = _U64.pack(self.base + address) + _U64.pack(indexes[wrapper.bundle])
            edits += [(wrapper.at, SPLIT_MAGIC), (wrapper.at + POINTER, pointer)]
        tail = bytes(at - cut_size) + reference.ljust(room, b"\0")
        return Cut(start=fatbin.offset, length=length, edits=tuple(edits), tail=tail)

    def _moved_pointers(self, start: int, length: int) -> list[tuple[int, bytes]]:
        """Correct what holds offsets in the file: sections, symbols, debug data; a signature goes."""
        address, size = self._directory(_DEBUG)
        debug = self._offset(address) + _AT_DEBUG_POINTER if address else 0
        entries = range(debug, debug + size, _DEBUG_ENTRY) if address else ()
        places = [one.at + 20 for one in self.sections if one.filled]
        values = [(place, self._u32(place)) for place in (*places, self.coff + 8, *entries)]
        edits = [(place, _U32.pack(value - length)) for place, value in values if value > start]
        if any(self._directory(_CERTIFICATES)):
            edits.append((self.optional + _DIRECTORIES + 8 * _CERTIFICATES, bytes(8)))
        return edits


def _section(data: Data, at: int) -> Section:
    name, size, address, filled, offset, *_ = _SECTION.unpack_from(data, at)
    text = name.rstrip(b"\0").decode("latin-1")
    return Section(name=text, at=at, address=address, size=size, offset=offset, filled=filled)
