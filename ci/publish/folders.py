"""Files of a local folder as they are to lie in a run's outputs: named, hashed once, large logs gzipped."""

import gzip
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from core import console, files
from core.errors import MissingInputError
from core.parallel import map_in_threads

# a file written in the very moment it was hashed may be written again without looking changed
_SETTLED = 2_000_000_000
# what programs write while they work, and leave when they are killed
_TEMPORARY_ENDS = ("~", ".part", ".tmp", ".temp", ".lock", ".swp")
_TEMPORARY_NAMES = frozenset({"__pycache__", "tmp", "temp"})
# above this many bytes, text that is a log goes in its gzip form
PACKED_FROM = 1 << 20
_TEXT = frozenset({".log", ".txt", ".out", ".err"})


@dataclass(frozen=True, kw_only=True)
class Item:
    """A local file and the object that it is to become; `owned`: no other program writes to the file."""

    key: str
    path: Path
    size: int
    sha256: str
    replace: bool
    packed: bool = False
    owned: bool = False
    changed: int = 0


class Content(NamedTuple):
    """Bytes as they go into a store, and the file's modification time in nanoseconds."""

    size: int
    sha256: str
    changed: int


@dataclass
class Digests:
    """Digests remembered in one JSON file, by path, size, modification time and inode."""

    memory: Path | None = None
    known: dict[str, list[object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what is remembered; an unreadable memory is empty."""
        if self.memory is not None:
            with suppress(OSError, ValueError):
                self.known = dict(json.loads(self.memory.read_text(encoding="utf-8")))

    def contents(self, wanted: Sequence[tuple[Path, bool]]) -> list[Content]:
        """Return sizes and digests of files, or of their gzip forms; unknown files are hashed in parallel."""
        before = dict(self.known)
        found = map_in_threads(lambda one: self._content(*one), wanted, jobs=os.cpu_count() or 1)
        if self.memory is not None and self.known != before:
            files.write_json(self.memory, self.known)
        return found

    def _content(self, path: Path, packed: bool) -> Content:  # noqa: FBT001 - a pair of `contents`
        name = f"{'gz ' if packed else ''}{os.path.abspath(path)}"  # noqa: PTH100 - a third of the time
        status, now = path.stat(), time.time_ns()
        seen = f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"
        match self.known.get(name):
            case [str(then), int(size), str(sha256)] if then == seen:
                return Content(size, sha256, status.st_mtime_ns)
        size, sha256 = pack(path, Path(os.devnull)) if packed else (status.st_size, files.sha256(path))
        if now - status.st_mtime_ns > _SETTLED:
            self.known[name] = [seen, size, sha256]
        return Content(size, sha256, status.st_mtime_ns)


def pack(path: Path, target: Path) -> tuple[int, str]:
    """Write a file's gzip form, the same bytes each time; return its size and digest."""
    from core.archive.zip_writer import HashingStream  # few uploads hold a large log

    with path.open("rb") as source, target.open("wb") as stream:
        sink = HashingStream(stream)
        whole = cast("BinaryIO", sink)
        with gzip.GzipFile(filename="", fileobj=whole, mode="wb", compresslevel=6, mtime=0) as packed:
            shutil.copyfileobj(source, packed, files.CHUNK)
    return sink.size, sink.sha256


def is_temporary(name: str) -> bool:
    """Whether a file or folder is hidden or incomplete, by its name: such are never uploaded."""
    return name.startswith(".") or name.lower().endswith(_TEMPORARY_ENDS) or name in _TEMPORARY_NAMES


def walked(folder: Path) -> Sequence[Path]:
    """List a folder's files at every depth, sorted, without links and temporary files."""
    found = sorted(_visible(folder), key=lambda path: path.parts) if folder.is_dir() else []
    if not found:
        raise MissingInputError(f"{folder} is not a folder with files to upload.", hint="Name one that is.")
    return found


def _visible(folder: Path) -> Iterator[Path]:
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if is_temporary(entry.name):
                    continue
                if entry.is_symlink():
                    console.say(f"{entry.path} is a link and is left out.")
                elif entry.is_dir():
                    waiting.append(Path(entry.path))
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
    """Pair files with their keys, sizes and digests; with `pack`, large logs in their gzip form."""
    packed = [pack and path.suffix in _TEXT and path.stat().st_size > PACKED_FROM for path in paths]
    contents = digests.contents(list(zip(paths, packed, strict=True)))
    return [
        Item(
            key=f"{key}.gz" if gz else key,
            path=path,
            replace=replace,
            packed=gz,
            owned=owned,
            **one._asdict(),
        )
        for path, key, gz, one in zip(paths, keys, packed, contents, strict=True)
    ]


def tree(folder: Path, prefix: str, digests: Digests) -> Sequence[Item]:
    """Return a folder's files as they lie under a prefix; large logs in their gzip form."""
    paths = walked(folder)
    keys = ["/".join((prefix, *path.parts[len(folder.parts) :])) for path in paths]
    return items_of(paths, keys, digests, replace=True, pack=True)
