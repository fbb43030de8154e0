"""An S3 in this process, and settings that lead nowhere else."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from types_boto3_s3 import S3Client

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
        connection.conditions.clear()
        connection.folder_pages.clear()
        yield connection.client


@pytest.fixture
def s3(aws: S3Client) -> S3Client:
    """Return a client of an S3 with the buckets ``bucket`` and ``other``."""
    for name in ("bucket", "other"):
        aws.create_bucket(Bucket=name)
    return aws
