"""Libraries, read where they lie: in a folder, or compressed in a wheel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.archive.zip_streams import MemberStream
from core.binaries import elf, pe

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from pytorch_build.standalone.fat.content import RocmFile

_LEAST = 64  # bytes of the smallest header
# torch has ten thousand of these, and none is compiled
_TEXTS = (".cuh", ".cmake", ".cpp", ".h", ".hpp", ".json", ".md", ".py", ".pyi", ".txt", ".yaml")


@dataclass(frozen=True, kw_only=True)
class Binary:
    """What a library says of itself."""

    name: str
    needed: tuple[str, ...]
    search: tuple[str, ...] = ()
    is_rpath: bool = False


def read_binary(stream: BinaryIO, name: str) -> Binary | None:
    """Read what a library or program of the host needs; None for any other file."""
    found = elf.read_needs(stream, name)
    if found is not None:
        return Binary(name=found.soname, needed=found.needed, search=found.search, is_rpath=found.is_rpath)
    facts = pe.read_needs(stream, name)
    if facts is not None:
        return Binary(name=facts.name, needed=(*facts.needed, *facts.delayed))
    return None


def read_file(file: RocmFile) -> Binary | None:
    """Read a file of ROCm."""
    with file.opened() as stream:
        return read_binary(stream, file.path)


def read_members(wheel: Path, infos: Iterable[zipfile.ZipInfo]) -> Mapping[str, Binary]:
    """Read the libraries and programs among a wheel's members: path -> what each needs."""

    def read(info: zipfile.ZipInfo) -> Binary | None:
        with MemberStream(wheel, info) as stream:
            return read_binary(stream, f"{wheel.name}: {info.filename}")

    large_first = sorted(
        (info for info in infos if info.file_size >= _LEAST and not info.filename.endswith(_TEXTS)),
        key=lambda info: -info.file_size,
    )
    with ThreadPoolExecutor() as pool:
        found = zip(large_first, pool.map(read, large_first), strict=True)
        return {info.filename: binary for info, binary in found if binary is not None}
