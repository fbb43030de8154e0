from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ci.promote import documents
from ci.promote.documents import StagingRecord
from core.cli import Verb, main

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.stores import Store

VERBS = (Verb("stage", "ci.verbs.stage", "stage"),)
FAMILY = "gfx94X-dcgpu"


@pytest.fixture
def stage(runs: Any, bucket: Store) -> Callable[..., int]:
    def call(*words: str) -> int:
        stores = ["--store", runs.store.url, "--distribution-store", bucket.url]
        return main("ci", "", VERBS, ["stage", "--run-id", "17", *stores, *words])

    return call


def keys(store: Store, prefix: str = "v2-staging") -> list[str]:
    return [one.key.removeprefix(f"{prefix}/") for one in store.list(prefix)]


def record(store: Store, family: str = FAMILY, run: str = "17-linux") -> StagingRecord:
    return documents.read(store, documents.staging_record(family, run), StagingRecord)[0]


def test_a_runs_wheels_are_staged_with_sidecars_pages_and_a_record_of_their_origin(
    runs: Any, bucket: Store, stage: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    runs.whole(FAMILY, ["cp311", "cp312"])
    assert stage() == 0
    found = keys(bucket, f"v2-staging/{FAMILY}")
    wheels = [key for key in found if key.endswith(".whl")]
    assert len(wheels) == 5
    assert {f"{wheel}.metadata" for wheel in wheels} <= set(found)
    assert {"index.html", "simple/index.html", "simple/torch/index.html", "simple/rocm/index.html"} <= set(
        found
    )
    written = record(bucket)
    by_name = {file.name: file for file in written.files}
    for file in runs.made.values():
        assert by_name[file.name].sha256 == file.sha256 == bucket.digest(by_name[file.name].key)
        assert file.sha256 in bucket.read(f"v2-staging/{FAMILY}/index.html").decode()
    assert (written.run_id, written.store, written.platform) == ("17", runs.store.url, "linux")
    assert {by_name[wheel].python for wheel in wheels} == {"", "cp311", "cp312"}
    (lock,) = written.locks
    assert lock.commits == {"torch": "a" * 40, "audio": "a" * 40}
    assert lock.promised == {"torch": runs.torch, "torchaudio": runs.audio}
    stages = {one.key.rpartition("/")[2].removesuffix(".json").partition("-")[0] for one in written.records}
    assert stages == {"build_rocm", "build_torch", "build_audio", "test_smoke", "test_rocm", "test_torch"}
    for one in (*written.records, *written.reports, lock.document):
        assert runs.store.digest(one.key) == one.sha256
    assert len(written.reports) == 5
    assert "6 files are in" in capsys.readouterr().err


def test_staging_again_changes_nothing(
    runs: Any, bucket: Store, stage: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    runs.whole(FAMILY)
    stage()
    before = bucket.list("")
    assert stage() == 0
    assert bucket.list("") == before
    assert "stage: unchanged, 4 files" in capsys.readouterr().err


def test_groups_kinds_and_packages_are_chosen_and_add_up(
    runs: Any, bucket: Store, stage: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    runs.whole(FAMILY)
    runs.whole("gfx1151")
    assert stage("--gpu-family", "gfx1151", "--distributions", "rocm") == 0
    assert {file.distribution for file in record(bucket, "gfx1151").files} == {"rocm", "rocm-sdk-core"}
    assert bucket.list(f"v2-staging/{FAMILY}") == []
    assert stage("--gpu-family", "gfx1151", "--packages", "torch") == 0
    assert {file.distribution for file in record(bucket, "gfx1151").files} == {
        "rocm",
        "rocm-sdk-core",
        "torch",
    }
    page = bucket.read("v2-staging/gfx1151/index.html").decode()
    assert "rocm_sdk_core" in page
    assert "torch-2.10" in page
    assert stage("--packages", "torchaudi") == 2
    assert "Did you mean 'torchaudio'?" in capsys.readouterr().err


def test_a_windows_run_is_staged_beside_a_linux_one(
    runs: Any, bucket: Store, stage: Callable[..., int]
) -> None:
    runs.whole("gfx1151")
    runs.platform = "windows"
    runs.lock()
    runs.build("gfx1151", "cp312")
    assert stage() == 0
    assert stage("--platform", "windows") == 0
    assert "win_amd64" in bucket.read("v2-staging/gfx1151/index.html").decode()
    assert record(bucket, "gfx1151", "17-windows").platform == "windows"


def test_sample_wheels_are_refused_before_anything_is_copied(
    runs: Any, bucket: Store, stage: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    runs.whole("gfx1151")
    runs.rocm = "7.99.0.dev0+sample"
    runs.build_rocm(FAMILY)
    assert stage() == 2
    assert "Wheels of the sample go nowhere" in capsys.readouterr().err
    assert bucket.list("") == []


def test_a_name_that_stands_for_other_bytes_is_refused(
    runs: Any, bucket: Store, stage: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    runs.whole(FAMILY)
    assert stage() == 0
    name = next(file.name for file in runs.made.values() if file.distribution == "torch")
    key = f"v2-staging/{FAMILY}/{name}"
    bucket.put_bytes(key, b"somebody else's")
    assert stage() == 11
    assert f"{key} exists in" in capsys.readouterr().err
    assert bucket.read(key) == b"somebody else's"


def test_a_run_that_is_not_there_or_differs_from_its_record_is_refused(
    runs: Any, bucket: Store, stage: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert stage() == 4
    runs.whole(FAMILY)
    key = next(file.key for file in runs.made.values() if file.distribution == "torch")
    runs.store.put_bytes(key, b"other bytes")
    assert stage() == 11
    assert "was to be copied" in capsys.readouterr().err
    assert bucket.list("v2-staging", recursive=True) == bucket.list(f"v2-staging/{FAMILY}")
    assert bucket.find(f"v2-staging/{FAMILY}/index.html") is None


def test_a_dry_run_says_what_would_be_copied(
    runs: Any, bucket: Store, stage: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    runs.whole(FAMILY)
    assert stage("--dry-run") == 0
    assert bucket.list("") == []
    assert "4 of 4 files would be copied" in capsys.readouterr().err


def test_a_release_type_without_a_bucket_needs_a_store(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("ci", "", VERBS, ["stage", "--run-id", "17"]) == 2
    assert "Give --release-type" in capsys.readouterr().err
