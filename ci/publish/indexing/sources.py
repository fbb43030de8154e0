"""Where an index takes what it says of a file from: documents that name it, or the file itself.

A listing gives names, sizes and times; digests and metadata come from one of these. A source of
another layout is any class with the three methods of `Source`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from ci.publish.indexing.names import SIDECAR
from core.errors import DataError
from core.parallel import each
from core.run.outputs import is_record
from core.stores.directory import DirectoryStore
from core.stores.location import DryRunStore

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from core.stores import Store, Stored

_SHA256 = re.compile(r"[0-9a-f]{64}")


class Promise(NamedTuple):
    """What a file is to be."""

    key: str
    size: int
    sha256: str
    requires_python: str = ""
    metadata_sha256: str = ""


class Source(Protocol):
    """What says of listed files what they are."""

    @property
    def names_files(self) -> bool:
        """Whether documents name the files, so that a file that none names is not listed."""
        ...

    @property
    def refuses_absent(self) -> bool:
        """Whether a file that a document names must be there."""
        ...

    def documents(self) -> Mapping[str, str]:
        """List what names files: document to etag."""
        ...

    def read(self, names: Sequence[str]) -> Sequence[Sequence[Promise]]:
        """Give what each of these documents promises."""
        ...

    def ask(self, found: Sequence[Stored]) -> Sequence[Promise]:
        """Say what files are that no document names, for a source without documents."""
        ...


@dataclass(frozen=True, kw_only=True)
class Records:
    """Files that JSON documents in a folder name: a run's records, or a release's decisions."""

    store: Store
    prefix: str
    parse: Callable[[bytes, str], Sequence[Promise]] | None = None
    refuses_absent: bool = True
    names_files: ClassVar[bool] = True

    def documents(self) -> Mapping[str, str]:
        """List the folder's JSON documents: one listing."""
        return {
            stored.key: stored.etag
            for stored in self.store.list(self.prefix, recursive=False)
            if is_record(stored.key)
        }

    def read(self, names: Sequence[str]) -> Sequence[Sequence[Promise]]:
        """Read these documents, side by side."""
        if len(names) == 1 or is_local(self.store):
            return [self._read(name) for name in names]
        return each(self._read, names)

    def ask(self, found: Sequence[Stored]) -> Sequence[Promise]:  # noqa: ARG002 - documents name files
        """Know nothing else."""
        return ()

    def _read(self, key: str) -> Sequence[Promise]:
        return (self.parse or promises_of_record)(self.store.read(key), key)


def is_local(store: Store) -> bool:
    """Say whether a store is a folder: quick to ask, and true to conditions of writes."""
    return isinstance(store.store if isinstance(store, DryRunStore) else store, DirectoryStore)


def digest_in(store: Store) -> Callable[[Stored], str]:
    """Give the quickest way to ask a store for the digests of files that were just listed."""
    return store.digest_of if isinstance(store, DirectoryStore) else lambda stored: store.digest(stored.key)


def promises_of_record(data: bytes, where: str) -> Sequence[Promise]:
    """Read what a stage's record promises; a failed stage's promises nothing."""
    try:
        return _promises(json.loads(data))
    except (ValueError, KeyError, TypeError) as problem:
        raise DataError(
            f"{where} is no record: {type(problem).__name__}: {problem}.",
            hint="Run the stage again with --force.",
        ) from problem


def _promises(record: Mapping[str, Any]) -> Sequence[Promise]:
    if record["schema_version"] != 1:
        raise ValueError(f"schema_version is {record['schema_version']!r}")
    return [_promise(one) for one in record["files"] if one["key"]] if record["status"] == "ok" else ()


def _promise(one: Mapping[str, Any]) -> Promise:
    promise = Promise(
        key=one["key"],
        size=one["size"],
        sha256=one["sha256"],
        requires_python=" ".join(one.get("requires_python", "").split()),
        metadata_sha256=one.get("metadata_sha256", ""),
    )
    for digest in (promise.sha256, promise.metadata_sha256 or promise.sha256):
        if not _SHA256.fullmatch(digest):
            raise ValueError(f"{promise.key} has no SHA-256, but {digest!r}")
    return promise


@dataclass(frozen=True, kw_only=True)
class Files:
    """Files that speak for themselves: read once, and their sidecars written beside them."""

    store: Store
    folder: Path
    names_files: ClassVar[bool] = False
    refuses_absent: ClassVar[bool] = False
    _read: dict[tuple[str, str], Promise] = field(default_factory=dict, repr=False)

    def documents(self) -> Mapping[str, str]:
        """There are none."""
        return {}

    def read(self, names: Sequence[str]) -> Sequence[Sequence[Promise]]:  # noqa: ARG002 - none are listed
        """There are none."""
        return ()

    def ask(self, found: Sequence[Stored]) -> Sequence[Promise]:
        """Hash these files and read their metadata."""
        # listed again with the sidecars that were just written, they are not read again
        new = [stored for stored in found if (stored.key, stored.etag) not in self._read]
        for stored, promise in zip(new, each(self._promise, new), strict=True):
            self._read[stored.key, stored.etag] = promise
        return [self._read[stored.key, stored.etag] for stored in found]

    def _promise(self, stored: Stored) -> Promise:
        from ci.publish.indexing.files import read_distribution

        facts = read_distribution(self.store.fetch(stored.key, self.folder))
        if facts.metadata:
            self.store.put_bytes(f"{stored.key}{SIDECAR}", facts.metadata)
        return Promise(
            key=stored.key,
            size=stored.size,
            sha256=facts.sha256,
            requires_python=facts.requires_python,
            metadata_sha256=facts.metadata_sha256,
        )
