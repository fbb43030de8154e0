from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from botocore import exceptions as boto
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import ProtocolError

from core.errors import FatalError, MissingInputError, ServiceError, StoreError, UsageError
from core.stores.location import open_store
from core.stores.s3 import S3Store
from core.stores.s3_client import ATTEMPTS, connect, delay, explained, moment, shared_connection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from types_boto3_s3 import S3Client

    Opened = Callable[[str], S3Store]

IDENTITY = "access key …1234 from env"


@pytest.fixture(name="opened")
def opened_fixture(aws: S3Client, tmp_path: Path) -> Opened:
    def opened(location: str) -> S3Store:
        store = open_store(location, root=tmp_path)
        assert isinstance(store, S3Store)
        return store

    assert aws.list_buckets()["Buckets"] is not None
    return opened


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


def test_a_server_of_ones_own_is_addressed_by_path(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    for endpoint in ("http://127.0.0.1:1", "http://s3.example:9"):
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
        store = opened("s3://bucket/run")
        assert not store.connection.is_amazon
        assert store.url == "s3://bucket/run"
        assert store.url_of("a+b/x.whl") == f"{endpoint}/bucket/run/a%2Bb/x.whl"
        signed = store.connection.client.generate_presigned_url("get_object", Params=store.place("x"))
        assert signed.startswith(f"{endpoint}/bucket/run/x?")


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


def test_amazons_buckets_have_addresses_of_their_own(opened: Opened) -> None:
    assert opened("s3://bkt").url_of("a b") == "https://bkt.s3.amazonaws.com/a%20b"
    # a certificate is for one name before the dot
    assert opened("s3://b.k.t").url_of("a").endswith(".amazonaws.com/b.k.t/a")


def test_an_unknown_profile_is_named(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreError, match=r"\(nobody\) could not be found") as caught:
        opened("s3://bucket")
    assert "AWS_PROFILE" in caught.value.hint


def test_without_credentials_public_objects_are_read_and_nothing_is_written(
    s3: S3Client, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put_object(Bucket="bucket", Key="a", Body=b"public", ACL="public-read")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    store = opened("s3://bucket")
    assert not store.connection.signed
    assert store.read("a") == b"public"
    for write in (lambda: store.put_bytes("b", b""), lambda: store.delete("a")):
        with pytest.raises(StoreError, match="Writing to s3://bucket needs AWS credentials") as caught:
            write()
        assert "AWS_PROFILE" in caught.value.hint
    assert [one["Key"] for one in s3.list_objects_v2(Bucket="bucket")["Contents"]] == ["a"]


def test_the_identity_is_known_without_a_secret(opened: Opened) -> None:
    store = opened("s3://bucket")
    key = os.environ["AWS_ACCESS_KEY_ID"]  # noqa: TID251 - what moto has set
    assert store.connection.identity == f"access key …{key[-4:]} from env"
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in repr(store)  # noqa: TID251 - the same


@pytest.mark.parametrize("location", ["s3://", "s3:///x", "s3://bucket//x", "s3://bucket/../x"])
def test_what_names_no_bucket_is_refused(location: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a bucket"):
        open_store(location, root=tmp_path)


def answer(
    code: str, status: int, operation: str = "PutObject", *, message: str = "", **error: Any
) -> ClientError:
    response: Any = {
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": error.pop("headers", {})},
        "Error": {"Code": code, "Message": message, **error},
    }
    return ClientError(response, operation)


def waits(problem: Exception) -> list[float | None]:
    said: Any = ((None, problem.response), None) if isinstance(problem, ClientError) else (None, problem)
    return [delay(attempts, *said, share=1.0) for attempts in range(1, ATTEMPTS + 1)]


@pytest.mark.parametrize(
    "busy",
    [
        answer("InternalError", 500),
        answer("", 502),
        answer("SlowDown", 503),
        answer("", 429),
        answer("RequestTimeout", 400),
        answer("BadDigest", 400),
        boto.ConnectionClosedError(endpoint_url="x"),
        boto.ReadTimeoutError(endpoint_url="x"),
        boto.IncompleteReadError(actual_bytes=1, expected_bytes=2),
    ],
)
def test_what_passes_is_repeated_later_and_later_and_not_for_ever(busy: Exception) -> None:
    *known, last = waits(busy)
    assert last is None
    seconds = [wait for wait in known if wait is not None]
    assert len(seconds) == ATTEMPTS - 1
    assert seconds == sorted(seconds)
    assert seconds[0] <= 0.2
    assert seconds[-1] <= 20


@pytest.mark.parametrize(
    "refusal",
    [
        answer("", 200),
        answer("AccessDenied", 403),
        answer("ExpiredToken", 400),
        answer("SignatureDoesNotMatch", 403),
        answer("NoSuchKey", 404),
        answer("PreconditionFailed", 412),
        answer("NotImplemented", 501),
        boto.SSLError(endpoint_url="x", error=ValueError("certificate")),
        boto.NoCredentialsError(),
        ValueError("ours"),
    ],
)
def test_a_refusal_stands(refusal: Exception) -> None:
    assert set(waits(refusal)) == {None}


def test_an_unreachable_server_is_not_waited_for_long() -> None:
    seconds = waits(boto.EndpointConnectionError(endpoint_url="x"))
    assert 0 < sum(wait or 0 for wait in seconds) < 2
    assert delay(1, None, boto.EndpointConnectionError(endpoint_url="x"), share=0.25) == (seconds[0] or 0) / 4


@pytest.mark.parametrize(
    ("problem", "kind", "words"),
    [
        (answer("NoSuchBucket", 404), StoreError, "There is no bucket 'bucket'"),
        (answer("NoSuchKey", 404), MissingInputError, "a.whl is not in the store s3://bucket/run."),
        (answer("404", 404), MissingInputError, "a.whl is not in the store"),
        (answer("ExpiredToken", 400), StoreError, f"credentials have expired ({IDENTITY})"),
        (answer("InvalidAccessKeyId", 403), StoreError, "unknown access key"),
        (answer("SignatureDoesNotMatch", 403), StoreError, "their secret is wrong"),
        (answer("RequestTimeTooSkewed", 403), StoreError, "clock is wrong"),
        (answer("BadDigest", 400), StoreError, "the bytes were damaged on their way"),
        (answer("SlowDown", 503), ServiceError, "the server kept answering 503 SlowDown"),
        (answer("InternalError", 500), ServiceError, "the server kept answering 500"),
        (answer("EntityTooLarge", 400, message="Too large"), StoreError, "EntityTooLarge Too large."),
        *(
            (answer("AccessDenied", 403, operation), StoreError, f"{permission} is missing for {IDENTITY}.")
            for operation, permission in {
                "PutObject": "s3://bucket/run/a.whl: permission s3:PutObject",
                "CreateMultipartUpload": "s3:PutObject",
                "GetObject": "s3:GetObject",
                "ListObjectsV2": "s3:ListBucket",
                "DeleteObject": "s3:DeleteObject",
                "CopyObject": "s3:PutObject (and s3:GetObject on the source)",
            }.items()
        ),
        (
            answer(
                "AccessDenied",
                403,
                message="User: arn:aws:sts::123:assumed-role/uploader/job is not authorized to perform: "
                's3:PutObjectTagging on resource: "arn:aws:s3:::bucket/run/a.whl"',
            ),
            StoreError,
            "s3:PutObjectTagging is missing for arn:aws:sts::123:assumed-role/uploader/job.",
        ),
        *(
            (
                answer("AuthorizationHeaderMalformed", 400, **extra),
                StoreError,
                "The bucket 'bucket' is in another region (s3://bucket/run/a.whl).\nSet AWS_REGION=us-east-2",
            )
            for extra in ({"headers": {"x-amz-bucket-region": "us-east-2"}}, {"Region": "us-east-2"})
        ),
        (boto.NoCredentialsError(), StoreError, "AWS credentials, and there are none.\nSet AWS_PROFILE"),
        (boto.ProfileNotFound(profile="no"), StoreError, "profile (no) could not be found.\nCheck"),
        (
            boto.PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"),
            StoreError,
            "could not load the AWS credentials: Partial",
        ),
        (boto.UnauthorizedSSOTokenError(), StoreError, "the AWS login has expired.\nRun"),
        (
            boto.ParamValidationError(report="Invalid bucket name\n  'x'"),
            StoreError,
            "Invalid bucket name 'x'\nCheck",
        ),
        (boto.EndpointConnectionError(endpoint_url="http://h"), ServiceError, "cannot be reached"),
        (boto.ReadTimeoutError(endpoint_url="http://h"), ServiceError, "the connection broke"),
        (boto.ConnectionClosedError(endpoint_url="http://h"), ServiceError, "the connection broke"),
        (ResponseParserError("no XML"), ServiceError, "the answer broke off.\nRun the same command"),
        (ProtocolError("half"), ServiceError, "the answer broke off.\nRun the same command"),
    ],
)
def test_every_problem_is_one_message(problem: Exception, kind: type[FatalError], words: str) -> None:
    with pytest.raises(FatalError) as caught, explained("s3://bucket/run", key="a.whl", identity=IDENTITY):
        raise problem
    assert caught.value.__cause__ is problem
    assert type(caught.value) is kind
    assert words in str(caught.value)
