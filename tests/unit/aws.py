"""An S3 in this process, and settings that lead nowhere else."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from types_boto3_s3 import S3Client

SETTINGS = {
    "AWS_ACCESS_KEY_ID": "AKIATESTING1234",
    "AWS_SECRET_ACCESS_KEY": "very-secret",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Client]:
    """Give a client of an S3 without a bucket."""
    # as these take a second, only for tests that use a bucket
    from moto import mock_aws

    from core.options import environment
    from core.stores.s3_client import connection_for

    for name in [name for name in os.environ if name.startswith("AWS_")]:  # noqa: TID251 - to be forgotten
        monkeypatch.delenv(name)
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        # one client for all tests with these settings: making one takes as long as ten tests
        connection = connection_for(environment())
        connection.buckets.clear()
        connection.conditional.clear()
        connection.folders.clear()
        yield connection.client


@pytest.fixture
def s3(aws: S3Client) -> S3Client:
    """Give a client of an S3 with the buckets ``bucket`` and ``other``."""
    for name in ("bucket", "other"):
        aws.create_bucket(Bucket=name)
    return aws
