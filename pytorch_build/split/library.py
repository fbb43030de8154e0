"""Libraries of Linux (ELF) and Windows (PE) without their device code, which say where to find it.

Each wrapper that registers a bundle gets another magic, the bundle's index, and the address of a reference
in place of the bundle's. Wrappers: clang's CGCUDANV.cpp, and CLR's hip_fatbin.cpp for split ones.

ELF: the bundles' pages leave the file; what they filled stays in memory, empty. The reference, the program
headers and the section headers go behind the rest. Format: the System V ABI (gABI).

PE: the device code has a section of its own, which keeps its place in memory and loses its bytes; the
reference gets a section behind the others. Format: Microsoft's PE Format page.
"""

from __future__ import annotations

import mmap
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from core.binaries import align, pe
from core.binaries.elf import HEADER, LOAD, PHDR, SECTION, SEGMENT, Segment
from core.binaries.elf import Section as Row

if TYPE_CHECKING:
    from pytorch_build.check.bundles import Data

# struct __CudaFatBinaryWrapper of clang and HIP: magic, version, the bundle's address, and a word that the
# runtime takes for the bundle's index where the magic says that the bundle is elsewhere.
WRAPPER = struct.Struct("<4sIQQ")
POINTER = 8  # offset of the address in a wrapper
SPLIT_MAGIC = b"HIPK"
_MAGIC = b"FPIH"
_COPIED = 1 << 20


class SplitError(ValueError):
    """A file whose device code cannot be moved. Callers name the file."""


class AlreadySplitError(SplitError):
    """A file whose device code is elsewhere."""


@contextmanager
def refused_where_damaged() -> Iterator[None]:
    """Turn what a damaged library makes its readers raise into a SplitError."""
    try:
        yield
    except SplitError:
        raise
    except (struct.error, ValueError, TypeError, ArithmeticError, IndexError, MemoryError) as problem:
        raise SplitError(f"it is a damaged library ({problem})") from problem


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section: what it fills in memory and in the file, and where its header is."""

    name: str
    at: int
    address: int
    size: int
    offset: int
    filled: int


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """What registers one bundle when the library is loaded."""

    at: int
    bundle: int
    relocation: int | None = None


@dataclass(frozen=True, kw_only=True)
class FatFile:
    """The device code of a library."""

    start: int
    size: int
    wrappers: tuple[Wrapper, ...]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A file as another file: with bytes left out, changed and added."""

    start: int
    length: int
    edits: tuple[tuple[int, bytes], ...]
    tail: bytes

    def written(self, source: Path, target: Path) -> None:
        """Write the new file."""
        with source.open("rb") as old, target.open("w+b") as new:
            for begin, end in ((0, self.start), (self.start + self.length, source.stat().st_size)):
                old.seek(begin)
                left = end - begin
                while left:
                    left -= new.write(old.read(min(_COPIED, left)))
            new.write(self.tail)
            new.flush()
            with mmap.mmap(new.fileno(), 0) as mapping:
                for offset, data in self.edits:
                    place = offset - self.length if offset >= self.start + self.length else offset
                    mapping[place : place + len(data)] = data


class Library(ABC):
    """A parsed library."""

    FATBIN: ClassVar[str]
    WRAPPERS: ClassVar[str]
    REFERENCE: ClassVar[str]

    def __init__(self, data: Data, sections: tuple[Section, ...], base: int = 0) -> None:
        self.data = data
        self.sections = sections
        self.base = base  # what addresses in the file begin with

    def section(self, name: str) -> Section | None:
        """Find a section."""
        return next((one for one in self.sections if one.name == name), None)

    @refused_where_damaged()
    def fat(self) -> FatFile | None:
        """Find the device code, and who registers it; None where it has none."""
        fatbin, wrappers = self.section(self.FATBIN), self.section(self.WRAPPERS)
        if self.section(self.REFERENCE) is not None:
            raise AlreadySplitError("its device code was moved already")
        if fatbin is None or not fatbin.filled:
            return None
        if wrappers is None:
            raise SplitError(f"it has {self.FATBIN} and no {self.WRAPPERS} that registers it")
        registered = list(self._wrappers(wrappers))
        relocated = self._relocations(wrappers, fatbin)
        found = []
        for at, magic, written in registered:
            if magic != _MAGIC:
                raise SplitError(f"a wrapper of its device code has the magic {magic!r}")
            relocation, value = relocated.get(at, (None, written))
            place = value - self.base - fatbin.address
            if not 0 <= place < fatbin.size:
                raise SplitError(f"a wrapper points outside of {self.FATBIN} ({value:#x})")
            found.append(Wrapper(at=at, bundle=place, relocation=relocation))
        return FatFile(start=fatbin.offset, size=min(fatbin.size, fatbin.filled), wrappers=tuple(found))

    @refused_where_damaged()
    def reference(self) -> bytes | None:
        """Return what says where the device code is; None where it was not moved."""
        section, wrappers = self.section(self.REFERENCE), self.section(self.WRAPPERS)
        if section is None:
            return None
        for _, magic, address in self._wrappers(wrappers) if wrappers else ():
            if magic != SPLIT_MAGIC or address != self.base + section.address:
                raise SplitError(f"a wrapper of its device code does not point to {self.REFERENCE}")
        return bytes(self.data[section.offset : section.offset + section.filled])

    def _wrappers(self, section: Section) -> Iterator[tuple[int, bytes, int]]:
        """Yield the offset of each wrapper, its magic, and the address that it holds."""
        size = min(section.size, section.filled)
        if size % WRAPPER.size:
            raise SplitError(
                f"the wrappers of its device code take {size} bytes, not a multiple of {WRAPPER.size}"
            )
        for at in range(section.offset, section.offset + size, WRAPPER.size):
            magic, _, address, _ = WRAPPER.unpack_from(self.data, at)
            yield at, magic, address

    @abstractmethod
    def _relocations(self, wrappers: Section, fatbin: Section) -> Mapping[int, tuple[int | None, int]]:
        """Find the relocations of the wrappers' pointers: wrapper -> offset in the file, and the value."""

    @abstractmethod
    def without_code(self, fat: FatFile, indexes: Mapping[int, int], reference: bytes) -> Cut:
        """Return the library without its device code; `indexes` are those of bundles by offset."""


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

    @refused_where_damaged()
    def __init__(self, data: Data) -> None:
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

    @refused_where_damaged()
    def without_code(self, fat: FatFile, indexes: Mapping[int, int], reference: bytes) -> Cut:
        """Return the library without its device code; `indexes` are those of bundles by offset."""
        page = _PAGE[self.machine]
        # whole pages leave the file, so that what follows keeps its place within a page
        alignment = max(page, *(one.alignment for one in self.segments if one.kind == LOAD))
        start = align(fat.start, page)
        length = max(0, (fat.start + fat.size - start) // alignment * alignment)
        cut_size = len(self.data) - length
        at = align(cut_size, page)
        address = align(max(one.address + one.memory for one in self.segments if one.kind == LOAD), page)
        segments = _segments(self.segments, (start, length), (at, address, len(reference), page))
        table = b"".join(SEGMENT.pack(*one) for one in segments)
        at_reference = at + len(table)
        names = self.names + self.REFERENCE.encode() + b"\0"
        at_names = at_reference + len(reference)
        at_sections = align(at_names + len(names), 8)
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
        found = [
            row._replace(offset=row.offset - length) if row.offset >= start + length else row
            for _, row in self.rows
        ]
        for index, section in enumerate(self.sections):
            if section.name == self.FATBIN and length:
                found[index] = self.rows[index][1]._replace(kind=_NOBITS)
        found[self.header[13]] = found[self.header[13]]._replace(offset=at_names, size=names)
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


_U16, _U32 = struct.Struct("<H"), struct.Struct("<I")
# Offsets in a PE32+ optional header.
_IMAGE_BASE, _ALIGNMENTS, _IMAGE_SIZE, _CHECKSUM, _DIRECTORIES = 24, 32, 56, 64, 112
_CERTIFICATES, _BASE_RELOCATIONS, _DEBUG = 4, 5, 6
_INITIALIZED_READABLE = 0x40000040
_DIR64 = 10
# A linker may take pages of this size; the format has no limit, and what is aligned is filled with zeros.
_LARGEST_ALIGNMENT = 4 << 20
_DEBUG_ENTRY, _AT_DEBUG_POINTER = 28, 24


class PeLibrary(Library):
    """A DLL of Windows."""

    FATBIN, WRAPPERS, REFERENCE = ".hip_fat", ".hipFatB", ".kpackrf"

    @refused_where_damaged()
    def __init__(self, data: Data) -> None:
        self.coff = _U32.unpack_from(data, pe.PLACE_OF_PE_OFFSET)[0] + 4
        header = pe.CoffHeader(*pe.COFF.unpack_from(data, self.coff))
        self.optional = self.coff + pe.COFF.size
        if _U16.unpack_from(data, self.optional)[0] != pe.PE32_PLUS:
            raise SplitError("its device code is in a 32-bit file")
        table = self.optional + header.optional_size
        sections = tuple(
            _pe_section(data, table + index * pe.SECTION.size) for index in range(header.sections)
        )
        base = _U64.unpack_from(data, self.optional + _IMAGE_BASE)[0]
        alignments = struct.unpack_from("<II", data, self.optional + _ALIGNMENTS)
        super().__init__(data, sections, base)
        self.alignment, self.file_alignment = alignments
        if not (0 < self.alignment <= _LARGEST_ALIGNMENT and 0 < self.file_alignment <= _LARGEST_ALIGNMENT):
            raise SplitError(f"it aligns its sections to {self.alignment} and {self.file_alignment} bytes")

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

    @refused_where_damaged()
    def without_code(self, fat: FatFile, indexes: Mapping[int, int], reference: bytes) -> Cut:
        """Return the DLL without its device code; `indexes` are those of bundles by offset."""
        fatbin = next(one for one in self.sections if one.offset == fat.start and one.filled)
        length = fatbin.filled
        table_end = self.sections[-1].at + pe.SECTION.size
        if table_end + pe.SECTION.size > min(one.offset for one in self.sections if one.filled):
            raise SplitError("its headers have no room for another section")
        cut_size = len(self.data) - length
        at = align(cut_size, self.file_alignment)
        address = align(max(one.address + max(one.size, one.filled) for one in self.sections), self.alignment)
        room = align(len(reference), self.file_alignment)
        row = (self.REFERENCE.encode(), len(reference), address, room, at, 0, 0, 0, 0, _INITIALIZED_READABLE)
        edits = [
            (table_end, pe.SECTION.pack(*row)),
            (self.coff + 2, _U16.pack(len(self.sections) + 1)),
            (self.optional + _IMAGE_SIZE, _U32.pack(align(address + len(reference), self.alignment))),
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


def _pe_section(data: Data, at: int) -> Section:
    header = pe.SectionHeader(*pe.SECTION.unpack_from(data, at))
    return Section(
        name=header.name,
        at=at,
        address=header.address,
        size=header.memory,
        offset=header.offset,
        filled=header.size,
    )
