from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from core.stores import s3_client
from core.stores.s3_client import Conditions, shared_connection
from core.stores.s3_conditions import AMAZON, conditions_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from types_boto3_s3 import S3Client


@pytest.fixture(name="elsewhere")
def elsewhere_fixture(s3: S3Client, monkeypatch: pytest.MonkeyPatch) -> S3Client:
    monkeypatch.setattr(s3_client, "is_amazon", lambda _endpoint: False)
    return s3


def found(behaviour: Callable[[Mapping[str, Any]], str], monkeypatch: pytest.MonkeyPatch) -> Conditions:
    """Find out what a server does: "" for what moto does, "ignore", or the code of a refusal."""
    connection = shared_connection()
    client: Any = connection.client
    real: Callable[..., Any] = client.put_object

    def put_object(**asked: Any) -> Any:
        what = behaviour(asked)
        conditions = {name: asked.pop(name) for name in ("IfMatch", "IfNoneMatch") if name in asked}
        if what not in {"", "ignore"} and conditions:
            raise ClientError({"Error": {"Code": what, "Message": ""}}, "PutObject")
        return real(**asked, **({} if what == "ignore" else conditions))

    monkeypatch.setattr(client, "put_object", put_object)
    return conditions_of(connection, "bucket", "run/")


NOTHING = Conditions(if_none_match=False, if_match=False)


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (lambda _: "", Conditions(if_none_match=True, if_match=True)),
        (lambda _: "ignore", NOTHING),
        (
            lambda asked: "PreconditionFailed" if "IfMatch" in asked else "",
            Conditions(if_none_match=True, if_match=False),
        ),
        (
            lambda asked: "ignore" if "IfMatch" in asked else "",
            Conditions(if_none_match=True, if_match=False),
        ),
    ],
    ids=["held", "ignored", "refused though right", "half"],
)
def test_what_a_server_holds_to_is_found_out_without_a_trace(
    elsewhere: S3Client,
    behaviour: Callable[[Mapping[str, Any]], str],
    expected: Conditions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert found(behaviour, monkeypatch) == expected
    assert "Contents" not in elsewhere.list_objects_v2(Bucket="bucket")


def test_it_is_found_out_once(elsewhere: S3Client, monkeypatch: pytest.MonkeyPatch) -> None:
    first = found(lambda _: "", monkeypatch)
    monkeypatch.setattr(shared_connection().client, "put_object", None)
    assert conditions_of(shared_connection(), "bucket", "other/") is first
    assert elsewhere.list_buckets()["Buckets"]


@pytest.mark.usefixtures("s3")
def test_what_amazons_service_holds_to_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_connection().client, "put_object", None)
    assert conditions_of(shared_connection(), "bucket", "") is AMAZON


@pytest.mark.parametrize("code", ["NotImplemented", "501"])
@pytest.mark.usefixtures("elsewhere")
def test_a_server_that_does_not_know_conditions_cannot_be_trusted_with_any(
    code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(lambda _: code, monkeypatch) == NOTHING
