"""Artifact directories written as archives: the manifest first, everything sorted, the same bytes always.

zstd compresses on all cores; its output does not depend on how many there are.
"""

from __future__ import annotations

import contextlib
import hashlib
import lzma
import os
import stat
import tarfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

import zstandard

from core import files
from core.archive.tar import XZ, ZSTD
from core.errors import ArtifactError, FatalError
from rocm_packaging.artifacts.archives import SIDECAR, parse_name
from rocm_packaging.artifacts.artifacts import MANIFEST, parse_stages

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

_CHUNK = 1 << 20
_LEVELS = {ZSTD: 3, XZ: 6}


@dataclass(frozen=True, kw_only=True)
class Packed:
    """An archive that was written."""

    path: Path
    sha256: str
    size: int


class _Sink(Protocol):
    def write(self, data: bytes | memoryview, /) -> int: ...


class _Hashing:
    """Hashes what passes through to a file."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | memoryview, /) -> int:
        self.hash.update(data)
        self.size += len(data)
        return self._stream.write(data)


def pack(
    folder: Path, directory: Path, *, suffix: str = ZSTD, level: int | None = None, threads: int = 0
) -> Packed:
    """Write an artifact's folder as an archive, and its digest beside it.

    Owner, group and times are left out; permission bits, symbolic and hard links are kept.
    """
    archive = parse_name(f"{folder.name.replace('~', ':')}{suffix}")
    path = directory / archive.filename
    level = _LEVELS[suffix] if level is None else level
    with files.atomic(path) as stream:
        hashing = _Hashing(stream)
        with _compressor(hashing, suffix, level, threads or os.cpu_count() or 1) as sink:
            _write_tar(folder, sink)
    digest = hashing.hash.hexdigest()
    files.write_text(directory / f"{path.name}{SIDECAR}", f"{digest}\n")
    return Packed(path=path, sha256=digest, size=hashing.size)


def _compressor(sink: _Hashing, suffix: str, level: int, threads: int) -> AbstractContextManager[_Sink]:
    writable = cast("BinaryIO", sink)
    if suffix == XZ:
        return contextlib.closing(lzma.LZMAFile(writable, "wb", preset=level))
    compressor = zstandard.ZstdCompressor(level=level, threads=threads, write_checksum=True)
    return compressor.stream_writer(writable, closefd=False)


def _write_tar(folder: Path, sink: _Sink) -> None:
    stages = parse_stages(_manifest(folder), folder / MANIFEST)
    seen: dict[tuple[int, int], str] = {}
    count = _write_member(folder, MANIFEST, sink, seen)
    for name in dict.fromkeys(name for stage in sorted(stages) for name in _walk(folder, stage)):
        count += _write_member(folder, name, sink, seen)
    # two empty blocks, and the rest of a record, as every tar ends
    sink.write(bytes(2 * tarfile.BLOCKSIZE + -(count + 2 * tarfile.BLOCKSIZE) % tarfile.RECORDSIZE))


def _manifest(folder: Path) -> str:
    try:
        return (folder / MANIFEST).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ArtifactError(f"{folder} has no {MANIFEST} that can be read: {problem}.") from problem


def _walk(folder: Path, name: str) -> Iterator[str]:
    """Name a folder, and all that it holds, each folder before its contents, sorted."""
    path = folder / name
    if path.is_symlink() or not path.is_dir():
        return
    yield name
    with os.scandir(path) as found:
        items = sorted(found, key=lambda item: item.name)
    for item in items:
        inner = f"{name}/{item.name}"
        if item.is_dir(follow_symlinks=False):
            yield from _walk(folder, inner)
        else:
            yield inner


def _write_member(folder: Path, name: str, sink: _Sink, seen: dict[tuple[int, int], str]) -> int:
    """Write one member; say how many bytes of the tar that took."""
    path = folder / name
    try:
        status = path.lstat()
        info = _header(path, name, status, seen)
        header = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
        sink.write(header)
        if not info.size:
            return len(header)
        return len(header) + _copy(path, info.size, sink)
    except UnicodeEncodeError as problem:
        raise ArtifactError(f"{path} has a name that is not UTF-8.") from problem
    except OSError as problem:
        # the sink's errors come from here too; the one of a full disk names no file
        raise FatalError(f"{path} could not be packed: {problem}.") from problem


def _header(
    path: Path, name: str, status: os.stat_result, seen: dict[tuple[int, int], str]
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode = stat.S_IMODE(status.st_mode) & 0o777
    if stat.S_ISLNK(status.st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, path.readlink().as_posix(), 0o777
    elif stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    elif not stat.S_ISREG(status.st_mode):
        raise ArtifactError(f"{path} is neither a file, a folder nor a link.")
    elif status.st_nlink > 1 and name != MANIFEST:
        first = seen.setdefault((status.st_dev, status.st_ino), name)
        if first == name:
            info.size = status.st_size
        else:
            info.type, info.linkname = tarfile.LNKTYPE, first
    else:
        info.size = status.st_size
    return info


def _copy(path: Path, size: int, sink: _Sink) -> int:
    left = size
    with path.open("rb", buffering=0) as stream:
        while left:
            data = stream.read(min(left, _CHUNK))
            if not data:
                raise ArtifactError(f"{path} became shorter while it was packed.")
            sink.write(data)
            left -= len(data)
    padding = -size % tarfile.BLOCKSIZE
    sink.write(bytes(padding))
    return size + padding
