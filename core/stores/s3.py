"""A store in an S3 bucket, of Amazon's or of a compatible server.

Every object carries its SHA-256 in its metadata. Requests that a service was too busy for are repeated;
those it refused are not.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Unpack
from urllib.parse import quote

from botocore.exceptions import ClientError

from core import files, stores
from core.errors import FatalError, StoreError, UsageError
from core.stores import Condition, Content, Outcome, Store, Stored, s3_client
from core.stores import s3_transfer as transfer

if TYPE_CHECKING:
    Send = Callable[[transfer.Target], None]

_TURNS = 5
# S3 is busy with another conditional write of the key, and did not do this one
_BUSY = frozenset({"409", "ConditionalRequestConflict"})
# possible answers to a repeated request when the answer to the first was lost
_PERHAPS_DONE = frozenset({*s3_client.LOST, *s3_client.ABSENT, "NoSuchUpload"})


def open_bucket(location: str) -> S3Store:
    """Open ``s3://bucket`` or ``s3://bucket/prefix``."""
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    prefix = prefix.rstrip("/")
    if not bucket or (prefix and any(part in {"", ".", ".."} for part in prefix.split("/"))):
        raise UsageError(f"--store {location!r} is not a bucket.", hint="Give s3://bucket[/prefix].")
    return S3Store(connection=s3_client.shared_connection(), bucket=bucket, prefix=prefix)


@dataclass(frozen=True, kw_only=True)
class S3Store:
    """Run outputs in a bucket, below a prefix; `conditions_of` says which conditions hold."""

    connection: s3_client.Connection
    bucket: str
    prefix: str = ""

    @property
    def url(self) -> str:
        """The ``s3://`` address."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    def url_of(self, key: str) -> str:
        """Return the address under which clients read a key: the bucket's own host name at Amazon."""
        whole_key = quote(f"{self.prefix}/{key}" if self.prefix else key)
        if self.connection.is_amazon and "." not in self.bucket:
            return f"https://{self.bucket}.s3.amazonaws.com/{whole_key}"
        return f"{self.connection.endpoint.rstrip('/')}/{self.bucket}/{whole_key}"

    def place(self, key: str) -> dict[str, Any]:
        """Return bucket and whole key, as arguments of a request."""
        stores.require_key(key, self.url)
        return {"Bucket": self.bucket, "Key": f"{self.prefix}/{key}" if self.prefix else key}

    def keeps_folder_pages(self, prefix: str) -> bool:
        """Return true for Amazon; another server is tried, once a bucket and process."""
        folder = self.place(f"{prefix}/" if prefix else "")["Key"]
        with self._writing(prefix):
            return s3_client.keeps_folders(self.connection, self.bucket, folder)

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """List the objects under `prefix`, sorted by key; or only those directly in that folder."""
        found = [
            self._stored(one["Key"], one["Size"], one)
            for page in self._pages(prefix, recursive=recursive)
            for one in page.get("Contents", ())
        ]
        return sorted((one for one in found if _is_shown(one)), key=lambda one: one.key)

    def folders(self, prefix: str) -> Sequence[str]:
        """Name the folders directly under `prefix`, sorted; a request for each thousand."""
        pages = self._pages(prefix, recursive=False)
        found = [one["Prefix"] for page in pages for one in page.get("CommonPrefixes", ())]
        names = (PurePosixPath(one).name for one in found)
        return sorted(name for name in names if not name.startswith("."))

    def find(self, key: str) -> Stored | None:
        """Look one object up, by a HEAD request; there may be none."""
        place = self.place(key)
        with self._explained(key):
            try:
                head = self.connection.client.head_object(**place)
            except ClientError as problem:
                if s3_client.code_of(problem) in s3_client.ABSENT:
                    self._require_bucket()
                    return None
                # once more in a way whose refusal has words: answers to HEAD have none
                self.connection.client.get_object(**place, Range="bytes=0-0")["Body"].close()
                raise
        return self._stored(place["Key"], head["ContentLength"], head)

    def digest(self, key: str) -> str:
        """Return an object's hex SHA-256: the one it carries, else that of its bytes."""
        return self._digest_of(self._existing(key))

    def read(self, key: str) -> bytes:
        """Read a small object whole; it has to have the digest that it carries."""
        stream = self.stream(key)
        with transfer.buffered(stream) as buffered:
            data = buffered.read()
        sha256 = _carried(stream.metadata)
        if sha256 and hashlib.sha256(data).hexdigest() != sha256:
            raise self._broken(key, sha256)
        return data

    def open(self, key: str) -> BinaryIO:
        """Open an object for reading it once; a connection that breaks is followed by another one."""
        return transfer.buffered(self.stream(key))

    def fetch(self, key: str, folder: Path) -> Path:
        """Download an object to `folder`; a partial download is resumed."""
        seen = self._existing(key)
        path = files.made(folder) / PurePosixPath(key).name
        part = path.with_name(f".{path.name}.{files.sha256_text(seen.etag)[:16]}.part")
        with s3_client.machine_lock(str(path.resolve())):
            if path.is_file() and seen.sha256 and files.sha256(path) == seen.sha256:
                return path
            had = part.stat().st_size if part.is_file() else 0
            start = had if had < seen.size else 0
            found = transfer.fetch(self.stream(key, start=start, etag=seen.etag), part)
            if seen.sha256 and found != seen.sha256:
                part.unlink()
                raise self._broken(key, seen.sha256)
            part.replace(path)
        return path

    def stream(self, key: str, *, start: int = 0, etag: str = "") -> transfer.ObjectStream:
        """Open an object from a byte on, only while it has an ETag."""
        return transfer.ObjectStream(self.connection, self.place(key), self.url, key, start=start, etag=etag)

    def put_file(
        self, key: str, source: Path, *, sha256: str, replace: bool, absent: bool = False
    ) -> Outcome:
        """Upload a file, in parts where it is large."""
        size, send = source.stat().st_size, partial(transfer.put_file, source=source, sha256=sha256)
        whole = size <= transfer.PART
        return self._write(key, sha256, size, send, replace=replace, whole=whole, absent=absent)

    def put_bytes(self, key: str, data: Content, **how: Unpack[Condition]) -> Outcome:
        """Upload a small object, on the condition that no other process wrote it meanwhile."""
        data = stores.whole(data)
        sha256, send = hashlib.sha256(data).hexdigest(), partial(transfer.put, data=data)
        return self._write(key, sha256, len(data), send, **how)

    def copy(self, key: str, source: Store, source_key: str, *, sha256: str) -> Outcome:
        """Copy an object: on the server from a bucket of the same service, else through this machine."""
        if not isinstance(source, S3Store) or source.connection is not self.connection:
            stores.require_digest(source, source_key, sha256)
            with tempfile.TemporaryDirectory(prefix="copy.") as folder:
                path = source.fetch(source_key, Path(folder))
                return self.put_file(key, path, sha256=sha256, replace=False)
        seen = source._existing(source_key)  # noqa: SLF001 - of this class
        stores.require_digest(source, source_key, sha256, found=source._digest_of(seen))  # noqa: SLF001 - of this class
        send = partial(self._copy, source=source, seen=seen)
        return self._write(key, sha256, seen.size, send, replace=False, whole=False)

    def _copy(self, target: transfer.Target, source: S3Store, seen: Stored) -> None:
        """Copy the very object that was seen within a service."""
        try:
            copied = transfer.copy(target, source.place(seen.key), seen.etag, seen.size)
        except ClientError as problem:
            if s3_client.code_of(problem) in s3_client.LOST:
                source._require_unchanged(seen)
            raise
        # equal ETags say that it is the same; others say nothing, as encryption and parts have theirs
        if copied != seen.etag:
            try:
                source._require_unchanged(seen)
            except FatalError:
                self.connection.client.delete_object(**target.place)
                raise

    def _require_unchanged(self, seen: Stored) -> None:
        now = self.find(seen.key)
        if now is None or now.etag != seen.etag:
            raise StoreError(
                f"{seen.key} in {self.url} was replaced while it was copied.",
                hint="Find out who replaced it, then test and copy again.",
            )

    def delete(self, key: str) -> None:
        """Delete an object; an absent one is not an error."""
        with self._writing(key):
            try:
                self.connection.client.delete_object(**self.place(key))
            except ClientError as problem:
                if s3_client.code_of(problem) not in s3_client.ABSENT:
                    raise

    def _write(  # noqa: PLR0913 - all that makes one write another
        self,
        key: str,
        sha256: str,
        size: int,
        send: Send,
        *,
        replace: bool = True,
        whole: bool = True,
        if_match: str | None = None,
        absent: bool = False,
    ) -> Outcome:
        """Write an object on its condition: over the ETag `if_match`, or over nothing to replace nothing."""
        etag = "" if if_match is None and not replace else if_match
        place, refusal = self.place(key), stores.refuse_other_bytes(key, self.url)
        known = None if etag is None else s3_client.known_conditions(self.connection, self.bucket)
        held = etag is None or known is None or known.hold(etag, whole=whole)
        turn = f"{self.connection.endpoint}/{self.bucket}/{place['Key']}"
        with nullcontext() if held else s3_client.machine_lock(turn):
            # where S3 checks no conditions, what was listed a while ago is not enough
            present = None if absent and held and if_match is None else self.find(key)
            if present is not None and self._digest_of(present) == sha256:
                return "unchanged"
            if present is not None and not replace:
                raise refusal
            if if_match is not None:
                refusal = stores.conflict(key, self.url)
            if etag is not None and (present.etag if present else "") != etag:
                raise refusal
            with self._writing(key):
                if etag is None or (known is not None and held):
                    condition = {"IfMatch": f'"{etag}"'} if etag else {"IfNoneMatch": "*"}
                    self._send(key, sha256, send, {} if etag is None else condition, refusal)
                    return "written"
                if not held:
                    self._send(key, sha256, send, {}, refusal)
                    self._verify(key, sha256, size, refusal)
                    return "written"
                s3_client.conditions_of(
                    self.connection, self.bucket, place["Key"][: place["Key"].rfind("/") + 1]
                )
        return self._write(
            key, sha256, size, send, replace=replace, whole=whole, if_match=if_match, absent=absent
        )

    def _send(
        self, key: str, sha256: str, send: Send, condition: Mapping[str, Any], refusal: StoreError
    ) -> None:
        headers = {**stores.headers_for(key), "Metadata": {"sha256": sha256}}
        target = transfer.Target(
            connection=self.connection, place=self.place(key), headers=headers, condition=condition
        )
        for attempt in range(_TURNS):
            try:
                send(target)
            except ClientError as problem:
                code = s3_client.code_of(problem)
                if code not in _PERHAPS_DONE:
                    raise
                if (seen := self.find(key)) and self._digest_of(seen) == sha256:
                    return
                if code in _BUSY and attempt < _TURNS - 1:
                    time.sleep(0.1 * 2**attempt)
                elif condition:
                    raise refusal from problem
                else:
                    raise
            else:
                return

    def _verify(self, key: str, sha256: str, size: int, refusal: StoreError) -> None:
        seen = self.find(key)
        if seen is None or self._digest_of(seen) != sha256:
            raise refusal
        if seen.size != size:
            self.connection.client.delete_object(**self.place(key))
            raise self._broken(key, sha256)

    def _explained(self, key: str) -> AbstractContextManager[None]:
        return s3_client.explained(self.url, key=key, identity=self.connection.identity)

    def _writing(self, key: str) -> AbstractContextManager[None]:
        if not self.connection.signed:
            raise s3_client.no_credentials(self.url)
        return self._explained(key)

    def _pages(self, prefix: str, *, recursive: bool) -> Iterator[Mapping[str, Any]]:
        self.place(prefix)
        folder = "/".join(part for part in (self.prefix, prefix.strip("/")) if part)
        query: dict[str, Any] = {"Bucket": self.bucket, "Prefix": folder and f"{folder}/"}
        query |= {} if recursive else {"Delimiter": "/"}
        with self._explained(prefix):
            yield from self.connection.client.get_paginator("list_objects_v2").paginate(**query)

    def _existing(self, key: str) -> Stored:
        seen = self.find(key)
        if seen is None:
            raise stores.absent_error(key, self.url)
        return seen

    def _digest_of(self, seen: Stored) -> str:
        """Return an object's hex SHA-256: the one it carries, else that of its bytes, which it reads."""
        if seen.sha256:
            return seen.sha256
        with self.stream(seen.key, etag=seen.etag) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def _broken(self, key: str, sha256: str) -> StoreError:
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
            if s3_client.code_of(problem) in {*s3_client.ABSENT, "NoSuchBucket"}:
                problem.response["Error"]["Code"] = "NoSuchBucket"
                raise
        self.connection.buckets.add(self.bucket)

    def _stored(self, whole_key: str, size: int, said: Mapping[str, Any]) -> Stored:
        key = whole_key[len(self.prefix) + 1 :] if self.prefix else whole_key
        # not every server quotes ETags in listings, and only listings know parts of a second
        modified = float(int(said["LastModified"].timestamp()))
        sha256 = _carried(said.get("Metadata", {}))
        return Stored(key=key, size=size, etag=said["ETag"].strip('"'), modified=modified, sha256=sha256)


def _carried(metadata: Mapping[str, str]) -> str:
    """Find the digest in an object's metadata, whose keys some servers write in another case."""
    return next((value for name, value in metadata.items() if name.lower() == "sha256"), "")


def _is_shown(stored: Stored) -> bool:
    parts = stored.key.split("/")
    hidden = any(one.startswith((".", s3_client.PROBE)) for one in parts)
    # consoles make empty objects of a folder's name; ours are pages
    return not hidden and bool(parts[-1] or stored.size)
