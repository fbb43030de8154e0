"""A store in a folder: keys are paths, writes are renames, files are linked where they can be."""

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, Unpack
from urllib.parse import quote

from core import files, stores

_DIGESTS, _MEMORY = ".digests", ".known"


@dataclass(frozen=True)
class DirectoryStore:
    """Run outputs in a folder.

    Digests are remembered beside the objects (by size and time of change), so that a listing of gigabytes is
    not hashed again: a file for each folder, which only grows, with a line for each digest.
    """

    root: Path
    _digests: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)
    _read: dict[Path, int] = field(default_factory=dict, init=False, repr=False, compare=False)

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

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[stores.Stored]:
        """List the objects under `prefix`, sorted by key; or only those directly in that folder."""
        folder, root = self._path(prefix).relative_to(self.root).as_posix(), os.fspath(self.root)
        found, waiting = list[stores.Stored](), ["" if folder == "." else f"{folder}/"]
        while waiting:  # without `pathlib`, as indexes list a hundred thousand files at once
            folder = waiting.pop()
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(f"{root}/{folder}") as entries:
                for entry in entries:
                    # what begins with a dot is half written, or remembered; any may go while this looks
                    if entry.name[0] == ".":
                        continue
                    key = folder + entry.name
                    try:
                        status = os.stat(f"{root}/{key}")  # noqa: PTH116 - its own knows no inode on Windows
                    except FileNotFoundError:
                        continue
                    if stat.S_ISREG(status.st_mode):
                        found.append(_stored(key, status))
                    elif recursive and entry.is_dir(follow_symlinks=False):
                        waiting.append(f"{key}/")
        return sorted(found, key=itemgetter(0))

    def folders(self, prefix: str) -> Sequence[str]:
        """Name the folders directly under `prefix`, sorted; without looking into them."""
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._path(prefix)) as entries:
            return sorted(one.name for one in entries if one.name[0] != "." and one.is_dir())
        return []

    def find(self, key: str) -> stores.Stored | None:
        """Look one object up."""
        path = self._path(key)
        return _stored(path.relative_to(self.root).as_posix(), path.stat()) if path.is_file() else None

    def digest(self, key: str) -> str:
        """Return an object's hex SHA-256, from memory where the file has not changed since."""
        return self.digest_of(_stored(key, self._existing(key).stat()))

    def digest_of(self, stored: stores.Stored) -> str:
        """Return the digest of an object that was just listed, fast for ten thousand of them."""
        if not self._digests.get(stored.key, "").startswith(f"{stored.etag} "):
            self._recall(self._memory(stored.key))
        etag, _, digest = self._digests.get(stored.key, "").partition(" ")
        if etag == stored.etag and len(digest) == 64:  # noqa: PLR2004 - a digest, whole
            return digest
        digest = files.sha256(self._existing(stored.key))
        with suppress(OSError):  # a store that can only be read has no memory
            self._remember(stored.key, stored.etag, digest)
        return digest

    def read(self, key: str) -> bytes:
        """Read a small object whole."""
        stores.require_key(key, self.url)
        try:
            with open(f"{self.root}/{key}", "rb", buffering=0) as stream:  # noqa: PTH123 - a Path costs more
                return stream.read()
        except OSError:
            self._existing(key)
            raise

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
    ) -> stores.Outcome:
        """Link (or copy) a file under `key`."""
        path = self._path(key)
        with self._locked(key) as folder, files.workspace(self.parts) as within:
            if self.find(key) is not None:
                if self.digest(key) == sha256:
                    return "unchanged"
                if not replace:
                    raise stores.refuse_other_bytes(key, self.url)
            # a part of a store may be mounted from elsewhere
            near = within.stat().st_dev == folder.stat().st_dev
            files.link_or_copy(source, path, within=within if near else None)
            self._remember(key, _stored(key, path.stat()).etag, sha256)
        return "written"

    def put_bytes(self, key: str, data: stores.Content, **how: Unpack[stores.Condition]) -> stores.Outcome:
        """Write a small object; every writer of it holds its lock, so that conditions hold, too."""
        path, parts = self._path(key), [data] if isinstance(data, bytes) else data
        with self._locked(key):
            present = self.find(key)
            same = present is not None and present.size == sum(map(len, parts))
            if same and path.read_bytes() == stores.whole(data):
                return "unchanged"
            if present is not None and not how.get("replace", True):
                raise stores.refuse_other_bytes(key, self.url)
            if how.get("if_match") not in (None, present.etag if present else ""):
                raise stores.conflict(key, self.url)
            # of a process that was killed the next one that writes this key takes what it left
            half = path.with_name(f".{path.name}.half")
            with files.writing(path):
                try:
                    with half.open("wb") as stream:
                        stream.writelines(parts)
                    half.chmod(0o644)
                    half.replace(path)
                finally:
                    half.unlink(missing_ok=True)
        return "written"

    def copy(self, key: str, source: stores.Store, source_key: str, *, sha256: str) -> stores.Outcome:
        """Link (or copy) an object of any store under `key`."""
        stores.require_digest(source, source_key, sha256)
        if self.find(key) is not None and self.digest(key) == sha256:
            return "unchanged"
        with files.workspace(self.parts) as folder:
            path = source.fetch(source_key, folder)
            return self.put_file(key, path, sha256=sha256, replace=False)

    def delete(self, key: str) -> None:
        """Delete an object and its remembered digest."""
        self._path(key).unlink(missing_ok=True)
        if self._digests.pop(key, "") or self._memory(key).is_file():
            self._remember(key, "", "")

    @property
    def parts(self) -> Path:
        """Where what is half written lies, in workspaces."""
        return self.root / ".parts"

    @contextmanager
    def _locked(self, key: str) -> Iterator[Path]:
        """Hold the lock of a key; yield its folder."""
        folder, lock = files.made(self._path(key).parent), self.root / _DIGESTS / f"{key}.lock"
        files.made(lock.parent)
        if sys.platform == "win32":
            from filelock import FileLock

            with FileLock(lock, poll_interval=0.005):
                yield folder
        else:
            import fcntl  # filelock takes forty times as long

            with lock.open("ab") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX)
                yield folder

    def _memory(self, key: str) -> Path:
        return self.root / _DIGESTS / key.rpartition("/")[0] / _MEMORY

    def _remember(self, key: str, etag: str, sha256: str) -> None:
        """Note a digest in one write: half a line, and what follows it, says nothing of any file."""
        path = self._memory(key)
        files.made(path.parent)
        if "\n" not in key:
            with path.open("ab", buffering=0) as stream:
                stream.write(f"{key}\t{etag} {sha256}\n".encode("utf-8", "surrogateescape"))

    def _recall(self, path: Path) -> None:
        """Read what a memory says that was not read yet."""
        with suppress(OSError), path.open("rb") as stream:
            stream.seek(self._read.get(path, 0))
            for line in stream:
                key, _, digest = line.decode("utf-8", "surrogateescape").rpartition("\t")
                self._digests[key] = digest[:-1]
            self._read[path] = stream.tell()

    def forget(self) -> None:
        """Let go of the digests that were read: of many files they are much."""
        self._digests.clear()
        self._read.clear()

    def _existing(self, key: str) -> Path:
        path = self._path(key)
        if not path.is_file():
            raise stores.absent_error(key, self.url)
        return path

    def _path(self, key: str) -> Path:
        stores.require_key(key, self.url)
        return self.root / key


def _stored(key: str, status: os.stat_result) -> stores.Stored:
    etag = f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"
    return stores.Stored(key, status.st_size, etag, status.st_mtime)
