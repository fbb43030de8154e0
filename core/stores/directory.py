"""A store in a folder: keys are paths, writes are renames, files are linked where they can be."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote

from core import files, temporary
from core.errors import MachineError
from core.file_names import windows_fault
from core.stores import (
    PutResult,
    Stored,
    absent_error,
    conflict,
    etag_of,
    join_content,
    refuse_other_bytes,
    require_digest,
    require_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from core.stores import Content, Store

_DIGESTS_FOLDER = ".digests"
_DIGESTS_FILE = ".known"
_DIGEST_LENGTH = 64
_OPENING = os.O_RDONLY | getattr(os, "O_BINARY", 0)
_CHUNK = 1 << 16
_MODE = 0o644


@dataclass(frozen=True)
class DirectoryStore:
    """Run outputs in a folder.

    Digests are remembered beside the objects (by size and time of change), so that a listing of gigabytes is
    not hashed again: a file for each folder, which only grows, with a line for each digest.
    """

    root: Path
    # By key, "{etag} {digest}"; and how far each file of digests has been read.
    _digests: dict[str, str] = field(
        default_factory=dict,
        init=False,
        repr=False,
        compare=False,
    )
    _read_lengths: dict[Path, int] = field(
        default_factory=dict,
        init=False,
        repr=False,
        compare=False,
    )

    @property
    def url(self) -> str:
        """The folder."""
        return str(self.root)

    def url_of(self, key: str) -> str:
        """Return a key's ``file://`` address."""
        return f"{self.root.absolute().as_uri()}/{quote(key)}"

    def keeps_folder_pages(self, prefix: str) -> bool:  # noqa: ARG002 - the same everywhere in it
        """Return false: a path that ends with a slash is a folder."""
        return False

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """List the objects under `prefix`, sorted by key; or only those directly in that folder."""
        folder = self._path(prefix).relative_to(self.root).as_posix()
        objects: list[Stored] = []
        unread_folders = [f"{folder}/"]
        if folder == ".":
            unread_folders = [""]
        while unread_folders:
            folder_objects, subfolders = _scan_folder(os.fspath(self.root), unread_folders.pop())
            objects += folder_objects
            if recursive:
                unread_folders += subfolders
        return sorted(objects, key=itemgetter(0))

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders directly under `prefix`, sorted, without looking into them."""
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._path(prefix)) as entries:
            return sorted(entry.name for entry in entries if entry.name[0] != "." and entry.is_dir())
        return []

    def find(self, key: str) -> Stored | None:
        """Look one object up."""
        path = self._path(key)
        return _find_file(path, path.relative_to(self.root).as_posix())

    def digest(self, key: str) -> str:
        """Return an object's hex SHA-256, from memory where the file has not changed since."""
        return self.digest_of(_stored_object(key, self._existing_path(key).stat()))

    def digest_of(self, stored_object: Stored) -> str:
        """Return the digest of an object that was just listed, fast for ten thousand of them."""
        key = stored_object.key
        if not self._digests.get(key, "").startswith(f"{stored_object.etag} "):
            self._recall(self._digests_file(key))

        etag, _space, digest = self._digests.get(key, "").partition(" ")
        # A process that was killed may have left half a line.
        if etag == stored_object.etag and len(digest) == _DIGEST_LENGTH:
            return digest

        digest = files.sha256(self._existing_path(key))
        with suppress(OSError):  # a store that can only be read remembers nothing
            self._remember(key, stored_object.etag, digest)
        return digest

    def read(self, key: str) -> bytes:
        """Read a small object whole."""
        require_key(key, self.url)
        chunks: list[bytes] = []
        try:
            # A Path, or a file object, would take as long as reading the file.
            descriptor = os.open(f"{self.root}/{key}", _OPENING)
            try:
                while chunk := os.read(descriptor, _CHUNK):
                    chunks.append(chunk)
            finally:
                os.close(descriptor)
        except OSError:
            self._existing_path(key)
            raise
        return b"".join(chunks)

    def open(self, key: str) -> BinaryIO:
        """Open an object's file."""
        return self._existing_path(key).open("rb")

    def fetch(self, key: str, folder: Path) -> Path:  # noqa: ARG002 - it lies here already
        """Return the object's own path."""
        return self._existing_path(key)

    def put_file(
        self,
        key: str,
        source: Path,
        *,
        sha256: str,
        replace: bool,
        is_known_absent: bool = False,  # noqa: ARG002 - to look costs nothing here
    ) -> PutResult:
        """Link (or copy) a file under `key`."""
        path = self._writable_path(key)
        with self._locked(path, key):
            stored_object = _find_file(path, key)
            if stored_object is not None:
                if self.digest(key) == sha256:
                    return PutResult("unchanged", stored_object.etag)
                if not replace:
                    raise refuse_other_bytes(key, self.url)

            files.link_or_copy(source, path)
            etag = _stored_object(key, path.stat()).etag
            self._remember(key, etag, sha256)
        return PutResult("written", etag)

    def put_bytes(
        self,
        key: str,
        data: Content,
        *,
        replace: bool = True,
        if_match: str | None = None,
        is_known_absent: bool = False,  # noqa: ARG002 - to look costs nothing here
    ) -> PutResult:
        """Write a small object; every writer of it holds its lock, so that conditions hold, too."""
        path = self._writable_path(key)
        chunks = [data] if isinstance(data, bytes) else data
        size = sum(len(chunk) for chunk in chunks)
        with self._locked(path, key) as draft:
            stored_object = _find_file(path, key)
            if stored_object is not None:
                if stored_object.size == size and path.read_bytes() == join_content(data):
                    return PutResult("unchanged", stored_object.etag)
                if not replace:
                    raise refuse_other_bytes(key, self.url)
            if if_match not in {None, etag_of(stored_object)}:
                raise conflict(key, self.url)

            draft.stream.writelines(chunks)
            status = draft.put_in_place(path)
        return PutResult("written", _stored_object(key, status).etag)

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str) -> PutResult:
        """Copy an object of any store under `key`. Whoever writes to one of both leaves the other alone."""
        require_digest(source, source_key, source.digest(source_key), sha256)
        stored_object = self.find(key)
        if stored_object is not None and self.digest(key) == sha256:
            return PutResult("unchanged", stored_object.etag)
        with temporary.folder("copy", within=files.ensure_folder(self.root)) as folder:
            path = source.fetch(source_key, folder)
            if path.parent != folder:
                # It is the source's own file, and a link would make both stores share its bytes.
                copied_path = folder / "copy"
                files.copy(path, copied_path)
                path = copied_path
            return self.put_file(key, path, sha256=sha256, replace=False)

    def delete(self, key: str) -> None:
        """Delete an object and its remembered digest."""
        self._path(key).unlink(missing_ok=True)
        is_remembered = self._digests.pop(key, None) is not None
        if is_remembered or self._digests_file(key).is_file():
            self._remember(key, "", "")

    @contextmanager
    def _locked(self, path: Path, key: str) -> Iterator[_Draft]:
        """Hold the lock of a key, whose folder it makes; lend the file that new content is written to."""
        draft_path = path.with_name(f".{path.name}.half")
        if sys.platform == "win32":
            from filelock import FileLock

            files.ensure_folder(path.parent)
            lock = self.root / _DIGESTS_FOLDER / f"{key}.lock"
            files.ensure_folder(lock.parent)
            with files.writing(path), FileLock(lock, poll_interval=0.005), draft_path.open("wb") as stream:
                draft = _Draft(draft_path, stream)
                try:
                    yield draft
                finally:
                    stream.close()  # No open file can be removed there.
                    draft.remove()
        else:
            with files.writing(path), _open_locked(draft_path) as stream:
                draft = _Draft(draft_path, stream)
                try:
                    yield draft
                finally:
                    draft.remove()

    def _digests_file(self, key: str) -> Path:
        return self.root / _DIGESTS_FOLDER / key.rpartition("/")[0] / _DIGESTS_FILE

    def _remember(self, key: str, etag: str, digest: str) -> None:
        """Note a digest in one write. A line that was cut off, and the one behind it, name no file."""
        path = self._digests_file(key)
        files.ensure_folder(path.parent)
        if "\n" not in key:
            line = f"{key}\t{etag} {digest}\n"
            with path.open("ab", buffering=0) as stream:
                stream.write(line.encode("utf-8", "surrogateescape"))

    def _recall(self, digests_file: Path) -> None:
        """Read the lines of a file of digests that were not read yet."""
        with suppress(OSError), digests_file.open("rb") as stream:
            stream.seek(self._read_lengths.get(digests_file, 0))
            for line in stream:
                key, _tab, etag_and_digest = line.decode("utf-8", "surrogateescape").rpartition("\t")
                self._digests[key] = etag_and_digest[:-1]
            self._read_lengths[digests_file] = stream.tell()

    def forget(self) -> None:
        """Drop the digests that were read: those of many files take much memory."""
        self._digests.clear()
        self._read_lengths.clear()

    def _existing_path(self, key: str) -> Path:
        path = self._path(key)
        if not path.is_file():
            raise absent_error(key, self.url)
        return path

    def _writable_path(self, key: str) -> Path:
        """Return the path that a key is written to; refuse one that this machine has no file for."""
        if sys.platform == "win32":
            require_windows_names(key, self.url)
        return self._path(key)

    def _path(self, key: str) -> Path:
        require_key(key, self.url)
        return self.root / key


def require_windows_names(key: str, url: str) -> None:
    """Refuse a key of which Windows makes no file, or another one than that of its name."""
    for name in key.split("/"):
        fault = windows_fault(name)
        if fault is not None:
            raise MachineError(
                f"Windows cannot hold {key!r} in the store {url}: {fault}.",
                hint="Use a bucket for the store, or another name.",
            )


@dataclass
class _Draft:
    """A file that becomes an object when its content is whole.

    What a killed writer left is taken over by the next one of the same key.
    """

    path: Path
    stream: BinaryIO
    is_in_place: bool = False

    def put_in_place(self, target: Path) -> os.stat_result:
        """Give the file its name, and return its status."""
        self.stream.flush()
        status = os.fstat(self.stream.fileno())
        if sys.platform == "win32":
            self.stream.close()  # No open file can be renamed there.
        if stat.S_IMODE(status.st_mode) != _MODE:
            self.path.chmod(_MODE)
        files.put_in_place(self.path, target)
        self.is_in_place = True
        return status

    def remove(self) -> None:
        """Remove a file that is not in place; the name of one that is may be another writer's by now."""
        if not self.is_in_place:
            self.path.unlink(missing_ok=True)


if sys.platform != "win32":

    def _open_locked(path: Path) -> BinaryIO:
        """Create and lock a file for new content, its own lock, so that a write makes no other file."""
        import fcntl  # filelock takes forty times as long

        while True:
            try:
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, _MODE)
            except FileNotFoundError:
                files.ensure_folder(path.parent)
                continue
            stream = os.fdopen(descriptor, "wb", _CHUNK)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            status = os.fstat(descriptor)
            # Who held the lock before may have put this file in place, or removed it.
            with suppress(FileNotFoundError):
                if os.path.samestat(status, path.stat()):
                    if status.st_size:
                        stream.truncate()
                    return stream
            stream.close()


def _find_file(path: Path, key: str) -> Stored | None:
    """Return the object of a key; None where its path is that of no file."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _stored_object(key, status) if stat.S_ISREG(status.st_mode) else None


def _stored_object(key: str, status: os.stat_result) -> Stored:
    etag = f"{status.st_size}-{status.st_mtime_ns}-{status.st_ino}"
    return Stored(key, status.st_size, etag, status.st_mtime)


def _scan_folder(root: str, folder: str) -> tuple[list[Stored], list[str]]:
    """Return the objects directly in a folder below `root`, and its folders.

    It does without `pathlib`, as indexes list a hundred thousand files at once.
    """
    objects: list[Stored] = []
    subfolders: list[str] = []
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(f"{root}/{folder}") as entries:
        for entry in entries:
            # A name that begins with a dot is of a half-written file, or of remembered digests.
            if entry.name[0] == ".":
                continue

            key = folder + entry.name
            try:
                # DirEntry.stat knows no inode on Windows.
                status = os.stat(f"{root}/{key}")  # noqa: PTH116
            except FileNotFoundError:
                # Any file may be deleted during the listing.
                continue

            if stat.S_ISREG(status.st_mode):
                objects.append(_stored_object(key, status))
            elif entry.is_dir(follow_symlinks=False):
                subfolders.append(f"{key}/")
    return objects, subfolders
