"""Libraries before and after a split, whichever platform they are for."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Protocol

from pytorch_build.split import elf_host, pe_host
from rocm_packaging.packages import kpack

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pytorch_build.check.bundles import Data
    from pytorch_build.split.places import Cut, FatFile

MAGICS = (b"\x7fELF", b"MZ")


class Side(Protocol):
    """What each file format brings."""

    def read(self, data: Data) -> FatFile | None:
        """Find the device code of a library; None where it has none."""

    def without_code(self, data: Data, fat: FatFile, indexes: Mapping[int, int], reference: bytes) -> Cut:
        """Say what a library becomes without its device code."""

    def reference_in(self, data: Data) -> bytes | None:
        """Return where a library says its code is, and what follows; None where its code was not moved."""


def side_of(data: Data) -> Side:
    """Choose by a file's first bytes, which are one of `MAGICS`."""
    return elf_host if data[:4] == MAGICS[0] else pe_host


def mapped(file: Path) -> mmap.mmap:
    """Map a file; the collector closes it, as an error's traceback may still hold views of it."""
    with file.open("rb") as stream:
        return mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)


def reference_of(file: Path) -> kpack.Reference | None:
    """Read where a library says its device code is."""
    data = mapped(file)
    found = side_of(data).reference_in(data)
    return None if found is None else kpack.read_reference(found)
