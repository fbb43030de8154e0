"""DLLs of Windows (PE) without their device code. Format: Microsoft's PE Format page.

The device code has a section of its own, which keeps its place in memory and loses its bytes; the reference
gets a section behind the others.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from core.binaries import align, pe
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

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_ALIGNMENTS = struct.Struct("<II")
_SIGNATURE_SIZE = 4
_SECTION_COUNT_IN_COFF = 2
_SYMBOLS_IN_COFF = 8
_SIZE_IN_SECTION = 16  # then comes the offset
_OFFSET_IN_SECTION = 20
# Offsets in a PE32+ optional header.
_IMAGE_BASE = 24
_ALIGNMENTS_OFFSET = 32
_IMAGE_SIZE = 56
_CHECKSUM = 64
_DIRECTORY_COUNT = 108
_DIRECTORIES = 112
_DIRECTORY_SIZE = 8
# Indexes of directories.
_CERTIFICATES = 4
_BASE_RELOCATIONS = 5
_DEBUG = 6

_INITIALIZED_READABLE = 0x40000040
_BLOCK_HEADER_SIZE = 8
_TYPE_OF_RELOCATION = 12  # bits behind it
_PLACE_IN_PAGE = 0xFFF
_64_BITS = 10
_DEBUG_ENTRY_SIZE = 28
_OFFSET_IN_DEBUG_ENTRY = 24
# A linker may take pages of this size; the format has no limit, and what is aligned is filled with zeros.
_LARGEST_ALIGNMENT = 4 << 20


class PeLibrary(Library):
    """A DLL of Windows, whose device code can be taken out."""

    CODE = ".hip_fat"
    WRAPPERS = ".hipFatB"
    REFERENCE = ".kpackrf"

    def __init__(self, path: Path) -> None:
        data = map_file(path)
        signature: int
        (signature,) = _U32.unpack_from(data, pe.PLACE_OF_PE_OFFSET)
        self._coff = signature + _SIGNATURE_SIZE
        header = pe.CoffHeader(*pe.COFF.unpack_from(data, self._coff))
        self._optional = self._coff + pe.COFF.size
        (magic,) = _U16.unpack_from(data, self._optional)
        if magic != pe.PE32_PLUS:
            raise SplitError("its device code is in a 32-bit file")

        self._table = self._optional + header.optional_size
        sections: list[Section] = []
        for index in range(header.sections):
            section_header = pe.SectionHeader(
                *pe.SECTION.unpack_from(data, self._offset_of_section_header(index))
            )
            section = Section(
                name=section_header.name,
                address=section_header.address,
                size=section_header.memory,
                offset=section_header.offset,
                file_size=section_header.size,
            )
            sections.append(section)
        (image_base,) = ADDRESS.unpack_from(data, self._optional + _IMAGE_BASE)
        super().__init__(data, sections, image_base)

        alignments = _ALIGNMENTS.unpack_from(data, self._optional + _ALIGNMENTS_OFFSET)
        self._alignment, self._file_alignment = alignments
        if not all(0 < alignment <= _LARGEST_ALIGNMENT for alignment in alignments):
            raise SplitError(f"it aligns its sections to {self._alignment} and {self._file_alignment} bytes")

    def _u32(self, offset: int) -> int:
        """Return the 32-bit number at an offset in the file."""
        value: int
        (value,) = _U32.unpack_from(self.data, offset)
        return value

    def _offset_of_section_header(self, section: int) -> int:
        """Return the offset in the file of a section's header, by the section's number."""
        return self._table + section * pe.SECTION.size

    def _offset_of_directory(self, index: int) -> int:
        """Return the offset in the file of a data directory's entry, its address and size."""
        return self._optional + _DIRECTORIES + _DIRECTORY_SIZE * index

    def _directory(self, index: int) -> tuple[int, int]:
        """Return the address and the size of a data directory's table; zeros where it has none."""
        if index >= self._u32(self._optional + _DIRECTORY_COUNT):
            return 0, 0
        offset = self._offset_of_directory(index)
        return self._u32(offset), self._u32(offset + 4)

    def _range_of_directory(self, index: int) -> range:
        """Return the range of offsets in the file that a data directory's table takes."""
        address, size = self._directory(index)
        if not address:
            return range(0)
        offset = self._offset_of_address(address)
        return range(offset, offset + size)

    def _offset_of_address(self, address: int) -> int:
        """Return the offset in the file of an address in memory."""
        for section in self.sections:
            if section.address <= address < section.address + section.file_size:
                return section.offset + address - section.address
        raise SplitError(f"an address outside of its sections ({address:#x})")

    def _relocate_wrappers(self, wrappers: Sequence[Wrapper], code: Section) -> Sequence[Wrapper]:
        """Return the wrappers, whose bundles' addresses the file has; another pointer to code is an error."""
        # Base relocations only add to the addresses that are in the file.
        pointer_addresses = {wrapper.pointer_address for wrapper in wrappers}
        code_address = self.image_base + code.address
        for address in self._relocated_addresses():
            (value,) = ADDRESS.unpack_from(self.data, self._offset_of_address(address))
            is_in_code = code_address <= value < code_address + code.size
            if is_in_code and address not in pointer_addresses:
                raise SplitError(f"something besides its wrappers points into {self.CODE} ({address:#x})")
        return wrappers

    def _relocated_addresses(self) -> Iterator[int]:
        """Yield the addresses in memory of pointers that base relocations adjust."""
        table = self._range_of_directory(_BASE_RELOCATIONS)
        position = table.start
        while position < table.stop:
            page = self._u32(position)
            block_size = self._u32(position + 4)
            if block_size < _BLOCK_HEADER_SIZE:
                raise SplitError("its base relocations are damaged")
            block = self.data[position + _BLOCK_HEADER_SIZE : position + block_size]
            for (relocation,) in _U16.iter_unpack(block):
                if relocation >> _TYPE_OF_RELOCATION == _64_BITS:
                    yield page + (relocation & _PLACE_IN_PAGE)
            position += block_size

    @damage_as_split_error()
    def without_device_code(
        self, code: DeviceCode, index_by_bundle_offset: Mapping[int, int], reference: bytes
    ) -> HostLibrary:
        """Return the edits of the file that take its device code out and add the reference in its place."""
        code_index = [section.name for section in self.sections].index(self.CODE)
        code_header = self._offset_of_section_header(code_index)
        hole = Hole(
            start=code.offset,
            length=self.sections[code_index].file_size,
        )
        reference_header = self._offset_of_section_header(len(self.sections))
        first_content = min(section.offset for section in self.sections if section.file_size)
        if reference_header + pe.SECTION.size > first_content:
            raise SplitError("its headers have no room for another section")

        end_of_memory = 0
        for section in self.sections:
            section_end = section.address + max(section.size, section.file_size)
            end_of_memory = max(end_of_memory, section_end)
        address = align(end_of_memory, self._alignment)
        old_end = hole.new_offset(len(self.data))
        header = pe.SectionHeader(
            raw_name=self.REFERENCE.encode(),
            memory=len(reference),
            address=address,
            size=align(len(reference), self._file_alignment),
            offset=align(old_end, self._file_alignment),
            relocations_offset=0,
            line_numbers_offset=0,
            relocations=0,
            line_numbers=0,
            flags=_INITIALIZED_READABLE,
        )
        image_size = align(address + len(reference), self._alignment)
        edits = [
            (reference_header, pe.SECTION.pack(*header)),
            (self._coff + _SECTION_COUNT_IN_COFF, _U16.pack(len(self.sections) + 1)),
            (self._optional + _IMAGE_SIZE, _U32.pack(image_size)),
            (self._optional + _CHECKSUM, bytes(4)),
            (code_header + _SIZE_IN_SECTION, bytes(8)),
            *self._moved_pointers(hole),
        ]
        for wrapper in code.wrappers:
            index = index_by_bundle_offset[code.bundle_offset_of(wrapper)]
            edits += edits_of_wrapper(wrapper, index, self.image_base + address)
        return HostLibrary(
            hole=hole,
            edits=edits,
            tail=bytes(header.offset - old_end) + reference.ljust(header.size, b"\0"),
        )

    def _moved_pointers(self, hole: Hole) -> Iterator[tuple[int, bytes]]:
        """Yield offsets and bytes of fields that hold offsets in the file, and of the dropped signature.

        A signature would no longer hold, and is left out.
        """
        field_offsets = [self._coff + _SYMBOLS_IN_COFF]
        for index, section in enumerate(self.sections):
            if section.file_size:
                field_offsets.append(self._offset_of_section_header(index) + _OFFSET_IN_SECTION)
        debug_entries = self._range_of_directory(_DEBUG)[::_DEBUG_ENTRY_SIZE]
        field_offsets += [entry + _OFFSET_IN_DEBUG_ENTRY for entry in debug_entries]

        for field_offset in field_offsets:
            offset = self._u32(field_offset)
            if hole.new_offset(offset) != offset:
                yield field_offset, _U32.pack(hole.new_offset(offset))

        if any(self._directory(_CERTIFICATES)):
            yield self._offset_of_directory(_CERTIFICATES), bytes(_DIRECTORY_SIZE)
