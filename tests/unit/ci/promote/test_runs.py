"""Staging and deciding as pure functions: what is merged, named, and told apart."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.promote import documents
from ci.promote.documents import Cell, Document, PromotedFile, StagedFile, StagingRecord
from ci.promote.facts import Facts, Wheel
from ci.promote.promotion import identity_of, promoted_files
from ci.promote.runs import merged, python_of, read_group
from core.errors import StoreError
from core.stores import Store
from tests.kit.front_doors import run_ci
from tests.unit.ci.promote.conftest import Desk, Runs

DIGESTS = st.sampled_from(["a" * 64, "b" * 64])
NAMES = st.sampled_from([f"torch-2.{number}-cp312-cp312-linux_x86_64.whl" for number in range(5)])


def staged(name: str, digest: str = "a" * 64) -> StagedFile:
    return StagedFile(
        name=name,
        key=f"v2-staging/g/{name}",
        source_key=f"17-linux/python/g/{name}",
        size=3,
        sha256=digest,
        distribution="torch",
        version="2.1",
    )


@st.composite
def staging(draw: st.DrawFn) -> StagingRecord:
    """Draw what one job staged of a run; a name stands for the same bytes in all of them."""
    documents = st.builds(Document, key=st.sampled_from(["one", "two", "three"]), sha256=DIGESTS)
    return StagingRecord(
        family="g",
        run_id="17",
        platform="linux",
        store="out",
        prefix="17-linux",
        artifact_group="g",
        staged=draw(st.sampled_from(["2026-11-21", "2026-11-22"])),
        files=tuple(staged(name) for name in sorted(draw(st.sets(NAMES)))),
        records=tuple(draw(st.lists(documents, unique_by=lambda one: one.key))),
    )


@given(staging(), staging())
def test_what_two_jobs_staged_adds_up_in_any_order(one: StagingRecord, other: StagingRecord) -> None:
    both, reverse = merged(one, other), merged(other, one)
    assert {file.name for file in both.files} == {file.name for file in (*one.files, *other.files)}
    assert both.files == reverse.files
    assert [file.name for file in both.files] == sorted(file.name for file in both.files)
    # run again, neither job has news
    assert merged(both, other) is both
    assert merged(both, both) is both


@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("torch-2.10.0+rocm7.10.0-cp312-cp312-linux_x86_64.whl", "cp312"),
        ("torch-2.10.0-cp313-cp313t-win_amd64.whl", "cp313t"),
        ("triton-3.6.0-cp39-abi3-linux_x86_64.whl", ""),
        ("rocm_sdk_core-7.10.0-py3-none-linux_x86_64.whl", ""),
        ("rocm-7.10.0.tar.gz", ""),
    ],
)
def test_a_wheel_is_for_the_python_of_its_abi(name: str, python: str) -> None:
    assert python_of(name) == python


def facts(files: list[tuple[str, str]]) -> Facts:
    cell = Cell(family="g", platform="linux", python="cp312")
    wheels = [
        Wheel(cell=cell, file=staged(name, digest), found=digest, sidecar="", built=frozenset())
        for name, digest in files
    ]
    return Facts(set_name="torch-2", wheels=tuple(wheels))


def promoted(files: list[tuple[str, str]]) -> tuple[PromotedFile, ...]:
    return promoted_files(facts(files))


@given(st.lists(st.tuples(NAMES, DIGESTS), unique_by=lambda pair: pair[0]), st.randoms(use_true_random=False))
def test_a_set_is_known_by_names_and_bytes_in_any_order(files: list[tuple[str, str]], random: object) -> None:
    shuffled = list(files)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert identity_of(promoted(shuffled)) == identity_of(promoted(files))
    assert promoted(shuffled) == promoted(files) == promoted([*files, *files])
    for number, (name, digest) in enumerate(files):
        other = "b" * 64 if digest == "a" * 64 else "a" * 64
        changed = [*files[:number], (name, other), *files[number + 1 :]]
        fewer = [*files[:number], *files[number + 1 :]]
        same = {identity_of(promoted(one)) for one in (files, changed, fewer)}
        assert len(same) == 3


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


def test_groups_kinds_and_packages_are_chosen_and_add_up(desk: Desk) -> None:
    desk.runs.whole(FAMILY)
    desk.runs.whole("gfx1151")
    assert desk.stage("--gpu-family", "gfx1151", "--distributions", "rocm") == 0
    assert {file.distribution for file in record(desk.bucket, "gfx1151").files} == {"rocm", "rocm-sdk-core"}
    assert desk.bucket.list(f"v2-staging/{FAMILY}") == []
    assert desk.stage("--gpu-family", "gfx1151", "--packages", "torch") == 0
    expected = {"rocm", "rocm-sdk-core", "torch"}
    assert {file.distribution for file in record(desk.bucket, "gfx1151").files} == expected
    page = desk.bucket.read("v2-staging/gfx1151/index.html").decode()
    assert "rocm_sdk_core" in page
    assert "torch-2.10" in page
    assert desk.stage("--packages", "torchaudi") == 2
    assert "Did you mean 'torchaudio'?" in desk.said()


def test_sample_wheels_are_refused_before_anything_is_copied(desk: Desk) -> None:
    desk.runs.whole("gfx1151")
    desk.runs.rocm = "7.99.0.dev0+sample"
    desk.runs.build_rocm(FAMILY)
    assert desk.stage() == 2
    assert "Wheels of the sample are never published" in desk.said()
    assert desk.bucket.list("") == []


def test_a_rehearsal_is_of_the_sample_alone_in_a_store_of_its_own(desk: Desk) -> None:
    rehearsal, own = ("--release-type", "rehearsal"), replace(desk, bucket=desk.releases)
    desk.staged(FAMILY)
    assert desk.stage(*rehearsal) == desk.promote(release_type="rehearsal") == 2
    assert desk.said().count("is not the sample's, so no rehearsal may write there") == 2
    assert own.stage(*rehearsal) == 2
    assert "A rehearsal is of the sample's wheels alone" in own.said()
    own.runs.run_id, own.runs.rocm = "18", "7.99.0.dev0+sample"
    own.runs.whole(FAMILY)
    assert own.stage(*rehearsal) == 0
    assert "is a wheel of the sample" in own.refused()
    assert own.promote(release_type="rehearsal") == 0
    assert own.decision().release_type == "rehearsal"
    assert own.promote("--distribution-store", "s3://therock-dev-python", release_type="rehearsal") == 2


def test_a_name_that_stands_for_other_bytes_is_refused(desk: Desk) -> None:
    desk.runs.whole(FAMILY)
    assert desk.stage() == 0
    name = next(file.name for file in desk.runs.made.values() if file.distribution == "torch")
    key = f"v2-staging/{FAMILY}/{name}"
    desk.bucket.put_bytes(key, b"somebody else's")
    assert desk.stage() == 11
    assert f"{key} exists in" in desk.said()
    assert desk.bucket.read(key) == b"somebody else's"
    # nor does a record take it for an addition
    old = record(desk.bucket)
    changed = tuple(one.model_copy(update={"sha256": "a" * 64}) for one in old.files)
    with pytest.raises(StoreError, match="was staged with other bytes before: aaaaaaaaaaaa"):
        merged(old.model_copy(update={"files": changed}), old)


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
    assert run_ci("stage", "--run-id", "17") == 2
    assert "Give --release-type" in desk.said()


def test_the_manifest_of_a_rocm_build_is_no_record(runs: Runs) -> None:
    runs.build_rocm("gfx110X-all")
    before = read_group(runs.store, runs.outputs, "gfx110X-all")
    key = f"{runs.outputs.manifests_prefix('gfx110X-all')}/therock_manifest.json"
    runs.store.put_bytes(key, b'{"rocm_version": "7.10.0"}')
    assert read_group(runs.store, runs.outputs, "gfx110X-all") == before
    assert before.records
