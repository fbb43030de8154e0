"""Digests of files that lie in a person's folder, remembered: gigabytes are hashed once."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from core import files

if TYPE_CHECKING:
    from pathlib import Path

    from _typeshed import ReadableBuffer

# a file written in the very moment it was hashed may be written again without looking changed
_SETTLED = 2_000_000_000
_LEVEL = 6


class Content(NamedTuple):
    """Bytes as they go into a store.

    Attributes:
        size: How many.
        sha256: Their hex SHA-256.
    """

    size: int
    sha256: str


@dataclass
class Digests:
    """What is remembered of files, by size, time of change and inode; in one JSON file.

    Attributes:
        memory: The file; None to remember nothing beyond this process.
        known: Name to what was seen and found.
    """

    memory: Path | None = None
    known: dict[str, list[object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what is remembered; a memory that cannot be read is none."""
        self._news = False
        if self.memory is not None:
            with suppress(OSError, ValueError):
                self.known = dict(json.loads(self.memory.read_text(encoding="utf-8")))

    def content(self, path: Path, *, packed: bool = False) -> Content:
        """Give a file's size and digest, or those of its gzip form."""
        name, status = f"{'gz ' if packed else ''}{path.resolve()}", path.stat()
        seen = f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"
        match self.known.get(name):
            case [str(then), int(size), str(sha256)] if then == seen:
                return Content(size, sha256)
        now = time.time_ns()
        found = packed_content(path) if packed else Content(status.st_size, files.sha256(path))
        if now - status.st_mtime_ns > _SETTLED:
            self.known[name] = [seen, *found]
            self._news = True
        return found

    def save(self) -> None:
        """Write down what is remembered, where there is news."""
        if self.memory is not None and self._news:
            files.write_json(self.memory, self.known)
            self._news = False


class _Hashing(io.RawIOBase):
    def __init__(self) -> None:
        super().__init__()
        self.digest = hashlib.sha256()
        self.size = 0

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        view = memoryview(data)
        self.digest.update(view)
        self.size += view.nbytes
        return view.nbytes


def packed_content(path: Path) -> Content:
    """Give the size and digest of a file's gzip form without writing it."""
    sink = _Hashing()
    _pack(path, sink)
    return Content(sink.size, sink.digest.hexdigest())


def pack(path: Path, target: Path) -> None:
    """Write a file's gzip form: the same bytes each time."""
    with target.open("wb") as stream:
        _pack(path, stream)


def _pack(path: Path, stream: io.RawIOBase | io.BufferedWriter) -> None:
    with (
        path.open("rb") as source,
        gzip.GzipFile(filename="", fileobj=stream, mode="wb", compresslevel=_LEVEL, mtime=0) as packed,
    ):
        shutil.copyfileobj(source, packed, files.CHUNK)
