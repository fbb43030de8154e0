"""Files of this machine as they are to lie in a run: named, hashed once, large logs in their gzip form."""

import gzip
import json
import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, cast

from core import console, files
from core.errors import MissingInputError, UsageError
from core.parallel import map_in_threads

PACKED_FROM = 1 << 20
"""Logs of more bytes are put in their gzip form."""

# A file that was written in the moment it was hashed may be written again without looking changed.
_SETTLED_AFTER = 2_000_000_000  # nanoseconds
# What programs write while they work, and leave where they are killed.
_TEMPORARY_SUFFIXES = ("~", ".part", ".tmp", ".temp", ".lock", ".swp")
_TEMPORARY_NAMES = frozenset({"__pycache__", "tmp", "temp"})
# Python reads the bytes of a name that are not UTF-8 as surrogates.
_UNADDRESSABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_LOG_SUFFIXES = frozenset({".log", ".txt", ".out", ".err"})


@dataclass(frozen=True, kw_only=True)
class LocalFile:
    """A file of this machine, and the object of a store that it is to become.

    Attributes:
        key: The object's key.
        path: The file.
        size: The object's bytes.
        sha256: The object's digest.
        may_replace: Whether it may take the place of other bytes.
        must_pack: Whether the object is to be the file's gzip form.
        is_in_our_store: Whether the file lies in a store of ours, where no other program writes to it.
        modified_ns: When the file was last changed, in nanoseconds since 1970.
    """

    key: str
    path: Path
    size: int
    sha256: str
    may_replace: bool
    must_pack: bool = False
    is_in_our_store: bool = False
    modified_ns: int = 0


@dataclass
class Digests:
    """Digests that are remembered in a JSON file: by path, size, time of change and inode."""

    memory_file: Path | None = None
    memory: dict[str, list[object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what is remembered; an unreadable file remembers nothing."""
        if self.memory_file is not None:
            with suppress(OSError, ValueError):
                text = self.memory_file.read_text(encoding="utf-8")
                self.memory = dict(json.loads(text))

    def read_files(
        self,
        paths: Mapping[str, Path],
        *,
        may_replace: bool,
        is_in_our_store: bool = False,
        packed: bool = False,
    ) -> list[LocalFile]:
        """Return files, or their gzip forms, by the keys that they are to have.

        What is not remembered is hashed in parallel.
        """

        def read_file(key: str) -> LocalFile:
            path = paths[key]
            status = path.stat()
            size, sha256 = self._size_and_digest(path, status, packed=packed)
            return LocalFile(
                key=key,
                path=path,
                size=size,
                sha256=sha256,
                may_replace=may_replace,
                must_pack=packed,
                is_in_our_store=is_in_our_store,
                modified_ns=status.st_mtime_ns,
            )

        remembered = dict(self.memory)
        local_files = map_in_threads(read_file, paths, jobs=os.cpu_count() or 1)
        if self.memory_file is not None and self.memory != remembered:
            files.write_json(self.memory_file, self.memory)
        return local_files

    def _size_and_digest(
        self,
        path: Path,
        status: os.stat_result,
        *,
        packed: bool,
    ) -> tuple[int, str]:
        name = os.path.abspath(path)  # noqa: PTH100 - a third of the time
        if packed:
            name = f"gz {name}"
        state = f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"
        match self.memory.get(name):
            case [str(remembered_state), int(size), str(sha256)] if remembered_state == state:
                return size, sha256

        read_at = time.time_ns()
        if packed:
            size, sha256 = pack(path, Path(os.devnull))
        else:
            size = status.st_size
            sha256 = files.sha256(path)
        if read_at - status.st_mtime_ns > _SETTLED_AFTER:
            self.memory[name] = [state, size, sha256]
        return size, sha256


def pack(path: Path, target: Path) -> tuple[int, str]:
    """Write a file's gzip form, the same bytes each time; return its size and digest."""
    # Few uploads have a large log.
    from core.archive.zip_writer import HashingStream

    with path.open("rb") as source, target.open("wb") as stream:
        hashing_stream = HashingStream(stream)
        fileobj = cast("BinaryIO", hashing_stream)
        with gzip.GzipFile(filename="", fileobj=fileobj, mode="wb", compresslevel=6, mtime=0) as gzip_file:
            shutil.copyfileobj(source, gzip_file, files.CHUNK)
    return hashing_stream.size, hashing_stream.sha256


def is_temporary(name: str) -> bool:
    """Return whether a file or folder is hidden or half-written, by its name: such are never uploaded."""
    if name.startswith(".") or name in _TEMPORARY_NAMES:
        return True
    return name.lower().endswith(_TEMPORARY_SUFFIXES)


def list_files(folder: Path) -> Sequence[Path]:
    """Return a folder's files at every depth, sorted, and name what is left out: links, hidden and temporary.

    Raises:
        MissingInputError: There is none.
    """
    paths: list[Path] = []
    omitted_paths: list[Path] = []
    if folder.is_dir():
        paths = sorted(_walk(folder, omitted_paths), key=lambda path: path.parts)
    if not paths:
        raise MissingInputError(f"{folder} is not a folder with files to upload.", hint="Name one that is.")

    for path in sorted(omitted_paths):
        name = path.relative_to(folder).as_posix()
        console.say(f"{name!r} in {folder} is hidden or temporary and is left out.")
    return paths


def _walk(folder: Path, omitted_paths: list[Path]) -> Iterator[Path]:
    unread_folders = [folder]
    while unread_folders:
        with os.scandir(unread_folders.pop()) as entries:
            for entry in entries:
                if is_temporary(entry.name):
                    omitted_paths.append(Path(entry.path))
                elif entry.is_symlink():
                    console.say(f"{entry.path} is a link and is left out.")
                elif entry.is_dir():
                    unread_folders.append(Path(entry.path))
                elif entry.is_file():
                    yield Path(entry.path)


def require_addressable(owner: str, names: Iterable[str]) -> None:
    """Refuse names, of a folder or a run, that no key can hold: not UTF-8, or with control characters."""
    refused_names = [name for name in names if _UNADDRESSABLE.search(name)]
    if refused_names:
        listing = ", ".join(map(repr, refused_names))
        raise UsageError(
            f"{owner} has names with bytes that are not UTF-8, or control characters, which cannot be "
            f"uploaded: {listing}.",
            hint="Rename or remove these files.",
        )


def read_logs(
    paths: Mapping[str, Path],
    digests: Digests,
    *,
    is_in_our_store: bool = False,
) -> Sequence[LocalFile]:
    """Return logs or reports, which another attempt replaces; large logs in their gzip form."""
    plain_paths: dict[str, Path] = {}
    packed_paths: dict[str, Path] = {}
    for key, path in paths.items():
        if path.suffix in _LOG_SUFFIXES and path.stat().st_size > PACKED_FROM:
            packed_paths[f"{key}.gz"] = path
        else:
            plain_paths[key] = path

    plain_files = digests.read_files(plain_paths, may_replace=True, is_in_our_store=is_in_our_store)
    packed_files = digests.read_files(
        packed_paths, may_replace=True, is_in_our_store=is_in_our_store, packed=True
    )
    return [*plain_files, *packed_files]
