from __future__ import annotations

import dataclasses
import hashlib
import os
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from core.errors import StoreError
from core.stores.location import open_store
from core.stores.s3 import S3Store
from core.stores.s3_transfer import MAX_PARTS, MIB, PART, Sizes, part_size

if TYPE_CHECKING:
    from pathlib import Path

    from types_boto3_s3 import S3Client

# the least that S3 takes for a part that is not the last
SMALL = Sizes(part=5 * MIB)
DATA = os.urandom(MIB) * 12


@given(st.integers(0, 50 << 40))
def test_there_are_never_too_many_parts(size: int) -> None:
    part = part_size(size, PART)
    assert part >= PART
    assert part % MIB == 0
    assert -(-size // part) <= MAX_PARTS
    assert part == PART or part - MIB < size / MAX_PARTS


@pytest.fixture(name="store")
def store_fixture(s3: S3Client, tmp_path: Path) -> S3Store:
    assert s3.list_buckets()["Buckets"]
    store = open_store("s3://bucket", root=tmp_path)
    assert isinstance(store, S3Store)
    return dataclasses.replace(store, sizes=SMALL)


@pytest.fixture(name="large")
def large_fixture(tmp_path: Path) -> Path:
    path = tmp_path / "large.whl"
    path.write_bytes(DATA)
    return path


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def unfinished(s3: S3Client) -> list[Any]:
    return list(s3.list_multipart_uploads(Bucket="bucket").get("Uploads", []))


def test_a_large_file_goes_in_parts_with_headers_and_digest(
    store: S3Store, s3: S3Client, large: Path
) -> None:
    assert store.put_file("r/large.whl", large, sha256=sha(DATA), replace=False) == "written"
    head = s3.head_object(Bucket="bucket", Key="r/large.whl")
    assert head["ETag"].endswith('-3"')
    assert head["Metadata"] == {"sha256": sha(DATA)}
    assert head["ContentType"] == "application/zip"
    assert "immutable" in head["CacheControl"]
    assert store.read("r/large.whl") == DATA
    assert store.put_file("r/large.whl", large, sha256=sha(DATA), replace=False) == "unchanged"
    assert unfinished(s3) == []


@pytest.mark.parametrize("sizes", [SMALL, Sizes()])
def test_a_file_that_is_not_what_its_digest_says_is_never_seen(
    store: S3Store, s3: S3Client, large: Path, sizes: Sizes
) -> None:
    store = dataclasses.replace(store, sizes=sizes)
    with pytest.raises(StoreError, match=r"large\.whl does not have the digest"):
        store.put_file("r/large.whl", large, sha256=sha(b"other"), replace=False)
    assert store.find("r/large.whl") is None
    assert unfinished(s3) == []


@pytest.mark.parametrize("operation", ["upload_part", "complete_multipart_upload"])
@pytest.mark.parametrize("kind", [ClientError, KeyboardInterrupt])
def test_an_upload_that_fails_leaves_nothing(
    store: S3Store,
    s3: S3Client,
    large: Path,
    monkeypatch: pytest.MonkeyPatch,
    operation: str,
    kind: type[BaseException],
) -> None:
    client: Any = store.connection.client
    real = getattr(client, operation)

    def fail(**arguments: Any) -> Any:
        if arguments.get("PartNumber", 2) == 2:
            raise kind({"Error": {"Code": "AccessDenied"}}, "UploadPart")
        return real(**arguments)

    monkeypatch.setattr(client, operation, fail)
    with pytest.raises(StoreError if kind is ClientError else kind):
        store.put_file("r/large.whl", large, sha256=sha(DATA), replace=False)
    monkeypatch.undo()
    assert store.find("r/large.whl") is None
    assert unfinished(s3) == []
    # nothing is left that would keep the next uploads waiting
    for _ in range(20):
        assert store.connection.parts.acquire(timeout=1) or True
        store.connection.parts.release()
