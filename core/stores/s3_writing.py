"""Writes on a condition: held by S3 itself where it does, else by comparing before and verifying after."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from core.stores.s3_conditions import conditions_of, turn
from core.stores.s3_errors import ABSENT, LOST, code_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core.errors import StoreError
    from core.stores.s3_bucket import Bucket

    Send = Callable[[Mapping[str, Any]], None]

_TURNS = 5
# S3 is busy with another conditional write of the key, and did not do this one
_BUSY = frozenset({"409", "ConditionalRequestConflict"})
# what the second sending of a request may be told when the answer to its first was lost
_PERHAPS_DONE = frozenset({*LOST, *ABSENT, "NoSuchUpload"})


@dataclass(frozen=True, kw_only=True)
class Write:
    """A write to be done."""

    bucket: Bucket
    key: str
    sha256: str
    size: int
    etag: str | None
    send: Send
    whole: bool
    in_turn: bool
    refusal: StoreError


def write(asked: Write) -> None:
    """Write an object on its condition."""
    bucket, etag = asked.bucket, asked.etag
    place = bucket.place(asked.key)
    with bucket.writing(asked.key):
        if etag is None:
            _send(asked, {})
            return
        folder = place["Key"][: place["Key"].rfind("/") + 1]
        known = conditions_of(bucket.connection, bucket.bucket, folder)
        if known.hold(etag, whole=asked.whole):
            _send(asked, {"IfMatch": f'"{etag}"'} if etag else {"IfNoneMatch": "*"})
        elif asked.in_turn:
            _send_and_verify(asked)
        else:
            with turn(bucket.connection, place, etag, whole=asked.whole):
                seen = bucket.look(asked.key)
                if (seen.stored.etag if seen else "") == etag:
                    _send_and_verify(asked)
                elif not bucket.holds(asked.key, asked.sha256):
                    raise asked.refusal


def _send_and_verify(asked: Write) -> None:
    _send(asked, {})
    seen = asked.bucket.look(asked.key)
    if seen is None or asked.bucket.digest_of(seen) != asked.sha256:
        raise asked.refusal
    if seen.stored.size != asked.size:
        asked.bucket.connection.client.delete_object(**asked.bucket.place(asked.key))
        raise asked.bucket.broken(asked.key, asked.sha256)


def _send(asked: Write, condition: Mapping[str, Any]) -> None:
    for attempt in range(_TURNS):
        try:
            asked.send(condition)
        except ClientError as problem:
            code = code_of(problem)
            if code not in _PERHAPS_DONE:
                raise
            if asked.bucket.holds(asked.key, asked.sha256):
                return
            if code in _BUSY and attempt < _TURNS - 1:
                time.sleep(0.1 * 2**attempt)
            elif condition:
                raise asked.refusal from problem
            else:
                raise
        else:
            return
