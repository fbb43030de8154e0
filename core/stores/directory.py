"""A store in a folder: keys are paths, writes are renames, files are linked where they can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core import files
from core.errors import ConflictError, MissingInputError, StoreError, UsageError
from core.stores import Outcome, Stored

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_DIGESTS = ".digests"


@dataclass(frozen=True)
class DirectoryStore:
    """Run outputs in a folder.

    Digests are remembered beside the objects (by size and time of change), so that a
    listing of gigabytes is not hashed again.

    Attributes:
        root: The store's folder.
    """

    root: Path

    @property
    def url(self) -> str:
        """The folder."""
        return str(self.root)

    def list(self, prefix: str) -> Sequence[Stored]:
        """List the objects under `prefix`, sorted by key."""
        folder = self._path(prefix)
        if not folder.is_dir():
            return ()
        paths = (path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
        return sorted((self._stored(path) for path in paths), key=lambda stored: stored.key)

    def find(self, key: str) -> Stored | None:
        """Look one object up."""
        path = self._path(key)
        return self._stored(path) if path.is_file() else None

    def digest(self, key: str) -> str:
        """Give an object's hex SHA-256, from memory where the file has not changed since."""
        path = self._existing(key)
        etag = _etag(path)
        memory = self.root / _DIGESTS / key
        if memory.is_file():
            known, _, digest = memory.read_text(encoding="utf-8").partition(" ")
            if known == etag:
                return digest
        digest = files.sha256(path)
        files.write_text(memory, f"{etag} {digest}")
        return digest

    def read(self, key: str) -> bytes:
        """Read a small object whole."""
        return self._existing(key).read_bytes()

    def fetch(self, key: str, folder: Path) -> Path:  # noqa: ARG002 - it lies here already
        """Give the object's own path."""
        return self._existing(key)

    def put_file(self, key: str, source: Path, *, sha256: str, replace: bool) -> Outcome:
        """Link (or copy) a file under `key`."""
        present = self.find(key)
        if present is not None and self.digest(key) == sha256:
            return "unchanged"
        if present is not None and not replace:
            raise _refuse_other_bytes(key, self.url)
        path = self._path(key)
        files.link_or_copy(source, path)
        files.write_text(self.root / _DIGESTS / key, f"{_etag(path)} {sha256}")
        return "written"

    def put_bytes(
        self, key: str, data: bytes, *, if_match: str | None = None, replace: bool = True
    ) -> Outcome:
        """Write a small object, under a lock where the write is conditional."""
        path = self._path(key)
        if path.is_file() and path.read_bytes() == data:
            return "unchanged"
        if path.is_file() and not replace:
            raise _refuse_other_bytes(key, self.url)
        if if_match is None:
            self._write(path, data)
            return "written"
        with files.locked(self.root / _DIGESTS / f"{key}.lock", what=key):
            present = self.find(key)
            if (present.etag if present else "") != if_match:
                raise ConflictError(f"{key} in {self.url} was written by somebody else meanwhile.")
            self._write(path, data)
        return "written"

    def delete(self, key: str) -> None:
        """Delete an object and what is remembered of it."""
        self._path(key).unlink(missing_ok=True)
        (self.root / _DIGESTS / key).unlink(missing_ok=True)

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        with files.atomic(path) as stream:
            stream.write(data)

    def _stored(self, path: Path) -> Stored:
        return Stored(key=path.relative_to(self.root).as_posix(), size=path.stat().st_size, etag=_etag(path))

    def _existing(self, key: str) -> Path:
        path = self._path(key)
        if not path.is_file():
            raise MissingInputError(f"{key} is not in the store {self.url}.")
        return path

    def _path(self, key: str) -> Path:
        path = self.root / key
        if key.startswith("/") or ".." in path.parts:
            raise UsageError(f"{key!r} is no key of the store {self.url}.")
        return path


def _etag(path: Path) -> str:
    status = path.stat()
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"


def _refuse_other_bytes(key: str, url: str) -> StoreError:
    return StoreError(
        f"{key} exists in {url} with other bytes.",
        hint="A run other than 'local' is immutable: use a run id of its own.",
    )
