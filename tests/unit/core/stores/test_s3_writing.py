from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from core.errors import ConflictError, StoreError
from core.stores import open_store, s3_conditions
from core.stores.s3 import S3Store
from core.stores.s3_client import Conditions

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


@pytest.fixture(name="put_object")
def put_object_fixture(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Let something happen around every PUT."""

    def around(
        before: Callable[..., object] | None = None, after: Callable[..., object] | None = None
    ) -> Any:
        client: Any = store.connection.client
        real: Callable[..., Any] = client.put_object
        asked: list[Any] = []

        def put_object(**arguments: Any) -> Any:
            asked.append({name: arguments[name] for name in ("IfMatch", "IfNoneMatch") if name in arguments})
            if before is not None:
                before(real, len(asked))
            answer = real(**arguments)
            if after is not None:
                after(real, len(asked))
            return answer

        monkeypatch.setattr(client, "put_object", put_object)
        return asked

    return around


def refuse(code: str) -> Callable[..., object]:
    def raise_(*_: object) -> None:
        raise ClientError({"Error": {"Code": code, "Message": ""}}, "PutObject")

    return raise_


@pytest.mark.parametrize("code", ["PreconditionFailed", "412", "ConditionalRequestConflict"])
def test_a_write_that_met_its_own_first_attempt_has_succeeded(
    store: S3Store, put_object: Callable[..., list[Any]], code: str
) -> None:
    asked = put_object(after=refuse(code))
    assert store.put_bytes("x.html", b"ours", if_match="") == "written"
    assert asked == [{"IfNoneMatch": "*"}]


def test_a_write_that_met_somebody_elses_has_not(
    store: S3Store, s3: S3Client, put_object: Callable[..., list[Any]]
) -> None:
    put_object(before=lambda real, _: real(Bucket="bucket", Key="x.html", Body=b"theirs"))
    with pytest.raises(ConflictError):
        store.put_bytes("x.html", b"ours", if_match="")
    assert s3.get_object(Bucket="bucket", Key="x.html")["Body"].read() == b"theirs"


def test_an_immutable_object_that_somebody_else_made_meanwhile_is_refused(
    store: S3Store, put_object: Callable[..., list[Any]]
) -> None:
    put_object(before=lambda real, _: real(Bucket="bucket", Key="a.whl", Body=b"theirs"))
    with pytest.raises(StoreError, match="with other bytes") as caught:
        store.put_bytes("a.whl", b"ours", replace=False)
    assert not isinstance(caught.value, ConflictError)


def test_where_s3_is_busy_with_the_key_the_write_is_made_again(
    store: S3Store, put_object: Callable[..., list[Any]]
) -> None:
    def busy(_: object, count: int) -> None:
        if count < 3:
            refuse("ConditionalRequestConflict")()

    asked = put_object(before=busy)
    assert store.put_bytes("x.html", b"ours", if_match="") == "written"
    assert len(asked) == 3


@pytest.mark.parametrize("present", [False, True])
def test_where_conditions_are_ignored_an_overwrite_before_the_verification_is_noticed(
    store: S3Store, put_object: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch, *, present: bool
) -> None:
    if present:
        store.put_bytes("x.html", b"before")
    seen = store.find("x.html")
    nothing = Conditions(if_none_match=False, if_match=False, completion=False)
    monkeypatch.setattr(s3_conditions, "AMAZON", nothing)
    asked = put_object(after=lambda real, _: real(Bucket="bucket", Key="x.html", Body=b"theirs"))
    with pytest.raises(ConflictError):
        store.put_bytes("x.html", b"ours", if_match=seen.etag if seen else "")
    assert asked == [{}], "a condition that is refused though it holds is not sent"
    assert store.read("x.html") == b"theirs"


def test_access_errors_are_not_taken_for_lost_races(
    store: S3Store, put_object: Callable[..., list[Any]]
) -> None:
    asked = put_object(before=refuse("AccessDenied"))
    with pytest.raises(StoreError, match=r"permission s3:PutObject is missing"):
        store.put_bytes("x.html", b"ours", if_match="")
    assert len(asked) == 1
