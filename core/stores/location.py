"""Stores as ``--store`` and ``--dry-run`` name them, and the two that stand before another one."""

import functools
import hashlib
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeVar, Unpack
from urllib.parse import urlsplit

from core import console, files
from core.errors import FatalError, UsageError
from core.status import Pending, Status, UpToDate
from core.stores import Condition, Content, Outcome, Store, Stored, refuse_other_bytes, require_digest, whole

_PATIENCE = 5.0  # seconds, instead of many retries, on a machine without a network
_PORTS = {"http": 80, "https": 443}
_SILENT: set[str] = set()
Found = TypeVar("Found")
# of an object that would be there: its bytes, its file, or of a copy neither
_Planned = bytes | Path | None


def open_store(location: str, *, root: Path, dry_run: bool = False) -> Store:
    """Open a store by what ``--store`` says: a folder (from `root`), ``s3://bucket`` or ``s3://bucket/prefix``.

    The usual AWS settings give endpoint, profile, region and credentials.
    """
    store: Store
    if location.startswith("s3://"):
        from core.stores import s3  # with it comes boto3

        store = s3.open_bucket(location)
    elif "://" in location:
        raise UsageError(
            f"--store {location!r} is not a store that this version can open.",
            hint="Give a folder, or s3://bucket.",
        )
    else:
        from core.stores.directory import DirectoryStore

        store = DirectoryStore((root / location).resolve())
        if not dry_run:
            files.sweep(store.parts)
    return DryRunStore(store) if dry_run else store


@dataclass(frozen=True)
class DryRunStore:
    """Reads from another store, called `named` if not by its own name, and prints what it would write.

    What it would have written is there for later reads, so that one dry run plans all of a stage's steps.
    """

    store: Store
    named: str = ""
    _planned: dict[str, tuple[Stored, _Planned]] = field(default_factory=dict, compare=False, repr=False)
    _deleted: set[str] = field(default_factory=set, compare=False, repr=False)

    @property
    def status(self) -> Status:
        """Whether anything that was done on it would have changed the store behind."""
        changes = [f"{key} would be written" for key in sorted(self._planned)]
        changes += [f"{key} would be deleted" for key in sorted(self._deleted)]
        return Pending(reasons=tuple(changes)) if changes else UpToDate()

    @property
    def url(self) -> str:
        """The address of the store behind."""
        return self.named or self.store.url

    def url_of(self, key: str) -> str:
        """Return a key's address in the store behind."""
        return self.store.url_of(key)

    def keeps_folder_pages(self, prefix: str) -> bool:
        """Return whether the store behind has such objects: to find out more, one would have to write."""
        return bool(self.named) or any(stored.key.endswith("/") for stored in self.store.list(prefix))

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """List the objects of the store behind, and those that would be there."""
        found = {one.key: one for one in self.store.list(prefix, recursive=recursive)}
        for key, (stored, _) in self._planned.items():
            below = key.removeprefix(f"{prefix}/" if prefix else "")
            if (not prefix or below != key) and (recursive or "/" not in below):
                found[key] = stored
        return [one for _, one in sorted(found.items())]

    def folders(self, prefix: str) -> Sequence[str]:
        """Name the folders of the store behind, and those that would be there."""
        start = f"{prefix}/" if prefix else ""
        planned = {key.removeprefix(start).partition("/") for key in self._planned if key.startswith(start)}
        return sorted({*self.store.folders(prefix), *(folder for folder, slash, _ in planned if slash)})

    def find(self, key: str) -> Stored | None:
        """Look one object up."""
        return self._planned[key][0] if key in self._planned else self.store.find(key)

    def digest(self, key: str) -> str:
        """Return the digest of an object."""
        return self._planned[key][0].sha256 if key in self._planned else self.store.digest(key)

    def read(self, key: str) -> bytes:
        """Read an object."""
        with self.open(key) as stream:
            return stream.read()

    def open(self, key: str) -> BinaryIO:
        """Open an object."""
        content = self._content(key)
        if isinstance(content, bytes):
            return io.BytesIO(content)
        return content.open("rb") if content else self.store.open(key)

    def fetch(self, key: str, folder: Path) -> Path:
        """Fetch an object."""
        content = self._content(key)
        if isinstance(content, bytes):
            path = files.made(folder) / PurePosixPath(key).name
            path.write_bytes(content)
            return path
        return content or self.store.fetch(key, folder)

    def _content(self, key: str) -> _Planned:
        return self._planned[key][1] if key in self._planned else None

    def put_file(
        self, key: str, source: Path, *, sha256: str, replace: bool, absent: bool = False
    ) -> Outcome:
        """Print the write of a file; refuse what the store behind would refuse."""
        what = f"would write {self.url}/{key}  ({console.size(source.stat().st_size)}, sha256 {sha256[:12]})"
        return self._plan(key, source.stat().st_size, sha256, source, what, replace=replace, absent=absent)

    def put_bytes(self, key: str, data: Content, **how: Unpack[Condition]) -> Outcome:
        """Print the write of a small object; refuse what the store behind would refuse."""
        data = whole(data)
        what = f"would write {self.url}/{key}  ({console.size(len(data))})"
        sha256 = hashlib.sha256(data).hexdigest()
        return self._plan(key, len(data), sha256, data, what, **how)

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str) -> Outcome:
        """Print a copy; refuse what the store behind would refuse."""
        require_digest(source, source_key, sha256)
        found = source.find(source_key)
        what = f"would copy {source.url}/{source_key} to {self.url}/{key}  (sha256 {sha256[:12]})"
        return self._plan(key, found.size if found else 0, sha256, None, what, replace=False)

    def delete(self, key: str) -> None:
        """Print the deletion of an object that is there."""
        if self._planned.pop(key, None) or self.store.find(key) is not None:
            self._deleted.add(key)
            console.say(f"would delete {self.url}/{key}")

    def _plan(
        self, key: str, size: int, sha256: str, content: _Planned, what: str, **how: Unpack[Condition]
    ) -> Outcome:
        if not how.get("absent") and self.find(key) is not None:
            if self.digest(key) == sha256:
                return "unchanged"
            if not how.get("replace", True):
                raise refuse_other_bytes(key, self.url)
        etag = f"planned-{sha256[:16]}"
        stored = Stored(key=key, size=size, etag=etag, modified=time.time(), sha256=sha256)
        self._planned[key] = stored, content
        console.say(what)
        return "planned"


@dataclass(frozen=True)
class OverlayStore:
    """Run outputs on this machine, over those that CI left in a bucket; only the first store is written.

    The user did not name the store behind: where it cannot be read, that is said once, and what this
    machine has is all there is.
    """

    store: Store
    opened: Callable[[], Store]
    where: str
    address: str = ""

    @functools.cached_property
    def behind(self) -> Store:
        """The store behind, opened where it is needed, as that may take a while."""
        return self.opened()

    @property
    def url(self) -> str:
        """The address of the store that is written to."""
        return self.store.url

    def at(self, key: str) -> Store:
        """Return the store that holds a key, the first one where neither does."""
        return self.store if self.store.find(key) or not self.query(lambda it: it.find(key)) else self.behind

    def query(self, question: Callable[[Store], Found]) -> Found | None:
        """Query the store behind, as long as it answers."""
        if self.where in _SILENT or not answers(self.address):
            return None
        try:
            return question(self.behind)
        except FatalError as problem:
            _SILENT.add(self.where)
            console.warn(f"{self.where} cannot be read, only {self.store.url} is: {problem.message}")
            return None

    def url_of(self, key: str) -> str:
        """Return a key's address in the store that holds it."""
        return self.at(key).url_of(key)

    def keeps_folder_pages(self, prefix: str) -> bool:
        """Return what holds for the store that is written to."""
        return self.store.keeps_folder_pages(prefix)

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """List both; of a key that both hold, the first store's."""
        other = self.query(lambda behind: behind.list(prefix, recursive=recursive)) or ()
        found = {one.key: one for one in (*other, *self.store.list(prefix, recursive=recursive))}
        return [stored for _, stored in sorted(found.items())]

    def folders(self, prefix: str) -> Sequence[str]:
        """Name the folders that either has."""
        other = self.query(lambda behind: behind.folders(prefix)) or ()
        return sorted({*other, *self.store.folders(prefix)})

    def find(self, key: str) -> Stored | None:
        """Look one object up, in the first store first."""
        return self.store.find(key) or self.query(lambda behind: behind.find(key))

    def digest(self, key: str) -> str:
        """Return the digest of an object of either store."""
        return self.at(key).digest(key)

    def read(self, key: str) -> bytes:
        """Read an object of either store."""
        return self.at(key).read(key)

    def open(self, key: str) -> BinaryIO:
        """Open an object of either store."""
        return self.at(key).open(key)

    def fetch(self, key: str, folder: Path) -> Path:
        """Return an object of either store as a file."""
        return self.at(key).fetch(key, folder)

    def put_file(
        self, key: str, source: Path, *, sha256: str, replace: bool, absent: bool = False
    ) -> Outcome:
        """Put a file into the first store."""
        return self.store.put_file(key, source, sha256=sha256, replace=replace, absent=absent)

    def put_bytes(self, key: str, data: Content, **how: Unpack[Condition]) -> Outcome:
        """Put a small object into the first store."""
        return self.store.put_bytes(key, data, **how)

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str) -> Outcome:
        """Copy an object into the first store."""
        return self.store.copy(key, source, source_key, sha256=sha256)

    def delete(self, key: str) -> None:
        """Delete an object of the first store."""
        self.store.delete(key)


def holding(store: Store, key: str) -> Store:
    """Return the store that holds a key: of an overlay, the one of the two."""
    return store.at(key) if isinstance(store, OverlayStore) else store


@functools.cache
def answers(url: str) -> bool:
    """Return whether an address accepts connections, before requests are repeated patiently; warn if not."""
    import socket
    from urllib.request import getproxies  # slow to import, and rarely needed

    parts = urlsplit(url)
    if not url or getproxies():
        return True
    try:
        host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        socket.create_connection((host, port), timeout=_PATIENCE).close()
    except OSError as problem:
        console.warn(f"{parts.netloc} cannot be reached ({problem}): only what this machine has is read.")
        return False
    return True
