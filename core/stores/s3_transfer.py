"""Large objects in parts, several at a time: uploads from a file, and copies on the server.

An upload of parts is seen by nobody before it is completed, and is aborted where it fails.
"""

from __future__ import annotations

import base64
import hashlib
import io
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from core import files
from core.errors import FatalError, ServiceError, StoreError
from core.stores.s3_client import LOST, code_of, explained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from _typeshed import WriteableBuffer
    from botocore.response import StreamingBody
    from types_boto3_s3.type_defs import CompletedPartTypeDef

    from core.stores import Stored
    from core.stores.s3 import Bucket
    from core.stores.s3_client import Connection


MIB = 1 << 20
PART = 16 * MIB
COPY_PART = 128 * MIB
# what one CopyObject may copy, and how many parts an upload may have
COPY_LIMIT = 5 << 30
MAX_PARTS = 10_000
_JOBS = 8


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where an object goes, and what is said of it."""

    connection: Connection
    place: Mapping[str, Any]
    headers: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """From how many bytes on objects go in parts, and how large those are; tests make them small."""

    part: int = PART
    copy_part: int = COPY_PART
    copy_whole: int = 2 * COPY_PART
    copy_limit: int = COPY_LIMIT


def checksum(data: bytes) -> str:
    """Give the SHA-256 of bytes as S3's headers write it."""
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def part_size(size: int, least: int) -> int:
    """Choose the size of parts: `least`, or whole MiB more where there would be too many."""
    needed = -(-size // MAX_PARTS)
    return least if needed <= least else -(-needed // MIB) * MIB


def upload(
    target: Target, source: Path, sha256: str, *, condition: Mapping[str, Any], part: int = PART
) -> None:
    """Upload a file in parts; its digest is taken on the way."""
    size = part_size(source.stat().st_size, part)
    whole = hashlib.sha256()
    with (
        _multipart(target, {"ChecksumAlgorithm": "SHA256"}, condition) as upload_id,
        source.open("rb") as file,
    ):

        def send(number: int, data: bytes) -> CompletedPartTypeDef:
            done = target.connection.client.upload_part(
                **target.place,
                UploadId=upload_id.value,
                PartNumber=number,
                Body=data,
                ChecksumSHA256=checksum(data),
            )
            return _completed(number, done["ETag"], done.get("ChecksumSHA256", ""))

        def parts() -> Iterator[Callable[[], CompletedPartTypeDef]]:
            number = 0
            while data := file.read(size):
                whole.update(data)
                number += 1
                yield lambda number=number, data=data: send(number, data)  # type: ignore[misc]

        upload_id.parts = _side_by_side(target.connection, parts())
        if whole.hexdigest() != sha256:
            raise changed(source, sha256)


def put(target: Target, data: bytes, condition: Mapping[str, Any]) -> None:
    """Upload bytes in one request."""
    said = {**target.headers, **condition}
    target.connection.put(target.place, said, data, checksum(data))


def read(source: Path, sha256: str) -> bytes:
    """Read a file that has to have a digest."""
    data = source.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise changed(source, sha256)
    return data


def changed(source: Path, sha256: str) -> StoreError:
    """Write the error of a file that is not what its digest says."""
    return StoreError(
        f"{source} is not the file with the digest {sha256}: it was written to meanwhile.",
        hint="Build or fetch it again.",
    )


def copy_parts(
    target: Target,
    source: Mapping[str, str],
    etag: str,
    size: int,
    *,
    condition: Mapping[str, Any],
    part: int,
) -> None:
    """Copy an object of the same service in parts."""
    step = part_size(size, part)
    with _multipart(target, {}, condition) as upload_id:

        def send(number: int, start: int) -> CompletedPartTypeDef:
            done = target.connection.client.upload_part_copy(
                **target.place,
                UploadId=upload_id.value,
                PartNumber=number,
                CopySource={"Bucket": source["Bucket"], "Key": source["Key"]},
                CopySourceIfMatch=etag,
                CopySourceRange=f"bytes={start}-{min(start + step, size) - 1}",
            )
            return _completed(number, done["CopyPartResult"]["ETag"], "")

        parts = [
            lambda number=number, start=start: send(number, start)
            for number, start in enumerate(range(0, size, step), 1)
        ]
        upload_id.parts = _side_by_side(target.connection, iter(parts))


def _completed(number: int, etag: str, digest: str) -> CompletedPartTypeDef:
    part: CompletedPartTypeDef = {"PartNumber": number, "ETag": etag}
    if digest:
        part["ChecksumSHA256"] = digest
    return part


@dataclass
class _Upload:
    value: str
    parts: Sequence[CompletedPartTypeDef] = ()


@contextmanager
def _multipart(
    target: Target, checksums: Mapping[str, Any], condition: Mapping[str, Any]
) -> Iterator[_Upload]:
    """Begin an upload of parts; complete it at the end, abort it where anything was raised."""
    client = target.connection.client
    begun = client.create_multipart_upload(**target.place, **target.headers, **checksums)
    upload_id = _Upload(begun["UploadId"])
    try:
        yield upload_id
        client.complete_multipart_upload(
            **target.place,
            **condition,
            UploadId=upload_id.value,
            MultipartUpload={"Parts": upload_id.parts},
        )
    except BaseException:
        with suppress(ClientError, BotoCoreError):
            client.abort_multipart_upload(**target.place, UploadId=upload_id.value)
        raise


def _side_by_side(
    connection: Connection, parts: Iterator[Callable[[], CompletedPartTypeDef]]
) -> list[CompletedPartTypeDef]:
    """Send parts, some at a time; no more lie in memory than the connection allows.

    What has begun is awaited, also where one failed: an aborted upload must not get parts later.
    """
    started: list[Future[CompletedPartTypeDef]] = []
    pool = ThreadPoolExecutor(_JOBS)
    try:
        while not any(one.done() and one.exception() for one in started):
            connection.parts.acquire()
            try:
                send = next(parts, None)
                if send is not None:
                    started.append(pool.submit(_released, connection, send))
            except BaseException:
                connection.parts.release()
                raise
            if send is None:
                connection.parts.release()
                break
    finally:
        pool.shutdown(wait=True, cancel_futures=False)
    return [one.result() for one in started]


def _released(connection: Connection, send: Callable[[], CompletedPartTypeDef]) -> CompletedPartTypeDef:
    try:
        return send()
    finally:
        connection.parts.release()


def copy(
    target: Target,
    source: Bucket,
    seen: Stored,
    *,
    condition: Mapping[str, Any],
    sizes: Sizes,
) -> None:
    """Copy an object within a service."""
    place, etag = source.place(seen.key), f'"{seen.etag}"'
    # a server that is not Amazon's may not know copies of parts
    whole = sizes.copy_whole if target.connection.is_amazon else sizes.copy_limit
    try:
        if seen.size <= whole:
            said = {
                **target.headers,
                **condition,
                "CopySource": {"Bucket": place["Bucket"], "Key": place["Key"]},
                "CopySourceIfMatch": etag,
                "MetadataDirective": "REPLACE",
            }
            copied = target.connection.copy(target.place, said)
        else:
            copy_parts(target, place, etag, seen.size, condition=condition, part=sizes.copy_part)
            copied = ""
    except ClientError as problem:
        if code_of(problem) in LOST:
            require_unchanged(source, seen)
        raise
    if copied != seen.etag:
        _verify(target, source, seen)


def _verify(target: Target, source: Bucket, seen: Stored) -> None:
    """Take a copy back that is not of the object that was meant: not every server holds to that condition.

    Equal ETags say that it is; others say nothing, as encryption and parts have theirs.
    """
    try:
        require_unchanged(source, seen)
    except FatalError:
        target.connection.client.delete_object(**target.place)
        raise


def require_unchanged(source: Bucket, seen: Stored) -> None:
    """Refuse to go on with an object that was replaced since it was seen."""
    now = source.look(seen.key)
    if now is None or now.stored.etag != seen.etag:
        raise StoreError(
            f"{seen.key} in {source.url} was replaced while it was copied.",
            hint="Find out who replaced it, then test and copy again.",
        )


_BUFFER = 1 << 20
# what is lost of what came, where a connection breaks
_STEP = 1 << 18
# a stream that gains nothing this often has broken off
_TRIES = 8


class ObjectStream(io.RawIOBase):
    """An object's bytes from an offset on; a broken connection is followed by another one."""

    def __init__(
        self,
        connection: Connection,
        place: Mapping[str, Any],
        url: str,
        key: str,
        *,
        start: int = 0,
        etag: str = "",
    ) -> None:
        """Open an object."""
        super().__init__()
        self._connection, self._place = connection, dict(place)
        self._url, self._key = url, key
        self.position, self.etag, self.metadata = start, etag.strip('"'), dict[str, str]()
        self.size = -1
        self._body: StreamingBody | None = None
        self._ask()

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read what comes next; nothing only at the end of the object."""
        view = memoryview(buffer).cast("B")
        if self.position >= self.size or not len(view):
            return 0
        for _ in range(_TRIES):
            try:
                count = self._next(view)
            except (BotoCoreError, HTTPError, OSError):
                count = 0
            if count:
                self.position += count
                return count
            self._drop()
        raise ServiceError(
            f"{self._url}/{self._key}: reading broke off at byte {self.position} of {self.size}.",
            hint="Run the same command again.",
        )

    def readall(self) -> bytes:
        """Read what is left."""
        found = bytearray()
        buffer = memoryview(bytearray(_BUFFER))
        while count := self.readinto(buffer):
            found += buffer[:count]
        return bytes(found)

    def _next(self, view: memoryview) -> int:
        body = self._body or self._ask()
        data = body.read(min(len(view), _STEP, self.size - self.position))
        view[: len(data)] = data
        return len(data)

    def _ask(self) -> StreamingBody:
        asked: dict[str, Any] = {"IfMatch": f'"{self.etag}"'} if self.etag else {}
        if self.position:
            asked["Range"] = f"bytes={self.position}-"
        with explained(self._url, key=self._key, identity=self._connection.identity):
            try:
                answer = self._connection.client.get_object(**self._place, **asked)
            except ClientError as problem:
                if self.etag and code_of(problem) in LOST:
                    raise self._replaced() from problem
                raise
        body, etag = answer["Body"], answer["ETag"].strip('"')
        if self.etag not in {"", etag}:
            body.close()
            raise self._replaced()
        # the status says nothing: some servers answer for a part with 200
        part = answer.get("ContentRange", "")
        start = int(part.removeprefix("bytes ").partition("-")[0]) if part else 0
        if start != self.position:
            body.read(self.position - start)
        self._body, self.etag, self.metadata = body, etag, answer["Metadata"]
        self.size = start + answer["ContentLength"]
        return body

    def _replaced(self) -> StoreError:
        return StoreError(
            f"{self._url}/{self._key} was replaced while it was read.", hint="Run the same command again."
        )

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    def close(self) -> None:
        """Close the connection that is left."""
        if not self.closed:
            self._drop()
        super().close()


def buffered(stream: ObjectStream) -> BinaryIO:
    """Give a stream that small reads do not slow down."""
    return io.BufferedReader(stream, _BUFFER)


def fetch(stream: ObjectStream, part: Path) -> str:
    """Add what a stream still has to a file that holds what comes before it."""
    digest = hashlib.sha256()
    with stream, part.open("r+b" if stream.position else "wb") as file:
        while file.tell() < stream.position:
            digest.update(data := file.read(min(files.CHUNK, stream.position - file.tell())))
            if not data:
                raise StoreError(f"{part} became shorter while it was read.")
        file.truncate()
        buffer = memoryview(bytearray(_BUFFER))
        while count := stream.readinto(buffer):
            file.write(buffer[:count])
            digest.update(buffer[:count])
    return digest.hexdigest()
