"""Jobs that upload and index into one prefix of a bucket at once: fewer than in a folder, as moto is slow."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from moto import mock_aws

from core import parallel
from core.options import environment
from core.stores import open_store
from core.stores.s3_client import connection_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


JOBS = 10


@pytest.fixture(name="bucket")
def bucket_fixture(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:  # noqa: TID251 - to be forgotten
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIATESTING1234",
        "AWS_SECRET_ACCESS_KEY": "very-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)
    with mock_aws():
        connection = connection_for(environment())
        connection.buckets.clear()
        connection.conditional.clear()
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield "s3://bucket"


def test_jobs_at_once_end_with_a_complete_page_in_a_bucket(tools: Any, tmp_path: Path, bucket: str) -> None:
    def job(number: int) -> None:
        store = open_store(bucket, root=tmp_path)
        tools.publish(store, tools.wheel("torch", f"2.{number}"))
        tools.index(store)

    parallel.each(job, range(JOBS), jobs=JOBS)
    store = open_store(bucket, root=tmp_path)
    pages = [
        store.read(f"{tools.prefix}/{path}").decode()
        for path in ("index.html", "simple/torch/index.html", "simple/torch/index.json")
    ]
    for number in range(JOBS):
        assert all(tools.wheel("torch", f"2.{number}") in page for page in pages)
    before = {one.key: one.etag for one in store.list("run")}
    assert tools.index(store).written == ()
    assert {one.key: one.etag for one in store.list("run")} == before
