"""What an upload puts into a store: compared with all that is there first, and then written in its order.

Files are put first, then what lies beside them, then the records that name them. So a reader never sees half
of it, and an upload that was killed is completed by the next one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ci.publish.local_files import LocalFile, pack
from core import console, files, temporary
from core.errors import StoreError
from core.parallel import JOBS, Transfer, map_in_threads, transfer
from core.stores import Store, Stored, refuse_other_bytes
from core.stores.directory import DirectoryStore
from core.stores.dry_run import DryRunStore

if TYPE_CHECKING:
    from core.packages.candidates import Candidate
    from core.run.records import FileRecord

_MOST_KEYS = 5  # in an error


class Document(NamedTuple):
    """A small object that is to be put."""

    key: str
    content: bytes
    may_replace: bool

    @property
    def size(self) -> int:
        """Its bytes."""
        return len(self.content)

    @property
    def sha256(self) -> str:
        """Its digest."""
        return hashlib.sha256(self.content).hexdigest()


AnyObject = TypeVar("AnyObject", LocalFile, Document)
_NOTHING_RECORDED: Mapping[str, frozenset[str]] = MappingProxyType({})
_NO_SIDECARS: Mapping[str, Document] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Objects of one kind that an upload puts together, as the comparison with the store has left them.

    Attributes:
        title: What they are, for messages.
        prefix: The folder that they go to.
        listing: The objects that are there, by key.
        files: The files that the store lacks.
        unchanged_count: How many files it has already.
        sidecars: What lies beside the files.
        documents: The records that name the files.
        outdated_keys: The failures that a success of the same step replaces.
        artifact_group: The group of wheels; None for what no page lists.
        wheels: All wheels and sdists that the batch stands for, those that were there among them.
    """

    title: str
    prefix: str
    listing: Mapping[str, Stored]
    files: Sequence[LocalFile] = ()
    unchanged_count: int = 0
    sidecars: Sequence[Document] = ()
    documents: Sequence[Document] = ()
    outdated_keys: Sequence[str] = ()
    artifact_group: str | None = None
    wheels: Sequence[FileRecord] = ()


# --- The comparison with what is there -------------------------------------------------------


def list_folders(store: Store, prefixes: Iterable[str]) -> Mapping[str, Stored]:
    """Return the objects in folders of a store, by key."""
    objects: dict[str, Stored] = {}
    for folder_objects in map_in_threads(store.list, sorted(set(prefixes))):
        for stored_object in folder_objects:
            objects[stored_object.key] = stored_object
    return objects


def compare(
    store: Store,
    title: str,
    prefix: str,
    listing: Mapping[str, Stored],
    local_files: Sequence[LocalFile],
    *,
    recorded_digests: Mapping[str, frozenset[str]] = _NOTHING_RECORDED,
    sidecars: Mapping[str, Document] = _NO_SIDECARS,
) -> Batch:
    """Return what a store lacks of files and of their sidecars, which `sidecars` has by the files' keys.

    A record is written after the sidecars of its files. So beside a recorded file that is there a sidecar's
    size is enough to know it. Beside another one, a killed upload may have left the sidecar of other bytes.
    """
    new_files = missing_objects(store, local_files, listing, recorded_digests)
    new_keys = {file.key for file in new_files}
    unclear_sidecars: list[Document] = []
    for file in local_files:
        sidecar = sidecars.get(file.key)
        if sidecar is None:
            continue
        is_recorded = file.sha256 in recorded_digests.get(file.key, frozenset())
        is_complete = is_recorded and file.key not in new_keys
        if not is_complete or not _has_size(listing, sidecar):
            unclear_sidecars.append(sidecar)
    return Batch(
        title=title,
        prefix=prefix,
        listing=listing,
        files=new_files,
        unchanged_count=len(local_files) - len(new_files),
        sidecars=missing_objects(store, unclear_sidecars, listing),
    )


def missing_objects(
    store: Store,
    objects: Iterable[AnyObject],
    listing: Mapping[str, Stored],
    recorded_digests: Mapping[str, frozenset[str]] = _NOTHING_RECORDED,
) -> Sequence[AnyObject]:
    """Return the objects that a store lacks; an error where one of them may not replace what is there.

    Sizes come from the listing, and digests from records. The store is queried, one request an object, only
    for those that no record names.
    """
    missing: list[AnyObject] = []
    unclear: list[AnyObject] = []
    for candidate in objects:
        if not _has_size(listing, candidate):
            missing.append(candidate)
        elif candidate.sha256 not in recorded_digests.get(candidate.key, frozenset()):
            unclear.append(candidate)

    digests = map_in_threads(store.digest, [candidate.key for candidate in unclear])
    for candidate, digest in zip(unclear, digests, strict=True):
        if digest != candidate.sha256:
            missing.append(candidate)
    _require_replaceable(store, missing, listing)
    return sorted(missing, key=attrgetter("key"))


def _has_size(listing: Mapping[str, Stored], candidate: LocalFile | Document) -> bool:
    return candidate.key in listing and listing[candidate.key].size == candidate.size


def _require_replaceable(
    store: Store,
    objects: Iterable[LocalFile | Document],
    listing: Mapping[str, Stored],
) -> None:
    """Refuse the upload where it would replace objects of an immutable run."""
    keys = sorted(file.key for file in objects if file.key in listing and not file.may_replace)
    if not keys:
        return
    if len(keys) == 1:
        raise refuse_other_bytes(keys[0], store.url)

    lines = keys[:_MOST_KEYS]
    if len(keys) > _MOST_KEYS:
        lines.append(f"and {len(keys) - _MOST_KEYS} more")
    named_keys = "\n  ".join(lines)
    raise StoreError(
        f"{len(keys)} keys exist in {store.url} with other bytes; nothing was uploaded:\n  {named_keys}",
        hint="A run other than 'local' is immutable: use a run id of its own.",
    )


# --- Writing ---------------------------------------------------------------------------------


def put(store: Store, batch: Batch) -> None:
    """Put a batch into a store, and print what was put."""
    _put_files(store, batch)
    # A record is written once all that it names is there.
    for documents in (batch.sidecars, batch.documents):
        map_in_threads(partial(_put_document, store, batch.listing), documents, jobs=_jobs(store))
    for key in batch.outdated_keys:
        store.delete(key)

    is_dry_run = isinstance(store, DryRunStore)
    if batch.wheels and not is_dry_run:
        print_files(batch.wheels)
    _report(f"{store.url}/{batch.prefix}", batch, is_dry_run=is_dry_run)


def _put_files(store: Store, batch: Batch) -> None:
    """Put files in parallel, the largest first."""
    if not batch.files:
        return
    size = sum(file.size for file in batch.files)
    title = f"Uploading {batch.title}: {len(batch.files)} files, {console.size(size)}, to {store.url}"
    largest_first = sorted(batch.files, key=lambda file: (-file.size, file.key))
    with transfer(title, size=size) as progress:
        map_in_threads(
            partial(_put_file, store, batch.listing, progress),
            largest_first,
            jobs=_jobs(store),
        )


def _put_file(
    store: Store,
    listing: Mapping[str, Stored],
    progress: Transfer,
    file: LocalFile,
) -> None:
    with _file_to_put(store, file) as path:
        store.put_file(
            file.key,
            path,
            sha256=file.sha256,
            replace=file.may_replace,
            is_known_absent=file.key not in listing,
        )
    progress.advance(file.size)
    progress.finish(PurePosixPath(file.key).name, file.size)


@contextmanager
def _file_to_put(store: Store, file: LocalFile) -> Iterator[Path]:
    """Yield the file to put: a copy where the store would link a file that others may write to."""
    needs_copy = isinstance(store, DirectoryStore) and not file.is_in_our_store
    if not file.must_pack and not needs_copy:
        yield file.path
        return

    # A store in a folder links the copy, which has to lie on its own disk for that.
    parent = files.ensure_folder(store.root) if isinstance(store, DirectoryStore) else None
    with temporary.folder("upload", within=parent) as folder:
        path = folder / PurePosixPath(file.key).name
        if file.must_pack:
            pack(file.path, path)
        else:
            files.copy(file.path, path)
        if path.stat().st_size != file.size or file.path.stat().st_mtime_ns != file.modified_ns:
            raise StoreError(f"{file.path} changed during the upload.", hint="Upload it when it is complete.")
        yield path


def _put_document(
    store: Store,
    listing: Mapping[str, Stored],
    document: Document,
) -> None:
    store.put_bytes(
        document.key,
        document.content,
        replace=document.may_replace,
        is_known_absent=document.key not in listing,
    )


def _jobs(store: Store) -> int:
    """Return how many objects are put at a time; what a dry run prints is in the order of the writes."""
    if isinstance(store, DryRunStore):
        return 1
    return 2 * JOBS


def print_files(wheels: Iterable[FileRecord | Candidate]) -> None:
    """Print wheels and sdists with their sizes and digests."""
    rows: list[tuple[str, ...]] = []
    for wheel in wheels:
        digest = wheel.sha256 or ""
        rows.append((wheel.name, console.size(wheel.size or 0), digest[:12]))
    console.table(("file", "size", "sha256"), rows)


def _report(folder: str, batch: Batch, *, is_dry_run: bool) -> None:
    new_count = len(batch.files)
    if new_count == 0:
        console.done(f"upload: unchanged, {console.counted(batch.unchanged_count, 'file')} in {folder}")
        return

    total = console.counted(new_count + batch.unchanged_count, "file")
    verb = "would be put" if is_dry_run else "put"
    note = ""
    if batch.unchanged_count:
        note = f" ({batch.unchanged_count} of them were there)"
    console.done(f"upload: {total} {verb} into {folder}{note}")
