"""A release candidate becomes a release: its files under new versions, and perhaps for fewer targets."""

from dataclasses import replace
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from ci.plan.data import runners
from ci.promote import documents, promotion
from ci.promote.candidates import promised_wheels, rewrite_candidate
from ci.promote.documents import Decision
from ci.promote.facts import SetFacts, SetRequest, gather
from ci.promote.policy import PromotionPolicy, decide, gates, promoted_files
from ci.promote.version_change import final_of, rename_set
from core.cell import GroupCell
from core.cli.options import Common
from core.errors import CheckError, ConflictError, FatalError, MissingInputError, UsageError
from core.run.records import FileRecord
from core.stores import Store
from core.wheel import read_metadata
from tests.kit import release_desk, runs, stores, wheels
from tests.kit.memory_store import MemoryStore
from tests.kit.promotion_facts import set_lock
from tests.kit.release_desk import ReleaseDesk
from tests.kit.runs import RunContents

FAMILY = "gfx94X-dcgpu"
OTHER_FAMILY = "gfx1151"
CANDIDATE = "7.10.0rc2"
RELEASE = ("--from-version", CANDIDATE, "--version", "7.10.0")
CHANGE = final_of(CANDIDATE)
TORCH_VERSION = runs.torch_version(CANDIDATE)
AUDIO_VERSION = runs.audio_version(CANDIDATE)
NOW = "2026-11-21T13:00:00+00:00"

# Targets of two groups, of which a release keeps two.
TARGETS = ("gfx942", "gfx1100", "gfx1201")
CANDIDATE_RUN = RunContents(rocm_version=CANDIDATE)
SPLIT_CANDIDATE_RUN = RunContents(rocm_version=CANDIDATE, targets=TARGETS)
KEPT_TARGETS = ("--gpu-targets", "gfx942;gfx1201")
KEPT_GROUPS = ("gfx942", "gfx1201", "gfx9-4", "gfx9", "gfx12-0", "gfx12")
DROPPED_GROUPS = ("gfx1100", "gfx110x", "gfx11")


@pytest.fixture(autouse=True)
def scratch_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewrite below the test's folder: the verb's own is the checkout's."""
    monkeypatch.setattr(Common, "cache", property(lambda _self: tmp_path / "cache"))


def accept_small_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let wheels of a kilobyte pass for torch, whose check they fail by their size."""
    monkeypatch.setattr("ci.promote.candidates.check_wheel", lambda *_wheel, **_options: ())


@pytest.fixture
def candidate_desk(desk: ReleaseDesk, monkeypatch: pytest.MonkeyPatch) -> ReleaseDesk:
    """Stage a tested release candidate of two families."""
    accept_small_wheels(monkeypatch)
    desk.stage_run(FAMILY, OTHER_FAMILY, contents=CANDIDATE_RUN)
    desk.read_messages()
    return desk


@pytest.fixture
def split_desk(desk: ReleaseDesk, monkeypatch: pytest.MonkeyPatch) -> ReleaseDesk:
    """Stage a tested release candidate in the split layout."""
    accept_small_wheels(monkeypatch)
    desk.stage_run(FAMILY, contents=SPLIT_CANDIDATE_RUN)
    desk.read_messages()
    return desk


@pytest.fixture
def released_desk(desk: ReleaseDesk, monkeypatch: pytest.MonkeyPatch) -> ReleaseDesk:
    """Make a release of a candidate of two families."""
    accept_small_wheels(monkeypatch)
    desk.release_run(FAMILY, OTHER_FAMILY, contents=CANDIDATE_RUN, options=RELEASE)
    desk.read_messages()
    return desk


@pytest.fixture
def split_released_desk(desk: ReleaseDesk, monkeypatch: pytest.MonkeyPatch) -> ReleaseDesk:
    """Make a release for some targets of a candidate in the split layout."""
    accept_small_wheels(monkeypatch)
    options = (*RELEASE, *KEPT_TARGETS)
    desk.release_run(FAMILY, contents=SPLIT_CANDIDATE_RUN, options=options)
    desk.read_messages()
    return desk


def gather_facts(desk: ReleaseDesk) -> SetFacts:
    """Gather what is staged of the candidate for one family."""
    request = SetRequest(distribution="torch", version=TORCH_VERSION, artifact_groups=(FAMILY,))
    return gather(desk.bucket, request, lambda _address: desk.run_store)


# Whole candidates


def test_dry_run_names_the_releases_files_and_writes_nothing(candidate_desk: ReleaseDesk) -> None:
    assert candidate_desk.release(*RELEASE, "--dry-run") == 0

    assert candidate_desk.releases.list("") == []
    name = "torch-2.10.0a0+rocm7.10.0-cp312-cp312-linux_x86_64.whl"
    assert f"v2/{OTHER_FAMILY}/{name}" in candidate_desk.read_messages()


def test_leaves_the_candidate_as_it_was(candidate_desk: ReleaseDesk) -> None:
    objects_before = candidate_desk.bucket.list("")

    assert candidate_desk.release(*RELEASE) == 0

    assert candidate_desk.bucket.list("") == objects_before


def test_decides_on_the_releases_version(released_desk: ReleaseDesk) -> None:
    decision = release_desk.only_decision(released_desk.releases)
    assert decision.set_name == "torch-2.10.0a0+rocm7.10.0"
    assert decision.from_version == CANDIDATE
    assert decision.to_version == "7.10.0"
    assert len(decision.files) == 8


def test_releases_other_bytes_than_those_that_were_staged(released_desk: ReleaseDesk) -> None:
    desk = released_desk

    for file in release_desk.only_decision(desk.releases).files:
        assert file.sha256 == desk.releases.digest(file.key)
        assert file.staged_sha256 == desk.bucket.digest(file.staged_key)
        assert file.sha256 != file.staged_sha256
        assert "rc2" not in file.name
        assert "rc2" in file.staged_key
        assert file.sha256 in desk.releases.read(f"v2/{file.family}/index.html").decode()


def test_states_the_releases_version_in_every_wheel_and_sidecar(
    released_desk: ReleaseDesk, tmp_path: Path
) -> None:
    releases = released_desk.releases

    files = release_desk.only_decision(releases).files
    released_wheels = [file for file in files if file.name.endswith(".whl")]
    assert len(released_wheels) == 6
    for file in released_wheels:
        metadata = read_metadata(releases.fetch(file.key, tmp_path / "fetched"))
        assert str(metadata.version) == file.version
        assert "rc2" not in metadata.raw.decode()
        assert releases.read(f"{file.key}.metadata") == metadata.raw


def test_changes_nothing_where_a_release_was_made_before(released_desk: ReleaseDesk) -> None:
    objects_before = released_desk.releases.list("")

    assert released_desk.release(*RELEASE) == 0

    assert released_desk.releases.list("") == objects_before
    assert "already promoted" in released_desk.read_messages()


@pytest.mark.parametrize(
    ("options", "phrase"),
    [
        (["--from-version", CANDIDATE], "--version"),
        (["--version", "7.10.0"], "--from-version"),
        (["--from-version", CANDIDATE, "--version", "7.11.0"], "7.11.0"),
        (["--from-version", "7.10.0", "--version", "7.10.0"], "7.10.0"),
        (["--from-version", "7.10.0rc1", "--version", "7.10.0"], "7.10.0rc1"),
    ],
    ids=["no new version", "no old version", "another release", "not a candidate", "not staged"],
)
def test_rejects_versions_that_make_no_release(
    candidate_desk: ReleaseDesk, options: list[str], phrase: str
) -> None:
    assert candidate_desk.release(*options) == UsageError.exit_code
    assert phrase in candidate_desk.read_messages()
    assert candidate_desk.releases.list("") == []


def test_makes_no_nightly_of_a_candidate(desk: ReleaseDesk) -> None:
    assert desk.promote(*RELEASE) == UsageError.exit_code
    assert "nightly" in desk.read_messages()


# What source locks promise of a candidate


def test_expects_what_the_source_locks_promise(candidate_desk: ReleaseDesk) -> None:
    expectations = promised_wheels(gather_facts(candidate_desk), CHANGE)[FAMILY]

    assert expectations.keys() == {"torch", "torchaudio"}
    assert expectations["torch"].version == TORCH_VERSION
    assert expectations["torch"].requires == (f"rocm[libraries]=={CANDIDATE}",)
    assert expectations["torchaudio"].version == AUDIO_VERSION
    assert expectations["torchaudio"].requires == (f"torch=={TORCH_VERSION}",)


def test_rejects_a_set_without_a_promised_distribution(candidate_desk: ReleaseDesk, tmp_path: Path) -> None:
    facts = gather_facts(candidate_desk)
    files = promoted_files(facts)
    files_without_audio = [file for file in files if file.distribution != "torchaudio"]
    expectations = promised_wheels(facts, CHANGE)
    scratch = tmp_path / "scratch"

    with pytest.raises(MissingInputError) as raised:
        rewrite_candidate(candidate_desk.bucket, files_without_audio, CHANGE, scratch, expectations)

    assert "torchaudio" in raised.value.message


def test_rejects_a_wheel_that_does_not_require_what_its_lock_promises(
    desk: ReleaseDesk, tmp_path: Path
) -> None:
    # Wheels are checked here, unlike in the tests of the verb.
    desk.stage_run(FAMILY, contents=CANDIDATE_RUN)
    facts = gather_facts(desk)
    torch_expectation = promised_wheels(facts, CHANGE)[FAMILY]["torch"]
    expectations = {FAMILY: {"torch": replace(torch_expectation, requires=("triton==3.7.0",))}}
    files = promoted_files(facts)

    with pytest.raises(CheckError) as raised:
        rewrite_candidate(desk.bucket, files, CHANGE, tmp_path / "scratch", expectations)

    assert "triton" in str(raised.value)


def test_expects_no_distribution_that_locks_promise_in_two_versions() -> None:
    cell = GroupCell(artifact_group=OTHER_FAMILY, platform="linux", python="3.12")
    versions = {"torch": "2.10.0+rocm7.10.0rc2", "torchaudio": "2.9.0+rocm7.10.0rc2"}
    other_versions = {**versions, "torchaudio": "2.10.0+rocm7.10.0rc2", "triton": "3.5.0+rocm7.10.0rc2"}
    locks = (
        set_lock(cell, promised=versions),
        set_lock(replace(cell, python="3.11"), promised=other_versions),
    )

    expectations = promised_wheels(SetFacts(set_name="", wheels=(), locks=locks), CHANGE)[OTHER_FAMILY]

    assert expectations.keys() == {"torch", "triton"}
    assert expectations["torch"].requires == ("rocm[libraries]==7.10.0rc2", "triton==3.5.0+rocm7.10.0rc2")


# Interrupted


def decide_on_release(facts: SetFacts) -> Decision:
    """Decide on the release of a candidate's set as the verb does; its files are still to be written."""
    policy = PromotionPolicy(runners=runners(), gates=gates(), release_type="nightly")
    decision = decide(facts, policy, by="the release job", decided=NOW)
    assert decision.reasons == ()
    return rename_set(decision, "torch", TORCH_VERSION, CHANGE)


def test_rewrites_the_same_files_to_the_same_bytes(candidate_desk: ReleaseDesk, tmp_path: Path) -> None:
    # Otherwise a second run would find other bytes where it was interrupted.
    facts = gather_facts(candidate_desk)
    staged_files = promoted_files(facts)

    files, _store = rewrite_candidate(candidate_desk.bucket, staged_files, CHANGE, tmp_path / "first")
    same_files, _store = rewrite_candidate(candidate_desk.bucket, staged_files, CHANGE, tmp_path / "second")

    assert files == same_files
    assert [file.key for file in decide_on_release(facts).files] == [file.key for file in files]


def test_completes_a_release_that_was_killed_at_any_write(
    candidate_desk: ReleaseDesk, tmp_path: Path
) -> None:
    facts = gather_facts(candidate_desk)
    staged_files = promoted_files(facts)
    files, source = rewrite_candidate(candidate_desk.bucket, staged_files, CHANGE, tmp_path / "scratch")
    decision = decide_on_release(facts).model_copy(update={"files": files})

    def release(store: Store) -> None:
        promotion.carry_out(store, decision, source, clock=lambda: NOW, jobs=1)

    undisturbed = MemoryStore()
    release(undisturbed)
    assert stores.audit(undisturbed) >= 8
    assert len(stores.keys_below(undisturbed, documents.DECISIONS)) == 1

    for moment, store in stores.interruptions(MemoryStore(), release):
        stores.audit(store)
        stores.audit_every_write(store)
        release(store)

        assert store.objects == undisturbed.objects, f"killed {moment}"


# Fewer targets


def released_files(desk: ReleaseDesk) -> dict[str, FileRecord]:
    """Return the files of the only release: distribution to file."""
    return release_desk.by_distribution(release_desk.only_decision(desk.releases).files)


def test_dry_run_names_the_targets_that_are_kept_and_the_wheels_that_are_not(
    split_desk: ReleaseDesk,
) -> None:
    assert split_desk.release(*RELEASE, *KEPT_TARGETS, "--dry-run") == 0

    messages = split_desk.read_messages()
    assert "gfx942, gfx1201" in messages
    assert "amd_torch_device_gfx11-2.10" in messages
    assert split_desk.releases.list("") == []


def test_releases_the_device_code_of_kept_targets_and_their_groups(split_desk: ReleaseDesk) -> None:
    objects_before = split_desk.bucket.list("")

    assert split_desk.release(*RELEASE, *KEPT_TARGETS) == 0

    assert split_desk.bucket.list("") == objects_before
    assert released_files(split_desk).keys() == {
        "rocm",
        "rocm-sdk-core",
        "rocm-sdk-device-gfx942",
        "rocm-sdk-device-gfx1201",
        "rocm-bootstrap",
        "torch",
        "torchaudio",
        *(f"amd-torch-device-{group}" for group in KEPT_GROUPS),
    }


def test_decides_on_the_kept_targets_and_names_what_is_left_out(split_released_desk: ReleaseDesk) -> None:
    decision = release_desk.only_decision(split_released_desk.releases)
    names = [key.rpartition("/")[2].partition("-")[0] for key in decision.left_out]
    assert decision.gpu_targets == ("gfx942", "gfx1201")
    assert {canonicalize_name(name) for name in names} == {
        "rocm-sdk-device-gfx1100",
        *(f"amd-torch-device-{group}" for group in DROPPED_GROUPS),
    }


def test_torch_requires_the_device_code_of_kept_targets_alone(split_released_desk: ReleaseDesk) -> None:
    torch_key = released_files(split_released_desk)["torch"].key
    metadata = split_released_desk.releases.read(f"{torch_key}.metadata").decode()
    assert "gfx11" not in metadata
    assert 'amd-torch-device-gfx12-0 == 2.10.0a0+rocm7.10.0; extra == "device-gfx1201"' in metadata
    assert "Requires-Dist: rocm-bootstrap\n" in metadata


def test_copies_a_package_whose_version_is_not_rocms(split_released_desk: ReleaseDesk) -> None:
    for file in release_desk.only_decision(split_released_desk.releases).files:
        is_bootstrap = file.distribution == "rocm-bootstrap"
        assert (file.sha256 == file.staged_sha256) is is_bootstrap


def test_rocm_lists_the_kept_targets_alone(split_released_desk: ReleaseDesk, tmp_path: Path) -> None:
    path = split_released_desk.releases.fetch(
        released_files(split_released_desk)["rocm-sdk-core"].key, tmp_path / "fetched"
    )
    dist_info = wheels.read_members(path)["rocm_sdk_core/_dist_info.py"].decode()
    assert "AVAILABLE_TARGET_FAMILIES = ['gfx942', 'gfx1201']" in dist_info


def test_lists_no_device_code_of_other_targets(split_released_desk: ReleaseDesk) -> None:
    page = split_released_desk.releases.read(f"v2/{FAMILY}/index.html").decode()
    assert "gfx12-0" in page.replace("_", "-")
    assert "gfx1100" not in page


def test_says_that_a_release_of_the_same_targets_was_made_before(split_released_desk: ReleaseDesk) -> None:
    assert split_released_desk.release(*RELEASE, *KEPT_TARGETS) == 0

    assert "already promoted" in split_released_desk.read_messages()


def test_rejects_other_targets_for_a_version_that_was_released(split_released_desk: ReleaseDesk) -> None:
    objects_before = split_released_desk.releases.list("")
    split_released_desk.read_messages()

    assert split_released_desk.release(*RELEASE) == ConflictError.exit_code

    assert "gfx942, gfx1201" in split_released_desk.read_messages()
    assert split_released_desk.releases.list("") == objects_before


@pytest.fixture
def interrupted_desk(split_released_desk: ReleaseDesk) -> ReleaseDesk:
    """Leave a release of fewer targets as an interruption leaves it: its intent, and no decision."""
    decision = release_desk.only_decision(split_released_desk.releases)
    intent = decision.model_copy(update={"status": "promoting"})
    split_released_desk.releases.put_bytes(intent.intent_key, documents.serialized(intent))
    split_released_desk.releases.delete(decision.key)
    split_released_desk.read_messages()
    return split_released_desk


def test_rejects_other_targets_for_a_release_that_was_interrupted(interrupted_desk: ReleaseDesk) -> None:
    assert interrupted_desk.release(*RELEASE) == ConflictError.exit_code
    assert "gfx942, gfx1201" in interrupted_desk.read_messages()


def test_completes_an_interrupted_release_of_the_same_targets(interrupted_desk: ReleaseDesk) -> None:
    assert interrupted_desk.release(*RELEASE, *KEPT_TARGETS) == 0

    decision = release_desk.only_decision(interrupted_desk.releases)
    assert decision.status == "promoted"
    assert interrupted_desk.releases.list(documents.INTENTS) == []


@pytest.mark.parametrize(
    ("options", "error", "phrase"),
    [
        ((*RELEASE, "--gpu-targets", "gfx90a"), MissingInputError, FAMILY),
        ((*RELEASE, "--gpu-targets", "gfx942,gfx90a"), MissingInputError, "gfx90a"),
        (("--gpu-targets", "gfx942"), UsageError, "--gpu-targets"),
    ],
    ids=["no device code would be left", "a target without device code", "no release of a candidate"],
)
def test_rejects_targets_that_a_set_cannot_be_cut_down_to(
    split_desk: ReleaseDesk, options: tuple[str, ...], error: type[FatalError], phrase: str
) -> None:
    assert split_desk.release(*options) == error.exit_code
    assert phrase in split_desk.read_messages()
    assert split_desk.releases.list("") == []
