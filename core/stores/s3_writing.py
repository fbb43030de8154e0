"""Writes on a condition: held by S3 itself where it does, else by comparing before and verifying after."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from core.stores.s3_conditions import conditions_of, machine_lock
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
    """A write to be done.

    Attributes:
        bucket: Where.
        key: The object's key.
        sha256: The hex SHA-256 of what is written.
        etag: The object that may be replaced: "" for none at all, None for any.
        send: Does it, given the condition as arguments of the request.
        whole: Whether that is one PUT, whose conditions more servers hold to.
        refusal: The error of a write that may not be done, as another object is there.
    """

    bucket: Bucket
    key: str
    sha256: str
    etag: str | None
    send: Send
    whole: bool
    refusal: StoreError


def write(asked: Write) -> None:
    """Write an object on its condition.

    Raises:
        StoreError: The condition does not hold (`Write.refusal`), or the store refused.
        ServiceError: The service cannot be reached.
    """
    with asked.bucket.writing(asked.key):
        if asked.etag is None:
            _send(asked, {})
        elif _is_held(asked):
            _send(asked, {"IfMatch": f'"{asked.etag}"'} if asked.etag else {"IfNoneMatch": "*"})
        else:
            _compare_and_send(asked, asked.etag)


def _is_held(asked: Write) -> bool:
    key = asked.bucket.place(asked.key)["Key"]
    folder = key[: key.rfind("/") + 1]
    known = conditions_of(asked.bucket.connection, asked.bucket.bucket, folder)
    return (known.if_match if asked.etag else known.if_none_match) and (asked.whole or known.completion)


def _compare_and_send(asked: Write, etag: str) -> None:
    bucket = asked.bucket
    place = bucket.place(asked.key)
    with machine_lock(f"{bucket.connection.endpoint}/{bucket.bucket}/{place['Key']}"):
        seen = bucket.look(asked.key)
        if (seen.stored.etag if seen else "") != etag:
            if bucket.holds(asked.key, asked.sha256):
                return
            raise asked.refusal
        _send(asked, {})
        if not bucket.holds(asked.key, asked.sha256):
            raise asked.refusal


def _send(asked: Write, condition: Mapping[str, Any]) -> None:
    for turn in range(_TURNS):
        try:
            asked.send(condition)
        except ClientError as problem:
            code = code_of(problem)
            if code not in _PERHAPS_DONE:
                raise
            if asked.bucket.holds(asked.key, asked.sha256):
                return
            if code in _BUSY and turn < _TURNS - 1:
                time.sleep(0.1 * 2**turn)
            elif condition:
                raise asked.refusal from problem
            else:
                raise
        else:
            return
