"""Uploads through the front door to a bucket in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from core.cli import options
from core.cli.options import common_from
from core.errors import MissingInputError, StoreError, UsageError
from core.stores.s3_client import shared_connection
from tests.kit import repos, wheels
from tests.kit.front_doors import run_ci

if TYPE_CHECKING:
    from pathlib import Path

    from types_boto3_s3 import S3Client

    from core.errors import FatalError

GROUP = "gfx90a-dcgpu"
WHEELS_FOLDER = f"123-linux/python/{GROUP}"
RUN_OPTIONS = ("--run-id", "123", "--artifact-group", GROUP)
WHEEL_OPTIONS = ("--input-dir", "mine", *RUN_OPTIONS)


@pytest.fixture(autouse=True)
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a checkout of the test's own."""
    monkeypatch.setattr(
        options, "common_from", lambda arguments: replace(common_from(arguments), root=tmp_path)
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def wheel(checkout: Path) -> Path:
    """Write a wheel to upload."""
    return wheels.write_wheel(checkout / "mine", name="torch", version="2.10.0+rocm7.1")


def keys_in(s3: S3Client, bucket: str = "bucket") -> list[str]:
    """Return the keys of a bucket, sorted."""
    return [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket).get("Contents", ())]


@pytest.mark.parametrize(
    "store",
    [("--store", "s3://bucket"), ("--bucket", "bucket")],
    ids=["store", "bucket"],
)
def test_puts_wheels_where_the_layout_says(
    store: tuple[str, ...],
    s3: S3Client,
    wheel: Path,
) -> None:
    assert run_ci("upload", *WHEEL_OPTIONS, *store) == 0

    record, flat_page, *other_keys = keys_in(s3)
    assert record.startswith(f"123-linux/manifests/{GROUP}/upload-")
    assert flat_page == f"{WHEELS_FOLDER}/index.html"
    assert other_keys[-2:] == [f"{WHEELS_FOLDER}/{wheel.name}", f"{WHEELS_FOLDER}/{wheel.name}.metadata"]
    assert {f"{WHEELS_FOLDER}/simple/", f"{WHEELS_FOLDER}/simple/torch/"} <= set(other_keys)


@pytest.mark.usefixtures("s3", "wheel")
def test_says_where_the_pages_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_ci("upload", *WHEEL_OPTIONS, "--store", "s3://bucket") == 0

    messages = capsys.readouterr().err
    address = f"https://bucket.s3.amazonaws.com/{WHEELS_FOLDER}"
    assert f"package_find_links_url: {address}/index.html" in messages
    assert f"package_index_url: {address}/simple/" in messages


@pytest.mark.usefixtures("wheel")
def test_asks_for_no_page_that_the_listing_has_shown_absent(
    s3: S3Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = shared_connection()
    connection.buckets.clear()
    keys: list[str] = []
    find = connection.client.head_object

    def note_and_find(**arguments: Any) -> Any:
        keys.append(arguments["Key"])
        return find(**arguments)

    monkeypatch.setattr(connection.client, "head_object", note_and_find)
    monkeypatch.setattr(connection.client, "head_bucket", None)

    assert run_ci("upload", *WHEEL_OPTIONS, "--store", "s3://bucket") == 0

    pages = [key for key in keys if "/simple/" in key and key.startswith(WHEELS_FOLDER)]
    assert pages == []
    assert f"{WHEELS_FOLDER}/simple/" in keys_in(s3)


def test_chooses_bucket_and_folder_by_the_repository(
    s3: S3Client,
    wheel: Path,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outputs = checkout / "outputs"
    monkeypatch.setenv("GITHUB_REPOSITORY", "down/stream")
    monkeypatch.setenv("GITHUB_OUTPUT", str(outputs))
    s3.create_bucket(Bucket="therock-ci-artifacts-external")

    assert run_ci("upload", *WHEEL_OPTIONS, "--store", "auto") == 0

    folder = f"down-stream/{WHEELS_FOLDER}"
    address = f"https://therock-ci-artifacts-external.s3.amazonaws.com/{folder}/index.html"
    assert f"{folder}/{wheel.name}" in keys_in(s3, "therock-ci-artifacts-external")
    assert address in outputs.read_text().splitlines()


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((*WHEEL_OPTIONS, "--bucket", "no-such-bucket"), StoreError, "no-such-bucket"),
        ((*WHEEL_OPTIONS, "--bucket", "bucket", "--output-dir", "x"), UsageError, "'x'"),
        (("--run-id", "999", "--bucket", "bucket"), MissingInputError, "Run 999"),
        (("--run-id", "999", "--bucket", "bucket", "--what", "logs"), MissingInputError, "logs"),
        (("--what", "wheel", "--bucket", "bucket"), UsageError, "'wheels'"),
        ((*WHEEL_OPTIONS, "--bucket", "bucket", "--what", "logs"), UsageError, "--what"),
        (("--input-dir", "mine", "--bucket", "bucket"), UsageError, "group"),
        (("--input-dir", "none", *RUN_OPTIONS, "--bucket", "bucket"), MissingInputError, "none"),
        (("--build-dir", "mine", *RUN_OPTIONS, "--bucket", "bucket"), UsageError, "logs/"),
    ],
    ids=[
        "no such bucket",
        "two targets",
        "a run without wheels",
        "a run without logs",
        "an unknown kind",
        "a kind of a folder",
        "no group",
        "no such folder",
        "no build folder",
    ],
)
def test_names_what_is_wrong_and_uploads_nothing(
    arguments: tuple[str, ...],
    error: type[FatalError],
    message: str,
    s3: S3Client,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_ci("upload", *arguments) == error.exit_code

    messages = capsys.readouterr().err
    assert message in messages
    assert messages.count("error:") == 1
    assert keys_in(s3) == []


@pytest.fixture
def build_folder(checkout: Path) -> Path:
    """Write logs, an artifact and the manifest of a ROCm build."""
    folder = checkout / "build"
    names = ("logs/blas/build.log", "logs/.ninja/x", "artifacts/blas_lib_gfx90a.tar.zst")
    repos.write_files(folder, dict.fromkeys((*names, "therock_manifest.json"), "{}"))
    return folder


BUILD_OPTIONS = (
    "--build-dir",
    "build",
    "--manifest",
    "build/therock_manifest.json",
    "--reports-dir",
    "build/logs",
    *RUN_OPTIONS,
    "--bucket",
    "bucket",
)


@pytest.mark.usefixtures("build_folder")
def test_uploads_all_that_a_rocm_build_leaves(s3: S3Client) -> None:
    assert run_ci("upload", *BUILD_OPTIONS) == 0

    assert [key for key in keys_in(s3) if "/upload-" not in key] == [
        "123-linux/blas_lib_gfx90a.tar.zst",
        "123-linux/blas_lib_gfx90a.tar.zst.sha256sum",
        f"123-linux/logs/{GROUP}/blas/build.log",
        f"123-linux/manifests/{GROUP}/therock_manifest.json",
        f"123-linux/reports/{GROUP}/blas/build.log",
    ]


@pytest.mark.usefixtures("build_folder")
def test_serves_a_log_as_text_that_may_change(s3: S3Client) -> None:
    assert run_ci("upload", *BUILD_OPTIONS) == 0

    head = s3.head_object(Bucket="bucket", Key=f"123-linux/logs/{GROUP}/blas/build.log")
    assert head["ContentType"].startswith("text/plain")
    assert "immutable" not in head["CacheControl"]
