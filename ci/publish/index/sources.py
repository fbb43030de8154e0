"""Where an index learns what a file is: from records, from what an upload left, or from the file itself.

A listing gives names, sizes, times and ETags. A source says the rest of a file that no page lists yet.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from sys import intern
from typing import Any, ClassVar

from ci.publish.index.files import RecordedFile, StoredFile
from ci.publish.index.html_pages import Notice
from ci.publish.index.names import DISTRIBUTION_SUFFIXES, SIDECAR_SUFFIX
from core import files
from core.errors import DataError, MissingInputError, StoreError
from core.parallel import JOBS, map_in_threads
from core.run import is_record
from core.stores import Store, Stored
from core.stores.directory import DirectoryStore
from core.stores.dry_run import DryRunStore

_SHA256 = re.compile(r"[0-9a-f]{64}")


class HeldBackError(Exception):
    """A file is not complete yet, as its upload may go on."""


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """What knows the files of a folder.

    Attributes:
        needs_records: Whether a file that no record names is not listed.
    """

    store: Store
    needs_records: ClassVar[bool] = False

    def list_records(self) -> Mapping[str, str]:
        """Return the ETags of the records, by key; nothing where none name the files."""
        return {}

    def read_records(
        self,
        keys: Sequence[str],  # noqa: ARG002 - there are none
        folder: str,  # noqa: ARG002
    ) -> Mapping[str, Sequence[RecordedFile]]:
        """Return what each of these records says of the files directly in a folder."""
        return {}

    @abstractmethod
    def describe_file(
        self,
        stored_file: StoredFile,
        folder: str,
        recorded_files: Sequence[RecordedFile],
    ) -> tuple[RecordedFile, StoredFile]:
        """Return what a complete file is, and the file with the sidecar that it has now.

        Its digest is one of those recorded where records are needed.

        Raises:
            HeldBackError: Something of it does not exist yet.
            StoreError: Its bytes are not those that are recorded.
            WheelError: It is not a valid wheel or sdist.
        """

    def notices(self) -> Sequence[Notice]:
        """Return what the flat page says above its files."""
        return ()


@dataclass(frozen=True, kw_only=True)
class RecordSource(Source):
    """JSON documents in a folder name the files: a run's records, or a release's decisions."""

    prefix: str
    needs_records = True

    def list_records(self) -> Mapping[str, str]:
        """Return the ETags of the folder's records, by key: one listing."""
        listing = self.store.list(self.prefix, recursive=False)
        return {
            stored_object.key: stored_object.etag for stored_object in listing if is_record(stored_object.key)
        }

    def read_records(
        self,
        keys: Sequence[str],
        folder: str,
    ) -> Mapping[str, Sequence[RecordedFile]]:
        """Return what these records say of files in a folder, read in parallel from a remote store."""
        jobs = 1 if is_local(self.store) else JOBS
        recorded_files = map_in_threads(partial(self._read_record, folder=folder), keys, jobs=jobs)
        return dict(zip(keys, recorded_files, strict=True))

    def describe_file(
        self,
        stored_file: StoredFile,
        folder: str,
        recorded_files: Sequence[RecordedFile],
    ) -> tuple[RecordedFile, StoredFile]:
        """Return what a record says of the bytes that a file has."""
        if not recorded_files:
            raise HeldBackError("no record names it")
        if stored_file.sidecar_etag is None and any(
            recorded_file.metadata_sha256 for recorded_file in recorded_files
        ):
            raise HeldBackError("its metadata sidecar does not exist yet")

        key = join_key(folder, stored_file.filename)
        sha256 = self._digest_of(key, stored_file)
        recorded_file = best_recorded_file(
            recorded_files,
            size=stored_file.size,
            sha256=sha256,
        )
        if recorded_file is None:
            raise self._refusal(key)
        if recorded_file.metadata_sha256 is not None:
            sidecar_key = f"{key}{SIDECAR_SUFFIX}"
            if hashlib.sha256(self.store.read(sidecar_key)).hexdigest() != recorded_file.metadata_sha256:
                raise self._refusal(sidecar_key)
        return recorded_file, stored_file

    def _digest_of(
        self,
        key: str,
        stored_file: StoredFile,
    ) -> str:
        if isinstance(self.store, DirectoryStore):
            # It remembers digests, and finds them by what was just listed.
            return self.store.digest_of(Stored(key, stored_file.size, stored_file.etag, stored_file.modified))
        return self.store.digest(key)

    def _refusal(self, key: str) -> StoreError:
        return StoreError(
            f"{key} in {self.store.url} differs from its record.",
            hint="Build it again with --force.",
        )

    def _read_record(
        self,
        key: str,
        folder: str,
    ) -> Sequence[RecordedFile]:
        try:
            return _read_record(json.loads(self.store.read(key)), folder)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            raise DataError(
                f"{key} is not a record: {type(problem).__name__}: {problem}.",
                hint="Run the stage again with --force.",
            ) from problem


@dataclass(frozen=True, kw_only=True)
class UploadedSource(Source):
    """Files that our uploads put: their digest is the object's metadata, a wheel's metadata its sidecar.

    Two requests a file that no page lists yet.
    """

    def describe_file(
        self,
        stored_file: StoredFile,
        folder: str,
        recorded_files: Sequence[RecordedFile],  # noqa: ARG002 - there are none
    ) -> tuple[RecordedFile, StoredFile]:
        """Return what a file's object and its sidecar say."""
        from email.parser import BytesHeaderParser  # the command, which reads records, starts without it

        key = join_key(folder, stored_file.filename)
        try:
            sha256 = self.store.digest(key)
            if not key.endswith(".whl"):
                return RecordedFile(stored_file.filename, stored_file.size, sha256), stored_file
            metadata = self.store.read(f"{key}{SIDECAR_SUFFIX}")
        except MissingInputError:
            raise HeldBackError("its metadata sidecar does not exist yet") from None

        fields = BytesHeaderParser().parsebytes(metadata)
        recorded_file = RecordedFile(
            stored_file.filename,
            stored_file.size,
            sha256,
            metadata_sha256=hashlib.sha256(metadata).hexdigest(),
            requires_python=_on_one_line(str(fields.get("Requires-Python", ""))),
        )
        return recorded_file, stored_file


@dataclass(frozen=True, kw_only=True)
class FolderSource(Source):
    """Wheels and sdists without records: each is read once, and a sidecar is written beside a wheel.

    `directory` is the folder of the store, which is on this machine.
    """

    directory: Path

    def describe_file(
        self,
        stored_file: StoredFile,
        folder: str,
        recorded_files: Sequence[RecordedFile],  # noqa: ARG002 - there are none
    ) -> tuple[RecordedFile, StoredFile]:
        """Return what a file says of itself, and write its metadata beside it."""
        # No part of the function behind a bucket, which opens no archive.
        from core.wheel import read_checked_metadata

        key = join_key(folder, stored_file.filename)
        path = self.directory / key
        if path.suffix != ".whl":
            from core.wheel.sdist import read_requires_python

            requires_python = read_requires_python(path)
            recorded_file = RecordedFile(
                stored_file.filename,
                stored_file.size,
                files.sha256(path),
                requires_python=_on_one_line(requires_python),
            )
            return recorded_file, stored_file

        metadata = read_checked_metadata(path)
        recorded_file = RecordedFile(
            stored_file.filename,
            stored_file.size,
            files.sha256(path),
            metadata_sha256=hashlib.sha256(metadata.raw).hexdigest(),
            requires_python=_on_one_line(metadata.requires_python),
        )
        sidecar = self.store.put_bytes(f"{key}{SIDECAR_SUFFIX}", metadata.raw)
        return recorded_file, stored_file._replace(sidecar_etag=sidecar.etag)


def best_recorded_file(
    recorded_files: Sequence[RecordedFile],
    *,
    size: int,
    sha256: str,
) -> RecordedFile | None:
    """Return what is recorded of these bytes; of several, always the same one."""
    matching = [
        recorded_file
        for recorded_file in recorded_files
        if recorded_file.size == size and recorded_file.sha256 == sha256
    ]

    if len(matching) > 1:
        matching.sort(key=repr)
    return matching[-1] if matching else None


def join_key(folder: str, path: str) -> str:
    """Return the key of a path in a folder; "" is the whole store."""
    return f"{folder}/{path}" if folder else path


def is_local(store: Store) -> bool:
    """Return whether a store is a folder on this machine: quick to query, and true to conditions."""
    if isinstance(store, DryRunStore):
        return isinstance(store.store, DirectoryStore)
    return isinstance(store, DirectoryStore)


def _read_record(record: Mapping[str, Any], folder: str) -> Sequence[RecordedFile]:
    """Return what a record says of files directly in a folder; that of a failed stage says nothing."""
    if record["schema_version"] != 1:
        raise ValueError(f"schema_version is {record['schema_version']!r}")
    recorded_files: list[RecordedFile] = []
    if record["status"] != "ok":
        return recorded_files

    for file in record["files"]:
        file_folder, _, filename = file["key"].rpartition("/")
        sha256 = file["sha256"]
        metadata_sha256 = file.get("metadata_sha256") or None
        if not _SHA256.fullmatch(sha256) or not _SHA256.fullmatch(metadata_sha256 or sha256):
            raise ValueError(f"{file['key']} has SHA-256 {sha256!r}, and of its metadata {metadata_sha256!r}")
        if file_folder != folder or not filename.endswith(DISTRIBUTION_SUFFIXES):
            continue
        requires_python = _on_one_line(file.get("requires_python", ""))
        # A name is also in the listing, and most files require the same: one text serves them all.
        recorded_files.append(
            RecordedFile(
                intern(filename),
                file["size"],
                sha256,
                metadata_sha256,
                intern(requires_python) if requires_python is not None else None,
            )
        )

    return recorded_files


def _on_one_line(requires_python: str) -> str | None:
    """Return which versions of Python a file requires, as one line; None for any."""
    return " ".join(requires_python.split()) or None
