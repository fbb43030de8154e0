"""Copies that never leave the service: of the very object that was seen, headers and digest set anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from core.errors import FatalError, StoreError
from core.stores import s3_transfer as transfer
from core.stores.s3_errors import LOST, code_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.stores import Stored
    from core.stores.s3_bucket import Bucket


def copy(
    target: transfer.Target,
    source: Bucket,
    seen: Stored,
    *,
    condition: Mapping[str, Any],
    sizes: transfer.Sizes,
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
            transfer.copy_parts(target, place, etag, seen.size, condition=condition, part=sizes.copy_part)
            copied = ""
    except ClientError as problem:
        if code_of(problem) in LOST:
            require_unchanged(source, seen)
        raise
    if copied != seen.etag:
        _verify(target, source, seen)


def _verify(target: transfer.Target, source: Bucket, seen: Stored) -> None:
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
