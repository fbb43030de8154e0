from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from botocore import exceptions as boto
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import ProtocolError

from core.errors import FatalError, MissingInputError, ServiceError, StoreError
from core.stores.s3_client import explained

if TYPE_CHECKING:
    from botocore.exceptions import BotoCoreError

IDENTITY = "access key …1234 from env"


def said(problem: Exception) -> FatalError:
    with pytest.raises(FatalError) as caught, explained("s3://bucket/run", key="a.whl", identity=IDENTITY):
        raise problem
    assert caught.value.__cause__ is problem
    return caught.value


def answer(
    code: str, status: int, operation: str = "PutObject", *, message: str = "", **error: Any
) -> ClientError:
    response: Any = {
        "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": error.pop("headers", {})},
        "Error": {"Code": code, "Message": message, **error},
    }
    return ClientError(response, operation)


@pytest.mark.parametrize(
    ("problem", "kind", "words"),
    [
        (answer("NoSuchBucket", 404), StoreError, "There is no bucket 'bucket'"),
        (answer("NoSuchKey", 404), MissingInputError, "a.whl is not in the store s3://bucket/run."),
        (answer("404", 404), MissingInputError, "a.whl is not in the store"),
        (answer("ExpiredToken", 400), StoreError, f"credentials have expired ({IDENTITY})"),
        (answer("InvalidAccessKeyId", 403), StoreError, "they are not known there"),
        (answer("SignatureDoesNotMatch", 403), StoreError, "their secret is wrong"),
        (answer("RequestTimeTooSkewed", 403), StoreError, "clock is wrong"),
        (answer("BadDigest", 400), StoreError, "the bytes that arrived were not those that were sent"),
        (answer("SlowDown", 503), ServiceError, "went on answering 503 SlowDown"),
        (answer("InternalError", 500), ServiceError, "went on answering 500"),
        (answer("EntityTooLarge", 400, message="Too large"), StoreError, "EntityTooLarge Too large."),
    ],
)
def test_what_s3_answers_is_one_message(problem: ClientError, kind: type[FatalError], words: str) -> None:
    error = said(problem)
    assert type(error) is kind
    assert words in error.message


@pytest.mark.parametrize(
    ("operation", "permission"),
    [
        ("PutObject", "s3:PutObject"),
        ("CreateMultipartUpload", "s3:PutObject"),
        ("GetObject", "s3:GetObject"),
        ("ListObjectsV2", "s3:ListBucket"),
        ("DeleteObject", "s3:DeleteObject"),
        ("CopyObject", "s3:PutObject (and s3:GetObject on what is copied)"),
    ],
)
def test_a_missing_permission_is_named_with_bucket_key_and_identity(operation: str, permission: str) -> None:
    error = said(answer("AccessDenied", 403, operation))
    assert type(error) is StoreError
    assert error.message == f"s3://bucket/run/a.whl: permission {permission} is missing for {IDENTITY}."


def test_the_identity_and_permission_that_s3_names_are_taken_from_it() -> None:
    message = (
        "User: arn:aws:sts::123:assumed-role/uploader/job is not authorized to perform: "
        's3:PutObjectTagging on resource: "arn:aws:s3:::bucket/run/a.whl"'
    )
    words = said(answer("AccessDenied", 403, message=message)).message
    assert "s3:PutObjectTagging is missing for arn:aws:sts::123:assumed-role/uploader/job." in words


@pytest.mark.parametrize("headers", [{"x-amz-bucket-region": "us-east-2"}, {}])
def test_another_region_is_named(headers: dict[str, str]) -> None:
    extra = {} if headers else {"Region": "us-east-2"}
    error = said(answer("AuthorizationHeaderMalformed", 400, headers=headers, **extra))
    assert "The bucket 'bucket' is in another region" in error.message
    assert error.hint == "Set AWS_REGION=us-east-2."


@pytest.mark.parametrize(
    ("problem", "kind", "words"),
    [
        (boto.NoCredentialsError(), StoreError, "needs AWS credentials, and there are none"),
        (boto.ProfileNotFound(profile="no"), StoreError, "The config profile (no) could not be found."),
        (
            boto.PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"),
            StoreError,
            "AWS_SECRET_ACCESS_KEY",
        ),
        (boto.UnauthorizedSSOTokenError(), StoreError, "the AWS login has expired"),
        (boto.ParamValidationError(report="Invalid bucket name\n  'x'"), StoreError, "Invalid bucket name"),
        (boto.EndpointConnectionError(endpoint_url="http://h"), ServiceError, "cannot be reached"),
        (boto.ReadTimeoutError(endpoint_url="http://h"), ServiceError, "the connection broke"),
        (boto.ConnectionClosedError(endpoint_url="http://h"), ServiceError, "the connection broke"),
        (ResponseParserError("no XML"), ServiceError, "the answer broke off"),
        (ProtocolError("half"), ServiceError, "the answer broke off"),
    ],
)
def test_what_keeps_s3_from_answering_is_one_message(
    problem: BotoCoreError, kind: type[FatalError], words: str
) -> None:
    error = said(problem)
    assert type(error) is kind
    assert words in error.message
    assert error.hint
