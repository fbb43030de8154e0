from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from core.errors import StoreError
from core.stores import open_store
from core.stores.s3 import S3Store
from core.stores.s3_conditions import PROBE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from types_boto3_s3 import S3Client


@pytest.fixture(name="store")
def store_fixture(s3: S3Client, tmp_path: Path) -> S3Store:
    assert s3.list_buckets()["Buckets"]
    store = open_store("s3://bucket", root=tmp_path)
    assert isinstance(store, S3Store)
    return store


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_every_object_says_what_it_is(store: S3Store, s3: S3Client) -> None:
    store.put_bytes("r/index.html", b"page")
    head = s3.head_object(Bucket="bucket", Key="r/index.html", ChecksumMode="ENABLED")
    assert head["ContentType"] == "text/html; charset=utf-8"
    assert head["CacheControl"] == "no-cache, must-revalidate"
    assert head["Metadata"] == {"sha256": sha(b"page")}
    assert base64.b64decode(head["ChecksumSHA256"]).hex() == sha(b"page")


@pytest.mark.parametrize("name", ["sha256", "Sha256", "SHA256"])
def test_a_digest_is_found_however_a_server_writes_its_name(
    store: S3Store, s3: S3Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_object(Bucket="bucket", Key="a", Body=b"a")
    client: Any = store.connection.client
    real: Callable[..., Any] = client.head_object
    monkeypatch.setattr(
        client, "head_object", lambda **asked: {**real(**asked), "Metadata": {name: "digest"}}
    )
    assert store.digest("a") == "digest"


def test_what_others_uploaded_has_the_digest_that_s3_took(
    store: S3Store, s3: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_object(Bucket="bucket", Key="a", Body=b"a", ChecksumAlgorithm="SHA256")
    monkeypatch.setattr(store.connection.client, "get_object", None)
    assert store.digest("a") == sha(b"a")


@pytest.mark.parametrize(
    "checksum",
    [
        {},
        {"ChecksumSHA256": base64.b64encode(bytes(32)).decode() + "-2"},
        {"ChecksumSHA256": base64.b64encode(bytes(32)).decode(), "ChecksumType": "COMPOSITE"},
    ],
)
def test_else_its_bytes_are_read(
    store: S3Store, s3: S3Client, checksum: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_object(Bucket="bucket", Key="a", Body=b"a")
    client: Any = store.connection.client
    real: Callable[..., Any] = client.head_object

    def head_object(**asked: Any) -> Any:
        head = real(**asked)
        head.pop("ChecksumSHA256", None)
        return {**head, **checksum}

    monkeypatch.setattr(client, "head_object", head_object)
    assert store.digest("a") == sha(b"a")


def test_a_listing_is_whole_and_leaves_out_what_is_no_output(
    store: S3Store, s3: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    for key in ("r/", "r/.hidden/a", f"r/{PROBE}0", "r/.b", "other/a"):
        s3.put_object(Bucket="bucket", Key=key, Body=b"")
    keys = [f"r/{number:04}.whl" for number in range(25)]
    for key in keys:
        s3.put_object(Bucket="bucket", Key=key, Body=b"")
    assert [one.key for one in store.list("r")] == keys


def test_a_bucket_that_is_not_there_is_named_by_whatever_is_asked(s3: S3Client, tmp_path: Path) -> None:
    assert s3.list_buckets()["Buckets"]
    store = open_store("s3://nowhere/run", root=tmp_path)
    calls: list[Callable[[], object]] = [
        lambda: store.list("x"),
        lambda: store.find("x"),
        lambda: store.read("x"),
        lambda: store.digest("x"),
        lambda: store.put_bytes("x", b""),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="There is no bucket 'nowhere'"):
            call()


def test_why_an_object_may_not_be_seen_is_asked_where_answers_have_words(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = store.connection.client

    def head_object(**_asked: Any) -> Any:
        raise ClientError({"Error": {"Code": "400", "Message": "Bad Request"}}, "HeadObject")

    def get_object(**asked: Any) -> Any:
        assert asked["Range"] == "bytes=0-0"
        raise ClientError({"Error": {"Code": "ExpiredToken", "Message": "expired"}}, "GetObject")

    monkeypatch.setattr(client, "head_object", head_object)
    monkeypatch.setattr(client, "get_object", get_object)
    with pytest.raises(StoreError, match="credentials have expired"):
        store.find("a")
