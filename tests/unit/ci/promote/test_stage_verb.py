from __future__ import annotations

from typing import TYPE_CHECKING

from ci.promote import documents
from ci.promote.documents import StagingRecord
from core.cli.frontdoor import main
from tests.unit.ci.promote.conftest import VERBS

if TYPE_CHECKING:
    from core.stores import Store
    from tests.unit.ci.promote.conftest import Desk

FAMILY = "gfx94X-dcgpu"


def keys(store: Store, prefix: str = "v2-staging") -> list[str]:
    return [one.key.removeprefix(f"{prefix}/") for one in store.list(prefix)]


def record(store: Store, family: str = FAMILY, run: str = "17-linux") -> StagingRecord:
    return documents.read(store, documents.staging_record(family, run), StagingRecord)


def test_a_runs_wheels_are_staged_with_sidecars_pages_and_a_record_of_their_origin(desk: Desk) -> None:
    desk.runs.whole(FAMILY, ["cp311", "cp312"])
    assert desk.stage() == 0
    found = keys(desk.bucket, f"v2-staging/{FAMILY}")
    wheels = [key for key in found if key.endswith(".whl")]
    assert len(wheels) == 5
    assert {f"{wheel}.metadata" for wheel in wheels} <= set(found)
    assert {"index.html", "simple/index.html", "simple/torch/index.html", "simple/rocm/index.html"} <= set(
        found
    )
    written = record(desk.bucket)
    by_name = {file.name: file for file in written.files}
    for file in desk.runs.made.values():
        assert by_name[file.name].sha256 == file.sha256 == desk.bucket.digest(by_name[file.name].key)
        assert file.sha256 in desk.bucket.read(f"v2-staging/{FAMILY}/index.html").decode()
    assert (written.run_id, written.store, written.platform) == ("17", desk.runs.store.url, "linux")
    assert {by_name[wheel].python for wheel in wheels} == {"", "cp311", "cp312"}
    (lock,) = written.locks
    assert lock.commits == {"torch": "a" * 40, "audio": "a" * 40}
    assert lock.promised == {"torch": desk.runs.torch, "torchaudio": desk.runs.audio}
    stages = {one.key.rpartition("/")[2].removesuffix(".json").partition("-")[0] for one in written.records}
    assert stages == {"build_rocm", "build_torch", "build_audio", "test_smoke", "test_rocm", "test_torch"}
    for one in (*written.records, *written.reports, lock.document):
        assert desk.runs.store.digest(one.key) == one.sha256
    assert len(written.reports) == 5
    assert "6 files are in" in desk.said()


def test_staging_again_changes_nothing(desk: Desk) -> None:
    desk.runs.whole(FAMILY)
    desk.stage()
    before = desk.bucket.list("")
    assert desk.stage() == 0
    assert desk.bucket.list("") == before
    assert "stage: unchanged, 4 files" in desk.said()


def test_groups_kinds_and_packages_are_chosen_and_add_up(desk: Desk) -> None:
    desk.runs.whole(FAMILY)
    desk.runs.whole("gfx1151")
    assert desk.stage("--gpu-family", "gfx1151", "--distributions", "rocm") == 0
    assert {file.distribution for file in record(desk.bucket, "gfx1151").files} == {"rocm", "rocm-sdk-core"}
    assert desk.bucket.list(f"v2-staging/{FAMILY}") == []
    assert desk.stage("--gpu-family", "gfx1151", "--packages", "torch") == 0
    assert {file.distribution for file in record(desk.bucket, "gfx1151").files} == {
        "rocm",
        "rocm-sdk-core",
        "torch",
    }
    page = desk.bucket.read("v2-staging/gfx1151/index.html").decode()
    assert "rocm_sdk_core" in page
    assert "torch-2.10" in page
    assert desk.stage("--packages", "torchaudi") == 2
    assert "Did you mean 'torchaudio'?" in desk.said()


def test_a_windows_run_is_staged_beside_a_linux_one(desk: Desk) -> None:
    desk.runs.whole("gfx1151")
    desk.runs.platform = "windows"
    desk.runs.lock()
    desk.runs.build("gfx1151", "cp312")
    assert desk.stage() == 0
    assert desk.stage("--platform", "windows") == 0
    assert "win_amd64" in desk.bucket.read("v2-staging/gfx1151/index.html").decode()
    assert record(desk.bucket, "gfx1151", "17-windows").platform == "windows"


def test_sample_wheels_are_refused_before_anything_is_copied(desk: Desk) -> None:
    desk.runs.whole("gfx1151")
    desk.runs.rocm = "7.99.0.dev0+sample"
    desk.runs.build_rocm(FAMILY)
    assert desk.stage() == 2
    assert "Wheels of the sample are never published" in desk.said()
    assert desk.bucket.list("") == []


def test_a_name_that_stands_for_other_bytes_is_refused(desk: Desk) -> None:
    desk.runs.whole(FAMILY)
    assert desk.stage() == 0
    name = next(file.name for file in desk.runs.made.values() if file.distribution == "torch")
    key = f"v2-staging/{FAMILY}/{name}"
    desk.bucket.put_bytes(key, b"somebody else's")
    assert desk.stage() == 11
    assert f"{key} exists in" in desk.said()
    assert desk.bucket.read(key) == b"somebody else's"


def test_a_run_that_is_not_there_or_differs_from_its_record_is_refused(desk: Desk) -> None:
    assert desk.stage() == 4
    desk.runs.whole(FAMILY)
    key = next(file.key for file in desk.runs.made.values() if file.distribution == "torch")
    desk.runs.store.put_bytes(key, b"other bytes")
    assert desk.stage() == 11
    assert "was to be copied" in desk.said()
    assert desk.bucket.list("v2-staging", recursive=True) == desk.bucket.list(f"v2-staging/{FAMILY}")
    assert desk.bucket.find(f"v2-staging/{FAMILY}/index.html") is None


def test_a_dry_run_says_what_would_be_copied(desk: Desk) -> None:
    desk.runs.whole(FAMILY)
    assert desk.stage("--dry-run") == 0
    assert desk.bucket.list("") == []
    assert "4 of 4 files would be copied" in desk.said()


def test_a_release_type_without_a_bucket_needs_a_store(desk: Desk) -> None:
    assert main("ci", "", VERBS, ["stage", "--run-id", "17"]) == 2
    assert "Give --release-type" in desk.said()
