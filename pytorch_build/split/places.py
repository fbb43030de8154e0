"""Where a library holds device code, and what is cut out of it and changed: the same for ELF and PE files."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytorch_build.check.bundles import Data

# struct __CudaFatBinaryWrapper of clang and HIP: magic, version, the bundle's address, and a word that the
# runtime takes for the bundle's index where the magic says that the bundle is elsewhere.
WRAPPER = struct.Struct("<4sIQQ")
MAGIC, SPLIT_MAGIC = b"FPIH", b"HIPK"
_COPIED = 1 << 20


class SplitError(ValueError):
    """A file whose device code cannot be moved. Callers name the file."""


class AlreadySplitError(SplitError):
    """A file whose device code is elsewhere."""

    def __init__(self) -> None:
        super().__init__("its device code was moved already")


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


def wrappers_in(data: Data, offset: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the offset of each wrapper, and the address that it holds."""
    if size % WRAPPER.size:
        raise SplitError(f"the wrappers of its device code take {size} bytes, no multiple of {WRAPPER.size}")
    for at in range(offset, offset + size, WRAPPER.size):
        magic, _, address, _ = WRAPPER.unpack_from(data, at)
        if magic != MAGIC:
            raise SplitError(f"a wrapper of its device code has the magic {magic!r}")
        yield at, address


def up(value: int, alignment: int) -> int:
    """Round up to a multiple."""
    return -(-value // alignment) * alignment
