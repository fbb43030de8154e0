"""An S3 in this process, and settings that lead nowhere else."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Literal

import pytest
from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from types_boto3_s3 import S3Client

    # An operation of a client, and what stands in for one: it gets the real operation, and the arguments.
    Operation = Callable[..., Any]
    SetSubstitute = Callable[[str, Operation], None]

# What a server does with conditions of writes: "refuses" is of those that hold, too.
ServerBehaviour = Literal["holds", "ignores", "refuses", "unknown"]
CONDITIONS = frozenset({"IfMatch", "IfNoneMatch"})
CONDITIONAL_OPERATIONS = ("put_object", "copy_object", "complete_multipart_upload")

SETTINGS = {
    "AWS_ACCESS_KEY_ID": "AKIATESTING1234",
    "AWS_SECRET_ACCESS_KEY": "very-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


def _one_at_a_time(answer: Callable[..., object]) -> Callable[..., object]:
    """Make conditional writes what they are at Amazon: moto lets others come between look and write."""
    lock = threading.RLock()

    def locked(*arguments: object, **named: object) -> object:
        with lock:
            return answer(*arguments, **named)

    return locked


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Client]:
    """Return a client of an S3 without a bucket."""
    # as these take a second, only for tests that use a bucket
    from moto import mock_aws
    from moto.core.botocore_stubber import BotocoreStubber

    from core.stores.s3_client import shared_connection

    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(BotocoreStubber, "__call__", _one_at_a_time(BotocoreStubber.__call__))
    with mock_aws():
        # one client for all tests with these settings: making one takes as long as ten tests
        connection = shared_connection()
        connection.buckets.clear()
        connection.warned_buckets.clear()
        yield connection.client


@pytest.fixture
def s3(aws: S3Client) -> S3Client:
    """Return a client of an S3 with the buckets ``bucket`` and ``other``."""
    for name in ("bucket", "other"):
        aws.create_bucket(Bucket=name)
    return aws


def imitate_server(client: S3Client, monkeypatch: pytest.MonkeyPatch, behaviour: ServerBehaviour) -> None:
    """Let the S3 in this process be another's than Amazon's, with its behaviour, for the time of a test."""
    from core.stores.s3_client import Connection

    monkeypatch.setattr(Connection, "is_amazon", False)
    for operation in CONDITIONAL_OPERATIONS:
        monkeypatch.setattr(client, operation, _as_server(getattr(client, operation), behaviour))


def _as_server(operation: Operation, behaviour: ServerBehaviour) -> Operation:
    def answer(**arguments: Any) -> Any:
        conditions = CONDITIONS.intersection(arguments)
        if behaviour == "refuses" and "IfMatch" in conditions:
            raise refusal("PreconditionFailed")
        if behaviour == "unknown" and conditions:
            raise refusal("NotImplemented", status=501)
        if behaviour == "ignores":
            for condition in conditions:
                del arguments[condition]
        return operation(**arguments)

    return answer


def refusal(code: str, operation: str = "PutObject", *, status: int = 400) -> ClientError:
    """Return the error of a request that a server refused."""
    response: Any = {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(response, operation)


def unfinished_uploads(client: S3Client, bucket: str = "bucket") -> list[Any]:
    """Return uploads in parts that nobody has ended."""
    return list(client.list_multipart_uploads(Bucket=bucket).get("Uploads", []))
