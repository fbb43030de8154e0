"""Where run outputs live: a directory, or an S3 bucket, behind one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Literal, NamedTuple, Protocol

from core.errors import ConflictError, MissingInputError, StoreError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

Outcome = Literal["written", "unchanged", "planned"]
# Of a small object. A store that writes chunk by chunk does not put them together.
Content = bytes | Sequence[bytes | memoryview]

_CONTENT_TYPES = {
    ".gz": "application/gzip",
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".log": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".metadata": "text/plain; charset=utf-8",
    ".sha256sum": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".whl": "application/zip",
    ".xml": "application/xml",
    ".xz": "application/x-xz",
    ".zst": "application/zstd",
}
_PAGE_SUFFIXES = frozenset({".html", ".json", ".txt"})
# Another attempt of a job writes the files in these folders again.
_REPLACED_FOLDERS = frozenset({"logs", "reports"})


class Stored(NamedTuple):
    """One object of a store, as a listing or a query shows it.

    A conditional write names the `etag`. `modified` is in seconds since 1970 UTC. `sha256` is None where it
    takes a request of its own to learn it: `Store.digest` does that.
    """

    key: str
    size: int
    etag: str
    modified: float
    sha256: str | None = None


class PutResult(NamedTuple):
    """What a write did, and the ETag of the object that is there now."""

    outcome: Outcome
    etag: str


class Store(Protocol):
    """Objects under keys. Every write is whole or not at all, and carries its SHA-256.

    Methods that read an object raise a `MissingInputError` if there is none. A write that may not replace
    raises a `StoreError` if the key holds other bytes.
    """

    @property
    def url(self) -> str:
        """Where the store is, as messages show it."""

    def url_of(self, key: str) -> str:
        """Return the address under which clients read a key, quoted so that ``+`` in a version survives."""

    def keeps_folder_pages(self, prefix: str) -> bool:
        """Return whether objects below `prefix` may have keys that end with a slash.

        Installers ask for ``simple/{name}/``, and a bucket knows no ``index.html``: there the page has such
        a key. `prefix` holds an object.
        """

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """List the objects under `prefix`, sorted by key; or only those directly in that folder."""

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders directly under `prefix`, sorted, without looking into them."""

    def find(self, key: str) -> Stored | None:
        """Look one object up."""

    def digest(self, key: str) -> str:
        """Return an object's hex SHA-256."""

    def read(self, key: str) -> bytes:
        """Read a small object whole."""

    def open(self, key: str) -> BinaryIO:
        """Open an object for reading it once; its methods raise a `StoreError` if reading breaks off."""

    def fetch(self, key: str, folder: Path) -> Path:
        """Return an object as a file: itself where it lies on this machine, else a copy in `folder`."""

    def put_file(
        self,
        key: str,
        source: Path,
        *,
        sha256: str,
        replace: bool,
        is_known_absent: bool = False,
    ) -> PutResult:
        """Put a file of that hex SHA-256 under `key`; other bytes there are only replaced with `replace`.

        `is_known_absent` says that a listing has just shown nothing there, so that it is not looked for again
        where the write itself shows it, or does not care.
        """

    def put_bytes(
        self,
        key: str,
        data: Content,
        *,
        replace: bool = True,
        if_match: str | None = None,
        is_known_absent: bool = False,
    ) -> PutResult:
        """Put a small object; with `if_match`, only over the object of that ETag ("" is that of nothing).

        A race that was lost is a `ConflictError`. `replace` and `is_known_absent` are those of `put_file`.
        """

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str) -> PutResult:
        """Put an object of any store, of that digest, where nothing else is; on the server where possible."""

    def delete(self, key: str) -> None:
        """Delete an object; an absent one is not an error."""


def headers_for(key: str) -> dict[str, str]:
    """Return an object's headers, as S3 names them: pages and logs are revalidated, files are immutable."""
    path = PurePosixPath(f"{key}index.html" if key.endswith("/") else key)
    content_type = _CONTENT_TYPES.get(path.suffix, "application/octet-stream")
    is_replaced = path.suffix in _PAGE_SUFFIXES or not _REPLACED_FOLDERS.isdisjoint(path.parts[:-1])
    caching = "public, max-age=31536000, immutable"
    if is_replaced:
        caching = "no-cache, must-revalidate"
    return {"ContentType": content_type, "CacheControl": caching}


def etag_of(stored_object: Stored | None) -> str:
    """Return the ETag of an object, "" where there is none, as conditional writes name it."""
    if stored_object is None:
        return ""
    return stored_object.etag


def join_content(data: Content) -> bytes:
    """Put the chunks of a small object together."""
    return data if isinstance(data, bytes) else b"".join(data)


def require_key(key: str, url: str) -> None:
    """Refuse a key that would leave the store, or that is hidden."""
    if key.startswith("/") or "/." in f"/{key}".replace("\\", "/"):
        raise UsageError(f"{key!r} is not a key of the store {url}.")


def absent_error(key: str, url: str) -> MissingInputError:
    """Return the error of an object that does not exist."""
    return MissingInputError(f"{key} is not in the store {url}.")


def refuse_other_bytes(key: str, url: str) -> StoreError:
    """Return the error of a write that would replace what may not be replaced."""
    return StoreError(
        f"{key} exists in {url} with other bytes.",
        hint="A run other than 'local' is immutable: use a run id of its own.",
    )


def conflict(key: str, url: str) -> ConflictError:
    """Return the error of a conditional write that lost a race."""
    return ConflictError(f"{key} in {url} was written by another process meanwhile.")


def require_digest(source: Store, source_key: str, actual_sha256: str, sha256: str) -> None:
    """Refuse to copy an object whose digest is another one than `sha256`."""
    if actual_sha256 != sha256:
        raise StoreError(
            f"{source_key} in {source.url} has the digest {actual_sha256}, and {sha256} was to be copied.",
            hint="Another process replaced it; find out which, then test and copy again.",
        )
