from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from core.errors import StoreError, UsageError
from core.stores.location import open_store
from core.stores.s3 import S3Store
from core.stores.s3_client import connect, moment, shared_connection

if TYPE_CHECKING:
    from pathlib import Path

    from types_boto3_s3 import S3Client


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-21T17:42:16.634Z", datetime(2026, 11, 21, 17, 42, 16, 634000, tzinfo=UTC)),
        ("2026-11-21T17:42:16Z", datetime(2026, 11, 21, 17, 42, 16, tzinfo=UTC)),
        ("Sat, 21 Nov 2026 17:42:16 GMT", datetime(2026, 11, 21, 17, 42, 16, tzinfo=UTC)),
        ("1795282936", datetime.fromtimestamp(1795282936, UTC)),
        (1795282936.5, datetime.fromtimestamp(1795282936.5, UTC)),
    ],
)
def test_times_are_read_in_every_form(text: str | float, expected: datetime) -> None:
    assert moment(text) == expected


@pytest.mark.usefixtures("aws")
def test_the_same_settings_give_the_same_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    first = shared_connection()
    monkeypatch.setenv("UNRELATED", "x")
    assert shared_connection() is first
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert shared_connection() is not first


@pytest.mark.usefixtures("aws")
def test_a_server_of_ones_own_is_addressed_by_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    store = open_store("s3://bucket/run", root=tmp_path)
    assert isinstance(store, S3Store)
    assert not store.connection.is_amazon
    assert store.url == "s3://bucket/run"
    assert store.url_of("a+b/x.whl") == "http://127.0.0.1:1/bucket/run/a%2Bb/x.whl"
    signed = store.connection.client.generate_presigned_url("get_object", Params=store.place("x"))
    assert signed.startswith("http://127.0.0.1:1/bucket/run/x?")


@pytest.mark.usefixtures("aws")
def test_endpoint_and_style_come_from_a_profile_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "[profile mine]\nendpoint_url = http://s3.example:9\ns3 =\n  addressing_style = virtual\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    connection = connect()
    assert connection.endpoint == "http://s3.example:9"
    signed = connection.client.generate_presigned_url("get_object", Params={"Bucket": "bkt", "Key": "x"})
    assert signed.startswith("http://bkt.s3.example:9/x?")


@pytest.mark.usefixtures("aws")
def test_amazons_buckets_have_addresses_of_their_own(tmp_path: Path) -> None:
    assert open_store("s3://bkt", root=tmp_path).url_of("a b") == "https://bkt.s3.amazonaws.com/a%20b"
    # a certificate is for one name before the dot
    assert open_store("s3://b.k.t", root=tmp_path).url_of("a").endswith(".amazonaws.com/b.k.t/a")


@pytest.mark.usefixtures("aws")
def test_a_profile_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreError, match=r"\(nobody\) could not be found") as caught:
        open_store("s3://bucket", root=tmp_path)
    assert "AWS_PROFILE" in caught.value.hint


def test_without_credentials_public_objects_are_read_and_nothing_is_written(
    s3: S3Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    s3.put_object(Bucket="bucket", Key="a", Body=b"public", ACL="public-read")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    store = open_store("s3://bucket", root=tmp_path)
    assert isinstance(store, S3Store)
    assert not store.connection.signed
    assert store.read("a") == b"public"
    for write in (lambda: store.put_bytes("b", b""), lambda: store.delete("a")):
        with pytest.raises(StoreError, match="Writing to s3://bucket needs AWS credentials") as caught:
            write()
        assert "AWS_PROFILE" in caught.value.hint
    assert [one["Key"] for one in s3.list_objects_v2(Bucket="bucket")["Contents"]] == ["a"]


@pytest.mark.usefixtures("aws")
def test_who_writes_can_be_told_without_a_secret(tmp_path: Path) -> None:
    store = open_store("s3://bucket", root=tmp_path)
    assert isinstance(store, S3Store)
    key = os.environ["AWS_ACCESS_KEY_ID"]  # noqa: TID251 - what moto has set
    assert store.connection.identity == f"access key …{key[-4:]} from env"
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in repr(store)  # noqa: TID251 - the same


@pytest.mark.parametrize("location", ["s3://", "s3:///x", "s3://bucket//x", "s3://bucket/../x"])
def test_what_names_no_bucket_is_refused(location: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a bucket"):
        open_store(location, root=tmp_path)
