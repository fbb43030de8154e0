"""Staging and promotion between buckets: on the server, with digests and headers kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ci.promote import documents
from core.cli.options import ROOT
from core.errors import StoreError
from core.stores.location import open_store
from core.stores.s3 import S3Store
from tests.kit import plans, release_desk, runs
from tests.kit.front_doors import run_ci

if TYPE_CHECKING:
    from pathlib import Path

    from types_boto3_s3 import S3Client

    from core.stores import Store

RUN = runs.run_outputs("17123441166")
NIGHTLY = ("--release-type", "nightly")


@pytest.fixture
def run_store(s3: S3Client, tmp_path: Path) -> Store:
    """Leave a tested run of CI in its bucket, beside the bucket that releases go to."""
    for name in ("therock-nightly-artifacts", "therock-nightly-python"):
        s3.create_bucket(Bucket=name)
    store = open_store("s3://therock-nightly-artifacts", root=ROOT)
    runs.publish_complete_run(store, RUN, tmp_path / "dist")
    return store


def test_copies_on_the_server(run_store: Store, s3: S3Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_download(_self: S3Store, key: str, _folder: object) -> None:
        pytest.fail(f"{key} was downloaded instead of being copied on the server.")

    monkeypatch.setattr(S3Store, "fetch", refuse_download)

    assert run_ci("stage", "--run-id", RUN.run_id, *NIGHTLY) == 0
    assert run_ci("promote", *NIGHTLY, "--by", "the first") == 0

    bucket = open_store("s3://therock-nightly-python", root=ROOT)
    files = release_desk.only_decision(bucket).files
    assert len(files) == 4
    for file in files:
        source_key = file.staged_key.replace("v2-staging", f"{RUN.prefix}/python")
        assert bucket.digest(file.key) == file.sha256
        assert run_store.digest(source_key) == file.sha256
        head = s3.head_object(Bucket="therock-nightly-python", Key=file.key)
        assert head["CacheControl"] == "public, max-age=31536000, immutable"
        assert head["ContentType"] in {"application/zip", "application/gzip"}
    assert documents.unfinished(bucket) == []


def test_page_of_a_run_reads_the_bucket_that_its_plan_promotes_to(
    run_store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    run_store.put_bytes(RUN.plan_key, plans.make_plan().model_dump_json().encode())
    assert run_ci("stage", "--run-id", RUN.run_id, *NIGHTLY) == 0
    assert run_ci("promote", *NIGHTLY, "--by", "the release job") == 0
    capsys.readouterr()

    assert run_ci("report", "--run-id", RUN.run_id, "--store", run_store.url, "--text") == 0

    assert "the release job" in capsys.readouterr().out


def test_page_of_a_run_without_a_promotion_asks_no_other_bucket(
    run_store: Store, s3: S3Client, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plans.make_plan(promote=plans.NO)
    run_store.put_bytes(RUN.plan_key, plan.model_dump_json().encode())
    s3.delete_bucket(Bucket="therock-nightly-python")

    assert run_ci("report", "--run-id", RUN.run_id, "--store", run_store.url, "--text") == 0

    assert "therock-nightly-python" not in capsys.readouterr().err


@pytest.mark.usefixtures("run_store")
def test_writes_nothing_where_a_set_was_promoted_before() -> None:
    assert run_ci("stage", "--run-id", RUN.run_id, *NIGHTLY) == 0
    assert run_ci("promote", *NIGHTLY, "--by", "the first") == 0
    bucket = open_store("s3://therock-nightly-python", root=ROOT)
    objects_before = bucket.list("")

    assert run_ci("promote", *NIGHTLY, "--by", "the second") == 0

    assert bucket.list("") == objects_before


@pytest.mark.usefixtures("run_store")
@pytest.mark.parametrize(
    "verb_and_options", [("stage", "--run-id", RUN.run_id), ("promote",)], ids=["stage", "promote"]
)
def test_names_a_bucket_that_does_not_exist(
    verb_and_options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--distribution-store", "s3://nowhere-to-be-found", *NIGHTLY)

    assert run_ci(*verb_and_options, *options) == StoreError.exit_code
    assert "nowhere-to-be-found" in capsys.readouterr().err
