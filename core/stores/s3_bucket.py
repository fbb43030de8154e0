"""The objects of one bucket below a prefix: where they are, what is known of them, and their bytes."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from core.errors import StoreError, UsageError
from core.stores import Stored, headers_for
from core.stores.s3_conditions import PROBE
from core.stores.s3_errors import ABSENT, code_of, explained, missing, no_credentials
from core.stores.s3_reading import ObjectStream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from core.stores.s3_client import Connection


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
