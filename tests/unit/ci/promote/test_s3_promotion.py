"""Staging and promotion between buckets: on the server, with digests and headers kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ci.promote import promotion
from core.cli.options import ROOT
from core.stores.location import open_store
from core.stores.s3 import S3Store
from tests.kit.front_doors import run_ci
from tests.unit.ci.promote.conftest import decision_in

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client


@pytest.fixture
def buckets(s3: S3Client, runs: Any) -> Any:
    """Leave a tested run of CI in its bucket, for another one to hand out."""
    for name in ("therock-nightly-artifacts", "therock-nightly-python"):
        s3.create_bucket(Bucket=name)
    runs.run_id, runs.store = "17123441166", open_store("s3://therock-nightly-artifacts", root=ROOT)
    runs.whole("gfx94X-dcgpu")
    return runs


def test_promotion_copies_on_the_server(buckets: Any, s3: S3Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_download(_self: S3Store, key: str, _folder: object) -> None:
        pytest.fail(f"{key} was downloaded instead of being copied on the server.")

    monkeypatch.setattr(S3Store, "fetch", no_download)
    nightly = ["--release-type", "nightly"]
    assert run_ci("stage", "--run-id", buckets.run_id, *nightly) == 0
    assert run_ci("promote", *nightly, "--by", "one") == 0
    bucket = open_store("s3://therock-nightly-python", root=ROOT)
    decision = decision_in(bucket)
    assert len(decision.files) == 4
    for file in decision.files:
        assert bucket.digest(file.key) == file.sha256 == buckets.store.digest(file.staged_key.replace(
            "v2-staging", "17123441166-linux/python"
        ))  # fmt: skip
        head = s3.head_object(Bucket="therock-nightly-python", Key=file.key)
        assert head["CacheControl"] == "public, max-age=31536000, immutable"
        assert head["ContentType"] in {"application/zip", "application/gzip"}
    assert promotion.unfinished(bucket) == []
    before = [(one.key, one.etag, one.modified) for one in bucket.list("")]
    assert run_ci("promote", *nightly, "--by", "two") == 0
    assert [(one.key, one.etag, one.modified) for one in bucket.list("")] == before


def test_a_missing_bucket_is_one_clear_error(buckets: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert buckets.made
    where = ["--distribution-store", "s3://nowhere-to-be-found", "--release-type", "nightly"]
    for words in (["stage", "--run-id", buckets.run_id], ["promote"]):
        assert run_ci(*words, *where) == 11
        assert "nowhere-to-be-found" in capsys.readouterr().err
