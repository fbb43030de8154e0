"""A store in an S3 bucket, of Amazon's or of a compatible server.

Every object carries its SHA-256 in its metadata. botocore repeats requests that a service was too busy for.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

from botocore.exceptions import ClientError

from core import files, stores, temporary
from core.errors import FatalError, StoreError, UsageError
from core.stores import PutResult, Stored, s3_reads, s3_writes
from core.stores.s3_client import Connection, shared_connection
from core.stores.s3_errors import (
    ABSENT,
    REFUSED_CONDITIONS,
    code_of,
    explained,
    is_not_implemented,
    no_credentials,
)
from core.stores.s3_reads import ObjectStream
from core.stores.s3_writes import ObjectContent, Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from types_boto3_s3.type_defs import CopySourceTypeDef

    from core.stores import Content, Store

_ATTEMPTS = 5
_FIRST_PAUSE = 0.1
# Answers after which the object may be there, or may have been replaced, or the write may be tried again:
# the answer to the first of two equal requests was lost, or another writer aborted an upload in parts.
_UNCERTAIN = frozenset({*REFUSED_CONDITIONS, *ABSENT, "NoSuchUpload"})


def open_bucket(location: str) -> S3Store:
    """Open ``s3://bucket`` or ``s3://bucket/prefix``."""
    bucket, _slash, prefix = location.removeprefix("s3://").partition("/")
    prefix = prefix.rstrip("/")
    has_odd_parts = not {"", ".", ".."}.isdisjoint(prefix.split("/"))
    if not bucket or (prefix and has_odd_parts):
        raise UsageError(f"--store {location!r} is not a bucket.", hint="Give s3://bucket[/prefix].")
    return S3Store(
        connection=shared_connection(),
        bucket=bucket,
        prefix=prefix,
    )


@dataclass(frozen=True, kw_only=True)
class WriteRequest:
    """An object that is to be written, and over what.

    `etag` is that of the object that must be there, "" if there must be none, None if that does not matter.
    `refusal` is the error where something else is there.
    """

    key: str
    content: ObjectContent
    etag: str | None
    refusal: StoreError


@dataclass(frozen=True, kw_only=True)
class S3Store:
    """Run outputs in a bucket, below a prefix.

    At Amazon, S3 itself lets one of several racing writers win. Other servers may ignore the conditions of
    writes or refuse those that hold. There the writers of one machine take turns, compare before they write
    and look again afterwards. Of writers on different machines, one whose object was overwritten before it
    looked again learns it, and one whose object was overwritten later does not.
    """

    connection: Connection
    bucket: str
    prefix: str = ""

    @property
    def url(self) -> str:
        """The ``s3://`` address."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def url_of(self, key: str) -> str:
        """Return the address under which clients read a key: the bucket's own host name at Amazon."""
        quoted_key = quote(self._full_key(key))
        # A certificate is for one name before the dot.
        if self.connection.is_amazon and "." not in self.bucket:
            return f"https://{self.bucket}.s3.amazonaws.com/{quoted_key}"
        return f"{self.connection.endpoint.rstrip('/')}/{self.bucket}/{quoted_key}"

    def place(self, key: str) -> dict[str, Any]:
        """Return bucket and full key, as arguments of a request."""
        stores.require_key(key, self.url)
        return {"Bucket": self.bucket, "Key": self._full_key(key)}

    def _full_key(self, key: str) -> str:
        return f"{self._folder}{key}"

    @property
    def _folder(self) -> str:
        """How every full key of the store begins."""
        if not self.prefix:
            return ""
        return f"{self.prefix}/"

    def keeps_folder_pages(self, prefix: str) -> bool:
        """Return whether a key with a slash at its end is one of its own.

        A server that keeps objects as files finds ``a.whl`` under ``a.whl/`` too: there it would be a folder.
        """
        if self.connection.is_amazon:
            return True
        for page in self._listing_pages(prefix, recursive=True):
            for listed_object in page.get("Contents", ()):
                full_key = listed_object["Key"]
                if not full_key.endswith("/"):
                    key = full_key.removeprefix(self._folder)
                    return self.find(f"{key}/") is None
        return False

    def list(
        self,
        prefix: str,
        *,
        recursive: bool = True,
    ) -> Sequence[Stored]:
        """List the objects under `prefix`, sorted by key; or only those directly in that folder."""
        objects: list[Stored] = []
        for page in self._listing_pages(prefix, recursive=recursive):
            for listed_object in page.get("Contents", ()):
                stored_object = self._stored_object(
                    listed_object["Key"],
                    listed_object["Size"],
                    listed_object,
                )
                if _is_shown(stored_object):
                    objects.append(stored_object)
        return sorted(objects, key=lambda stored_object: stored_object.key)

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names of the folders directly under `prefix`, sorted; a request for each thousand."""
        names: list[str] = []
        for page in self._listing_pages(prefix, recursive=False):
            names += (PurePosixPath(folder["Prefix"]).name for folder in page.get("CommonPrefixes", ()))
        return sorted(name for name in names if not name.startswith("."))

    def find(self, key: str) -> Stored | None:
        """Look one object up, by a HEAD request; there may be none."""
        place = self.place(key)
        with self._explained(key):
            try:
                head = self.connection.client.head_object(**place)
            except ClientError as problem:
                if code_of(problem) in ABSENT:
                    self._require_bucket()
                    return None
                # Answers to HEAD have no body: ask for a byte, as a refusal of that has words.
                self.connection.client.get_object(**place, Range="bytes=0-0")["Body"].close()
                raise
        return self._stored_object(place["Key"], head["ContentLength"], head)

    def digest(self, key: str) -> str:
        """Return an object's hex SHA-256: the one it carries, else that of its bytes."""
        return self._digest_of(self._existing(key))

    def read(self, key: str) -> bytes:
        """Read a small object whole; it has to have the digest that it carries."""
        stream = self.stream(key)
        with s3_reads.buffered(stream) as reader:
            data = reader.read()
        sha256 = _digest_in(stream.metadata)
        if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
            raise self._broken(key, sha256)
        return data

    def open(self, key: str) -> BinaryIO:
        """Open an object for reading it once; a connection that breaks is followed by another one."""
        return s3_reads.buffered(self.stream(key))

    def fetch(
        self,
        key: str,
        folder: Path,
    ) -> Path:
        """Download an object to `folder`; a download that was interrupted goes on."""
        source = self._existing(key)
        path = files.ensure_folder(folder) / PurePosixPath(key).name
        part = path.with_name(f".{path.name}.{files.sha256_text(source.etag)[:16]}.part")
        with files.machine_lock(str(path.resolve())):
            if path.is_file() and source.sha256 is not None and files.sha256(path) == source.sha256:
                return path

            start = part.stat().st_size if part.is_file() else 0
            if start >= source.size:
                start = 0
            sha256 = s3_reads.append(
                self.stream(
                    key,
                    start=start,
                    etag=source.etag,
                ),
                part,
            )
            if source.sha256 not in {None, sha256}:
                part.unlink()
                raise self._broken(key, str(source.sha256))
            part.replace(path)
        return path

    def stream(
        self,
        key: str,
        *,
        start: int = 0,
        etag: str | None = None,
    ) -> ObjectStream:
        """Open an object from a byte on; with `etag`, only while it has that one."""
        place = self.place(key)
        return ObjectStream(
            self.connection,
            place,
            store_url=self.url,
            key=key,
            start=start,
            etag=etag,
        )

    def put_file(
        self,
        key: str,
        source: Path,
        *,
        sha256: str,
        replace: bool,
        is_known_absent: bool = False,
    ) -> PutResult:
        """Upload a file, in parts where it is large."""
        content = s3_writes.content_of_file(source, sha256)
        return self._write(
            self._write_request(key, content, replace=replace), is_known_absent=is_known_absent
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
        """Upload a small object, on the condition that no other process wrote it meanwhile."""
        content = s3_writes.content_of_bytes(stores.join_content(data))
        if if_match is None or not replace:
            request = self._write_request(key, content, replace=replace)
        else:
            refusal = stores.conflict(key, self.url)
            request = WriteRequest(
                key=key,
                content=content,
                etag=if_match,
                refusal=refusal,
            )
        return self._write(request, is_known_absent=is_known_absent)

    def copy(
        self,
        key: str,
        source: Store,
        source_key: str,
        *,
        sha256: str,
    ) -> PutResult:
        """Copy an object: on the server from a bucket of the same service, else through this machine."""
        if not isinstance(source, S3Store) or source.connection is not self.connection:
            stores.require_digest(source, source_key, source.digest(source_key), sha256)
            with temporary.folder("copy") as folder:
                path = source.fetch(source_key, folder)
                return self.put_file(
                    key,
                    path,
                    sha256=sha256,
                    replace=False,
                )

        source_object = source._existing(source_key)  # noqa: SLF001 - of this class
        actual_sha256 = source._digest_of(source_object)  # noqa: SLF001 - of this class
        stores.require_digest(source, source_key, actual_sha256, sha256)
        send = partial(
            self._copy_object,
            source=source,
            source_object=source_object,
        )
        content = ObjectContent(
            sha256=sha256,
            size=source_object.size,
            send=send,
        )
        return self._write(self._write_request(key, content, replace=False), is_known_absent=False)

    def _copy_object(
        self,
        target: Target,
        source: S3Store,
        source_object: Stored,
    ) -> str:
        """Copy the very object that was looked up, within a service."""
        source_place = source.place(source_object.key)
        copy_source: CopySourceTypeDef = {"Bucket": source_place["Bucket"], "Key": source_place["Key"]}
        try:
            etag = s3_writes.copy(
                target,
                source=copy_source,
                etag=source_object.etag,
                size=source_object.size,
            )
        except ClientError as problem:
            if code_of(problem) in REFUSED_CONDITIONS:
                source._require_unchanged(source_object)
            raise
        # Equal ETags say that it is the same. Others say nothing, as encryption and parts change them, and
        # a server may have ignored the condition on the source.
        if etag != source_object.etag:
            try:
                source._require_unchanged(source_object)
            except FatalError:
                self.connection.client.delete_object(**target.place)
                raise
        return etag

    def _require_unchanged(self, source_object: Stored) -> None:
        stored_object = self.find(source_object.key)
        if stored_object is None or stored_object.etag != source_object.etag:
            raise StoreError(
                f"{source_object.key} in {self.url} was replaced while it was copied.",
                hint="Find out who replaced it, then test and copy again.",
            )

    def delete(self, key: str) -> None:
        """Delete an object; an absent one is not an error."""
        with self._explained_write(key):
            try:
                self.connection.client.delete_object(**self.place(key))
            except ClientError as problem:
                if code_of(problem) not in ABSENT:
                    raise

    def _write_request(
        self,
        key: str,
        content: ObjectContent,
        *,
        replace: bool,
    ) -> WriteRequest:
        """Return a request to write over anything, or over nothing."""
        refusal = stores.refuse_other_bytes(key, self.url)
        etag = None if replace else ""
        return WriteRequest(
            key=key,
            content=content,
            etag=etag,
            refusal=refusal,
        )

    def _write(
        self,
        request: WriteRequest,
        *,
        is_known_absent: bool,
    ) -> PutResult:
        """Write an object on its condition; where a server may ignore it, in turn, and look again."""
        if request.etag is None or self.connection.is_amazon:
            return self._write_once(request, is_known_absent=is_known_absent)

        self.connection.warn_of_conditions(self.bucket)
        with files.machine_lock(f"{self.connection.endpoint}/{self.bucket}/{self._full_key(request.key)}"):
            # A listing of a while ago is not enough here.
            result = self._write_once(request, is_known_absent=False)
            if result.outcome == "written":
                self._require_written(request)
            return result

    def _write_once(
        self,
        request: WriteRequest,
        *,
        is_known_absent: bool,
    ) -> PutResult:
        """Look what is there, and write; look again where the answer does not say whether it was done."""
        for attempt in range(_ATTEMPTS):
            is_first = attempt == 0
            stored_object = None
            if not (is_first and is_known_absent):
                stored_object = self.find(request.key)
            if stored_object is not None and self._digest_of(stored_object) == request.content.sha256:
                # Later on, it was an attempt of ours whose answer was lost.
                return PutResult("unchanged" if is_first else "written", stored_object.etag)
            if request.etag not in {None, stores.etag_of(stored_object)}:
                raise request.refusal

            with self._explained_write(request.key):
                try:
                    return PutResult("written", self._send(request, is_first=is_first))
                except ClientError as problem:
                    if attempt == _ATTEMPTS - 1 or not _may_be_repeated(problem):
                        raise
            time.sleep(_FIRST_PAUSE * 2**attempt)
        raise request.refusal

    def _send(
        self,
        request: WriteRequest,
        *,
        is_first: bool,
    ) -> str:
        condition: dict[str, str] = {}
        # A server that refuses a condition that holds, or does not know it, gets the object without it.
        if request.etag is not None and (is_first or self.connection.is_amazon):
            condition = {"IfMatch": f'"{request.etag}"'}
            if not request.etag:
                condition = {"IfNoneMatch": "*"}
        target = Target(
            connection=self.connection,
            place=self.place(request.key),
            headers={**stores.headers_for(request.key), "Metadata": {"sha256": request.content.sha256}},
            condition=condition,
            abort_unfinished=is_first,
        )
        return request.content.send(target)

    def _require_written(self, request: WriteRequest) -> None:
        stored_object = self.find(request.key)
        if stored_object is None or self._digest_of(stored_object) != request.content.sha256:
            raise request.refusal
        if stored_object.size != request.content.size:
            self.delete(request.key)
            raise self._broken(request.key, request.content.sha256)

    def _explained(self, key: str) -> AbstractContextManager[None]:
        return explained(
            self.url,
            key=key or None,
            identity=self.connection.identity,
        )

    def _explained_write(self, key: str) -> AbstractContextManager[None]:
        if not self.connection.signed:
            raise no_credentials(self.url)
        return self._explained(key)

    def _listing_pages(
        self,
        prefix: str,
        *,
        recursive: bool,
    ) -> Iterator[Mapping[str, Any]]:
        stores.require_key(prefix, self.url)
        folder = self._folder
        if prefix.strip("/"):
            folder += f"{prefix.strip('/')}/"
        query: dict[str, Any] = {"Bucket": self.bucket, "Prefix": folder}
        if not recursive:
            query["Delimiter"] = "/"
        with self._explained(prefix):
            for page in self.connection.client.get_paginator("list_objects_v2").paginate(**query):
                self.connection.buckets.add(self.bucket)
                yield page

    def _existing(self, key: str) -> Stored:
        stored_object = self.find(key)
        if stored_object is None:
            raise stores.absent_error(key, self.url)
        return stored_object

    def _digest_of(self, stored_object: Stored) -> str:
        """Return an object's hex SHA-256: the one it carries, else that of its bytes, which it reads."""
        if stored_object.sha256 is not None:
            return stored_object.sha256
        with self.stream(stored_object.key, etag=stored_object.etag) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def _broken(
        self,
        key: str,
        sha256: str,
    ) -> StoreError:
        return StoreError(
            f"{key} in {self.url} does not have the digest that it carries ({sha256}).",
            hint="It is broken, or was written by another tool: upload it again.",
        )

    def _require_bucket(self) -> None:
        """Tell an absent bucket from an absent object: answers to HEAD do not."""
        if self.bucket in self.connection.buckets:
            return
        try:
            self.connection.client.head_bucket(Bucket=self.bucket)
        except ClientError as problem:
            if code_of(problem) in {*ABSENT, "NoSuchBucket"}:
                problem.response["Error"]["Code"] = "NoSuchBucket"
                raise
        self.connection.buckets.add(self.bucket)

    def _stored_object(
        self,
        full_key: str,
        size: int,
        response: Mapping[str, Any],
    ) -> Stored:
        return Stored(
            key=full_key.removeprefix(self._folder),
            size=size,
            # Not every server quotes ETags in listings.
            etag=response["ETag"].strip('"'),
            # Only listings know parts of a second.
            modified=float(int(response["LastModified"].timestamp())),
            sha256=_digest_in(response.get("Metadata", {})),
        )


def _may_be_repeated(problem: ClientError) -> bool:
    """Return whether to look what is there, and to write again if need be."""
    return code_of(problem) in _UNCERTAIN or is_not_implemented(problem)


def _digest_in(metadata: Mapping[str, str]) -> str | None:
    """Return the digest in an object's metadata, whose keys some servers write in another case."""
    for name, value in metadata.items():
        if name.lower() == "sha256":
            return value
    return None


def _is_shown(stored_object: Stored) -> bool:
    parts = stored_object.key.split("/")
    is_hidden = any(part.startswith(".") for part in parts)
    # Consoles make empty objects of a folder's name; pages of folders are ours.
    is_console_folder = not parts[-1] and stored_object.size == 0
    return not is_hidden and not is_console_folder
