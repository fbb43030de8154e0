"""A store over another one: what the first lacks is read from the second; only the first is written."""

from __future__ import annotations

import functools
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

from core import console
from core.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from core.stores import Outcome, Store, Stored

_PATIENCE = 5.0  # seconds; a machine without a network is told so at once, and not after many retries
_PORTS = {"http": 80, "https": 443}
Found = TypeVar("Found")


@dataclass(frozen=True)
class OverlayStore:
    """Run outputs on this machine, over those that CI left in a bucket.

    Nobody named the store behind: where it cannot be read, that is said once, and what this
    machine has is all there is.
    """

    store: Store
    opened: Callable[[], Store]
    where: str
    address: str = ""

    @functools.cached_property
    def behind(self) -> Store:
        """The store behind; opening it may take a while, so nobody does who needs not."""
        return self.opened()

    @property
    def url(self) -> str:
        """The address of the store that is written to."""
        return self.store.url

    def at(self, key: str) -> Store:
        """Give the store that holds a key, the first one where neither does."""
        return self.store if self.store.find(key) or not self.asked(lambda it: it.find(key)) else self.behind

    def url_of(self, key: str) -> str:
        """Give a key's address in the store that holds it."""
        return self.at(key).url_of(key)

    def keeps_folder_pages(self, prefix: str) -> bool:
        """Say what the store that is written to can do."""
        return self.store.keeps_folder_pages(prefix)

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """List both; of a key that both hold, the first store's."""
        other = self.asked(lambda behind: behind.list(prefix, recursive=recursive)) or ()
        found = {stored.key: stored for stored in other}
        found |= {stored.key: stored for stored in self.store.list(prefix, recursive=recursive)}
        return [stored for _, stored in sorted(found.items())]

    def folders(self, prefix: str) -> Sequence[str]:
        """Name the folders that either has."""
        other = self.asked(lambda behind: behind.folders(prefix)) or ()
        return sorted({*other, *self.store.folders(prefix)})

    def find(self, key: str) -> Stored | None:
        """Look one object up, in the first store first."""
        return self.store.find(key) or self.asked(lambda behind: behind.find(key))

    def asked(self, question: Callable[[Store], Found]) -> Found | None:
        """Ask the store behind, as long as it answers."""
        if self.where in _SILENT or not answers(self.address):
            return None
        try:
            return question(self.behind)
        except FatalError as problem:
            _SILENT.add(self.where)
            console.warn(f"{self.where} cannot be read, only {self.store.url} is: {problem.message}")
            return None

    def digest(self, key: str) -> str:
        """Give the digest of an object of either store."""
        return self.at(key).digest(key)

    def read(self, key: str) -> bytes:
        """Read an object of either store."""
        return self.at(key).read(key)

    def open(self, key: str) -> BinaryIO:
        """Open an object of either store."""
        return self.at(key).open(key)

    def fetch(self, key: str, folder: Path) -> Path:
        """Give an object of either store as a file."""
        return self.at(key).fetch(key, folder)

    def put_file(
        self, key: str, source: Path, *, sha256: str, replace: bool, absent: bool = False
    ) -> Outcome:
        """Put a file into the first store."""
        return self.store.put_file(key, source, sha256=sha256, replace=replace, absent=absent)

    def put_bytes(
        self,
        key: str,
        data: bytes,
        *,
        if_match: str | None = None,
        replace: bool = True,
        absent: bool = False,
    ) -> Outcome:
        """Put a small object into the first store."""
        return self.store.put_bytes(key, data, if_match=if_match, replace=replace, absent=absent)

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str, replace: bool) -> Outcome:
        """Copy an object into the first store."""
        return self.store.copy(key, source, source_key, sha256=sha256, replace=replace)

    def delete(self, key: str) -> None:
        """Delete an object of the first store."""
        self.store.delete(key)


def holding(store: Store, key: str) -> Store:
    """Give the store that holds a key: of one over another, the one of the two."""
    return store.at(key) if isinstance(store, OverlayStore) else store


_SILENT: set[str] = set()


@functools.cache
def answers(url: str) -> bool:
    """Say whether anybody answers at an address, before requests are made patiently; say so if not."""
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
