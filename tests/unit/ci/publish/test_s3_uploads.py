"""Uploads through the front door to a bucket in this process."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core.cli import options
from core.cli.options import common_from
from core.errors import MissingInputError, StoreError, UsageError
from tests.kit.front_doors import run_ci

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from types_boto3_s3 import S3Client

    from core.errors import FatalError

GROUP = "gfx90a-dcgpu"
CI = ("GITHUB_REPOSITORY", "GITHUB_EVENT_PATH", "RELEASE_TYPE", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in CI:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(name="run")
def run_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run the verb in a checkout of its own."""
    monkeypatch.setattr(options, "common_from", lambda words: replace(common_from(words), root=tmp_path))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> int:
        return run_ci("upload", *words)

    return run


@pytest.fixture(name="wheel")
def wheel_fixture(tmp_path: Path, make_wheel: Callable[..., Path]) -> Path:
    return make_wheel(tmp_path / "mine", "torch", "2.10.0+rocm7.1")


WORDS = ("--input-dir", "mine", "--run-id", "123", "--artifact-group", GROUP)


def keys(s3: S3Client, bucket: str = "bucket") -> list[str]:
    return [one["Key"] for one in s3.list_objects_v2(Bucket=bucket).get("Contents", ())]


@pytest.mark.parametrize("words", [("--store", "s3://bucket"), ("--bucket", "bucket")])
def test_wheels_go_where_the_layout_says(
    words: tuple[str, ...],
    s3: S3Client,
    run: Callable[..., int],
    wheel: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*WORDS, *words) == 0
    folder = f"123-linux/python/{GROUP}"
    record, flat, *files = keys(s3)
    assert record.startswith(f"123-linux/manifests/{GROUP}/upload-")
    assert flat == f"{folder}/index.html"
    assert files[-2:] == [f"{folder}/{wheel.name}", f"{folder}/{wheel.name}.metadata"]
    assert {f"{folder}/simple/", f"{folder}/simple/torch/"} <= set(files)
    said = capsys.readouterr().err
    assert f"package_find_links_url: https://bucket.s3.amazonaws.com/{folder}/index.html" in said
    assert f"package_index_url: https://bucket.s3.amazonaws.com/{folder}/simple/" in said


def test_in_ci_the_bucket_and_the_folder_follow_the_repository(
    s3: S3Client, run: Callable[..., int], wheel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", "down/stream")
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "outputs"))
    s3.create_bucket(Bucket="therock-ci-artifacts-external")
    assert run(*WORDS, "--store", "auto") == 0
    folder = f"down-stream/123-linux/python/{GROUP}"
    assert f"{folder}/{wheel.name}" in keys(s3, "therock-ci-artifacts-external")
    address = f"https://therock-ci-artifacts-external.s3.amazonaws.com/{folder}/index.html"
    assert address in (tmp_path / "outputs").read_text().splitlines()


FOLDER = " ".join(WORDS)
GIVEN = "--run-id 123 --artifact-group g --bucket bucket"


@pytest.mark.usefixtures("wheel")
@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (f"{FOLDER} --bucket no-such-bucket", StoreError, "no-such-bucket"),
        (f"{FOLDER} --bucket bucket --output-dir x", UsageError, "cannot be 'x' too"),
        ("--run-id 999 --bucket bucket", MissingInputError, "Run 999 has no wheels in"),
        ("--run-id 999 --bucket bucket --what logs", MissingInputError, "no logs in"),
        ("--what wheel --bucket bucket", UsageError, "Did you mean 'wheels'"),
        (f"{FOLDER} --bucket bucket --what logs", UsageError, "--what chooses from the run"),
        ("--input-dir mine --bucket bucket", UsageError, "need the group"),
        (f"--input-dir none {GIVEN}", MissingInputError, "none holds no"),
        (f"--build-dir mine {GIVEN}", UsageError, "neither logs/ nor"),
    ],
)
def test_bad_input_is_one_message_and_nothing_changed(
    words: str,
    error: type[FatalError],
    said: str,
    s3: S3Client,
    run: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*words.split()) == error.exit_code
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("error:") == 1
    assert keys(s3) == []


def test_a_builds_files_go_by_one_command(s3: S3Client, run: Callable[..., int], tmp_path: Path) -> None:
    names = "logs/blas/build.log logs/.ninja/x artifacts/blas_lib_gfx90a.tar.zst therock_manifest.json"
    for name in names.split():
        path = tmp_path / "build" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    words = "--build-dir build --manifest build/therock_manifest.json --reports-dir build/logs"
    assert run(*words.split(), *WORDS[2:], "--bucket", "bucket") == 0
    assert [key for key in keys(s3) if "/upload-" not in key] == [
        "123-linux/blas_lib_gfx90a.tar.zst",
        "123-linux/blas_lib_gfx90a.tar.zst.sha256sum",
        f"123-linux/logs/{GROUP}/blas/build.log",
        f"123-linux/manifests/{GROUP}/therock_manifest.json",
        f"123-linux/reports/{GROUP}/blas/build.log",
    ]
    log = s3.head_object(Bucket="bucket", Key=f"123-linux/logs/{GROUP}/blas/build.log")
    assert log["ContentType"].startswith("text/plain")
    assert "immutable" not in log["CacheControl"]
