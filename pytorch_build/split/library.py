"""A library with device code, and what it becomes without: the same for ELF and PE files.

Each wrapper that registers a bundle gets another magic, the bundle's index, and the address of a reference
in place of the bundle's. Wrappers: clang's CGCUDANV.cpp, and CLR's hip_fatbin.cpp for split ones.
"""

from __future__ import annotations

import mmap
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

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
