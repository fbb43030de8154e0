"""The objects of one bucket below a prefix: where they are, what is known of them, and their bytes."""

from __future__ import annotations

import base64
import hashlib
import tempfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

from botocore.exceptions import ClientError

from core import files
from core.errors import ConflictError, StoreError, UsageError
from core.stores import (
    Outcome,
    Store,
    Stored,
    headers_for,
    refuse_other_bytes,
    refuse_other_digest,
    require_digest,
)
from core.stores import s3_transfer as copying
from core.stores import s3_transfer as reading
from core.stores import s3_transfer as transfer
from core.stores.s3_client import ABSENT, code_of, connection_for, explained, missing, no_credentials
from core.stores.s3_conditions import PROBE, Write, keeps_folders, machine_lock, turn, write
from core.stores.s3_transfer import ObjectStream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from core.stores.s3_client import Connection
    from core.stores.s3_conditions import Send


@dataclass(frozen=True, kw_only=True)
class Seen:
    """An object as a HEAD request saw it."""

    stored: Stored
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """A part of a bucket."""

    connection: Connection
    bucket: str
    prefix: str = ""

    @property
    def url(self) -> str:
        """The ``s3://`` address."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def place(self, key: str) -> dict[str, Any]:
        """Give bucket and whole key, as arguments of a request."""
        if key.startswith("/") or any(part.startswith(".") for part in key.split("/")):
            raise UsageError(f"{key!r} is no key of the store {self.url}.")
        return {"Bucket": self.bucket, "Key": f"{self.prefix}/{key}" if self.prefix else key}

    def headers(self, key: str, sha256: str) -> dict[str, Any]:
        """Give what is said of an object, as arguments of the request that makes it."""
        said = headers_for(key)
        return {
            "ContentType": said.content_type,
            "CacheControl": said.cache_control,
            "Metadata": {"sha256": sha256},
        }

    def explained(self, key: str) -> AbstractContextManager[None]:
        """Turn what botocore raises within into our errors."""
        return explained(self.url, key=key, identity=self.connection.identity)

    def writing(self, key: str) -> AbstractContextManager[None]:
        """Do the same for what needs credentials."""
        if not self.connection.signed:
            raise no_credentials(self.url)
        return self.explained(key)

    def listed(self, prefix: str, *, recursive: bool) -> Sequence[Stored]:
        """List the objects in a folder, sorted by key, without those that are no outputs."""
        self.place(prefix)
        folder = "/".join(part for part in (self.prefix, prefix.strip("/")) if part)
        asked: dict[str, Any] = {"Bucket": self.bucket, "Prefix": folder and f"{folder}/"}
        asked |= {} if recursive else {"Delimiter": "/"}
        found: list[Stored] = []
        with self.explained(prefix):
            for page in self.connection.client.get_paginator("list_objects_v2").paginate(**asked):
                found += [self._stored(one["Key"], one["Size"], one) for one in page.get("Contents", ())]
        return sorted((one for one in found if _is_shown(one)), key=lambda one: one.key)

    def parts(self, prefix: str) -> Sequence[str]:
        """Name the folders directly in a folder, sorted."""
        self.place(prefix)
        folder = "/".join(part for part in (self.prefix, prefix.strip("/")) if part)
        start = folder and f"{folder}/"
        asked: dict[str, Any] = {"Bucket": self.bucket, "Prefix": start, "Delimiter": "/"}
        found: list[str] = []
        with self.explained(prefix):
            for page in self.connection.client.get_paginator("list_objects_v2").paginate(**asked):
                found += [one["Prefix"].removeprefix(start) for one in page.get("CommonPrefixes", ())]
        return sorted(name for one in found if (name := one.removesuffix("/")) and name[0] != ".")

    def look(self, key: str) -> Seen | None:
        """Look at an object by a HEAD request; there may be none."""
        place = self.place(key)
        with self.explained(key):
            try:
                head = self.connection.head(place)
            except ClientError as problem:
                if code_of(problem) in ABSENT:
                    self._require_bucket()
                    return None
                # once more in a way whose refusal has words: answers to HEAD have none
                self.connection.client.get_object(**place, Range="bytes=0-0")["Body"].close()
                raise
        stored = self._stored(place["Key"], head["ContentLength"], head)
        return Seen(stored=stored, sha256=carried(head["Metadata"]) or _checked(head))

    def existing(self, key: str) -> Seen:
        """Look at an object that has to be there."""
        seen = self.look(key)
        if seen is None:
            raise missing(key, self.url)
        return seen

    def digest_of(self, seen: Seen) -> str:
        """Give an object's hex SHA-256: the one it carries, else that of its bytes, which are read for it."""
        if seen.sha256:
            return seen.sha256
        with self.stream(seen.stored.key, etag=seen.stored.etag) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def holds(self, key: str, sha256: str) -> bool:
        """Say whether a key holds the bytes of a digest."""
        seen = self.look(key)
        return seen is not None and self.digest_of(seen) == sha256

    def stream(self, key: str, *, start: int = 0, etag: str = "") -> ObjectStream:
        """Open an object from a byte on, only while it has an ETag."""
        return ObjectStream(self.connection, self.place(key), self.url, key, start=start, etag=etag)

    def broken(self, key: str, sha256: str) -> StoreError:
        """Write the error of an object whose bytes are not those that it was written with."""
        return StoreError(
            f"{key} in {self.url} has not the digest that it carries ({sha256}).",
            hint="It is broken, or was written by another tool: upload it again.",
        )

    def _require_bucket(self) -> None:
        """Tell a bucket that is not there from an object that is not: answers to HEAD do not."""
        if self.bucket in self.connection.buckets:
            return
        try:
            self.connection.client.head_bucket(Bucket=self.bucket)
        except ClientError as problem:
            if code_of(problem) in {*ABSENT, "NoSuchBucket"}:
                problem.response["Error"]["Code"] = "NoSuchBucket"
                raise
        self.connection.buckets.add(self.bucket)

    def _stored(self, whole_key: str, size: int, said: Mapping[str, Any]) -> Stored:
        key = whole_key[len(self.prefix) + 1 :] if self.prefix else whole_key
        # not every server quotes ETags in listings, and only listings know parts of a second
        modified = float(int(said["LastModified"].timestamp()))
        return Stored(key=key, size=size, etag=said["ETag"].strip('"'), modified=modified)


def carried(metadata: Mapping[str, str]) -> str:
    """Find the digest in an object's metadata, whose keys some servers write in another case."""
    return next((value for name, value in metadata.items() if name.lower() == "sha256"), "")


def _is_shown(stored: Stored) -> bool:
    parts = stored.key.split("/")
    hidden = any(one.startswith((".", PROBE)) for one in parts)
    # consoles make empty objects of a folder's name; ours are pages
    return not hidden and bool(parts[-1] or stored.size)


def _checked(head: Mapping[str, Any]) -> str:
    """Give the SHA-256 that S3 took of a whole object; one that came in parts has that of their digests."""
    value = head.get("ChecksumSHA256", "")
    if not value or "-" in value or head.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return ""
    return base64.b64decode(value).hex()


def open_bucket(location: str, environment: Mapping[str, str]) -> S3Store:
    """Open ``s3://bucket`` or ``s3://bucket/prefix``.

    Raises:
        UsageError: It names no bucket, or its prefix is none.
        StoreError: The AWS settings cannot be meant.
    """
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    prefix = prefix.rstrip("/")
    if not bucket or (prefix and any(part in {"", ".", ".."} for part in prefix.split("/"))):
        raise UsageError(
            f"--store {location!r} is no bucket.", hint="Give s3://bucket or s3://bucket/prefix."
        )
    return S3Store(connection=connection_for(environment), bucket=bucket, prefix=prefix)


@dataclass(frozen=True, kw_only=True)
class S3Store(Bucket):
    """Run outputs in a bucket.

    Conditional writes hold as `core.stores.s3_conditions` says: by S3 itself where it can, else by
    comparing before and verifying after.
    """

    sizes: transfer.Sizes = field(default_factory=transfer.Sizes)

    def url_of(self, key: str) -> str:
        """Give the address under which clients read a key: by the bucket's own name where it is Amazon's."""
        whole_key = quote(f"{self.prefix}/{key}" if self.prefix else key)
        if self.connection.is_amazon and "." not in self.bucket:
            return f"https://{self.bucket}.s3.amazonaws.com/{whole_key}"
        return f"{self.connection.endpoint.rstrip('/')}/{self.bucket}/{whole_key}"

    def keeps_folder_pages(self, prefix: str) -> bool:
        """Say yes for Amazon; another server is tried, once a bucket and process."""
        folder = self.place(f"{prefix}/" if prefix else "")["Key"]
        with self.writing(prefix):
            return keeps_folders(self.connection, self.bucket, folder)

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """List the objects under `prefix`, sorted by key; or only those directly in that folder."""
        return self.listed(prefix, recursive=recursive)

    def folders(self, prefix: str) -> Sequence[str]:
        """Name the folders directly under `prefix`, sorted; a request for each thousand."""
        return self.parts(prefix)

    def find(self, key: str) -> Stored | None:
        """Look one object up."""
        seen = self.look(key)
        return seen.stored if seen else None

    def digest(self, key: str) -> str:
        """Give an object's hex SHA-256: the one it carries, else that of its bytes."""
        return self.digest_of(self.existing(key))

    def read(self, key: str) -> bytes:
        """Read a small object whole; it has to have the digest that it carries."""
        stream = self.stream(key)
        with reading.buffered(stream) as buffered:
            data = buffered.read()
        sha256 = carried(stream.metadata)
        if sha256 and hashlib.sha256(data).hexdigest() != sha256:
            raise self.broken(key, sha256)
        return data

    def open(self, key: str) -> BinaryIO:
        """Open an object for reading it once; a connection that breaks is followed by another one."""
        return reading.buffered(self.stream(key))

    def fetch(self, key: str, folder: Path) -> Path:
        """Download an object to `folder`; one that was half there before is gone on with."""
        seen = self.existing(key)
        path = files.made(folder) / PurePosixPath(key).name
        part = path.with_name(f".{path.name}.{files.sha256_text(seen.stored.etag)[:16]}.part")
        with machine_lock(str(path.resolve())):
            if path.is_file() and seen.sha256 and files.sha256(path) == seen.sha256:
                return path
            had = part.stat().st_size if part.is_file() else 0
            start = had if had < seen.stored.size else 0
            found = reading.fetch(self.stream(key, start=start, etag=seen.stored.etag), part)
            if seen.sha256 and found != seen.sha256:
                part.unlink()
                raise self.broken(key, seen.sha256)
            part.replace(path)
        return path

    def put_file(
        self, key: str, source: Path, *, sha256: str, replace: bool, absent: bool = False
    ) -> Outcome:
        """Upload a file, in parts where it is large."""
        size = source.stat().st_size
        whole = size <= self.sizes.part

        def send(condition: Mapping[str, Any]) -> None:
            if whole:
                transfer.put(self._target(key, sha256), transfer.read(source, sha256), condition)
            else:
                target, part = self._target(key, sha256), self.sizes.part
                transfer.upload(target, source, sha256, condition=condition, part=part)

        return self._write(key, sha256, size, send, replace=replace, whole=whole, absent=absent)

    def put_bytes(
        self,
        key: str,
        data: bytes,
        *,
        if_match: str | None = None,
        replace: bool = True,
        absent: bool = False,
    ) -> Outcome:
        """Upload a small object, on the condition that nobody else wrote it meanwhile."""
        sha256 = hashlib.sha256(data).hexdigest()

        def send(condition: Mapping[str, Any]) -> None:
            transfer.put(self._target(key, sha256), data, condition)

        return self._write(
            key, sha256, len(data), send, replace=replace, whole=True, if_match=if_match, absent=absent
        )

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str, replace: bool) -> Outcome:
        """Copy an object: on the server from a bucket of the same service, else through this machine."""
        if not isinstance(source, S3Store) or source.connection is not self.connection:
            require_digest(source, source_key, sha256)
            with tempfile.TemporaryDirectory(prefix="copy.") as folder:
                path = source.fetch(source_key, Path(folder))
                return self.put_file(key, path, sha256=sha256, replace=replace)
        seen = source.existing(source_key)
        found = source.digest_of(seen)
        if found != sha256:
            raise refuse_other_digest(source, source_key, found, sha256)

        def send(condition: Mapping[str, Any]) -> None:
            target = self._target(key, sha256)
            copying.copy(target, source, seen.stored, condition=condition, sizes=self.sizes)

        return self._write(key, sha256, seen.stored.size, send, replace=replace, whole=False)

    def delete(self, key: str) -> None:
        """Delete an object; one that is not there is no error."""
        with self.writing(key):
            try:
                self.connection.client.delete_object(**self.place(key))
            except ClientError as problem:
                if code_of(problem) not in ABSENT:
                    raise

    def _write(  # noqa: PLR0913 - all that makes one write another
        self,
        key: str,
        sha256: str,
        size: int,
        send: Send,
        *,
        replace: bool,
        whole: bool,
        if_match: str | None = None,
        absent: bool = False,
    ) -> Outcome:
        etag = "" if if_match is None and not replace else if_match
        refusal: StoreError = refuse_other_bytes(key, self.url)
        with turn(self.connection, self.place(key), etag, whole=whole) as in_turn:
            # where S3 does not hold to conditions, what was listed a while ago is not enough
            trusted = absent and not in_turn and if_match is None
            present = None if trusted else self.look(key)
            if present is not None and self.digest_of(present) == sha256:
                return "unchanged"
            if present is not None and not replace:
                raise refusal
            if if_match is not None:
                refusal = ConflictError(f"{key} in {self.url} was written by somebody else meanwhile.")
            if etag is not None and (present.stored.etag if present else "") != etag:
                raise refusal
            asked = Write(
                bucket=self,
                key=key,
                sha256=sha256,
                size=size,
                etag=etag,
                send=send,
                whole=whole,
                in_turn=in_turn,
                refusal=refusal,
            )
            write(asked)
        return "written"

    def _target(self, key: str, sha256: str) -> transfer.Target:
        return transfer.Target(
            connection=self.connection, place=self.place(key), headers=self.headers(key, sha256)
        )
