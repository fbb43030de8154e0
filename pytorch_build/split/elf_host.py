"""The ELF side of a split: a library whose device code is gone, and which says where to find it.

The bundles' pages leave the file; what they filled stays in memory, empty. The reference, the program
headers and the section headers go behind the rest. Format: the System V ABI (gABI).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from core.binaries.elf import HEADER, LOAD, PHDR, SECTION, SEGMENT, Segment
from core.binaries.elf import Section as Row
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

_U64 = struct.Struct("<Q")
_X86_64 = 62
# R_X86_64_RELATIVE, R_AARCH64_RELATIVE: the base address plus the addend.
_RELATIVE = {_X86_64: 8, 183: 1027}
# R_X86_64_64, R_AARCH64_ABS64: a symbol's address plus the addend.
_ABSOLUTE = {_X86_64: 1, 183: 257}
_SYMBOL_SIZE, _AT_SYMBOL_VALUE = 24, 8
_PAGE = {_X86_64: 0x1000, 183: 0x10000}
_READABLE = 4
_PROGBITS, _RELA, _NOBITS, _ALLOCATED = 1, 4, 8, 2
_RELOCATION_WORDS = 3  # r_offset, r_info, r_addend
_PHNUM, _SHNUM = 0xFFFF, 0xFF00


class ElfLibrary(Library):
    """A library of Linux."""

    FATBIN, WRAPPERS, REFERENCE = ".hip_fatbin", ".hipFatBinSegment", ".rocm_kpack_ref"

    def __init__(self, data: Data) -> None:
        try:
            header = HEADER.unpack_from(data, 0)
            if header[2] not in _RELATIVE or header[0][4:6] != b"\x02\x01":
                raise SplitError("its device code is in a file for another processor")
            places = (header[5] + index * SEGMENT.size for index in range(header[10]))
            self.segments = [Segment(*SEGMENT.unpack_from(data, at)) for at in places]
            places = (header[6] + index * SECTION.size for index in range(header[12]))
            self.rows = [(at, Row(*SECTION.unpack_from(data, at))) for at in places]
            table = self.rows[header[13]][1]
            names = bytes(data[table.offset : table.offset + table.size])
            sections = tuple(
                Section(
                    name=names[row.name : names.index(b"\0", row.name)].decode(),
                    at=at,
                    address=row.address,
                    size=row.size,
                    offset=row.offset,
                    filled=0 if row.kind == _NOBITS else row.size,
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
            if row.kind != _RELA or not row.flags & _ALLOCATED:
                continue
            words = memoryview(self.data)[row.offset : row.offset + row.size].cast("Q").tolist()
            for index in range(0, len(words), _RELOCATION_WORDS):
                place, kind, value = words[index : index + _RELOCATION_WORDS]
                if place in pointers and kind & 0xFFFFFFFF == absolute:
                    symbols = self.sections[row.link].offset
                    at = symbols + (kind >> 32) * _SYMBOL_SIZE + _AT_SYMBOL_VALUE
                    value += _U64.unpack_from(self.data, at)[0]
                elif place in pointers and kind != relative:
                    raise SplitError(f"a wrapper has an unknown relocation type ({kind & 0xFFFFFFFF})")
                if place in pointers:
                    at = place - POINTER - wrappers.address + wrappers.offset
                    found[at] = (row.offset + index * 8, value)
                elif kind == relative and 0 <= value - fatbin.address < fatbin.size:
                    raise SplitError(f"something besides its wrappers points into {self.FATBIN} ({place:#x})")
        return found

    def without_code(self, fat: FatFile, indexes: Mapping[int, int], reference: bytes) -> Cut:
        """Return the library without its device code; `indexes` are those of bundles by offset."""
        page = _PAGE[self.machine]
        # whole pages leave the file, so that what follows keeps its place within a page
        alignment = max(page, *(one.alignment for one in self.segments if one.kind == LOAD))
        start = up(fat.start, page)
        length = max(0, (fat.start + fat.size - start) // alignment * alignment)
        cut_size = len(self.data) - length
        at = up(cut_size, page)
        address = up(max(one.address + one.memory for one in self.segments if one.kind == LOAD), page)
        segments = _segments(self.segments, (start, length), (at, address, len(reference), page))
        table = b"".join(SEGMENT.pack(*one) for one in segments)
        at_reference = at + len(table)
        names = self.names + self.REFERENCE.encode() + b"\0"
        at_names = at_reference + len(reference)
        at_sections = up(at_names + len(names), 8)
        target = address + len(table)
        place = (target, at_reference, len(reference))
        sections = [
            *self._sections((start, length), at_names, len(names)),
            Row(len(self.names), _PROGBITS, _ALLOCATED, *place, 0, 0, 1, 0),
        ]
        if len(segments) >= _PHNUM or len(sections) >= _SHNUM:
            raise SplitError("it has more segments or sections than an ELF header counts")
        tail = (bytes(at - cut_size) + table + reference + names).ljust(at_sections - cut_size, b"\0")
        tail += b"".join(SECTION.pack(*one) for one in sections)
        header = list(self.header)
        header[5], header[6], header[10], header[12] = at, at_sections, len(segments), len(sections)
        # the section may begin and end within pages that other sections share
        rest = ((fat.start, start), (start + length, fat.start + fat.size))
        edits = [(0, HEADER.pack(*header)), *((one, bytes(end - one)) for one, end in rest if end > one)]
        pointer = _U64.pack(target)
        for wrapper in fat.wrappers:
            index = _U64.pack(indexes[wrapper.bundle])
            edits += [(wrapper.at, SPLIT_MAGIC), (wrapper.at + POINTER, pointer + index)]
            if wrapper.relocation is not None:
                edits.append((wrapper.relocation + 8, _U64.pack(_RELATIVE[self.machine]) + pointer))
        return Cut(start=start, length=length, edits=tuple(edits), tail=tail)

    def _sections(self, hole: tuple[int, int], at_names: int, names: int) -> list[Row]:
        start, length = hole
        found: list[Row] = []
        for index, (section, (_, row)) in enumerate(zip(self.sections, self.rows, strict=True)):
            if index == self.header[13]:
                found.append(row._replace(offset=at_names, size=names))
            elif section.name == self.FATBIN and length:
                found.append(row._replace(kind=_NOBITS))
            elif row.offset >= start + length:
                found.append(row._replace(offset=row.offset - length))
            else:
                found.append(row)
        return found


def _segments(old: list[Segment], hole: tuple[int, int], new: tuple[int, int, int, int]) -> list[Segment]:
    """Make the program headers: the segment of the device code in two, and one more in the end."""
    (start, length), (at, address, extra, page) = hole, new
    found: list[Segment] = []
    for one in old:
        end = one.offset + one.size
        if length and one.offset >= start + length:
            found.append(one._replace(offset=one.offset - length))
        elif length and one.kind == LOAD and one.offset <= start and start + length <= end:
            before = start - one.offset
            after = one.size - before - length
            middle = one.address + before + length
            memory = before + length if after else one.memory
            found.append(one._replace(physical=one.address, size=before, memory=memory))
            if after:
                rest = one._replace(offset=start, address=middle, physical=middle)
                found.append(rest._replace(size=after, memory=one.memory - memory))
        else:
            found.append(one)
    total = SEGMENT.size * (len(found) + 1)
    last = max(index for index, one in enumerate(found) if one.kind == LOAD)
    found.insert(last + 1, Segment(LOAD, _READABLE, at, address, address, total + extra, total + extra, page))
    place = {"offset": at, "address": address, "physical": address, "size": total, "memory": total}
    return [one._replace(**place) if one.kind == PHDR else one for one in found]
