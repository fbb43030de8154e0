"""A bucket, and what stands in for operations of its client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from core.stores.location import open_store
from core.stores.s3 import S3Store

if TYPE_CHECKING:
    from pathlib import Path

    from types_boto3_s3 import S3Client

    from tests.kit.aws import Operation, SetSubstitute


@pytest.fixture
def bucket(s3: S3Client, tmp_path: Path) -> S3Store:
    """Return an empty bucket."""
    assert s3.list_buckets()["Buckets"]
    store = open_store("s3://bucket", root=tmp_path)
    assert isinstance(store, S3Store)
    return store


@pytest.fixture
def substitute(bucket: S3Store, monkeypatch: pytest.MonkeyPatch) -> SetSubstitute:
    """Return the function that lets another one answer for an operation of the bucket's client."""

    def substitute(operation: str, stand_in: Operation) -> None:
        client: Any = bucket.connection.client
        real: Operation = getattr(client, operation)
        monkeypatch.setattr(client, operation, lambda **arguments: stand_in(real, **arguments))

    return substitute
