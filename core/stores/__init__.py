"""Where run outputs live: a directory, or an S3 bucket, behind one protocol."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, Protocol, TypedDict, Unpack

from core.errors import ConflictError, MissingInputError, StoreError, UsageError

Outcome = Literal["written", "unchanged", "planned"]
# of a small object; its parts are not put together where it can be written part by part
Content = bytes | Sequence[bytes | memoryview]

_CONTENT_TYPES = {
    **dict.fromkeys((".log", ".md", ".metadata", ".sha256sum", ".txt"), "text/plain; charset=utf-8"),
    ".whl": "application/zip",
    ".gz": "application/gzip",
    ".xz": "application/x-xz",
    ".zst": "application/zstd",
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".xml": "application/xml",
}
# what another attempt of a job writes again
_REPLACED_FOLDERS = frozenset({"logs", "reports"})
_PAGE_SUFFIXES = frozenset({".html", ".json", ".txt"})


def headers_for(key: str) -> dict[str, str]:
    """Choose an object's headers, as S3 names them: pages and logs are revalidated, files are immutable."""
    path = Path(f"{key}index.html" if key.endswith("/") else key)
    suffix = path.suffix
    page = suffix in _PAGE_SUFFIXES or not _REPLACED_FOLDERS.isdisjoint(path.parts[:-1])
    return {
        "ContentType": _CONTENT_TYPES.get(suffix, "application/octet-stream"),
        "CacheControl": "no-cache, must-revalidate" if page else "public, max-age=31536000, immutable",
    }


class Stored(NamedTuple):
    """One object; its ETag is the argument of a conditional write. A digest that is not known is ""."""

    key: str
    size: int
    etag: str
    modified: float  # seconds since 1970 UTC
    sha256: str = ""


class Condition(TypedDict, total=False):
    """On what condition a small object is put."""

    if_match: str | None
    replace: bool
    absent: bool


class Store(Protocol):
    """Objects under keys. Every write is whole or not at all, and carries its SHA-256.

    What reads an object raises a `MissingInputError` if there is none; a write that may not replace raises
    a `StoreError` if the key holds other bytes.
    """

    @property
    def url(self) -> str:
        """Where the store is, as messages show it."""

    def url_of(self, key: str) -> str:
        """Return the address under which clients read a key, quoted so that ``+`` in a version survives."""

    def keeps_folder_pages(self, prefix: str) -> bool:
        """Return whether objects below `prefix` may have keys that end with a slash.

        Installers get such an object for ``simple/{name}/``; a bucket knows no ``index.html``.
        """

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """List the objects under `prefix`, sorted by key; or only those directly in that folder."""

    def folders(self, prefix: str) -> Sequence[str]:
        """Name the folders directly under `prefix`, sorted; without looking into them."""

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
        self, key: str, source: Path, *, sha256: str, replace: bool, absent: bool = False
    ) -> Outcome:
        """Put a file of that hex SHA-256 under `key`; other bytes there are only replaced with `replace`.

        `absent` says that a listing has just shown nothing there, so that it is not looked for again where
        the write itself shows it, or does not care.
        """

    def put_bytes(self, key: str, data: Content, **how: Unpack[Condition]) -> Outcome:
        """Put a small object; with `if_match`, only over the object of that ETag ("" = over none).

        A race that was lost is a `ConflictError`.
        """

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str) -> Outcome:
        """Put an object of any store, of that digest, where nothing else is; on the server where possible."""

    def delete(self, key: str) -> None:
        """Delete an object; an absent one is not an error."""


def whole(data: Content) -> bytes:
    """Put the parts of a small object together."""
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


def require_digest(source: Store, source_key: str, sha256: str, *, found: str = "") -> None:
    """Refuse to copy an object that has another digest than `sha256`; `found` is its digest, if known."""
    found = found or source.digest(source_key)
    if found != sha256:
        raise StoreError(
            f"{source_key} in {source.url} has the digest {found}, and {sha256} was to be copied.",
            hint="Another process replaced it; find out which, then test and copy again.",
        )
