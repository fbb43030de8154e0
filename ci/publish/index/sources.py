"""Where an index takes digests and metadata from: documents that name files, objects' metadata, or the files.

A listing gives names, sizes and times. A source of another layout is any subclass of `Source`.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from email.message import Message
from functools import partial
from pathlib import Path
from sys import intern
from typing import Any, ClassVar, NamedTuple

from packaging.version import InvalidVersion, Version

from ci.publish.index.pages import SIDECAR, Notice, normalised, read_name
from core import files
from core.errors import DataError, MissingInputError, WheelError
from core.parallel import map_in_threads
from core.run import is_record
from core.stores import Store, Stored
from core.stores.directory import DirectoryStore
from core.stores.dry_run import DryRunStore

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_TEXT = 16 << 20


class Promise(NamedTuple):
    """What a file is to be; the key is its name alone."""

    key: str
    size: int
    sha256: str
    metadata_sha256: str = ""
    requires_python: str = ""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Describes listed files; where documents name the files, one that none names is not listed."""

    store: Store
    names_files: ClassVar[bool] = False

    def documents(self) -> Mapping[str, str]:
        """Return the documents that name files, with their etags."""
        return {}

    def read(self, names: Sequence[str], folder: str) -> Iterable[Sequence[Promise]]:  # noqa: ARG002 - none
        """Return what each of these documents promises of the files directly in a folder."""
        return ()

    def query(self, found: Sequence[Stored]) -> Sequence[Promise]:  # noqa: ARG002 - documents name files
        """Describe files that no document names."""
        return ()

    def notices(self) -> Sequence[Notice]:
        """Return what the flat page says above its files."""
        return ()


@dataclass(frozen=True, kw_only=True)
class Records(Source):
    """Files that JSON documents in a folder name: a run's records, or a release's decisions."""

    prefix: str
    names_files: ClassVar[bool] = True

    def documents(self) -> Mapping[str, str]:
        """List the folder's JSON documents: one listing."""
        listed = self.store.list(self.prefix, recursive=False)
        return {stored.key: stored.etag for stored in listed if is_record(stored.key)}

    def read(self, names: Sequence[str], folder: str) -> Iterable[Sequence[Promise]]:
        """Read these documents, in parallel where the store is remote."""
        read = partial(self._read, folder=folder)
        return map(read, names) if len(names) == 1 or is_local(self.store) else map_in_threads(read, names)

    def _read(self, key: str, folder: str) -> Sequence[Promise]:
        try:
            return _promises(json.loads(self.store.read(key)), folder)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise DataError(
                f"{key} is not a record: {type(problem).__name__}: {problem}.",
                hint="Run the stage again with --force.",
            ) from problem


@dataclass(frozen=True, kw_only=True)
class Files(Source):
    """Files that speak for themselves: read once, and their sidecars written beside them."""

    folder: Path
    _read: dict[tuple[str, str], Promise] = field(default_factory=dict, repr=False)

    def query(self, found: Sequence[Stored]) -> Sequence[Promise]:
        """Hash these files and read their metadata."""
        # listed again with the sidecars that were just written, they are not read again
        new = [stored for stored in found if (stored.key, stored.etag) not in self._read]
        for stored, promise in zip(new, map_in_threads(self._promise, new), strict=True):
            self._read[stored.key, stored.etag] = promise
        return [self._read[stored.key, stored.etag] for stored in found]

    def _promise(self, stored: Stored) -> Promise:
        path = self.store.fetch(stored.key, self.folder)
        if path.suffix != ".whl":
            return _promise_of(stored, files.sha256(path), _sdist_requires_python(path))
        from core.wheel.distributions import describe  # no part of the server

        record, metadata = describe(path, key=stored.key, sha256=files.sha256(path))
        self.store.put_bytes(f"{stored.key}{SIDECAR}", metadata or b"")
        return _promise_of(stored, record.sha256, record.requires_python, metadata or b"")


@dataclass(frozen=True, kw_only=True)
class Carried(Source):
    """Files that our uploads put: their digest is the object's metadata, a wheel's metadata its sidecar.

    Two requests a file; a wheel without a sidecar is not listed.
    """

    def query(self, found: Sequence[Stored]) -> Sequence[Promise]:
        """Describe those of these files that are complete."""
        return [promise for promise in map_in_threads(self._promise, found) if promise is not None]

    def _promise(self, stored: Stored) -> Promise | None:
        try:
            sha256 = self.store.digest(stored.key)
            metadata = self.store.read(f"{stored.key}{SIDECAR}") if stored.key.endswith(".whl") else b""
        except MissingInputError:
            return None  # its sidecar is yet to come, or it went meanwhile
        return _promise_of(stored, sha256, str(_fields(metadata).get("Requires-Python", "")), metadata)


def _fields(metadata: bytes) -> Message:
    from email.parser import BytesParser

    return BytesParser().parsebytes(metadata, headersonly=True)


def _promise_of(stored: Stored, sha256: str, python: str, metadata: bytes = b"") -> Promise:
    digest = hashlib.sha256(metadata).hexdigest() if metadata else ""
    return Promise(stored.key.rpartition("/")[2], stored.size, sha256, digest, " ".join(python.split()))


def _sdist_requires_python(path: Path) -> str:
    """Read PKG-INFO, the first of an sdist's files in most: the rest is not unpacked."""
    import tarfile

    try:
        with tarfile.open(path, "r|gz") as archive:
            for member in archive:
                if member.name.count("/") == 1 and member.name.endswith("/PKG-INFO") and member.isfile():
                    stream = archive.extractfile(member)
                    fields = _fields(stream.read(_MAX_TEXT) if stream else b"")
                    _require_name(path, str(fields.get("Name", "")), str(fields.get("Version", "")))
                    return str(fields.get("Requires-Python", ""))
    except (tarfile.TarError, OSError, EOFError) as problem:
        raise WheelError(f"{path.name} is not a gzipped tar archive: {problem}.") from problem
    raise WheelError(f"{path.name} is not an sdist: it holds no PKG-INFO.")


def _require_name(path: Path, name: str, version: str) -> None:
    """Refuse an sdist whose metadata contradicts its name."""
    expected = read_name(path.name)
    try:
        same = normalised(name) == expected.name and Version(version) == expected.version
    except InvalidVersion:
        same = False
    if not same:
        raise WheelError(
            f"{path.name}: PKG-INFO says {name} {version}.",
            hint="A file is renamed by rewriting its metadata, not by its name alone.",
        )


def is_local(store: Store) -> bool:
    """Whether a store is a folder: quick to query, and true to conditions of writes."""
    return isinstance(store.store if isinstance(store, DryRunStore) else store, DirectoryStore)


def _promises(record: Mapping[str, Any], folder: str) -> Sequence[Promise]:
    """Read what a stage's record promises of a folder; a failed stage's promises nothing."""
    if record["schema_version"] != 1:
        raise ValueError(f"schema_version is {record['schema_version']!r}")
    named = (one for one in record["files"] if one["key"]) if record["status"] == "ok" else ()
    return [promise for one in named if (promise := _promise(one, folder)).key]


def _promise(one: Mapping[str, Any], folder: str) -> Promise:
    key, sha256, metadata = one["key"], one["sha256"], one.get("metadata_sha256", "")
    if not _SHA256.fullmatch(sha256) or (metadata and not _SHA256.fullmatch(metadata)):
        raise ValueError(f"{key} has SHA-256 {sha256!r}, and of its metadata {metadata!r}")
    there, _, name = key.rpartition("/")
    python = intern(" ".join(one.get("requires_python", "").split()))  # most say the same
    return Promise(name if there == folder else "", one["size"], sha256, metadata, python)
