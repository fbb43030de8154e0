"""Libraries whose device code moves to kernel archives beside them, and which say where it is.

Each wrapper that registers a bundle gets another magic, the bundle's index, and the address of a reference
in place of the bundle's. Wrappers: clang's CGCUDANV.cpp, and CLR's hip_fatbin.cpp for split ones.
"""

from __future__ import annotations

import mmap
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar

if TYPE_CHECKING:
    from pytorch_build.check.bundles import Buffer

# struct __CudaFatBinaryWrapper of clang and HIP: magic, version, the bundle's address, and a word that the
# runtime takes for the bundle's index where the magic says that the bundle is elsewhere.
WRAPPER = struct.Struct("<4sIQQ")
_POINTER_IN_WRAPPER = 8
ADDRESS = struct.Struct("<Q")
_MAGIC = b"FPIH"
_SPLIT_MAGIC = b"HIPK"
_CHUNK = 1 << 20


class SplitError(ValueError):
    """A library whose device code cannot be moved. Callers name the file."""


@contextmanager
def damage_as_split_error() -> Iterator[None]:
    """Raise a SplitError in the place of whatever readers raise for a damaged library."""
    try:
        yield
    except SplitError:
        raise
    except (
        struct.error,
        ValueError,
        TypeError,
        ArithmeticError,
        IndexError,
        MemoryError,
        OSError,
    ) as problem:
        raise SplitError(f"it is a damaged library ({problem})") from problem


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of a library: where it is in memory, and where in the file."""

    name: str
    address: int
    size: int
    offset: int
    file_size: int


@dataclass(frozen=True, kw_only=True)
class Wrapper:
    """A struct of a library by which it registers one bundle of device code when it is loaded.

    Attributes:
        offset: Where in the file it lies.
        pointer_address: Where in memory its pointer to the bundle lies.
        bundle_address: The bundle's address, which the pointer has in a loaded library.
        relocation: Where in the file the entry lies that sets the pointer; None where the file has its value.
    """

    offset: int
    pointer_address: int
    bundle_address: int
    relocation: int | None = None


@dataclass(frozen=True, kw_only=True)
class DeviceCode:
    """The device code of a library: its place in the file and in memory, and who registers it."""

    offset: int
    size: int
    address: int
    wrappers: Sequence[Wrapper]

    @property
    def end(self) -> int:
        """The offset in the file at which the device code ends."""
        return self.offset + self.size

    def bundle_offset_of(self, wrapper: Wrapper) -> int:
        """Return the offset, in the device code, of the bundle that a wrapper registers."""
        return wrapper.bundle_address - self.address


@dataclass(frozen=True, kw_only=True)
class Hole:
    """A range of bytes that is removed from a file."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """The offset in the old file at which the removed bytes end."""
        return self.start + self.length

    def new_offset(self, offset: int) -> int:
        """Return the offset in the new file of a byte of the old one."""
        return offset - self.length if offset >= self.end else offset


@dataclass(frozen=True, kw_only=True)
class HostLibrary:
    """How a library is rewritten without device code: bytes to remove, to change and to append.

    `edits` are bytes that change, each with its place in the old file.
    """

    hole: Hole
    edits: Sequence[tuple[int, bytes]]
    tail: bytes

    def write(self, source: Path, target: Path) -> None:
        """Write the library without its device code to a new file."""
        with source.open("rb") as old, target.open("w+b") as new:
            self._copy_range(old, new, 0, self.hole.start)
            self._copy_range(
                old,
                new,
                self.hole.end,
                source.stat().st_size,
            )
            new.write(self.tail)
            new.flush()
            with mmap.mmap(new.fileno(), 0) as mapping:
                for offset, content in self.edits:
                    new_offset = self.hole.new_offset(offset)
                    mapping[new_offset : new_offset + len(content)] = content

    @staticmethod
    def _copy_range(
        old: BinaryIO,
        new: BinaryIO,
        start: int,
        end: int,
    ) -> None:
        """Append a range of bytes of the old file to the new one."""
        old.seek(start)
        remaining = end - start
        while remaining:
            remaining -= new.write(old.read(min(_CHUNK, remaining)))


class Library(ABC):
    """A library of one platform with device code; `image_base` is where its addresses begin."""

    CODE: ClassVar[str]
    WRAPPERS: ClassVar[str]
    REFERENCE: ClassVar[str]

    def __init__(
        self,
        data: Buffer,
        sections: Sequence[Section],
        image_base: int = 0,
    ) -> None:
        self.data = data
        self.sections = sections
        self.image_base = image_base

    @property
    def is_split(self) -> bool:
        """Whether the library's device code was moved to kernel archives."""
        return self.section(self.REFERENCE) is not None

    def section(self, name: str) -> Section | None:
        """Return the first section of a name; None where there is none."""
        for section in self.sections:
            if section.name == name:
                return section
        return None

    @damage_as_split_error()
    def device_code(self) -> DeviceCode | None:
        """Return the library's device code, None without any; code that was moved out is an error."""
        if self.is_split:
            raise SplitError("its device code was moved already")
        code = self.section(self.CODE)
        if code is None or not code.file_size:
            return None
        if code.offset + code.file_size > len(self.data):
            raise SplitError(f"{self.CODE} reaches beyond the end of the file")

        wrappers_section = self.section(self.WRAPPERS)
        if wrappers_section is None:
            raise SplitError(f"it has {self.CODE} and no {self.WRAPPERS} that registers it")
        wrappers = self._read_wrappers(wrappers_section, _MAGIC)
        device_code = DeviceCode(
            offset=code.offset,
            size=min(code.size, code.file_size),
            address=self.image_base + code.address,
            wrappers=self._relocate_wrappers(wrappers, code),
        )
        for wrapper in device_code.wrappers:
            if not 0 <= device_code.bundle_offset_of(wrapper) < device_code.size:
                raise SplitError(f"a wrapper points outside of {self.CODE} ({wrapper.bundle_address:#x})")
        return device_code

    @damage_as_split_error()
    def reference(self) -> bytes | None:
        """Return the bytes that name the kernel archive with the device code; None if it was not moved."""
        reference = self.section(self.REFERENCE)
        if reference is None:
            return None

        wrappers_section = self.section(self.WRAPPERS)
        if wrappers_section is not None:
            for wrapper in self._read_wrappers(wrappers_section, _SPLIT_MAGIC):
                if wrapper.bundle_address != self.image_base + reference.address:
                    raise SplitError(f"a wrapper of its device code does not point to {self.REFERENCE}")
        return bytes(self.data[reference.offset : reference.offset + reference.file_size])

    @abstractmethod
    def without_device_code(
        self, code: DeviceCode, index_by_bundle_offset: Mapping[int, int], reference: bytes
    ) -> HostLibrary:
        """Return the edits of the file that take its device code out and add the reference in its place."""

    @abstractmethod
    def _relocate_wrappers(self, wrappers: Sequence[Wrapper], code: Section) -> Sequence[Wrapper]:
        """Return wrappers with the bundles' addresses that relocations set when the library is loaded.

        Raises SplitError where a relocation of something else points into the device code.
        """

    def _read_wrappers(self, section: Section, expected_magic: bytes) -> list[Wrapper]:
        """Return the wrappers in a section of the file; another magic than the expected is an error."""
        size = min(section.size, section.file_size)
        if size % WRAPPER.size:
            raise SplitError(
                f"the wrappers of its device code take {size} bytes, not a multiple of {WRAPPER.size}"
            )
        wrappers: list[Wrapper] = []
        for offset in range(section.offset, section.offset + size, WRAPPER.size):
            magic, _version, bundle_address, _bundle_index = WRAPPER.unpack_from(self.data, offset)
            if magic != expected_magic:
                raise SplitError(f"a wrapper of its device code has the magic {magic!r}")
            wrappers.append(
                Wrapper(
                    offset=offset,
                    pointer_address=section.address + offset - section.offset + _POINTER_IN_WRAPPER,
                    bundle_address=bundle_address,
                )
            )
        return wrappers


def edits_of_wrapper(
    wrapper: Wrapper,
    index: int,
    reference_address: int,
) -> Iterator[tuple[int, bytes]]:
    """Yield offsets and bytes that make a wrapper refer to a bundle of a kernel archive, by index."""
    yield wrapper.offset, _SPLIT_MAGIC
    content = ADDRESS.pack(reference_address) + ADDRESS.pack(index)
    yield wrapper.offset + _POINTER_IN_WRAPPER, content
