"""Objects on their way to and from S3: uploads and copies in parts, reads over connections that break.

An upload of parts is invisible before it is completed, and is aborted where it fails.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from core import files
from core.errors import ServiceError, StoreError, require_going
from core.stores.s3_client import LOST, Connection, code_of, explained, noted

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from botocore.response import StreamingBody
    from types_boto3_s3.type_defs import CompletedPartTypeDef

    Part = Callable[[], CompletedPartTypeDef]

MIB = 1 << 20
PART = 16 * MIB  # larger files go in parts of this size
COPY_PART, COPY_WHOLE = 128 * MIB, 256 * MIB
COPY_LIMIT = 5 << 30  # of one CopyObject
MAX_PARTS = 10_000
_JOBS = 8
_BUFFER = 1 << 20
_STEP = 1 << 18  # what is lost of what came, where a connection breaks
_TRIES = 8  # a stream that gains nothing this often has broken off


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where an object goes, with its headers, and on what condition, as arguments of a request."""

    connection: Connection
    place: Mapping[str, Any]
    headers: Mapping[str, Any]
    condition: Mapping[str, Any]


def part_size(size: int, least: int) -> int:
    """Choose the size of parts: `least`, or whole MiB more where there would be too many."""
    needed = -(-size // MAX_PARTS)
    return least if needed <= least else -(-needed // MIB) * MIB


def put(target: Target, data: bytes) -> None:
    """Upload bytes in one request."""
    content: Any = {"Body": data, "ChecksumAlgorithm": "SHA256", "ChecksumSHA256": _sha256(data)}
    target.connection.client.put_object(**target.place, **target.headers, **target.condition, **content)


def put_file(target: Target, source: Path, sha256: str) -> None:
    """Upload a file that has to have a digest: in one request, or in parts where it is large."""
    size = source.stat().st_size
    if size <= PART:
        with nullcontext() if size <= MIB else target.connection.parts:
            data = source.read_bytes()
            if hashlib.sha256(data).hexdigest() != sha256:
                raise _changed(source, sha256)
            put(target, data)
    else:
        _put_parts(target, source, sha256, part_size(size, PART))


def _put_parts(target: Target, source: Path, sha256: str, size: int) -> None:
    whole = hashlib.sha256()

    def parts(upload_id: str) -> Iterator[Part]:
        number = 0
        while data := file.read(size):
            whole.update(data)
            number += 1
            yield lambda number=number, data=data: send(upload_id, number, data)  # type: ignore[misc]
        if whole.hexdigest() != sha256:
            raise _changed(source, sha256)

    def send(upload_id: str, number: int, data: bytes) -> CompletedPartTypeDef:
        part = {**target.place, "UploadId": upload_id, "PartNumber": number}
        done = target.connection.client.upload_part(**part, Body=data, ChecksumSHA256=_sha256(data))
        checksum = done.get("ChecksumSHA256")
        sent: CompletedPartTypeDef = {"PartNumber": number, "ETag": done["ETag"]}
        return {**sent, "ChecksumSHA256": checksum} if checksum else sent

    with source.open("rb") as file:
        _in_parts(target, parts, ChecksumAlgorithm="SHA256")


def copy(target: Target, source: Mapping[str, Any], etag: str, size: int) -> str:
    """Copy an object of the same service while it has that ETag; returns the copy's, "" of one in parts."""
    client, origin = target.connection.client, {"CopySource": dict(source), "CopySourceIfMatch": f'"{etag}"'}
    # a server that is not Amazon's may not know copies of parts
    if size <= (COPY_WHOLE if target.connection.is_amazon else COPY_LIMIT):
        whole: Any = {**target.place, **target.headers, **target.condition, **origin}
        copied = client.copy_object(**whole, MetadataDirective="REPLACE")["CopyObjectResult"]
        return copied.get("ETag", "").strip('"')
    step = part_size(size, COPY_PART)

    def send(upload_id: str, number: int, start: int) -> CompletedPartTypeDef:
        part: Any = {**target.place, **origin, "UploadId": upload_id, "PartNumber": number}
        span = f"bytes={start}-{min(start + step, size) - 1}"
        done = client.upload_part_copy(**part, CopySourceRange=span)
        return {"PartNumber": number, "ETag": done["CopyPartResult"]["ETag"]}

    def parts(upload_id: str) -> Iterator[Part]:
        for number, start in enumerate(range(0, size, step), 1):
            yield lambda number=number, start=start: send(upload_id, number, start)  # type: ignore[misc]

    _in_parts(target, parts)
    return ""


def _sha256(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def _changed(source: Path, sha256: str) -> StoreError:
    return StoreError(
        f"{source} does not have the digest {sha256}: it was written to meanwhile.",
        hint="Build or fetch it again.",
    )


def _in_parts(target: Target, parts: Callable[[str], Iterator[Part]], **checksums: Any) -> None:  # noqa: ANN401 - botocore's
    """Begin an upload of parts, send them, and complete it; abort it where anything was raised."""
    client = target.connection.client
    upload_id = client.create_multipart_upload(**target.place, **target.headers, **checksums)["UploadId"]
    with noted(target.connection, **target.place, UploadId=upload_id):
        try:
            sent = _side_by_side(target.connection, parts(upload_id))
            client.complete_multipart_upload(
                **target.place, **target.condition, UploadId=upload_id, MultipartUpload={"Parts": sent}
            )
        except BaseException:
            with suppress(ClientError, BotoCoreError):
                client.abort_multipart_upload(**target.place, UploadId=upload_id)
            raise


def _side_by_side(connection: Connection, parts: Iterator[Part]) -> list[CompletedPartTypeDef]:
    """Send parts, some at a time; no more lie in memory than the connection allows.

    What has begun is awaited, also where one failed: an aborted upload must not get parts later.
    """
    started: list[Future[CompletedPartTypeDef]] = []
    with ThreadPoolExecutor(_JOBS) as pool:
        while not any(one.done() and one.exception() for one in started):
            require_going()
            with ExitStack() as held:
                connection.parts.acquire()
                held.callback(connection.parts.release)
                part = next(parts, None)
                if part is None:
                    break
                started.append(pool.submit(part))
                started[-1].add_done_callback(lambda _: connection.parts.release())
                held.pop_all()
    return [one.result() for one in started]


def buffered(stream: ObjectStream) -> BinaryIO:
    """Return a stream that small reads do not slow down."""
    return io.BufferedReader(stream, _BUFFER)


def fetch(stream: ObjectStream, part: Path) -> str:
    """Append what a stream still has to a file that holds what comes before it; returns the digest of all."""
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


class ObjectStream(io.RawIOBase):
    """An object's bytes from an offset on; after a broken connection, what is missing is requested again."""

    def __init__(
        self,
        connection: Connection,
        place: Mapping[str, Any],
        store_url: str,
        key: str,
        *,
        start: int = 0,
        etag: str = "",
    ) -> None:
        """Open an object."""
        super().__init__()
        self._connection, self._place, self._store_url, self._key = connection, place, store_url, key
        self._url = f"{store_url}/{key}"
        self.position, self.etag, self.metadata, self.size = start, etag, dict[str, str](), -1
        self._body: StreamingBody | None = None
        self._request()

    def readable(self) -> bool:
        """Return true, as the base class does not."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read what comes next; nothing only at the end of the object."""
        view = memoryview(buffer).cast("B")
        if self.position >= self.size or not len(view):
            return 0
        require_going()
        for _ in range(_TRIES):
            with suppress(BotoCoreError, HTTPError, OSError):
                body = self._body or self._request()
                if data := body.read(min(len(view), _STEP, self.size - self.position)):
                    view[: len(data)] = data
                    self.position += len(data)
                    return len(data)
            self._drop()
        raise ServiceError(
            f"{self._url}: reading broke off at byte {self.position} of {self.size}.",
            hint="Run the same command again.",
        )

    def _request(self) -> StreamingBody:
        condition: dict[str, Any] = {"IfMatch": f'"{self.etag}"'} if self.etag else {}
        span: dict[str, Any] = {"Range": f"bytes={self.position}-"} if self.position else {}
        with explained(self._store_url, key=self._key, identity=self._connection.identity):
            try:
                answer = self._connection.client.get_object(**self._place, **condition, **span)
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
        return StoreError(f"{self._url} was replaced while it was read.", hint="Run the same command again.")

    def _drop(self) -> None:
        if self._body is not None:
            self._body.close()
            self._body = None

    def close(self) -> None:
        """Close the connection that is left."""
        self._drop()
        super().close()
