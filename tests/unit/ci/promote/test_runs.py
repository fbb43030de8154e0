"""Staging: what two jobs stage adds up, and what `stage` takes of a run."""

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.promote import documents
from ci.promote.documents import DocumentDigest, PromotedFile, StagedFile, StagingRecord, identity_of
from ci.promote.facts import SetFacts, StagedWheel, read_group
from ci.promote.policy import promoted_files
from ci.promote.staged_files import merge_staging_records, python_tag_of_file, stage_locks
from core.cell import GroupCell
from core.errors import MissingInputError, StoreError, UsageError
from core.stores import Store
from core.stores.directory import DirectoryStore
from tests.kit import release_desk, runs
from tests.kit.front_doors import run_ci
from tests.kit.promotion_facts import DIGEST, OTHER_DIGEST
from tests.kit.release_desk import ReleaseDesk
from tests.kit.runs import RunContents

FAMILY = "gfx94X-dcgpu"
OTHER_FAMILY = "gfx1151"
STAGING_FOLDER = f"v2-staging/{FAMILY}"
SAMPLE_ROCM_VERSION = "7.99.0.dev0+sample"
BOTH_PYTHONS = RunContents(pythons=("cp311", "cp312"))
REHEARSAL = ("--release-type", "rehearsal")

DIGESTS = st.sampled_from([DIGEST, OTHER_DIGEST])
NAMES = st.sampled_from([f"torch-2.{number}-cp312-cp312-linux_x86_64.whl" for number in range(5)])


# Records of what was staged


def staged_file(name: str, digest: str = DIGEST) -> StagedFile:
    """Return a file of a staging record."""
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
def staging_records(draw: st.DrawFn) -> StagingRecord:
    """Draw what one job staged of a run; a name stands for the same bytes in all of them."""
    documents = st.builds(DocumentDigest, key=st.sampled_from(["a", "b", "c"]), sha256=DIGESTS)
    return StagingRecord(
        family="g",
        run_id="17",
        platform="linux",
        store="out",
        prefix="17-linux",
        artifact_group="g",
        staged=draw(st.sampled_from(["2026-11-21", "2026-11-22"])),
        files=tuple(staged_file(name) for name in sorted(draw(st.sets(NAMES)))),
        records=tuple(draw(st.lists(documents, unique_by=lambda document: document.key))),
    )


@given(staging_records(), staging_records())
def test_adds_up_what_two_jobs_staged_in_any_order(first: StagingRecord, second: StagingRecord) -> None:
    both = merge_staging_records(first, second)

    names = [file.name for file in both.files]
    assert set(names) == {file.name for file in (*first.files, *second.files)}
    assert names == sorted(names)
    assert merge_staging_records(second, first).files == both.files


@given(staging_records(), staging_records())
def test_keeps_a_record_that_a_repeated_job_adds_nothing_to(
    first: StagingRecord, second: StagingRecord
) -> None:
    both = merge_staging_records(first, second)

    assert merge_staging_records(both, second) is both
    assert merge_staging_records(both, both) is both


def test_rejects_adding_up_a_name_that_stands_for_different_bytes() -> None:
    name = "torch-2.1-cp312-cp312-linux_x86_64.whl"
    record = StagingRecord(
        family="g",
        run_id="17",
        platform="linux",
        store="out",
        prefix="17-linux",
        artifact_group="g",
        staged="2026-11-21",
        files=(staged_file(name),),
        records=(),
    )
    changed = record.model_copy(update={"files": (staged_file(name, OTHER_DIGEST),)})

    with pytest.raises(StoreError) as raised:
        merge_staging_records(changed, record)

    assert name in raised.value.message
    assert OTHER_DIGEST[:12] in raised.value.message


@pytest.mark.parametrize(
    ("name", "python"),
    [
        ("torch-2.10.0+rocm7.10.0-cp312-cp312-linux_x86_64.whl", "cp312"),
        ("torch-2.10.0-cp313-cp313t-win_amd64.whl", "cp313t"),
        ("triton-3.6.0-cp39-abi3-linux_x86_64.whl", None),
        ("rocm_sdk_core-7.10.0-py3-none-linux_x86_64.whl", None),
        ("rocm-7.10.0.tar.gz", None),
    ],
)
def test_takes_a_wheels_python_from_its_abi(name: str, python: str | None) -> None:
    assert python_tag_of_file(name) == python


NamedDigests = list[tuple[str, str]]
NAMED_DIGESTS = st.lists(st.tuples(NAMES, DIGESTS), unique_by=lambda pair: pair[0])


def promoted_set(named_digests: NamedDigests) -> tuple[PromotedFile, ...]:
    """Return the files of a set of these names and digests."""
    cell = GroupCell(artifact_group="g", platform="linux", python="3.12")
    wheels = [
        StagedWheel(
            cell=cell,
            file=staged_file(name, digest),
            current_sha256=digest,
            current_sidecar_sha256=None,
            recorded_sha256s=frozenset(),
        )
        for name, digest in named_digests
    ]
    return promoted_files(SetFacts(set_name="torch-2", wheels=tuple(wheels)))


@given(NAMED_DIGESTS, st.randoms(use_true_random=False))
def test_identifies_a_set_in_any_order(named_digests: NamedDigests, chance: random.Random) -> None:
    shuffled = list(named_digests)
    chance.shuffle(shuffled)

    files = promoted_set(named_digests)

    assert identity_of(promoted_set(shuffled)) == identity_of(files)
    assert promoted_set(shuffled) == files
    assert promoted_set([*named_digests, *named_digests]) == files


@given(NAMED_DIGESTS)
def test_identifies_a_set_by_every_name_and_its_bytes(named_digests: NamedDigests) -> None:
    identity = identity_of(promoted_set(named_digests))

    for number, (name, digest) in enumerate(named_digests):
        other_digest = OTHER_DIGEST if digest == DIGEST else DIGEST
        changed = [*named_digests[:number], (name, other_digest), *named_digests[number + 1 :]]
        fewer = [*named_digests[:number], *named_digests[number + 1 :]]

        assert len({identity, identity_of(promoted_set(changed)), identity_of(promoted_set(fewer))}) == 3


def test_does_not_take_the_manifest_of_a_rocm_build_for_a_record(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "runs")
    run = runs.run_outputs()
    runs.publish_rocm(store, run, tmp_path / "dist", family=FAMILY)
    group_before = read_group(store, run, FAMILY)
    key = f"{run.manifests_prefix(FAMILY)}/therock_manifest.json"
    store.put_bytes(key, b'{"rocm_version": "7.10.0"}')

    assert read_group(store, run, FAMILY) == group_before
    assert group_before.records


@pytest.mark.parametrize(("family", "has_triton"), [(FAMILY, True), ("cpu", False)])
def test_a_lock_promises_triton_to_gpus_alone(tmp_path: Path, family: str, *, has_triton: bool) -> None:
    store = DirectoryStore(tmp_path / "runs")
    run = runs.run_outputs()
    base_versions = {"torch": runs.TORCH_BASE_VERSION, "triton": "3.6.0"}
    runs.write_source_lock(store, run, base_versions=base_versions)

    (lock,) = stage_locks(store, run, family, {})

    assert "torch" in lock.promised
    assert ("triton" in lock.promised) is has_triton


# The verb


def staging_record(store: Store, family: str = FAMILY) -> StagingRecord:
    """Return the record of what was staged of run 17."""
    return documents.read(store, documents.staging_record_key(family, "17-linux"), StagingRecord)


def staged_distributions(store: Store, family: str = FAMILY) -> set[str]:
    """Return the distributions that were staged of run 17."""
    return set(release_desk.by_distribution(staging_record(store, family).files))


def test_stages_every_file_with_its_sidecar_and_lists_it(desk: ReleaseDesk) -> None:
    files = desk.publish(FAMILY, contents=BOTH_PYTHONS)

    assert desk.stage() == 0

    page = desk.bucket.read(f"{STAGING_FOLDER}/index.html").decode()
    staged_files = {file.name: file for file in staging_record(desk.bucket).files}
    assert staged_files.keys() == {file.name for file in files}
    for file in files:
        assert staged_files[file.name].sha256 == file.sha256
        assert desk.bucket.digest(f"{STAGING_FOLDER}/{file.name}") == file.sha256
        assert file.sha256 in page
        if file.metadata_sha256:
            assert desk.bucket.digest(f"{STAGING_FOLDER}/{file.name}.metadata") == file.metadata_sha256
    assert "6 files are in" in desk.read_messages()


@pytest.mark.parametrize(
    "page", ["index.html", "simple/index.html", "simple/torch/index.html", "simple/rocm/index.html"]
)
def test_writes_the_pages_of_staging(desk: ReleaseDesk, page: str) -> None:
    desk.publish(FAMILY)

    assert desk.stage() == 0

    assert desk.bucket.find(f"{STAGING_FOLDER}/{page}") is not None


def test_records_the_run_that_was_staged(desk: ReleaseDesk) -> None:
    desk.publish(FAMILY, contents=BOTH_PYTHONS)

    assert desk.stage() == 0

    record = staging_record(desk.bucket)
    assert record.run_id == "17"
    assert record.platform == "linux"
    assert record.store == desk.run_store.url
    pythons = {file.python for file in record.files if file.name.endswith(".whl")}
    assert pythons == {None, "cp311", "cp312"}


def test_records_the_source_locks_of_what_was_staged(desk: ReleaseDesk) -> None:
    desk.publish(FAMILY)

    assert desk.stage() == 0

    (lock,) = staging_record(desk.bucket).locks
    assert lock.commits == {"torch": "a" * 40, "audio": "a" * 40}
    assert lock.promised == {"torch": runs.torch_version(), "torchaudio": runs.audio_version()}
    assert desk.run_store.digest(lock.document.key) == lock.document.sha256


def test_names_the_records_and_reports_of_what_was_staged(desk: ReleaseDesk) -> None:
    desk.publish(FAMILY, contents=BOTH_PYTHONS)

    assert desk.stage() == 0

    record = staging_record(desk.bucket)
    names = [document.key.rpartition("/")[2].removesuffix(".json") for document in record.records]
    assert {name.partition("-")[0] for name in names} == {
        "build_rocm",
        "build_torch",
        "build_audio",
        "test_smoke",
        "test_rocm",
        "test_torch",
    }
    assert len(record.reports) == 5
    for document in (*record.records, *record.reports):
        assert desk.run_store.digest(document.key) == document.sha256


def test_stages_before_any_test_and_names_tests_when_staged_again(desk: ReleaseDesk) -> None:
    desk.stage_run(FAMILY, contents=runs.UNTESTED)
    record_before = staging_record(desk.bucket)

    desk.publish(FAMILY)
    assert desk.stage() == 0

    record = staging_record(desk.bucket)
    assert record_before.reports == ()
    assert record.files == record_before.files
    assert {document.key for document in record.records} > {
        document.key for document in record_before.records
    }


def test_a_repeated_job_changes_nothing_in_staging(desk: ReleaseDesk) -> None:
    desk.stage_run(FAMILY, contents=runs.UNTESTED)
    objects_before = desk.bucket.list("")

    assert desk.stage() == 0

    assert desk.bucket.list("") == objects_before


def test_stages_the_chosen_family_alone(desk: ReleaseDesk) -> None:
    desk.publish(FAMILY, OTHER_FAMILY)

    assert desk.stage("--gpu-family", OTHER_FAMILY, "--distributions", "rocm") == 0

    assert staged_distributions(desk.bucket, OTHER_FAMILY) == {"rocm", "rocm-sdk-core"}
    assert desk.bucket.list(STAGING_FOLDER) == []


def test_adds_chosen_packages_to_what_was_staged_before(desk: ReleaseDesk) -> None:
    desk.publish(FAMILY)
    assert desk.stage("--distributions", "rocm") == 0

    assert desk.stage("--packages", "torch") == 0

    assert staged_distributions(desk.bucket) == {"rocm", "rocm-sdk-core", "torch"}
    page = desk.bucket.read(f"{STAGING_FOLDER}/index.html").decode()
    assert "rocm_sdk_core" in page
    assert "torch-2.10" in page


def test_proposes_a_name_for_an_unknown_package(desk: ReleaseDesk) -> None:
    desk.publish(FAMILY)

    assert desk.stage("--packages", "torchaudi") == UsageError.exit_code
    assert "Did you mean 'torchaudio'?" in desk.read_messages()


def test_dry_run_says_what_would_be_copied(desk: ReleaseDesk) -> None:
    desk.publish(FAMILY)

    assert desk.stage("--dry-run") == 0

    assert desk.bucket.list("") == []
    assert "4 of 4 files" in desk.read_messages()


def test_rejects_wheels_of_the_sample_before_anything_is_copied(desk: ReleaseDesk) -> None:
    desk.publish(OTHER_FAMILY)
    runs.publish_rocm(
        desk.run_store, desk.run, desk.folder / "sample", family=FAMILY, version=SAMPLE_ROCM_VERSION
    )

    assert desk.stage() == UsageError.exit_code
    assert "sample" in desk.read_messages()
    assert desk.bucket.list("") == []


def test_rejects_a_name_that_stands_for_other_bytes(desk: ReleaseDesk) -> None:
    files = desk.stage_run(FAMILY)
    name = release_desk.by_distribution(files)["torch"].name
    key = f"{STAGING_FOLDER}/{name}"
    desk.bucket.put_bytes(key, b"somebody else's")

    assert desk.stage() == StoreError.exit_code
    assert key in desk.read_messages()
    assert desk.bucket.read(key) == b"somebody else's"


def test_rejects_a_run_that_does_not_exist(desk: ReleaseDesk) -> None:
    assert desk.stage() == MissingInputError.exit_code


def test_lists_nothing_of_a_run_that_differs_from_its_record(desk: ReleaseDesk) -> None:
    files = desk.publish(FAMILY)
    torch_file = release_desk.by_distribution(files)["torch"]
    desk.run_store.put_bytes(torch_file.key, b"other bytes")

    assert desk.stage() == StoreError.exit_code
    assert torch_file.name in desk.read_messages()
    assert desk.bucket.list("v2-staging") == desk.bucket.list(STAGING_FOLDER)
    assert desk.bucket.find(f"{STAGING_FOLDER}/index.html") is None


def test_rejects_a_release_type_without_a_bucket_where_no_store_is_named(desk: ReleaseDesk) -> None:
    assert run_ci("stage", "--run-id", "17") == UsageError.exit_code
    assert "--release-type" in desk.read_messages()


# Rehearsals


@pytest.fixture
def rehearsal_desk(desk: ReleaseDesk) -> ReleaseDesk:
    """Return a desk whose run is of the sample."""
    sample_desk = desk.with_run("18")
    sample_desk.publish(FAMILY, contents=RunContents(rocm_version=SAMPLE_ROCM_VERSION))
    return sample_desk


def test_keeps_rehearsals_out_of_a_bucket_of_real_wheels(desk: ReleaseDesk) -> None:
    desk.stage_run(FAMILY)
    objects_before = desk.bucket.list("")

    assert desk.stage(*REHEARSAL) == UsageError.exit_code
    assert desk.promote(release_type="rehearsal") == UsageError.exit_code
    assert desk.bucket.list("") == objects_before


def test_rejects_rehearsing_with_real_wheels(desk: ReleaseDesk) -> None:
    desk.publish(FAMILY)

    assert desk.stage(*REHEARSAL) == UsageError.exit_code
    assert "sample" in desk.read_messages()
    assert desk.bucket.list("") == []


def test_rehearses_a_promotion_of_the_sample(rehearsal_desk: ReleaseDesk) -> None:
    assert rehearsal_desk.stage(*REHEARSAL) == 0
    assert rehearsal_desk.promote(release_type="rehearsal") == 0

    assert rehearsal_desk.decision().release_type == "rehearsal"


def test_promotes_no_rehearsal_as_a_nightly(rehearsal_desk: ReleaseDesk) -> None:
    assert rehearsal_desk.stage(*REHEARSAL) == 0

    assert "sample" in rehearsal_desk.read_refusal()
    assert rehearsal_desk.has_released_nothing()


def test_rehearses_in_no_bucket_of_a_release_type(rehearsal_desk: ReleaseDesk) -> None:
    assert rehearsal_desk.stage(*REHEARSAL) == 0

    options = ("--distribution-store", "s3://therock-dev-python")
    assert rehearsal_desk.promote(*options, release_type="rehearsal") == UsageError.exit_code
