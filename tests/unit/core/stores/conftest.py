"""A bucket in this process, for the tests of stores."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from moto import mock_aws

from core.options import environment
from core.stores.s3_client import connection_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from types_boto3_s3 import S3Client


@pytest.fixture(name="aws")
def aws_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Client]:
    """Give a client of an S3 without a bucket, and settings that lead nowhere else."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:  # noqa: TID251 - to be forgotten
        monkeypatch.delenv(name)
    settings = {
        "AWS_ACCESS_KEY_ID": "AKIATESTING1234",
        "AWS_SECRET_ACCESS_KEY": "very-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        # one client for all tests with these settings: making one takes as long as ten tests
        connection = connection_for(environment())
        connection.buckets.clear()
        connection.conditional.clear()
        connection.folders.clear()
        yield connection.client


@pytest.fixture(name="s3")
def s3_fixture(aws: S3Client) -> S3Client:
    """Give a client of an S3 with the buckets ``bucket`` and ``other``."""
    for name in ("bucket", "other"):
        aws.create_bucket(Bucket=name)
    return aws
