"""The ELF side of a split: a library whose device code is gone, and which says where to find it.

The bundles' pages leave the file; what they filled stays in memory, empty. The reference, the program
headers and the section headers go behind the rest. Format: the System V ABI (gABI).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from pytorch_build.split.library import (
    POINTER,
    SPLIT_MAGIC,
    WRAPPER,
    Cut,
    FatFile,
    Library,
    Section,
    SplitError,
    up,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytorch_build.check.bundles import Data

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_U64 = struct.Struct("<Q")
_X86_64 = 62
# R_X86_64_RELATIVE, R_AARCH64_RELATIVE: the base address plus the addend.
_RELATIVE = {_X86_64: 8, 183: 1027}
# R_X86_64_64, R_AARCH64_ABS64: a symbol's address plus the addend.
_ABSOLUTE = {_X86_64: 1, 183: 257}
_SYMBOL_SIZE, _AT_SYMBOL_VALUE = 24, 8
_PAGE = {_X86_64: 0x1000, 183: 0x10000}
_LOAD, _PHDR, _READABLE = 1, 6, 4
_PROGBITS, _RELA, _NOBITS, _ALLOCATED = 1, 4, 8, 2
_RELOCATION_WORDS = 3  # r_offset, r_info, r_addend
_PHNUM, _SHNUM = 0xFFFF, 0xFF00


class ElfLibrary(Library):
    """A library of Linux."""

    FATBIN, WRAPPERS, REFERENCE = ".hip_fatbin", ".hipFatBinSegment", ".rocm_kpack_ref"

    def __init__(self, data: Data) -> None:
        try:
            header = _HEADER.unpack_from(data, 0)
            if header[2] not in _RELATIVE or header[0][4:6] != b"\x02\x01":
                raise SplitError("its device code is in a file for another processor")
            places = (header[5] + index * _SEGMENT.size for index in range(header[10]))
            self.segments = [_SEGMENT.unpack_from(data, at) for at in places]
            places = (header[6] + index * _SECTION.size for index in range(header[12]))
            self.rows = [(at, _SECTION.unpack_from(data, at)) for at in places]
            offset, size = self.rows[header[13]][1][4:6]
            names = bytes(data[offset : offset + size])
            sections = tuple(
                Section(
                    name=names[row[0] : names.index(b"\0", row[0])].decode(),
                    at=at,
                    address=row[3],
                    size=row[5],
                    offset=row[4],
                    filled=0 if row[1] == _NOBITS else row[5],
                )
                for at, row in self.rows
            )
        except (struct.error, IndexError, ValueError) as problem:
            if isinstance(problem, SplitError):
                raise
            raise SplitError(f"it is a damaged ELF file ({problem})") from problem
        super().__init__(data, sections)
        self.header, self.names, self.machine = header, names, header[2]

    def _relocations(self, wrappers: Section, fatbin: Section) -> Mapping[int, tuple[int | None, int]]:
        found: dict[int, tuple[int | None, int]] = {}
        pointers = range(wrappers.address + POINTER, wrappers.address + wrappers.size, WRAPPER.size)
        relative, absolute = _RELATIVE[self.machine], _ABSOLUTE[self.machine]
        for _, row in self.rows:
            if row[1] != _RELA or not row[2] & _ALLOCATED:
                continue
            words = memoryview(self.data)[row[4] : row[4] + row[5]].cast("Q").tolist()
            for index in range(0, len(words), _RELOCATION_WORDS):
                place, kind, value = words[index : index + _RELOCATION_WORDS]
                if place in pointers and kind & 0xFFFFFFFF == absolute:
                    symbols = self.sections[row[6]].offset
                    at = symbols + (kind >> 32) * _SYMBOL_SIZE + _AT_SYMBOL_VALUE
                    value += _U64.unpack_from(self.data, at)[0]
                elif place in pointers and kind != relative:
                    raise SplitError(f"a wrapper has an unknown relocation type ({kind & 0xFFFFFFFF})")
                if place in pointers:
                    at = place - POINTER - wrappers.address + wrappers.offset
                    found[at] = (row[4] + index * 8, value)
                elif kind == relative and 0 <= value - fatbin.address < fatbin.size:
                    raise SplitError(f"something besides its wrappers points into {self.FATBIN} ({place:#x})")
        return found

    def without_code(self, fat: FatFile, indexes: Mapping[int, int], reference: bytes) -> Cut:
        """Return the library without its device code; `indexes` are those of bundles by offset."""
        page = _PAGE[self.machine]
        # whole pages leave the file, so that what follows keeps its place within a page
        alignment = max(page, *(one[7] for one in self.segments if one[0] == _LOAD))
        start = up(fat.start, page)
        length = max(0, (fat.start + fat.size - start) // alignment * alignment)
        cut_size = len(self.data) - length
        at = up(cut_size, page)
        address = up(max(one[3] + one[6] for one in self.segments if one[0] == _LOAD), page)
        segments = _segments(self.segments, (start, length), (at, address, len(reference), page))
        table = b"".join(_SEGMENT.pack(*one) for one in segments)
        at_reference = at + len(table)
        names = self.names + self.REFERENCE.encode() + b"\0"
        at_names = at_reference + len(reference)
        at_sections = up(at_names + len(names), 8)
        target = address + len(table)
        place = (target, at_reference, len(reference))
        sections = [
            *self._sections((start, length), at_names, len(names)),
            (len(self.names), _PROGBITS, _ALLOCATED, *place, 0, 0, 1, 0),
        ]
        if len(segments) >= _PHNUM or len(sections) >= _SHNUM:
            raise SplitError("it has more segments or sections than an ELF header counts")
        tail = (bytes(at - cut_size) + table + reference + names).ljust(at_sections - cut_size, b"\0")
        tail += b"".join(_SECTION.pack(*one) for one in sections)
        header = list(self.header)
        header[5], header[6], header[10], header[12] = at, at_sections, len(segments), len(sections)
        # the section may begin and end within pages that other sections share
        rest = ((fat.start, start), (start + length, fat.start + fat.size))
        edits = [(0, _HEADER.pack(*header)), *((one, bytes(end - one)) for one, end in rest if end > one)]
        pointer = _U64.pack(target)
        for wrapper in fat.wrappers:
            index = _U64.pack(indexes[wrapper.bundle])
            edits += [(wrapper.at, SPLIT_MAGIC), (wrapper.at + POINTER, pointer + index)]
            if wrapper.relocation is not None:
                edits.append((wrapper.relocation + 8, _U64.pack(_RELATIVE[self.machine]) + pointer))
        return Cut(start=start, length=length, edits=tuple(edits), tail=tail)

    def _sections(self, hole: tuple[int, int], at_names: int, names: int) -> list[tuple[int, ...]]:
        start, length = hole
        found: list[tuple[int, ...]] = []
        for index, (section, (_, row)) in enumerate(zip(self.sections, self.rows, strict=True)):
            fields = list(row)
            if index == self.header[13]:
                fields[4], fields[5] = at_names, names
            elif section.name == self.FATBIN and length:
                fields[1] = _NOBITS
            elif section.offset >= start + length:
                fields[4] -= length
            found.append(tuple(fields))
        return found


def _segments(
    old: list[tuple[int, ...]], hole: tuple[int, int], new: tuple[int, int, int, int]
) -> list[tuple[int, ...]]:
    """Make the program headers: the segment of the device code in two, and one more in the end."""
    (start, length), (at, address, extra, page) = hole, new
    found: list[tuple[int, ...]] = []
    for one in old:
        kind, flags, offset, place, _, filled, size, alignment = one
        if length and offset >= start + length:
            found.append((*one[:2], offset - length, *one[3:]))
        elif length and kind == _LOAD and offset <= start and start + length <= offset + filled:
            before, middle = start - offset, place + start - offset + length
            after = filled - before - length
            grown = before + length if after else size
            found.append((kind, flags, offset, place, place, before, grown, alignment))
            if after:
                found.append((kind, flags, start, middle, middle, after, size - grown, alignment))
        else:
            found.append(one)
    total = _SEGMENT.size * (len(found) + 1)
    last = max(index for index, one in enumerate(found) if one[0] == _LOAD)
    load = (_LOAD, _READABLE, at, address, address, total + extra, total + extra, page)
    found.insert(last + 1, load)
    return [
        (*one[:2], at, address, address, total, total, one[7]) if one[0] == _PHDR else one for one in found
    ]
