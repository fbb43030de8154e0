"""Digests of files that lie in a person's folder, remembered: gigabytes are hashed once."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ci.publish.transfer import Item
from core import console, files
from core.errors import MissingInputError
from core.parallel import each

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from _typeshed import ReadableBuffer


# a file written in the very moment it was hashed may be written again without looking changed
_SETTLED = 2_000_000_000
_LEVEL = 6


class Content(NamedTuple):
    """Bytes as they go into a store."""

    size: int
    sha256: str
    changed: int


@dataclass
class Digests:
    """What is remembered of files, by size, time of change and inode; in one JSON file."""

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
        return self.contents([(path, packed)])[0]

    def contents(self, asked: Sequence[tuple[Path, bool]]) -> list[Content]:
        """Give the sizes and digests of files; what is not remembered is hashed side by side."""
        found = [self._remembered(path, packed=packed) for path, packed in asked]
        unknown = [number for number, one in enumerate(found) if one is None]
        hashed = each(lambda number: self._hashed(*asked[number]), unknown, jobs=os.cpu_count() or 1)
        given = dict(zip(unknown, hashed, strict=True))
        self.save()
        return [given[number] if one is None else one for number, one in enumerate(found)]

    def _remembered(self, path: Path, *, packed: bool) -> Content | None:
        status = path.stat()
        match self.known.get(_name(path, packed=packed)):
            case [str(seen), int(size), str(sha256)] if seen == _seen(status):
                return Content(size, sha256, status.st_mtime_ns)
        return None

    def _hashed(self, path: Path, packed: bool) -> Content:  # noqa: FBT001 - a pair of `contents`
        status, now = path.stat(), time.time_ns()
        size, sha256 = packed_content(path) if packed else (status.st_size, files.sha256(path))
        if now - status.st_mtime_ns > _SETTLED:
            self.known[_name(path, packed=packed)] = [_seen(status), size, sha256]
            self._news = True
        return Content(size, sha256, status.st_mtime_ns)

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


def packed_content(path: Path) -> tuple[int, str]:
    """Give the size and digest of a file's gzip form without writing it."""
    sink = _Hashing()
    _pack(path, sink)
    return sink.size, sink.digest.hexdigest()


def _name(path: Path, *, packed: bool) -> str:
    return f"{'gz ' if packed else ''}{os.path.abspath(path)}"  # noqa: PTH100 - a third of the time


def _seen(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"


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


# what programs write while they work, and leave when they are killed
_TEMPORARY_ENDS = ("~", ".part", ".tmp", ".temp", ".lock", ".swp")
_TEMPORARY_NAMES = frozenset({"__pycache__", "tmp", "temp"})
# above this many bytes, text that is a log goes in its gzip form
PACKED_FROM = 1 << 20
_TEXT = frozenset({".log", ".txt", ".out", ".err"})


def is_temporary(name: str) -> bool:
    """Say whether a file or folder is hidden or half made, by its name: such are never uploaded."""
    return name.startswith(".") or name.lower().endswith(_TEMPORARY_ENDS) or name in _TEMPORARY_NAMES


def walked(folder: Path) -> Sequence[Path]:
    """List a folder's files at every depth, sorted; without links, and what is hidden or half made."""
    if not folder.is_dir():
        raise MissingInputError(f"{folder} is no folder.", hint="Give one that there is.")
    files = sorted(_visible(folder))
    if not files:
        raise MissingInputError(f"{folder} holds no file to upload.", hint="Give a folder that does.")
    return files


def _visible(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_temporary(entry.name):
                continue
            if entry.is_symlink():
                console.say(f"{entry.path} is a link and is left out.")
            elif entry.is_dir():
                yield from _visible(Path(entry.path))
            elif entry.is_file():
                yield Path(entry.path)


def items_of(
    paths: Sequence[Path],
    keys: Sequence[str],
    digests: Digests,
    *,
    replace: bool,
    pack: bool = False,
    owned: bool = False,
) -> Sequence[Item]:
    """Describe files, hashed side by side."""
    kinds = [_is_packed(path, pack=pack) for path in paths]
    contents = digests.contents(list(zip(paths, kinds, strict=True)))
    return [
        Item(
            key=f"{key}.gz" if packed else key,
            path=path,
            size=content.size,
            sha256=content.sha256,
            replace=replace,
            packed=packed,
            owned=owned,
            changed=content.changed,
        )
        for path, key, packed, content in zip(paths, keys, kinds, contents, strict=True)
    ]


def _is_packed(path: Path, *, pack: bool) -> bool:
    return pack and path.suffix in _TEXT and path.stat().st_size > PACKED_FROM


def tree(folder: Path, prefix: str, digests: Digests) -> Sequence[Item]:
    """Describe a folder's files as they lie under a prefix; large logs in their gzip form."""
    paths = walked(folder)
    keys = [f"{prefix}/{path.relative_to(folder).as_posix()}" for path in paths]
    return items_of(paths, keys, digests, replace=True, pack=True)
