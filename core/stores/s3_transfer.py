"""Large objects in parts, several at a time: uploads from a file, and copies on the server.

An upload of parts is seen by nobody before it is completed, and is aborted where it fails.
"""

from __future__ import annotations

import base64
import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from core.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from types_boto3_s3.type_defs import CompletedPartTypeDef

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
