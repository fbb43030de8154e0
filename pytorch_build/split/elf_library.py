"""Libraries of Linux (ELF) without their device code. Format: the System V ABI (gABI).

The pages of the bundles leave the file; what they filled stays in memory, empty. The reference, the program
headers and the section headers go behind the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from core.binaries import align, elf
from core.binaries.elf import HEADER, LOAD, PHDR, SECTION, SEGMENT, Elf, Segment
from pytorch_build.check.device_code import map_file
from pytorch_build.split.library import (
    ADDRESS,
    DeviceCode,
    Hole,
    HostLibrary,
    Library,
    Section,
    SplitError,
    Wrapper,
    damage_as_split_error,
    edits_of_wrapper,
)

if TYPE_CHECKING:
    from pathlib import Path

_X86_64 = 62
_AARCH64 = 183
# R_X86_64_RELATIVE, R_AARCH64_RELATIVE: the base address plus the addend.
_RELATIVE = {_X86_64: 8, _AARCH64: 1027}
# R_X86_64_64, R_AARCH64_ABS64: a symbol's address plus the addend.
_ABSOLUTE = {_X86_64: 1, _AARCH64: 257}
_PAGE = {_X86_64: 0x1000, _AARCH64: 0x10000}

_RELOCATION = struct.Struct("<QQQ")  # r_offset, r_info, r_addend
_INFO_IN_RELOCATION = 8
_RELATIVE_ENTRY = struct.Struct("<QQ")  # r_info, r_addend
_RELOCATION_TYPE = 0xFFFFFFFF
_SYMBOL_SIZE = 24
_VALUE_IN_SYMBOL = 8

_READABLE = 4
_ALLOCATED = 2
_PROGBITS = 1
_RELA = 4
_NOBITS = 8
# The header counts fewer segments and sections than these.
_TOO_MANY_SEGMENTS = 0xFFFF
_TOO_MANY_SECTIONS = 0xFF00


class ElfLibrary(Library):
    """An ELF library of Linux, whose device code can be taken out."""

    CODE = ".hip_fatbin"
    WRAPPERS = ".hipFatBinSegment"
    REFERENCE = ".rocm_kpack_ref"

    def __init__(self, path: Path) -> None:
        with path.open("rb") as stream:
            file = Elf(stream)
            self._header = file.header
            if self._header.machine not in _RELATIVE:
                raise SplitError("its device code is in a file for another processor")
            self._segments = file.segments
            self._section_table = file.section_table
            names = self._section_table[self._header.names_section]
            self._names = file.read(names.offset, names.size)
        self._loads = [segment for segment in self._segments if segment.kind == LOAD]
        self._page = _PAGE[self._header.machine]
        sections = [self._section(row) for row in self._section_table]
        super().__init__(map_file(path), sections)

    def _section(self, row: elf.Section) -> Section:
        """Return a section with its name, of a row of the section table."""
        name_end = self._names.index(b"\0", row.name)
        return Section(
            name=self._names[row.name : name_end].decode(),
            address=row.address,
            size=row.size,
            offset=row.offset,
            file_size=0 if row.kind == _NOBITS else row.size,
        )

    def _relocate_wrappers(self, wrappers: Sequence[Wrapper], code: Section) -> Sequence[Wrapper]:
        """Return wrappers with the bundles' addresses that relocations set when the library is loaded."""
        relative = _RELATIVE[self._header.machine]
        absolute = _ABSOLUTE[self._header.machine]
        wrapper_by_pointer = {wrapper.pointer_address: wrapper for wrapper in wrappers}
        for row in self._section_table:
            if row.kind != _RELA or not row.flags & _ALLOCATED:
                continue
            offset = row.offset
            table = self.data[row.offset : row.offset + row.size]
            for address, info, addend in _RELOCATION.iter_unpack(table):
                kind = info & _RELOCATION_TYPE
                if address in wrapper_by_pointer:
                    bundle_address = addend
                    if kind == absolute:
                        bundle_address += self._value_of_symbol(row, info >> 32)
                    elif kind != relative:
                        raise SplitError(f"a wrapper has an unknown relocation type ({kind})")
                    wrapper = wrapper_by_pointer[address]
                    wrapper_by_pointer[address] = replace(
                        wrapper,
                        bundle_address=bundle_address,
                        relocation=offset,
                    )
                elif kind == relative and 0 <= addend - code.address < code.size:
                    raise SplitError(f"something besides its wrappers points into {self.CODE} ({address:#x})")
                offset += _RELOCATION.size
        return list(wrapper_by_pointer.values())

    def _value_of_symbol(self, relocations: elf.Section, index: int) -> int:
        """Return the value of a symbol, by its index in the table that a relocation section uses."""
        symbol_table = self._section_table[relocations.link]
        symbol_offset = symbol_table.offset + index * _SYMBOL_SIZE
        value: int
        (value,) = ADDRESS.unpack_from(self.data, symbol_offset + _VALUE_IN_SYMBOL)
        return value

    @damage_as_split_error()
    def without_device_code(
        self, code: DeviceCode, index_by_bundle_offset: Mapping[int, int], reference: bytes
    ) -> HostLibrary:
        """Return the edits of the file that take its device code out and add the reference in its place."""
        hole = self._removable_pages(code)
        segments = self._new_segments(hole, len(reference))
        # The new segment holds the program headers and the reference.
        table = b"".join(SEGMENT.pack(*segment) for segment in segments)
        new_segment = segments[_last_load(segments)]
        reference_offset = new_segment.offset + len(table)
        reference_address = new_segment.address + len(table)

        names = self._names + self.REFERENCE.encode() + b"\0"
        names_offset = reference_offset + len(reference)
        sections_offset = align(names_offset + len(names), ADDRESS.size)
        reference_row = elf.Section(
            name=len(self._names),
            kind=_PROGBITS,
            flags=_ALLOCATED,
            address=reference_address,
            offset=reference_offset,
            size=len(reference),
            link=0,
            info=0,
            alignment=1,
            entry_size=0,
        )
        sections = [
            *self._moved_sections(
                hole,
                names_offset,
                len(names),
            ),
            reference_row,
        ]
        if len(segments) >= _TOO_MANY_SEGMENTS or len(sections) >= _TOO_MANY_SECTIONS:
            raise SplitError("it has more segments or sections than an ELF header counts")

        header = self._header._replace(
            segments_offset=new_segment.offset,
            sections_offset=sections_offset,
            segment_count=len(segments),
            section_count=len(sections),
        )
        edits = [(0, HEADER.pack(*header))]
        # What device code has of pages that other sections share is filled with zeros.
        edits.append((code.offset, bytes(hole.start - code.offset)))
        edits.append((hole.end, bytes(code.end - hole.end)))
        for wrapper in code.wrappers:
            index = index_by_bundle_offset[code.bundle_offset_of(wrapper)]
            edits += edits_of_wrapper(wrapper, index, reference_address)
            if wrapper.relocation is not None:
                # It sets the address of the reference, whatever symbol it went by.
                relocation = _RELATIVE_ENTRY.pack(_RELATIVE[self._header.machine], reference_address)
                edits.append((wrapper.relocation + _INFO_IN_RELOCATION, relocation))

        old_end = hole.new_offset(len(self.data))
        padding = bytes(new_segment.offset - old_end)
        tail = padding + table + reference + names
        tail = tail.ljust(sections_offset - old_end, b"\0")
        tail += b"".join(SECTION.pack(*section) for section in sections)
        return HostLibrary(
            hole=hole,
            edits=edits,
            tail=tail,
        )

    def _removable_pages(self, code: DeviceCode) -> Hole:
        """Return the whole pages that hold nothing but device code, which leave the file."""
        alignment = max(self._page, *(load.alignment for load in self._loads))
        first_page = align(code.offset, self._page)
        start = min(first_page, code.end)
        pages = (code.end - start) // alignment
        return Hole(
            start=start,
            length=pages * alignment,
        )

    def _new_segments(self, hole: Hole, reference_size: int) -> list[Segment]:
        """Return the new program headers: without the removed pages, and one more for the reference."""
        segments: list[Segment] = []
        for segment in self._segments:
            segments += _cut_segment(segment, hole)

        table_size = SEGMENT.size * (len(segments) + 1)
        end_of_memory = max(load.address + load.memory for load in self._loads)
        end_of_file = hole.new_offset(len(self.data))
        offset = align(end_of_file, self._page)
        address = align(end_of_memory, self._page)
        new_segment = Segment(
            kind=LOAD,
            flags=_READABLE,
            offset=offset,
            address=address,
            physical=address,
            size=table_size + reference_size,
            memory=table_size + reference_size,
            alignment=self._page,
        )
        # Segments to load are in the order of their addresses, so this one is the last of them.
        segments.insert(_last_load(segments) + 1, new_segment)

        for index, segment in enumerate(segments):
            if segment.kind == PHDR:
                segments[index] = segment._replace(
                    offset=offset, address=address, physical=address, size=table_size, memory=table_size
                )
        return segments

    def _moved_sections(
        self,
        hole: Hole,
        names_offset: int,
        names_size: int,
    ) -> list[elf.Section]:
        """Return the new section headers: offsets moved, the device code without bytes in the file."""
        rows: list[elf.Section] = []
        for row, section in zip(self._section_table, self.sections, strict=True):
            moved_row = row._replace(offset=hole.new_offset(row.offset))
            if section.name == self.CODE and hole.length:
                moved_row = moved_row._replace(kind=_NOBITS)
            rows.append(moved_row)

        names_index = self._header.names_section
        rows[names_index] = rows[names_index]._replace(
            offset=names_offset,
            size=names_size,
        )
        return rows


def _last_load(segments: Sequence[Segment]) -> int:
    """Return the index of the last segment that is loaded (PT_LOAD)."""
    return max(index for index, segment in enumerate(segments) if segment.kind == LOAD)


def _cut_segment(segment: Segment, hole: Hole) -> list[Segment]:
    """Return a segment without the removed bytes: two segments where something follows them."""
    segment_end = segment.offset + segment.size
    is_around = segment.offset <= hole.start and hole.end <= segment_end
    if segment.kind != LOAD or not is_around or not hole.length:
        new_offset = hole.new_offset(segment.offset)
        return [segment._replace(offset=new_offset)]

    size_before = hole.start - segment.offset
    size_after = segment.size - size_before - hole.length
    before = segment._replace(
        physical=segment.address,
        size=size_before,
    )
    if not size_after:
        return [before]

    memory_before = size_before + hole.length
    address_after = segment.address + memory_before
    after = segment._replace(
        offset=hole.start,
        address=address_after,
        physical=address_after,
        size=size_after,
        memory=segment.memory - memory_before,
    )
    return [before._replace(memory=memory_before), after]
