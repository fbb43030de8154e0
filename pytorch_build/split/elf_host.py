"""The ELF side of a split: a library whose device code is gone, and which says where to find it.

Each wrapper that registers a bundle gets another magic, the bundle's index, and the address of a reference
in place of the bundle's (relocations included). The bundles' pages leave the file; what they filled stays
in memory, empty. The reference, the program headers and the section headers go behind the rest. Format:
the System V ABI (gABI); wrappers: clang's CGCUDANV.cpp, and CLR's hip_fatbin.cpp for split ones.
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
    from collections.abc import Mapping, Sequence

    from pytorch_build.check.bundles import Data

REFERENCE = ".rocm_kpack_ref"
_FATBIN, _WRAPPERS = ".hip_fatbin", ".hipFatBinSegment"
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


@dataclass(frozen=True, kw_only=True)
class _Section:
    name: str
    fields: tuple[int, ...]

    @property
    def kind(self) -> int:
        return self.fields[1]

    @property
    def address(self) -> int:
        return self.fields[3]

    @property
    def offset(self) -> int:
        return self.fields[4]

    @property
    def size(self) -> int:
        return self.fields[5]


@dataclass(frozen=True, kw_only=True)
class _Elf:
    header: tuple[int, ...]
    segments: tuple[tuple[int, ...], ...]
    sections: tuple[_Section, ...]
    names: bytes

    @property
    def machine(self) -> int:
        return self.header[2]

    def section(self, name: str) -> _Section | None:
        return next((one for one in self.sections if one.name == name), None)


def read(data: Data) -> FatFile | None:
    """Find the device code of a library, and who registers it."""
    elf = _parsed(data)
    fatbin, wrappers = elf.section(_FATBIN), elf.section(_WRAPPERS)
    if elf.section(REFERENCE) is not None:
        raise AlreadySplitError
    if fatbin is None or fatbin.kind == _NOBITS or not fatbin.size:
        return None
    if wrappers is None:
        raise SplitError(f"it has {_FATBIN} and no {_WRAPPERS} that registers it")
    pointers = range(wrappers.address + 8, wrappers.address + wrappers.size, WRAPPER.size)
    relocations = _relocations(data, elf, pointers, fatbin)
    found = []
    for at, written in wrappers_in(data, wrappers.offset, wrappers.size):
        pointer = wrappers.address + at - wrappers.offset + 8
        relocation, value = relocations.get(pointer, (None, written))
        place = value - fatbin.address
        if not 0 <= place < fatbin.size:
            raise SplitError(f"a wrapper points outside of {_FATBIN} ({value:#x})")
        found.append(Wrapper(at=at, bundle=place, relocation=relocation))
    return FatFile(start=fatbin.offset, size=fatbin.size, wrappers=tuple(found))


def reference_in(data: Data) -> bytes | None:
    """Return the reference of a library whose device code was moved; None for any other."""
    elf = _parsed(data)
    section, wrappers = elf.section(REFERENCE), elf.section(_WRAPPERS)
    if section is None:
        return None
    for at in range(wrappers.offset, wrappers.offset + wrappers.size, WRAPPER.size) if wrappers else ():
        magic, _, address, _ = WRAPPER.unpack_from(data, at)
        if magic != SPLIT_MAGIC or address != section.address:
            raise SplitError(f"a wrapper of its device code does not point to {REFERENCE}")
    return bytes(data[section.offset : section.offset + section.size])


def without_code(data: Data, fat: FatFile, indexes: Mapping[int, int], reference: bytes) -> Cut:
    """Say what a library becomes without its device code."""
    elf = _parsed(data)
    page = _PAGE[elf.machine]
    start, length = _hole(elf, fat, page)
    cut_size = len(data) - length
    at = up(cut_size, page)
    address = up(max(one[3] + one[6] for one in elf.segments if one[0] == _LOAD), page)
    segments = _segments(elf, (start, length), (at, address, len(reference), page))
    table = b"".join(_SEGMENT.pack(*one) for one in segments)
    at_reference = at + len(table)
    names = elf.names + REFERENCE.encode() + b"\0"
    at_names = at_reference + len(reference)
    at_sections = up(at_names + len(names), 8)
    new = (
        len(elf.names),
        _PROGBITS,
        _ALLOCATED,
        address + len(table),
        at_reference,
        len(reference),
        0,
        0,
        1,
        0,
    )
    sections = [*_sections(elf, (start, length), at_names, len(names)), new]
    tail = (bytes(at - cut_size) + table + reference + names).ljust(at_sections - cut_size, b"\0")
    tail += b"".join(_SECTION.pack(*one) for one in sections)
    header = list(elf.header)
    header[5], header[6], header[10], header[12] = at, at_sections, len(segments), len(sections)
    if len(segments) >= _PHNUM or len(sections) >= _SHNUM:
        raise SplitError("it has more segments or sections than an ELF header counts")
    # the section may begin and end within pages that other sections share
    rest = ((fat.start, start), (start + length, fat.start + fat.size))
    edits = [(0, _HEADER.pack(*header)), *((one, bytes(end - one)) for one, end in rest if end > one)]
    target = _U64.pack(address + len(table))
    for wrapper in fat.wrappers:
        edits += [
            (wrapper.at, SPLIT_MAGIC),
            (wrapper.at + 8, target + _U64.pack(indexes[wrapper.bundle])),
        ]
        if wrapper.relocation is not None:
            info = _U64.pack(_RELATIVE[elf.machine])
            edits.append((wrapper.relocation + 8, info + target))
    return Cut(start=start, length=length, edits=tuple(edits), tail=tail)


def _parsed(data: Data) -> _Elf:
    try:
        header = _HEADER.unpack_from(data, 0)
        if header[2] not in _RELATIVE or header[0][4:6] != b"\x02\x01":
            raise SplitError("its device code is in a file for another processor")
        segments = tuple(
            _SEGMENT.unpack_from(data, header[5] + index * _SEGMENT.size) for index in range(header[10])
        )
        rows = [_SECTION.unpack_from(data, header[6] + index * _SECTION.size) for index in range(header[12])]
        offset, size = rows[header[13]][4:6]
        names = bytes(data[offset : offset + size])
        sections = tuple(
            _Section(name=names[row[0] : names.index(b"\0", row[0])].decode(), fields=row) for row in rows
        )
    except (struct.error, IndexError, ValueError) as problem:
        if isinstance(problem, SplitError):
            raise
        raise SplitError(f"it is a damaged ELF file ({problem})") from problem
    return _Elf(header=header, segments=segments, sections=sections, names=names)


def _relocations(data: Data, elf: _Elf, pointers: range, fatbin: _Section) -> dict[int, tuple[int, int]]:
    """Find the relocations of the wrappers' pointers: address -> offset in the file, and the value."""
    found: dict[int, tuple[int, int]] = {}
    relative, absolute = _RELATIVE[elf.machine], _ABSOLUTE[elf.machine]
    for section in elf.sections:
        if section.kind != _RELA or not section.fields[2] & _ALLOCATED:
            continue
        words = memoryview(data)[section.offset : section.offset + section.size].cast("Q").tolist()
        for index in range(0, len(words), _RELOCATION_WORDS):
            place, kind, value = words[index : index + _RELOCATION_WORDS]
            if place in pointers and kind & 0xFFFFFFFF == absolute:
                symbols = elf.sections[section.fields[6]].offset
                at = symbols + (kind >> 32) * _SYMBOL_SIZE + _AT_SYMBOL_VALUE
                value += _U64.unpack_from(data, at)[0]
            elif place in pointers and kind != relative:
                raise SplitError(
                    f"a wrapper is relocated in a way that is not known (type {kind & 0xFFFFFFFF})"
                )
            if place in pointers:
                found[place] = (section.offset + index * 8, value)
            elif kind == relative and 0 <= value - fatbin.address < fatbin.size:
                raise SplitError(f"something besides its wrappers points into {_FATBIN} ({place:#x})")
    return found


def _hole(elf: _Elf, fat: FatFile, page: int) -> tuple[int, int]:
    """Choose the pages that leave the file, so that what follows keeps its place within a page."""
    alignment = max(page, *(one[7] for one in elf.segments if one[0] == _LOAD))
    start = up(fat.start, page)
    return start, max(0, (fat.start + fat.size - start) // alignment * alignment)


def _segments(elf: _Elf, hole: tuple[int, int], new: tuple[int, int, int, int]) -> list[tuple[int, ...]]:
    """Make the program headers: the segment of the device code in two, and one more in the end."""
    (start, length), (at, address, extra, page) = hole, new
    found: list[tuple[int, ...]] = []
    for one in elf.segments:
        kind, flags, offset, place, _, filled, size, alignment = one
        if length and offset >= start + length:
            found.append((*one[:2], offset - length, *one[3:]))
        elif length and kind == _LOAD and offset <= start and start + length <= offset + filled:
            before, middle = start - offset, place + start - offset + length
            after = filled - before - length
            if after:
                found.append((kind, flags, offset, place, place, before, before + length, alignment))
                left = size - before - length
                found.append((kind, flags, start, middle, middle, after, left, alignment))
            else:
                found.append((kind, flags, offset, place, place, before, size, alignment))
        else:
            found.append(one)
    total = _SEGMENT.size * (len(found) + 1)
    load = (_LOAD, _READABLE, at, address, address, total + extra, total + extra, page)
    last = max(index for index, one in enumerate(found) if one[0] == _LOAD)
    found.insert(last + 1, load)
    return [
        (*one[:2], at, address, address, total, total, one[7]) if one[0] == _PHDR else one for one in found
    ]


def _sections(elf: _Elf, hole: tuple[int, int], at_names: int, names: int) -> Sequence[tuple[int, ...]]:
    start, length = hole
    found: list[tuple[int, ...]] = []
    for index, section in enumerate(elf.sections):
        fields = list(section.fields)
        if index == elf.header[13]:
            fields[4], fields[5] = at_names, names
        elif section.name == _FATBIN and length:
            fields[1] = _NOBITS
        elif section.offset >= start + length:
            fields[4] -= length
        found.append(tuple(fields))
    return found
