"""Which conditional writes a service supports: Amazon's all, others ignore them, or refuse right ones.

Where they hold, S3 itself lets one of several racing writers win. Where they do not, a writer
compares before and verifies after its write, and the writers of one machine take turns. That is less:
of writers on different machines, one whose object was overwritten before it verified learns it, and
one whose object was overwritten later does not.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import tempfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from core import files
from core.stores.s3_client import ABSENT, LOST, Conditions, code_of

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from types_boto3_s3 import S3Client

    from core.stores.s3_client import Connection

AMAZON = Conditions(if_none_match=True, if_match=True, completion=True)
# the name of the small objects that find it out; listings leave them out
PROBE = "conditional-write-probe-"
_UNKNOWN = frozenset({"NotImplemented", "501", "InvalidArgument", "InvalidRequest"})


def known_conditions(connection: Connection, bucket: str) -> Conditions | None:
    """Return what a service supports as far as that is known without a request."""
    return AMAZON if connection.is_amazon else connection.conditions.get(bucket)


def conditions_of(connection: Connection, bucket: str, folder: str) -> Conditions:
    """Find out what a service supports; one that is not Amazon's is tried, once a bucket and process."""
    with connection.lock:
        known = known_conditions(connection, bucket)
        if known is None:
            place = {"Bucket": bucket, "Key": f"{folder}{PROBE}{uuid.uuid4().hex}"}
            known = connection.conditions[bucket] = _try_conditions(connection.client, place)
    return known


def _try_conditions(client: S3Client, place: dict[str, Any]) -> Conditions:
    def writes(**condition: str) -> bool:
        try:
            client.put_object(**place, Body=b"1", **condition)  # type: ignore[arg-type]
        except ClientError as problem:
            if code_of(problem) in LOST:
                return False
            raise
        return True

    first = client.put_object(**place, Body=b"1")
    try:
        if_none_match = not writes(IfNoneMatch="*")
        # one that refuses what holds, too, is as useless as one that does not look
        if_match = not writes(IfMatch='"0"') and writes(IfMatch=first["ETag"])
    except ClientError as problem:
        if code_of(problem) not in _UNKNOWN:
            raise
        return Conditions()
    finally:
        _remove(client, place)
    return Conditions(if_none_match=if_none_match, if_match=if_match)


def keeps_folders(connection: Connection, bucket: str, folder: str) -> bool:
    """Return whether a service keeps objects under keys that end with a slash, as Amazon's does."""
    if connection.is_amazon:
        return True
    with connection.lock:
        if bucket not in connection.folder_pages:
            place = {"Bucket": bucket, "Key": f"{folder}{PROBE}{uuid.uuid4().hex}/"}
            connection.folder_pages[bucket] = _try_folder(connection.client, place)
    return connection.folder_pages[bucket]


def _try_folder(client: S3Client, place: dict[str, Any]) -> bool:
    """Try an object of a folder's name: where files stand for objects, it is found without its slash."""
    file = {**place, "Key": place["Key"].rstrip("/")}
    try:
        client.put_object(**place, Body=b"1")
        if client.head_object(**place)["ContentLength"] != 1:
            return False
        client.head_object(**file)
    except ClientError as problem:
        return code_of(problem) in ABSENT
    else:
        return False
    finally:
        _remove(client, place)
        _remove(client, file)


def _remove(client: S3Client, place: dict[str, Any]) -> None:
    with suppress(ClientError, BotoCoreError):
        client.delete_object(**place)


def machine_lock(what: str) -> AbstractContextManager[None]:
    """Let the writers of one object take turns, those of this user on this machine."""
    name = hashlib.sha256(what.encode()).hexdigest()[:32]
    user = getattr(os, "getuid", getpass.getuser)
    folder = Path(tempfile.gettempdir()) / f"s3-writes-{user()}"
    return files.locked(folder / f"{name}.lock", what=what)
