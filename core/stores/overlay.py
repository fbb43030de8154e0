"""A store over another one that is only read: this machine's outputs over those that CI left in a bucket."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, TypeVar
from urllib.parse import urlsplit

from core import console
from core.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from core.stores import Content, PutResult, Store, Stored

# On a machine without a network one attempt of some seconds is enough; a request would be repeated patiently.
_CONNECT_SECONDS = 5.0
_PORTS = {"http": 80, "https": 443}
# Locations of stores that could not be read. That is said once.
_UNREADABLE: set[str] = set()

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class OverlayStore:
    """Run outputs on this machine, over those of another store; only the first store is written.

    The user did not name the store `behind`: where it cannot be read, that is said once, and what this
    machine has is all there is. `location` is what messages call it, and `endpoint` its server's address,
    where known.
    """

    store: Store
    open_behind: Callable[[], Store]
    location: str
    endpoint: str | None = None

    @functools.cached_property
    def behind(self) -> Store:
        """The store behind, opened where it is needed, as that may take a while."""
        return self.open_behind()

    @property
    def url(self) -> str:
        """The address of the store that is written to."""
        return self.store.url

    def store_of(self, key: str) -> Store:
        """Return the store that holds a key, the first one where neither does."""
        if self.store.find(key) is not None:
            return self.store
        is_behind = self.query(lambda behind: behind.find(key)) is not None
        return self.behind if is_behind else self.store

    def query(self, question: Callable[[Store], Answer]) -> Answer | None:
        """Ask the store behind, as long as it answers."""
        if self.location in _UNREADABLE or not is_reachable(self.endpoint):
            return None
        try:
            return question(self.behind)
        except FatalError as problem:
            _UNREADABLE.add(self.location)
            console.warn(f"{self.location} cannot be read, only {self.store.url} is: {problem.message}")
            return None

    def url_of(self, key: str) -> str:
        """Return a key's address in the store that holds it."""
        return self.store_of(key).url_of(key)

    def keeps_folder_pages(self, prefix: str) -> bool:
        """Return what holds for the store that is written to."""
        return self.store.keeps_folder_pages(prefix)

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """List both; of a key that both hold, the first store's."""
        objects_behind = self.query(lambda behind: behind.list(prefix, recursive=recursive)) or ()
        own_objects = self.store.list(prefix, recursive=recursive)
        objects = {stored_object.key: stored_object for stored_object in (*objects_behind, *own_objects)}
        return [objects[key] for key in sorted(objects)]

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders that either has."""
        folders_behind = self.query(lambda behind: behind.folders(prefix)) or ()
        return sorted({*folders_behind, *self.store.folders(prefix)})

    def find(self, key: str) -> Stored | None:
        """Look one object up, in the first store first."""
        return self.store.find(key) or self.query(lambda behind: behind.find(key))

    def digest(self, key: str) -> str:
        """Return the digest of an object of either store."""
        return self.store_of(key).digest(key)

    def read(self, key: str) -> bytes:
        """Read an object of either store."""
        return self.store_of(key).read(key)

    def open(self, key: str) -> BinaryIO:
        """Open an object of either store."""
        return self.store_of(key).open(key)

    def fetch(self, key: str, folder: Path) -> Path:
        """Return an object of either store as a file."""
        return self.store_of(key).fetch(key, folder)

    def put_file(
        self,
        key: str,
        source: Path,
        *,
        sha256: str,
        replace: bool,
        is_known_absent: bool = False,
    ) -> PutResult:
        """Put a file into the first store."""
        return self.store.put_file(
            key, source, sha256=sha256, replace=replace, is_known_absent=is_known_absent
        )

    def put_bytes(
        self,
        key: str,
        data: Content,
        *,
        replace: bool = True,
        if_match: str | None = None,
        is_known_absent: bool = False,
    ) -> PutResult:
        """Put a small object into the first store."""
        return self.store.put_bytes(
            key, data, replace=replace, if_match=if_match, is_known_absent=is_known_absent
        )

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str) -> PutResult:
        """Copy an object into the first store."""
        return self.store.copy(key, source, source_key, sha256=sha256)

    def delete(self, key: str) -> None:
        """Delete an object of the first store."""
        self.store.delete(key)


def store_of(store: Store, key: str) -> Store:
    """Return the store that holds a key: of an overlay, the one of the two."""
    return store.store_of(key) if isinstance(store, OverlayStore) else store


@functools.cache
def is_reachable(url: str | None) -> bool:
    """Return whether an address accepts connections, before requests are repeated patiently; warn if not."""
    import socket
    from urllib.request import getproxies  # slow to import, and rarely needed

    if url is None or getproxies():
        return True

    parts = urlsplit(url)
    port = parts.port or _PORTS[parts.scheme]
    try:
        socket.create_connection((parts.hostname or "", port), timeout=_CONNECT_SECONDS).close()
    except OSError as problem:
        console.warn(f"{parts.netloc} cannot be reached ({problem}): only what this machine has is read.")
        return False
    return True
