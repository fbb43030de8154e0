from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from botocore import exceptions as boto
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import ProtocolError

from core import process
from core.errors import FatalError, MissingInputError, ServiceError, StoreError, UsageError
from core.stores.location import open_store
from core.stores.s3 import S3Store
from core.stores.s3_client import ATTEMPTS, connect, delay, explained, moment, shared_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from types_boto3_s3 import S3Client

    OpenBucket = Callable[[str], S3Store]

IDENTITY = "access key …1234 from env"
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@pytest.fixture
def open_bucket(aws: S3Client, tmp_path: Path) -> OpenBucket:
    """Return the function that opens a bucket as a store."""
    assert aws.list_buckets()["Buckets"] is not None

    def open_bucket(location: str) -> S3Store:
        store = open_store(location, root=tmp_path)
        assert isinstance(store, S3Store)
        return store

    return open_bucket


# Settings


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-21T17:42:16.634Z", datetime(2026, 11, 21, 17, 42, 16, 634000, tzinfo=UTC)),
        ("2026-11-21T17:42:16Z", datetime(2026, 11, 21, 17, 42, 16, tzinfo=UTC)),
        ("Sat, 21 Nov 2026 17:42:16 GMT", datetime(2026, 11, 21, 17, 42, 16, tzinfo=UTC)),
        ("1795282936", datetime.fromtimestamp(1795282936, UTC)),
        (1795282936.5, datetime.fromtimestamp(1795282936.5, UTC)),
    ],
)
def test_reads_times_in_every_form(text: str | float, time: datetime) -> None:
    assert moment(text) == time


@pytest.mark.usefixtures("aws")
def test_the_same_settings_share_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = shared_connection()

    monkeypatch.setenv("UNRELATED", "x")

    assert shared_connection() is connection


@pytest.mark.usefixtures("aws")
def test_other_settings_have_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = shared_connection()

    monkeypatch.setenv("AWS_REGION", "eu-west-1")

    assert shared_connection() is not connection


def test_addresses_another_server_by_path(open_bucket: OpenBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3.example:9")

    store = open_bucket("s3://bucket/run")

    assert not store.connection.is_amazon
    assert store.url == "s3://bucket/run"
    assert store.url_of("a+b/x.whl") == "http://s3.example:9/bucket/run/a%2Bb/x.whl"
    signed = store.connection.client.generate_presigned_url("get_object", Params=store.place("x"))
    assert signed.startswith("http://s3.example:9/bucket/run/x?")


@pytest.mark.usefixtures("aws")
def test_reads_endpoint_and_style_from_a_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "[profile mine]\nendpoint_url = http://s3.example:9\ns3 =\n  addressing_style = virtual\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "mine")

    connection = connect()

    assert connection.endpoint == "http://s3.example:9"
    signed = connection.client.generate_presigned_url("get_object", Params={"Bucket": "bkt", "Key": "x"})
    assert signed.startswith("http://bkt.s3.example:9/x?")


def test_a_bucket_of_amazon_has_an_address_of_its_own(open_bucket: OpenBucket) -> None:
    assert open_bucket("s3://bkt").url_of("a b") == "https://bkt.s3.amazonaws.com/a%20b"


def test_addresses_a_bucket_with_dots_by_path(open_bucket: OpenBucket) -> None:
    # A certificate is for one name before the dot.
    assert open_bucket("s3://b.k.t").url_of("a").endswith(".amazonaws.com/b.k.t/a")


def test_names_an_unknown_profile(open_bucket: OpenBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")

    with pytest.raises(StoreError, match="nobody") as raised:
        open_bucket("s3://bucket")

    assert "AWS_PROFILE" in raised.value.hint


@pytest.mark.parametrize("location", ["s3://", "s3:///x", "s3://bucket//x", "s3://bucket/../x"])
def test_rejects_what_names_no_bucket(location: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        open_store(location, root=tmp_path)

    assert location in raised.value.message


# Credentials


@pytest.fixture
def anonymous_store(s3: S3Client, open_bucket: OpenBucket, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """Return a bucket with a public object, opened without credentials."""
    s3.put_object(Bucket="bucket", Key="a", Body=b"public", ACL="public-read")
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    return open_bucket("s3://bucket")


def test_reads_public_objects_without_credentials(anonymous_store: S3Store) -> None:
    assert not anonymous_store.connection.signed
    assert anonymous_store.read("a") == b"public"


def test_writes_nothing_without_credentials(anonymous_store: S3Store, s3: S3Client) -> None:
    writes: list[Callable[[], object]] = [
        lambda: anonymous_store.put_bytes("b", b""),
        lambda: anonymous_store.delete("a"),
    ]
    for write in writes:
        with pytest.raises(StoreError, match="s3://bucket") as raised:
            write()
        assert "AWS_PROFILE" in raised.value.hint

    keys = [content["Key"] for content in s3.list_objects_v2(Bucket="bucket")["Contents"]]
    assert keys == ["a"]


def test_knows_its_identity_without_a_secret(open_bucket: OpenBucket) -> None:
    store = open_bucket("s3://bucket")

    # moto has set its own ones.
    variables = process.inherited()
    assert store.connection.identity == f"access key …{variables['AWS_ACCESS_KEY_ID'][-4:]} from env"
    assert variables["AWS_SECRET_ACCESS_KEY"] not in repr(store)


# Repeated requests


def refusal(
    code: str,
    status: int,
    operation: str = "PutObject",
    *,
    message: str = "",
    headers: Mapping[str, str] | None = None,
    region: str | None = None,
) -> ClientError:
    """Return the error of a request that a server answered like this."""
    error = {"Code": code, "Message": message}
    if region is not None:
        error["Region"] = region
    response: Any = {
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": dict(headers or {})},
        "Error": error,
    }
    return ClientError(response, operation)


def delays(problem: Exception) -> list[float | None]:
    """Return how long to wait after each attempt that ends like this; None ends it."""
    response: Any = (None, problem.response) if isinstance(problem, ClientError) else None
    error = None if isinstance(problem, ClientError) else problem
    return [delay(attempt, response, error, share=1.0) for attempt in range(1, ATTEMPTS + 1)]


@pytest.mark.parametrize(
    "problem",
    [
        refusal("InternalError", 500),
        refusal("", 502),
        refusal("SlowDown", 503),
        refusal("", 429),
        refusal("RequestTimeout", 400),
        refusal("BadDigest", 400),
        boto.ConnectionClosedError(endpoint_url="x"),
        boto.ReadTimeoutError(endpoint_url="x"),
        boto.IncompleteReadError(actual_bytes=1, expected_bytes=2),
    ],
    ids=["500", "502", "503", "429", "timeout", "digest", "closed", "no answer", "incomplete"],
)
def test_repeats_what_passes_later_and_later_and_not_for_ever(problem: Exception) -> None:
    *waits, last = delays(problem)

    seconds = [wait for wait in waits if wait is not None]
    assert last is None
    assert len(seconds) == ATTEMPTS - 1
    assert seconds == sorted(seconds)
    assert seconds[0] <= 0.2
    assert seconds[-1] <= 20


@pytest.mark.parametrize(
    "problem",
    [
        refusal("", 200),
        refusal("AccessDenied", 403),
        refusal("ExpiredToken", 400),
        refusal("SignatureDoesNotMatch", 403),
        refusal("NoSuchKey", 404),
        refusal("PreconditionFailed", 412),
        refusal("NotImplemented", 501),
        boto.SSLError(endpoint_url="x", error=ValueError("certificate")),
        boto.NoCredentialsError(),
        ValueError("ours"),
    ],
    ids=[
        "success",
        "access",
        "expired",
        "signature",
        "key",
        "condition",
        "unknown",
        "certificate",
        "credentials",
        "fault",
    ],
)
def test_repeats_no_request_that_was_refused(problem: Exception) -> None:
    assert set(delays(problem)) == {None}


UNREACHABLE = boto.EndpointConnectionError(endpoint_url="x")


def test_does_not_wait_long_for_an_unreachable_server() -> None:
    assert 0 < sum(wait or 0 for wait in delays(UNREACHABLE)) < 2


def test_waits_a_random_share_of_the_longest_time() -> None:
    longest = delays(UNREACHABLE)[0]
    assert longest is not None

    assert delay(1, None, UNREACHABLE, share=0.25) == longest / 4


# Errors


def explain(problem: Exception) -> FatalError:
    """Return our error for one that was met at an object."""
    with pytest.raises(FatalError) as raised, explained("s3://bucket/run", key="a.whl", identity=IDENTITY):
        raise problem
    assert raised.value.__cause__ is problem
    return raised.value


@pytest.mark.parametrize(
    ("problem", "kind", "mentioned"),
    [
        (refusal("NoSuchBucket", 404), StoreError, "'bucket'"),
        (refusal("NoSuchKey", 404), MissingInputError, "a.whl is not in the store s3://bucket/run"),
        (refusal("404", 404), MissingInputError, "a.whl"),
        (refusal("ExpiredToken", 400), StoreError, f"expired ({IDENTITY})"),
        (refusal("InvalidAccessKeyId", 403), StoreError, "unknown access key"),
        (refusal("SignatureDoesNotMatch", 403), StoreError, "secret"),
        (refusal("RequestTimeTooSkewed", 403), StoreError, "clock"),
        (refusal("BadDigest", 400), StoreError, "damaged"),
        (refusal("SlowDown", 503), ServiceError, "503 SlowDown"),
        (refusal("InternalError", 500), ServiceError, "500"),
        (refusal("EntityTooLarge", 400, message="Too large"), StoreError, "EntityTooLarge Too large"),
    ],
    ids=lambda value: value.response["Error"]["Code"] if isinstance(value, ClientError) else None,
)
def test_explains_a_refusal(problem: Exception, kind: type[FatalError], mentioned: str) -> None:
    error = explain(problem)

    assert type(error) is kind
    assert mentioned in error.message


@pytest.mark.parametrize(
    ("operation", "permission"),
    [
        ("PutObject", "s3:PutObject"),
        ("CreateMultipartUpload", "s3:PutObject"),
        ("GetObject", "s3:GetObject"),
        ("ListObjectsV2", "s3:ListBucket"),
        ("DeleteObject", "s3:DeleteObject"),
        ("CopyObject", "s3:PutObject (and s3:GetObject on the source)"),
    ],
)
def test_names_the_permission_that_is_missing(operation: str, permission: str) -> None:
    error = explain(refusal("AccessDenied", 403, operation))

    assert type(error) is StoreError
    assert error.message.startswith("s3://bucket/run/a.whl: ")
    assert f" {permission} " in error.message
    assert IDENTITY in error.message


def test_names_the_permission_and_the_identity_that_amazon_names() -> None:
    identity = "arn:aws:sts::123:assumed-role/uploader/job"
    message = f"User: {identity} is not authorized to perform: s3:PutObjectTagging on resource: x"

    error = explain(refusal("AccessDenied", 403, message=message))

    assert "s3:PutObjectTagging" in error.message
    assert identity in error.message


@pytest.mark.parametrize(
    "problem",
    [
        refusal("AuthorizationHeaderMalformed", 400, headers={"x-amz-bucket-region": "us-east-2"}),
        refusal("AuthorizationHeaderMalformed", 400, region="us-east-2"),
    ],
    ids=["header", "answer"],
)
def test_names_the_region_of_a_bucket(problem: Exception) -> None:
    error = explain(problem)

    assert type(error) is StoreError
    assert "'bucket'" in error.message
    assert "AWS_REGION=us-east-2" in error.hint


@pytest.mark.parametrize(
    ("problem", "mentioned"),
    [
        (boto.NoCredentialsError(), "AWS_PROFILE"),
        (boto.ProfileNotFound(profile="no"), "(no)"),
        (
            boto.PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"),
            "AWS_SECRET_ACCESS_KEY",
        ),
        (boto.UnauthorizedSSOTokenError(), "login has expired"),
        (boto.ParamValidationError(report="Invalid bucket name\n  'x'"), "Invalid bucket name 'x'"),
    ],
    ids=["credentials", "profile", "half of them", "login", "name"],
)
def test_explains_settings_that_are_not_right(problem: Exception, mentioned: str) -> None:
    error = explain(problem)

    assert type(error) is StoreError
    assert mentioned in str(error)


@pytest.mark.parametrize(
    ("problem", "mentioned"),
    [
        (boto.EndpointConnectionError(endpoint_url="http://h"), "cannot be reached"),
        (boto.ReadTimeoutError(endpoint_url="http://h"), "connection broke"),
        (boto.ConnectionClosedError(endpoint_url="http://h"), "connection broke"),
        (ResponseParserError("no XML"), "answer broke off"),
        (ProtocolError("half"), "answer broke off"),
    ],
    ids=["unreachable", "no answer", "closed", "no XML", "half an answer"],
)
def test_explains_a_network_that_fails(problem: Exception, mentioned: str) -> None:
    error = explain(problem)

    assert type(error) is ServiceError
    assert mentioned in error.message
    assert error.hint
