"""Which conditional writes a service holds to: Amazon's do, others ignore them, or refuse right ones.

Where they hold, S3 itself lets one of several racing writers win. Where they do not, a writer
compares before and verifies after its write, and the writers of one machine take turns. That is less:
of writers on different machines, one whose object was overwritten before it verified is told so, and
one whose object was overwritten later is not.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import tempfile
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from core import files
from core.stores.s3_client import ABSENT, AMAZON, LOST, Conditions, code_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

    from core.stores.s3_client import Connection


# the name of the small objects that find it out; listings leave them out
PROBE = "conditional-write-probe-"


def conditions_of(connection: Connection, bucket: str, folder: str) -> Conditions:
    """Say what a service holds to; one that is not Amazon's is tried, once a bucket and process."""
    if connection.is_amazon:
        return AMAZON
    with connection.lock:
        known = connection.conditional.get(bucket)
        if known is None:
            known = _tried(connection, bucket, f"{folder}{PROBE}{uuid.uuid4().hex}")
            connection.conditional[bucket] = known
    return known


def _tried(connection: Connection, bucket: str, key: str) -> Conditions:
    client = connection.client
    first = client.put_object(Bucket=bucket, Key=key, Body=b"1")
    try:
        if_none_match = not _writes(connection, bucket, key, {"IfNoneMatch": "*"})
        if_match = not _writes(connection, bucket, key, {"IfMatch": '"0"'})
        # one that refuses what holds, too, is as useless as one that does not look
        if_match = if_match and _writes(connection, bucket, key, {"IfMatch": first["ETag"]})
    except _UnknownError:
        return Conditions(if_none_match=False, if_match=False, completion=False)
    finally:
        with suppress(ClientError, BotoCoreError):
            client.delete_object(Bucket=bucket, Key=key)
    return Conditions(if_none_match=if_none_match, if_match=if_match, completion=False)


class _UnknownError(Exception):
    """A service that does not know what a condition is."""


def _writes(connection: Connection, bucket: str, key: str, condition: dict[str, Any]) -> bool:
    try:
        connection.client.put_object(Bucket=bucket, Key=key, Body=b"1", **condition)
    except ClientError as problem:
        if code_of(problem) in {"NotImplemented", "501", "InvalidArgument", "InvalidRequest"}:
            raise _UnknownError from problem
        if code_of(problem) in LOST:
            return False
        raise
    return True


def keeps_folders(connection: Connection, bucket: str, folder: str) -> bool:
    """Say whether a service keeps objects under keys that end with a slash, as Amazon's does."""
    if connection.is_amazon:
        return True
    with connection.lock:
        known = connection.folders.get(bucket)
        if known is None:
            known = _keeps(connection, {"Bucket": bucket, "Key": f"{folder}{PROBE}{uuid.uuid4().hex}/"})
            connection.folders[bucket] = known
    return known


def _keeps(connection: Connection, place: Any) -> bool:  # noqa: ANN401 - Bucket and Key
    """Try an object of a folder's name: where files stand for objects, it is found without its slash."""
    client = connection.client
    try:
        client.put_object(**place, Body=b"1")
        if client.head_object(**place)["ContentLength"] != 1:
            return False
        client.head_object(**{**place, "Key": place["Key"].rstrip("/")})
    except ClientError as problem:
        return code_of(problem) in ABSENT
    else:
        return False
    finally:
        for key in (place["Key"], place["Key"].rstrip("/")):
            with suppress(ClientError, BotoCoreError):
                client.delete_object(**{**place, "Key": key})


@contextmanager
def turn(
    connection: Connection, place: Mapping[str, str], etag: str | None, *, whole: bool
) -> Iterator[bool]:
    """Take one's turn at an object, where the service is known to leave its writers to each other."""
    known = AMAZON if connection.is_amazon else connection.conditional.get(place["Bucket"])
    if etag is None or known is None or known.hold(etag, whole=whole):
        yield False
        return
    with machine_lock(f"{connection.endpoint}/{place['Bucket']}/{place['Key']}"):
        yield True


def machine_lock(what: str) -> AbstractContextManager[None]:
    """Let the writers of one object take turns, those of this user on this machine."""
    name = hashlib.sha256(what.encode()).hexdigest()[:32]
    user = getattr(os, "getuid", getpass.getuser)
    folder = Path(tempfile.gettempdir()) / f"s3-writes-{user()}"
    return files.locked(folder / f"{name}.lock", what=what)


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core.errors import StoreError
    from core.stores.s3 import Bucket

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
