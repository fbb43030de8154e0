"""A store that reads from another one and only says what it would write."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

from core import console
from core.stores import refuse_other_bytes, require_digest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from core.stores import Outcome, Store, Stored


@dataclass(frozen=True)
class DryRunStore:
    """Reads pass through; writes are printed.

    Attributes:
        store: The store that would be written.
    """

    store: Store

    @property
    def url(self) -> str:
        """The address of the store behind."""
        return self.store.url

    def url_of(self, key: str) -> str:
        """Give a key's address in the store behind."""
        return self.store.url_of(key)

    def keeps_folder_pages(self, prefix: str) -> bool:
        """Say whether the store behind has such objects: to find out more, one would have to write."""
        return any(stored.key.endswith("/") for stored in self.store.list(prefix))

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """List the objects of the store behind."""
        return self.store.list(prefix, recursive=recursive)

    def folders(self, prefix: str) -> Sequence[str]:
        """Name the folders of the store behind."""
        return self.store.folders(prefix)

    def find(self, key: str) -> Stored | None:
        """Look one object of the store behind up."""
        return self.store.find(key)

    def digest(self, key: str) -> str:
        """Give the digest of an object of the store behind."""
        return self.store.digest(key)

    def read(self, key: str) -> bytes:
        """Read an object of the store behind."""
        return self.store.read(key)

    def open(self, key: str) -> BinaryIO:
        """Open an object of the store behind."""
        return self.store.open(key)

    def fetch(self, key: str, folder: Path) -> Path:
        """Fetch an object of the store behind."""
        return self.store.fetch(key, folder)

    def put_file(
        self, key: str, source: Path, *, sha256: str, replace: bool, absent: bool = False
    ) -> Outcome:
        """Print the write of a file; refuse what the store behind would refuse."""
        if not absent and self._holds(key, sha256, replace=replace):
            return "unchanged"
        size = console.size(source.stat().st_size)
        console.say(f"would write {self.url}/{key}  ({size}, sha256 {sha256[:12]})")
        return "planned"

    def put_bytes(
        self,
        key: str,
        data: bytes,
        *,
        if_match: str | None = None,  # noqa: ARG002 - nothing is written, so nobody can be first
        replace: bool = True,
        absent: bool = False,
    ) -> Outcome:
        """Print the write of a small object; refuse what the store behind would refuse."""
        if not absent and self._holds(key, hashlib.sha256(data).hexdigest(), replace=replace):
            return "unchanged"
        console.say(f"would write {self.url}/{key}  ({console.size(len(data))})")
        return "planned"

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str, replace: bool) -> Outcome:
        """Print a copy; refuse what the store behind would refuse."""
        require_digest(source, source_key, sha256)
        if self._holds(key, sha256, replace=replace):
            return "unchanged"
        console.say(f"would copy {source.url}/{source_key} to {self.url}/{key}  (sha256 {sha256[:12]})")
        return "planned"

    def delete(self, key: str) -> None:
        """Print the deletion of an object that is there."""
        if self.store.find(key) is not None:
            console.say(f"would delete {self.url}/{key}")

    def _holds(self, key: str, sha256: str, *, replace: bool) -> bool:
        if self.store.find(key) is None:
            return False
        same = self.store.digest(key) == sha256
        if not same and not replace:
            raise refuse_other_bytes(key, self.url)
        return same
