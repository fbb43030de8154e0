"""A store in an S3 bucket, of Amazon's or of a server that speaks like it.

Every object carries its SHA-256 in its metadata. Requests that a service was too busy for are made
again; those it refused are not.
"""

from __future__ import annotations

import base64
import hashlib
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote

from botocore.exceptions import ClientError

from core import files
from core.errors import ConflictError, FatalError, StoreError, UsageError
from core.stores import (
    Outcome,
    Store,
    Stored,
    headers_for,
    refuse_other_bytes,
    refuse_other_digest,
    require_digest,
)
from core.stores import s3_reading as reading
from core.stores import s3_transfer as transfer
from core.stores.s3_client import Connection, connection_for
from core.stores.s3_conditions import PROBE, conditions_of, machine_lock
from core.stores.s3_errors import ABSENT, LOST, code_of, explained, missing, no_credentials

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

_TURNS = 4
_SENT_BEFORE = frozenset({*LOST, *ABSENT, "NoSuchUpload"})


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """From how many bytes on objects go in parts, and how large those are; tests make them small."""

    part: int = transfer.PART
    copy_part: int = transfer.COPY_PART
    copy_whole: int = 2 * transfer.COPY_PART
    copy_limit: int = transfer.COPY_LIMIT


@dataclass(frozen=True, kw_only=True)
class Seen:
    """An object as a HEAD request saw it.

    Attributes:
        stored: What a listing says of it.
        sha256: The hex SHA-256 that it carries; "" where it carries none.
    """

    stored: Stored
    sha256: str


def open_bucket(location: str, environment: Mapping[str, str]) -> S3Store:
    """Open ``s3://bucket`` or ``s3://bucket/prefix``.

    Raises:
        UsageError: It names no bucket, or its prefix is none.
        StoreError: The AWS settings cannot be meant.
    """
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    prefix = prefix.strip("/")
    if not bucket or "//" in prefix or any(one in {".", ".."} for one in prefix.split("/")):
        raise UsageError(
            f"--store {location!r} is no bucket.", hint="Give s3://bucket or s3://bucket/prefix."
        )
    return S3Store(connection=connection_for(environment), bucket=bucket, prefix=prefix)


@dataclass(frozen=True, kw_only=True)
class S3Store:
    """Run outputs in a bucket.

    Conditional writes hold as `core.stores.s3_conditions` says: by S3 itself where it can, else by
    comparing before and verifying after.

    Attributes:
        connection: The service.
        bucket: The bucket.
        prefix: What every key begins with there, without a slash at the end; "" for nothing.
        sizes: From where on objects go in parts.
    """

    connection: Connection
    bucket: str
    prefix: str = ""
    sizes: Sizes = field(default_factory=Sizes)

    @property
    def url(self) -> str:
        """The ``s3://`` address."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def url_of(self, key: str) -> str:
        """Give the address under which clients read a key: by the bucket's own name where it is Amazon's."""
        whole_key = quote(f"{self.prefix}/{key}" if self.prefix else key)
        if self.connection.is_amazon and "." not in self.bucket:
            return f"https://{self.bucket}.s3.amazonaws.com/{whole_key}"
        return f"{self.connection.endpoint.rstrip('/')}/{self.bucket}/{whole_key}"

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """List the objects under `prefix`, sorted by key; or only those directly in that folder."""
        self._place(prefix)
        within = "/".join(part for part in (self.prefix, prefix.strip("/")) if part)
        asked: dict[str, Any] = {"Bucket": self.bucket, "Prefix": within and f"{within}/"}
        asked |= {} if recursive else {"Delimiter": "/"}
        found: list[Stored] = []
        with self._explained(prefix):
            for page in self.connection.client.get_paginator("list_objects_v2").paginate(**asked):
                found += [self._stored(one["Key"], one["Size"], one) for one in page.get("Contents", ())]
        return sorted((one for one in found if _is_shown(one.key)), key=lambda one: one.key)

    def find(self, key: str) -> Stored | None:
        """Look one object up."""
        seen = self._look(key)
        return seen.stored if seen else None

    def digest(self, key: str) -> str:
        """Give an object's hex SHA-256: the one it carries, else that of its bytes."""
        return self._digest_of(self._existing(key))

    def read(self, key: str) -> bytes:
        """Read a small object whole; it has to have the digest that it carries."""
        with self._stream(key) as stream:
            data = reading.buffered(stream).read()
            sha256 = _carried(stream.metadata)
        if sha256 and hashlib.sha256(data).hexdigest() != sha256:
            raise self._broken(key, sha256)
        return data

    def open(self, key: str) -> BinaryIO:
        """Open an object for reading it once; a connection that breaks is followed by another one."""
        return reading.buffered(self._stream(key))

    def fetch(self, key: str, folder: Path) -> Path:
        """Download an object to `folder`; one that was half there before is gone on with."""
        seen = self._existing(key)
        path = files.made(folder) / PurePosixPath(key).name
        part = path.with_name(f".{path.name}.{files.sha256_text(seen.stored.etag)[:16]}.part")
        with machine_lock(str(path.resolve())):
            if path.is_file() and seen.sha256 and files.sha256(path) == seen.sha256:
                return path
            had = part.stat().st_size if part.is_file() else 0
            start = had if had < seen.stored.size else 0
            found = reading.fetch(self._stream(key, start=start, etag=seen.stored.etag), part)
            if seen.sha256 and found != seen.sha256:
                part.unlink()
                raise self._broken(key, seen.sha256)
            part.replace(path)
        return path

    def put_file(self, key: str, source: Path, *, sha256: str, replace: bool) -> Outcome:
        """Upload a file, in parts where it is large."""
        present = self._look(key)
        if present is not None and self._digest_of(present) == sha256:
            return "unchanged"
        if present is not None and not replace:
            raise refuse_other_bytes(key, self.url)
        whole = source.stat().st_size <= self.sizes.part
        target = self._target(key, sha256)

        def send(condition: Mapping[str, Any]) -> None:
            if whole:
                self._put(key, _read(source, sha256), condition)
            else:
                transfer.upload(target, source, sha256, condition=condition, part=self.sizes.part)

        etag = None if replace else ""
        self._write(key, sha256, etag, send, whole=whole, refusal=refuse_other_bytes(key, self.url))
        return "written"

    def put_bytes(
        self, key: str, data: bytes, *, if_match: str | None = None, replace: bool = True
    ) -> Outcome:
        """Upload a small object, on the condition that nobody else wrote it meanwhile."""
        sha256 = hashlib.sha256(data).hexdigest()
        present = self._look(key)
        if present is not None and self._digest_of(present) == sha256:
            return "unchanged"
        if present is not None and not replace:
            raise refuse_other_bytes(key, self.url)
        etag = if_match if replace or if_match is not None else ""
        refusal = self._conflict(key) if if_match is not None else refuse_other_bytes(key, self.url)
        if etag is not None and (present.stored.etag if present else "") != etag:
            raise refusal
        self._write(
            key, sha256, etag, lambda condition: self._put(key, data, condition), whole=True, refusal=refusal
        )
        return "written"

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str, replace: bool) -> Outcome:
        """Copy an object: on the server from a bucket of the same service, else through this machine."""
        if isinstance(source, S3Store) and source.connection is self.connection:
            return self._copy(key, source, source_key, sha256=sha256, replace=replace)
        require_digest(source, source_key, sha256)
        with tempfile.TemporaryDirectory(prefix="copy.") as folder:
            return self.put_file(key, source.fetch(source_key, Path(folder)), sha256=sha256, replace=replace)

    def delete(self, key: str) -> None:
        """Delete an object; one that is not there is no error."""
        with self._writing(key):
            try:
                self.connection.client.delete_object(**self._place(key))
            except ClientError as problem:
                if code_of(problem) not in ABSENT:
                    raise

    def _copy(self, key: str, source: S3Store, source_key: str, *, sha256: str, replace: bool) -> Outcome:
        seen = source._existing(source_key)
        if (found := source._digest_of(seen)) != sha256:
            raise refuse_other_digest(source, source_key, found, sha256)
        present = self._look(key)
        if present is not None and self._digest_of(present) == sha256:
            return "unchanged"
        if present is not None and not replace:
            raise refuse_other_bytes(key, self.url)
        size, etag = seen.stored.size, seen.stored.etag
        whole = size <= (self.sizes.copy_whole if self.connection.is_amazon else self.sizes.copy_limit)
        target, place = self._target(key, sha256), source._place(source_key)

        def send(condition: Mapping[str, Any]) -> None:
            try:
                if whole:
                    self.connection.client.copy_object(
                        **target.place,
                        **target.headers,
                        **condition,
                        CopySource={"Bucket": place["Bucket"], "Key": place["Key"]},
                        CopySourceIfMatch=etag,
                        MetadataDirective="REPLACE",
                    )
                else:
                    part = self.sizes.copy_part
                    transfer.copy(target, place, etag, size, condition=condition, part=part)
            except ClientError as problem:
                if code_of(problem) in LOST:
                    source._require_unchanged(source_key, etag)
                raise

        refusal = refuse_other_bytes(key, self.url)
        self._write(key, sha256, None if replace else "", send, whole=False, refusal=refusal)
        if not self.connection.is_amazon:
            self._verify_copy(key, size, source, source_key, etag)
        return "written"

    def _verify_copy(self, key: str, size: int, source: S3Store, source_key: str, etag: str) -> None:
        """Take a copy back that is not of what was seen: not every server holds to the condition."""
        try:
            source._require_unchanged(source_key, etag)
            if self._existing(key).stored.size != size:
                raise self._broken(key, "that was copied")
        except FatalError:
            self.delete(key)
            raise

    def _require_unchanged(self, key: str, etag: str) -> None:
        seen = self._look(key)
        if seen is None or seen.stored.etag != etag:
            raise StoreError(
                f"{key} in {self.url} was replaced while it was copied.",
                hint="Find out who replaced it, then test and copy again.",
            )

    def _put(self, key: str, data: bytes, condition: Mapping[str, Any]) -> None:
        digest = hashlib.sha256(data)
        target = self._target(key, digest.hexdigest())
        self.connection.client.put_object(
            **target.place,
            **target.headers,
            **condition,
            Body=data,
            ChecksumSHA256=base64.b64encode(digest.digest()).decode(),
        )

    def _write(
        self,
        key: str,
        sha256: str,
        etag: str | None,
        send: Callable[[Mapping[str, Any]], None],
        *,
        whole: bool,
        refusal: StoreError,
    ) -> None:
        """Write an object over that of an ETag ("" for over none, None for over any)."""
        with self._writing(key):
            if etag is None:
                self._sent(key, sha256, {}, send, refusal)
                return
            folder = self._place(key)["Key"].rpartition("/")
            known = conditions_of(self.connection, self.bucket, folder[0] + folder[1])
            if (known.if_match if etag else known.if_none_match) and (whole or known.completion):
                condition = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
                self._sent(key, sha256, condition, send, refusal)
                return
            with machine_lock(f"{self.connection.endpoint}/{self.bucket}/{self._place(key)['Key']}"):
                seen = self._look(key)
                if (seen.stored.etag if seen else "") != etag:
                    raise refusal
                self._sent(key, sha256, {}, send, refusal)
                if not self._holds(key, sha256):
                    raise refusal

    def _sent(
        self,
        key: str,
        sha256: str,
        condition: Mapping[str, Any],
        send: Callable[[Mapping[str, Any]], None],
        refusal: StoreError,
    ) -> None:
        for turn in range(_TURNS):
            try:
                send(condition)
            except ClientError as problem:
                code = code_of(problem)
                if code not in _SENT_BEFORE:
                    raise
                # an answer was lost, and what was sent again met what the first attempt had written
                if self._holds(key, sha256):
                    return
                if code in LOST and (turn == _TURNS - 1 or code not in {"409", "ConditionalRequestConflict"}):
                    raise refusal from problem
                if code not in LOST and not condition:
                    raise
                if code not in LOST:
                    raise refusal from problem
                time.sleep(0.2 * 2**turn)
            else:
                return

    def _holds(self, key: str, sha256: str) -> bool:
        seen = self._look(key)
        return seen is not None and self._digest_of(seen) == sha256

    def _look(self, key: str) -> Seen | None:
        with self._explained(key):
            try:
                head = self.connection.client.head_object(**self._place(key), ChecksumMode="ENABLED")
            except ClientError as problem:
                if code_of(problem) in ABSENT:
                    self._require_bucket()
                    return None
                self._ask_why(key)
                raise
        stored = self._stored(self._place(key)["Key"], head["ContentLength"], head)
        return Seen(stored=stored, sha256=_carried(head["Metadata"]) or _checked(head))

    def _ask_why(self, key: str) -> None:
        """Ask once more in a way whose refusal has words: answers to HEAD have none."""
        self.connection.client.get_object(**self._place(key), Range="bytes=0-0")["Body"].close()

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

    def _existing(self, key: str) -> Seen:
        seen = self._look(key)
        if seen is None:
            raise missing(key, self.url)
        return seen

    def _digest_of(self, seen: Seen) -> str:
        if seen.sha256:
            return seen.sha256
        with self._stream(seen.stored.key, etag=seen.stored.etag) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def _stream(self, key: str, *, start: int = 0, etag: str = "") -> reading.ObjectStream:
        return reading.ObjectStream(self.connection, self._place(key), self.url, key, start=start, etag=etag)

    def _stored(self, whole_key: str, size: int, said: Mapping[str, Any]) -> Stored:
        key = whole_key[len(self.prefix) + 1 :] if self.prefix else whole_key
        return Stored(key=key, size=size, etag=said["ETag"], modified=said["LastModified"].timestamp())

    def _target(self, key: str, sha256: str) -> transfer.Target:
        said = headers_for(key)
        headers = {
            "ContentType": said.content_type,
            "CacheControl": said.cache_control,
            "Metadata": {"sha256": sha256},
        }
        whole_key = self._place(key)["Key"]
        return transfer.Target(connection=self.connection, bucket=self.bucket, key=whole_key, headers=headers)

    def _place(self, key: str) -> dict[str, Any]:
        if key.startswith("/") or any(part.startswith(".") for part in key.split("/")):
            raise UsageError(f"{key!r} is no key of the store {self.url}.")
        return {"Bucket": self.bucket, "Key": f"{self.prefix}/{key}" if self.prefix else key}

    def _explained(self, key: str) -> AbstractContextManager[None]:
        return explained(self.url, key=key, identity=self.connection.identity)

    def _writing(self, key: str) -> AbstractContextManager[None]:
        if not self.connection.signed:
            raise no_credentials(self.url)
        return self._explained(key)

    def _conflict(self, key: str) -> ConflictError:
        return ConflictError(f"{key} in {self.url} was written by somebody else meanwhile.")

    def _broken(self, key: str, sha256: str) -> StoreError:
        return StoreError(
            f"{key} in {self.url} has not the digest that it carries ({sha256}).",
            hint="It is broken, or was written by another tool: upload it again.",
        )


def _is_shown(key: str) -> bool:
    parts = key.split("/")
    return (
        bool(parts[-1]) and not parts[-1].startswith(PROBE) and not any(one.startswith(".") for one in parts)
    )


def _carried(metadata: Mapping[str, str]) -> str:
    """Find the digest in an object's metadata, whose keys some servers write in another case."""
    return next((value for name, value in metadata.items() if name.lower() == "sha256"), "")


def _checked(head: Mapping[str, Any]) -> str:
    """Give the SHA-256 that S3 took of a whole object; one that came in parts has that of their digests."""
    value = head.get("ChecksumSHA256", "")
    if not value or "-" in value or head.get("ChecksumType", "FULL_OBJECT") != "FULL_OBJECT":
        return ""
    return base64.b64decode(value).hex()


def _read(source: Path, sha256: str) -> bytes:
    data = source.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise transfer.changed(source, sha256)
    return data
