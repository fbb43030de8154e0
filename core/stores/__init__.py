"""Where run outputs live: a directory, or an S3 bucket, behind one protocol."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol

from core.errors import StoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

Outcome = Literal["written", "unchanged", "planned"]

_CONTENT_TYPES = {
    ".whl": "application/zip",
    ".metadata": "text/plain; charset=utf-8",
    ".gz": "application/gzip",
    ".xz": "application/x-xz",
    ".zst": "application/zstd",
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".xml": "application/xml",
    ".log": "text/plain; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".sha256sum": "text/plain; charset=utf-8",
}
# what another attempt of a job writes again
_REPLACED_FOLDERS = frozenset({"logs", "reports"})
_PAGE_SUFFIXES = frozenset({".html", ".json", ".txt"})


@dataclass(frozen=True, kw_only=True)
class Headers:
    """What HTTP clients are told of an object."""

    content_type: str
    cache_control: str


def headers_for(key: str) -> Headers:
    """Choose an object's headers by its key: pages and logs are asked for again, files are for ever."""
    path = Path(f"{key}index.html" if key.endswith("/") else key)
    suffix = path.suffix
    page = suffix in _PAGE_SUFFIXES or not _REPLACED_FOLDERS.isdisjoint(path.parts[:-1])
    return Headers(
        content_type=_CONTENT_TYPES.get(suffix, "application/octet-stream"),
        cache_control="no-cache, must-revalidate" if page else "public, max-age=31536000, immutable",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Stored:
    """One object of a listing.

    Attributes:
        key: Its whole key.
        size: Bytes.
        etag: What changes when the object does; the argument of a conditional write.
        modified: When it was written, in seconds since 1970 UTC.
    """

    key: str
    size: int
    etag: str
    modified: float


class Store(Protocol):
    """Objects under keys. Every write is whole or not at all, and carries its SHA-256."""

    @property
    def url(self) -> str:
        """Where the store is, for people."""
        ...

    def url_of(self, key: str) -> str:
        """Give the address under which clients read a key, quoted so that ``+`` in a version survives."""
        ...

    def keeps_folder_pages(self, prefix: str) -> bool:
        """Say whether objects below `prefix` may have keys that end with a slash.

        A client that asks for such a folder, as installers do for ``simple/{name}/``, is given that
        object; a bucket knows of no ``index.html``.
        """
        ...

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """List the objects under `prefix`, sorted by key; or only those directly in that folder."""
        ...

    def folders(self, prefix: str) -> Sequence[str]:
        """Name the folders directly under `prefix`, sorted; without looking into them."""
        ...

    def find(self, key: str) -> Stored | None:
        """Look one object up."""
        ...

    def digest(self, key: str) -> str:
        """Give an object's hex SHA-256.

        Raises:
            MissingInputError: There is no such object.
        """
        ...

    def read(self, key: str) -> bytes:
        """Read a small object whole.

        Raises:
            MissingInputError: There is no such object.
        """
        ...

    def open(self, key: str) -> BinaryIO:
        """Open an object for reading it once, from its beginning; the caller closes it.

        Raises:
            MissingInputError: There is no such object.
            StoreError: Reading broke off (raised by the stream's methods, too).
        """
        ...

    def fetch(self, key: str, folder: Path) -> Path:
        """Give an object as a file: itself where it lies on this machine, else a copy in `folder`.

        Raises:
            MissingInputError: There is no such object.
        """
        ...

    def put_file(
        self, key: str, source: Path, *, sha256: str, replace: bool, absent: bool = False
    ) -> Outcome:
        """Put a file under `key`.

        Args:
            key: Where it goes.
            source: The file.
            sha256: Its hex SHA-256.
            replace: Whether other bytes under `key` may be replaced.
            absent: Whether a listing has just said that nothing is there, so that it is not looked
                for again where the write itself shows it, or does not care.

        Raises:
            StoreError: `replace` is false and the key holds other bytes.
        """
        ...

    def put_bytes(
        self,
        key: str,
        data: bytes,
        *,
        if_match: str | None = None,
        replace: bool = True,
        absent: bool = False,
    ) -> Outcome:
        """Put a small object; with `if_match`, only over the object of that etag ("" = over none).

        The other arguments are those of `put_file`.

        Raises:
            ConflictError: Somebody else wrote in between.
            StoreError: `replace` is false and the key holds other bytes.
        """
        ...

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str, replace: bool) -> Outcome:
        """Put an object of another store (or of this one) under `key`, on the server where that can be.

        Args:
            key: Where it goes.
            source: The store that holds it.
            source_key: Its key there.
            sha256: The hex SHA-256 that it must have.
            replace: Whether other bytes under `key` may be replaced.

        Raises:
            MissingInputError: There is no such object.
            StoreError: It has another digest, or `replace` is false and `key` holds other bytes.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete an object; one that is not there is no error."""
        ...


def refuse_other_bytes(key: str, url: str) -> StoreError:
    """Write the error of a write that would replace what may not be replaced."""
    return StoreError(
        f"{key} exists in {url} with other bytes.",
        hint="A run other than 'local' is immutable: use a run id of its own.",
    )


def require_digest(source: Store, source_key: str, sha256: str) -> None:
    """Refuse to copy an object that is not the one that was meant."""
    found = source.digest(source_key)
    if found != sha256:
        raise refuse_other_digest(source, source_key, found, sha256)


def refuse_other_digest(source: Store, source_key: str, found: str, sha256: str) -> StoreError:
    """Write the error of a copy of an object that is not the one that was meant."""
    return StoreError(
        f"{source_key} in {source.url} has the digest {found}, and {sha256} was to be copied.",
        hint="Somebody replaced it; find out who, then test and copy again.",
    )


def open_store(location: str, *, root: Path, dry_run: bool = False) -> Store:
    """Open a store by what ``--store`` says: a folder, ``s3://bucket`` or ``s3://bucket/prefix``.

    Args:
        location: A path (relative to `root`) or an ``s3://`` URI; its endpoint, profile, region and
            credentials come from the usual AWS settings.
        root: The checkout.
        dry_run: Plan writes and print them instead.

    Raises:
        UsageError: No store is of that form.
        StoreError: The AWS settings cannot be meant.
    """
    from core.stores.location import DryRunStore

    store = _opened(location, root)
    return DryRunStore(store) if dry_run else store


def _opened(location: str, root: Path) -> Store:
    if location.startswith("s3://"):
        from core.cli import options
        from core.stores import s3

        return s3.open_bucket(location, options.environment())
    if "://" in location:
        raise UsageError(
            f"--store {location!r} is no store that this version can open.",
            hint="Give a folder, or s3://bucket.",
        )
    from core.stores.directory import DirectoryStore

    return DirectoryStore((root / location).resolve())
