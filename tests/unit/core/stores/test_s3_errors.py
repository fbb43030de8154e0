from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore import exceptions as boto
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import ProtocolError

from core.errors import FatalError, MissingInputError, ServiceError, StoreError
from core.stores.s3_errors import explained

if TYPE_CHECKING:
    from collections.abc import Mapping

IDENTITY = "access key …1234 from env"


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
