"""A store in a folder: keys are paths, writes are renames, files are linked where they can be."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, Unpack
from urllib.parse import quote

from core import files, process
from core.stores import (
    Condition,
    Outcome,
    Store,
    Stored,
    absent_error,
    conflict,
    refuse_other_bytes,
    require_digest,
    require_key,
)

_DIGESTS = ".digests"


@dataclass(frozen=True)
class DirectoryStore:
    """Run outputs in a folder.

    Digests are remembered beside the objects (by size and time of change), so that a listing of gigabytes is
    not hashed again.
    """

    root: Path

    @property
    def url(self) -> str:
        """The folder."""
        return str(self.root)

    def url_of(self, key: str) -> str:
        """Return a key's ``file://`` address."""
        return f"{self.root.absolute().as_uri()}/{quote(key)}"

    def keeps_folder_pages(self, prefix: str) -> bool:  # noqa: ARG002 - nowhere in it
        """Return false: a path that ends with a slash is a folder."""
        return False

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """List the objects under `prefix`, sorted by key; or only those directly in that folder."""
        folder = self._path(prefix).relative_to(self.root).as_posix()
        found: list[Stored] = []
        _scan(os.fspath(self.root), "" if folder == "." else f"{folder}/", found, recursive=recursive)
        return sorted(found, key=attrgetter("key"))

    def folders(self, prefix: str) -> Sequence[str]:
        """Name the folders directly under `prefix`, sorted; without looking into them."""
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._path(prefix)) as entries:
            return sorted(one.name for one in entries if one.name[0] != "." and one.is_dir())
        return []

    def find(self, key: str) -> Stored | None:
        """Look one object up."""
        path = self._path(key)
        return _stored(path.relative_to(self.root).as_posix(), path.stat()) if path.is_file() else None

    def digest(self, key: str) -> str:
        """Return an object's hex SHA-256, from memory where the file has not changed since."""
        return self.digest_of(_stored(key, self._existing(key).stat()))

    def digest_of(self, stored: Stored) -> str:
        """Return the digest of an object that was just listed, fast for ten thousand of them."""
        key, etag, root = stored.key, stored.etag, os.fspath(self.root)
        known, _, remembered = _remembered(f"{root}/{_DIGESTS}/{key}").partition(" ")
        if known == etag and len(remembered) == 64:  # noqa: PLR2004 - a digest, whole
            return remembered
        digest = files.sha256(self._existing(key))
        with suppress(OSError):  # a store that can only be read has no memory
            self._remember(key, etag, digest)
        return digest

    def read(self, key: str) -> bytes:
        """Read a small object whole."""
        return self._existing(key).read_bytes()

    def open(self, key: str) -> BinaryIO:
        """Open an object's file."""
        return self._existing(key).open("rb")

    def fetch(self, key: str, folder: Path) -> Path:  # noqa: ARG002 - it lies here already
        """Return the object's own path."""
        return self._existing(key)

    def put_file(
        self,
        key: str,
        source: Path,
        *,
        sha256: str,
        replace: bool,
        absent: bool = False,  # noqa: ARG002 - looking costs nothing here
    ) -> Outcome:
        """Link (or copy) a file under `key`."""
        path = self._path(key)
        with self._writing(key) as within:
            if self.find(key) is not None:
                if self.digest(key) == sha256:
                    return "unchanged"
                if not replace:
                    raise refuse_other_bytes(key, self.url)
            process.work()
            files.link_or_copy(source, path, within=within)
            self._remember(key, _etag(path.stat()), sha256)
        return "written"

    def put_bytes(self, key: str, data: bytes, **how: Unpack[Condition]) -> Outcome:
        """Write a small object; every writer of it holds its lock, so that conditions hold, too."""
        path = self._path(key)
        with self._writing(key) as within:
            present = self.find(key)
            if present is not None and path.read_bytes() == data:
                return "unchanged"
            if present is not None and not how.get("replace", True):
                raise refuse_other_bytes(key, self.url)
            if how.get("if_match") not in (None, present.etag if present else ""):
                raise conflict(key, self.url)
            process.work()
            with files.atomic(path, within=within) as stream:
                stream.write(data)
        return "written"

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str) -> Outcome:
        """Link (or copy) an object of any store under `key`."""
        require_digest(source, source_key, sha256)
        if self.find(key) is not None and self.digest(key) == sha256:
            return "unchanged"
        with files.workspace(self.parts) as folder:
            path = source.fetch(source_key, folder)
            return self.put_file(key, path, sha256=sha256, replace=False)

    def delete(self, key: str) -> None:
        """Delete an object and its remembered digest."""
        if self._path(key).exists():
            process.work()
        self._path(key).unlink(missing_ok=True)
        (self.root / _DIGESTS / key).unlink(missing_ok=True)

    @property
    def parts(self) -> Path:
        """Where what is half written lies, in workspaces."""
        return self.root / ".parts"

    @contextmanager
    def _writing(self, key: str) -> Iterator[Path | None]:
        """Hold the lock of a key; yield where to write half of it, None for beside it."""
        from filelock import FileLock

        folder = files.made(self._path(key).parent)
        lock = self.root / _DIGESTS / f"{key}.lock"
        files.made(lock.parent)
        with FileLock(lock, poll_interval=0.005), files.workspace(self.parts) as within:
            # a part of a store may be mounted from elsewhere
            yield within if within.stat().st_dev == folder.stat().st_dev else None

    def _remember(self, key: str, etag: str, sha256: str) -> None:
        """Note a digest in one write: half a line is none."""
        path = self.root / _DIGESTS / key
        files.made(path.parent)
        path.write_text(f"{etag} {sha256}", encoding="ascii")

    def _existing(self, key: str) -> Path:
        path = self._path(key)
        if not path.is_file():
            raise absent_error(key, self.url)
        return path

    def _path(self, key: str) -> Path:
        require_key(key, self.url)
        return self.root / key


def _scan(root: str, folder: str, found: list[Stored], *, recursive: bool) -> None:
    """List a folder; without `pathlib`, as indexes list ten thousand files at once."""
    waiting = [folder]
    while waiting:
        folder = waiting.pop()
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(f"{root}/{folder}") as entries:
            for entry in entries:
                # what begins with a dot is half written, or remembered; any may go while this looks
                if entry.name[0] == ".":
                    continue
                key = folder + entry.name
                try:
                    status = os.stat(f"{root}/{key}")  # noqa: PTH116 - an entry's own knows no inode on Windows
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    found.append(_stored(key, status))
                elif recursive and entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{key}/")


def _remembered(path: str) -> str:
    """Read what is remembered of a file, without a buffer, which costs as much again."""
    with suppress(OSError), open(path, "rb", buffering=0) as stream:  # noqa: PTH123 - a Path costs more
        return stream.read(1024).decode()
    return ""


def _stored(key: str, status: os.stat_result) -> Stored:
    return Stored(key=key, size=status.st_size, etag=_etag(status), modified=status.st_mtime)


def _etag(status: os.stat_result) -> str:
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"
