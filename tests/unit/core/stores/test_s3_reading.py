from __future__ import annotations

import hashlib
import io
import os
from typing import TYPE_CHECKING, Any

import pytest
from botocore import exceptions as boto

from core.errors import ServiceError, StoreError
from core.stores.location import open_store
from core.stores.s3 import S3Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from types_boto3_s3 import S3Client

DATA = os.urandom(3_000_000)


@pytest.fixture(name="store")
def store_fixture(s3: S3Client, tmp_path: Path) -> S3Store:
    assert s3.list_buckets()["Buckets"]
    store = open_store("s3://bucket", root=tmp_path)
    assert isinstance(store, S3Store)
    store.put_bytes("a.whl", DATA)
    return store


class Breaking(io.BytesIO):
    """A body that gives no more than some bytes, then what a broken connection gives."""

    def __init__(self, data: bytes, after: int, problem: Exception | None) -> None:
        super().__init__(data[:after])
        self.problem = problem

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if not data and self.problem is not None:
            raise self.problem
        return data


def break_reads(
    store: S3Store, monkeypatch: pytest.MonkeyPatch, after: int, problem: Exception | None
) -> list[str]:
    """Let every read end after some bytes.

    Returns:
        The ranges that are asked for.
    """
    client: Any = store.connection.client
    real: Callable[..., Any] = client.get_object
    asked = []

    def get_object(**arguments: Any) -> Any:
        asked.append(arguments.get("Range", ""))
        answer = real(**arguments)
        answer["Body"] = Breaking(answer["Body"].read(), after, problem)
        return answer

    monkeypatch.setattr(client, "get_object", get_object)
    return asked


@pytest.mark.parametrize(
    "problem",
    [
        boto.IncompleteReadError(actual_bytes=1, expected_bytes=2),
        boto.ReadTimeoutError(endpoint_url="x"),
        boto.ResponseStreamingError(error="reset"),
        ConnectionResetError(),
        None,
    ],
)
def test_a_read_that_breaks_goes_on_where_it_was(
    store: S3Store, monkeypatch: pytest.MonkeyPatch, problem: Exception | None
) -> None:
    asked = break_reads(store, monkeypatch, 1_000_000, problem)
    with store.open("a.whl") as stream:
        assert stream.read() == DATA
    assert asked == ["", "bytes=1000000-", "bytes=2000000-"]


def test_a_read_that_gains_nothing_is_an_error(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    break_reads(store, monkeypatch, 0, boto.IncompleteReadError(actual_bytes=1, expected_bytes=2))
    with pytest.raises(ServiceError, match=r"s3://bucket/a\.whl: reading broke off at byte 0 of 3000000"):
        store.read("a.whl")


def test_an_object_that_is_replaced_while_it_is_read_is_noticed(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_reads(store, monkeypatch, 1_000_000, None)
    with store.open("a.whl") as stream:
        assert stream.read(10) == DATA[:10]
        store.put_bytes("a.whl", DATA[::-1])
        with pytest.raises(StoreError, match="was replaced while it was read"):
            stream.read()


def test_a_server_that_ignores_ranges_and_conditions_is_read_right_all_the_same(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = store.connection.client
    real: Callable[..., Any] = client.get_object
    monkeypatch.setattr(client, "get_object", lambda **asked: real(Bucket=asked["Bucket"], Key=asked["Key"]))
    etag = store._existing("a.whl").stored.etag
    with store.stream("a.whl", start=2_500_000, etag=etag) as stream:
        assert stream.read() == DATA[2_500_000:]
    store.put_bytes("a.whl", b"other")
    with pytest.raises(StoreError, match="was replaced while it was read"):
        store.stream("a.whl", start=2, etag=etag)


def test_a_download_is_gone_on_with(store: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client: Any = store.connection.client
    real: Callable[..., Any] = client.get_object

    def interrupted(**arguments: Any) -> Any:
        answer = real(**arguments)
        answer["Body"] = Breaking(answer["Body"].read(), 1_200_000, None)
        answer["Body"].problem = KeyboardInterrupt()
        return answer

    monkeypatch.setattr(client, "get_object", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.fetch("a.whl", tmp_path / "wheels")
    assert not (tmp_path / "wheels/a.whl").exists()
    monkeypatch.undo()
    asked = break_reads(store, monkeypatch, len(DATA), None)
    path = store.fetch("a.whl", tmp_path / "wheels")
    assert path == tmp_path / "wheels/a.whl"
    assert path.read_bytes() == DATA
    assert asked == ["bytes=1200000-"]
    assert [one.name for one in path.parent.iterdir()] == ["a.whl"]
    assert store.fetch("a.whl", tmp_path / "wheels") == path
    assert len(asked) == 1, "what is there is not fetched again"


def test_what_does_not_have_its_digest_is_not_given(store: S3Store, s3: S3Client, tmp_path: Path) -> None:
    sha256 = hashlib.sha256(b"meant").hexdigest()
    s3.put_object(Bucket="bucket", Key="b.whl", Body=b"is", Metadata={"sha256": sha256})
    for read in (lambda: store.read("b.whl"), lambda: store.fetch("b.whl", tmp_path / "wheels")):
        with pytest.raises(StoreError, match=f"does not have the digest that it carries .{sha256}"):
            read()
    assert list((tmp_path / "wheels").iterdir()) == []
