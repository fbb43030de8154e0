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
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from core import files
from core.stores.s3_client import AMAZON, Conditions
from core.stores.s3_errors import ABSENT, LOST, code_of

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
