"""Objects on their way to S3: in one request, in parts, or copied by the server.

An upload in parts is invisible before it is completed, and is aborted where it fails. Those that a killed
process left are aborted by the next upload of the key.
"""

from __future__ import annotations

import base64
import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from core.errors import StoreError, require_not_stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path
    from threading import BoundedSemaphore

    from types_boto3_s3.type_defs import CompletedPartTypeDef, CopySourceTypeDef

    from core.stores.s3_client import Connection

    SendPart = Callable[[], CompletedPartTypeDef]

MIB = 1 << 20
# Larger files go in parts of this size.
PART = 16 * MIB
COPY_PART = 128 * MIB
# Amazon's server copies up to 5 GiB in one request, but larger objects faster in parts.
COPY_WHOLE = 256 * MIB
COPY_LIMIT = 5 << 30
MAX_PARTS = 10_000
_PARTS_AT_A_TIME = 8


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where an object goes, with its headers, and on what condition, as arguments of a request.

    An upload in parts first aborts the unfinished ones of the key, unless that is done.
    """

    connection: Connection
    place: Mapping[str, Any]
    headers: Mapping[str, Any]
    condition: Mapping[str, Any]
    abort_unfinished: bool


@dataclass(frozen=True, kw_only=True)
class ObjectContent:
    """What an object is to hold, and how it is sent: `send` returns the ETag of what it has written."""

    sha256: str
    size: int
    send: Callable[[Target], str]


def content_of_bytes(data: bytes) -> ObjectContent:
    """Return the content of an object that lies in memory."""
    return ObjectContent(
        sha256=hashlib.sha256(data).hexdigest(),
        size=len(data),
        send=partial(_put, data=data),
    )


def content_of_file(source: Path, sha256: str) -> ObjectContent:
    """Return the content of a file that has to have a digest: it goes in parts where it is large."""
    size = source.stat().st_size
    if size > PART:
        send = partial(_put_parts, source=source, sha256=sha256, part_size=part_size(size, PART))
    elif size > MIB:
        send = partial(_put_file_in_turn, source=source, sha256=sha256)
    else:
        send = partial(_put_file, source=source, sha256=sha256)
    return ObjectContent(sha256=sha256, size=size, send=send)


def part_size(size: int, least: int) -> int:
    """Return the size of parts: `least`, or whole MiB more where there would be too many."""
    smallest = -(-size // MAX_PARTS)
    if smallest <= least:
        return least
    return -(-smallest // MIB) * MIB


def _put(target: Target, data: bytes) -> str:
    """Upload bytes in one request."""
    response = target.connection.client.put_object(
        **target.place,
        **target.headers,
        **target.condition,
        Body=data,
        ChecksumAlgorithm="SHA256",
        ChecksumSHA256=_encoded_sha256(data),
    )
    return _etag_of(response)


def _put_file(target: Target, source: Path, sha256: str) -> str:
    """Upload a file in one request."""
    data = source.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise _changed(source, sha256)
    return _put(target, data)


def _put_file_in_turn(target: Target, source: Path, sha256: str) -> str:
    """Upload a file in one request, when there is memory for it."""
    with target.connection.part_slots:
        return _put_file(target, source, sha256)


def _put_parts(target: Target, source: Path, sha256: str, part_size: int) -> str:
    """Upload a file in parts; it is completed only if all of them together have the digest."""
    client = target.connection.client
    digest_of_file = hashlib.sha256()

    def send_part(upload_id: str, number: int, data: bytes) -> CompletedPartTypeDef:
        response = client.upload_part(
            **target.place,
            UploadId=upload_id,
            PartNumber=number,
            Body=data,
            ChecksumSHA256=_encoded_sha256(data),
        )
        return _completed_part(number, response)

    def read_parts(upload_id: str) -> Iterator[SendPart]:
        number = 0
        while data := file.read(part_size):
            number += 1
            digest_of_file.update(data)
            yield partial(send_part, upload_id, number, data)
        if digest_of_file.hexdigest() != sha256:
            raise _changed(source, sha256)

    with source.open("rb") as file:
        return _upload_in_parts(target, read_parts)


def copy(target: Target, *, source: CopySourceTypeDef, etag: str, size: int) -> str:
    """Copy an object of the same service while it has an ETag; return the ETag of the copy."""
    # Servers of others may not know copies of parts.
    largest = COPY_WHOLE if target.connection.is_amazon else COPY_LIMIT
    if size > largest:
        return _copy_parts(target, source, etag, size)

    arguments: Any = {**target.place, **target.headers, **target.condition}
    response = target.connection.client.copy_object(
        **arguments,
        CopySource=source,
        CopySourceIfMatch=f'"{etag}"',
        MetadataDirective="REPLACE",
    )
    return _etag_of(response["CopyObjectResult"])


def _copy_parts(target: Target, source: CopySourceTypeDef, etag: str, size: int) -> str:
    step = part_size(size, COPY_PART)

    def copy_part(upload_id: str, number: int, start: int) -> CompletedPartTypeDef:
        place: Any = {**target.place, "UploadId": upload_id, "PartNumber": number}
        response = target.connection.client.upload_part_copy(
            **place,
            CopySource=source,
            CopySourceIfMatch=f'"{etag}"',
            CopySourceRange=f"bytes={start}-{min(start + step, size) - 1}",
        )
        return _completed_part(number, response["CopyPartResult"])

    def parts(upload_id: str) -> Iterator[SendPart]:
        for number, start in enumerate(range(0, size, step), 1):
            yield partial(copy_part, upload_id, number, start)

    return _upload_in_parts(target, parts)


def _upload_in_parts(target: Target, parts: Callable[[str], Iterator[SendPart]]) -> str:
    """Begin an upload in parts, send them, and complete it; abort it where anything was raised."""
    client = target.connection.client
    if target.abort_unfinished:
        _abort_unfinished_uploads(target)

    upload = client.create_multipart_upload(**target.place, **target.headers, ChecksumAlgorithm="SHA256")
    upload_id = upload["UploadId"]
    try:
        completed_parts = _send_parts(parts(upload_id), target.connection.part_slots)
        response = client.complete_multipart_upload(
            **target.place,
            **target.condition,
            UploadId=upload_id,
            MultipartUpload={"Parts": completed_parts},
        )
    except BaseException:
        with suppress(ClientError, BotoCoreError):
            client.abort_multipart_upload(**target.place, UploadId=upload_id)
        raise
    return _etag_of(response)


def _abort_unfinished_uploads(target: Target) -> None:
    """Abort what killed uploads of this key left. One that is still alive starts again: `S3Store` sees to it.

    Without permission to list them, the bucket's lifecycle rule removes them.
    """
    client = target.connection.client
    key = target.place["Key"]
    # rclone answers with an error where there is none.
    with suppress(ClientError):
        listing = client.list_multipart_uploads(Bucket=target.place["Bucket"], Prefix=key)
        for upload in listing.get("Uploads", ()):
            if upload["Key"] == key:
                client.abort_multipart_upload(**target.place, UploadId=upload["UploadId"])


def _send_parts(parts: Iterator[SendPart], slots: BoundedSemaphore) -> list[CompletedPartTypeDef]:
    """Send parts, some at a time; each is read when there is a slot in memory for it.

    Those that have begun are awaited, also where one failed: an aborted upload must not get parts later.
    """
    futures: list[Future[CompletedPartTypeDef]] = []
    with ThreadPoolExecutor(_PARTS_AT_A_TIME) as pool:
        while not any(_has_failed(future) for future in futures):
            require_not_stopped()
            slots.acquire()
            try:
                send_part = next(parts, None)
            except BaseException:
                slots.release()
                raise
            if send_part is None:
                slots.release()
                break
            future = pool.submit(send_part)
            future.add_done_callback(lambda _future: slots.release())
            futures.append(future)
    return [future.result() for future in futures]


def _completed_part(number: int, response: Mapping[str, Any]) -> CompletedPartTypeDef:
    """Return what the completion of an upload has to say of a part."""
    completed: CompletedPartTypeDef = {"PartNumber": number, "ETag": response["ETag"]}
    # Some servers keep no checksums of parts, and refuse those that they did not name.
    checksum = response.get("ChecksumSHA256")
    if checksum is not None:
        completed["ChecksumSHA256"] = checksum
    return completed


def _has_failed(future: Future[CompletedPartTypeDef]) -> bool:
    return future.done() and future.exception() is not None


def _encoded_sha256(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def _etag_of(response: Mapping[str, Any]) -> str:
    return str(response.get("ETag", "")).strip('"')


def _changed(source: Path, sha256: str) -> StoreError:
    return StoreError(
        f"{source} does not have the digest {sha256}: it was written to meanwhile.",
        hint="Build or fetch it again.",
    )
