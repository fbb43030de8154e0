import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from ci.promote import documents, promotion
from ci.promote.candidates import promised, renamed, rewritten
from ci.promote.facts import Facts, SetRequest, gather
from ci.promote.version_change import final_of
from core.cli.options import Common
from core.errors import CheckError, MissingInputError
from core.stores import Store
from core.wheel import read_metadata
from tests.kit.memory_store import MemoryStore
from tests.kit.stores import stopped_everywhere
from tests.unit.ci.promote.conftest import DATE, Desk, Runs, decided, decision_in

FAMILIES = ("gfx94X-dcgpu", "gfx1151")
WORDS = ("--from-version", "7.10.0rc2", "--version", "7.10.0")


TARGETS = ("gfx942", "gfx1100", "gfx1201")


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch of a kilobyte would be found too small, and the scratch folder is the checkout's."""
    monkeypatch.setattr(Common, "cache", property(lambda _self: tmp_path / "cache"))
    monkeypatch.setattr("ci.promote.candidates.check_wheel", lambda *_wheel, **_how: ())


@pytest.fixture
def candidate(desk: Desk) -> Runs:
    """Stage a tested release candidate of two families."""
    desk.runs.rocm = "7.10.0rc2"
    for family in FAMILIES:
        desk.runs.whole(family)
    assert desk.stage() == 0
    return desk.runs


@pytest.fixture
def split_candidate(desk: Desk) -> Runs:
    """Stage a tested release candidate in the split layout, for targets of two groups."""
    desk.runs.rocm, desk.runs.devices = "7.10.0rc2", TARGETS
    desk.runs.whole(FAMILIES[0])
    assert desk.stage() == 0
    return desk.runs


@pytest.mark.usefixtures("candidate")
def test_a_candidates_wheels_are_released_under_the_releases_version(desk: Desk, tmp_path: Path) -> None:
    before = desk.bucket.list("")
    assert desk.release(*WORDS, "--dry-run") == 0
    assert desk.releases.list("") == []
    assert "v2/gfx1151/torch-2.10.0a0+rocm7.10.0-cp312-cp312-linux_x86_64.whl" in desk.said()
    assert desk.release(*WORDS) == 0
    assert desk.bucket.list("") == before
    decision = decision_in(desk.releases)
    assert decision.set_name == "torch-2.10.0a0+rocm7.10.0"
    assert (decision.from_version, decision.to_version) == ("7.10.0rc2", "7.10.0")
    assert len(decision.files) == 8
    for file in decision.files:
        assert file.sha256 == desk.releases.digest(file.key) != file.staged_sha256
        assert file.staged_sha256 == desk.bucket.digest(file.staged_key)
        assert "rc2" not in file.name
        assert "rc2" in file.staged_key
        assert file.sha256 in desk.releases.read(f"v2/{file.family}/index.html").decode()
        if file.name.endswith(".whl"):
            metadata = read_metadata(desk.releases.fetch(file.key, tmp_path / "got"))
            assert str(metadata.version) == file.version
            assert "rc2" not in metadata.raw.decode()
            assert desk.releases.read(f"{file.key}.metadata") == metadata.raw
    after = desk.releases.list("")
    assert desk.release(*WORDS) == 0
    assert desk.releases.list("") == after
    assert "was already promoted" in desk.said()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from-version", "7.10.0rc2"], "with --from-version and --version"),
        (["--version", "7.10.0"], "with --from-version and --version"),
        (["--from-version", "7.10.0rc2", "--version", "7.11.0"], "becomes 7.10.0, not 7.11.0"),
        (["--from-version", "7.10.0", "--version", "7.10.0"], "is not a release candidate"),
        (["--from-version", "7.10.0rc1", "--version", "7.10.0"], "No torch versions of ROCm 7.10.0rc1"),
    ],
)
@pytest.mark.usefixtures("candidate")
def test_what_is_no_release_of_a_candidate_is_refused(desk: Desk, words: list[str], said: str) -> None:
    assert desk.release(*words) == 2
    assert said in desk.said()
    assert desk.releases.list("") == []


def test_a_candidate_becomes_a_release_and_nothing_else(desk: Desk) -> None:
    assert desk.promote(*WORDS) == 2
    assert "A release candidate does not become a nightly." in desk.said()


def test_the_source_locks_say_what_a_candidates_set_must_hold(
    desk: Desk, candidate: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()  # wheels are checked
    request = SetRequest(distribution="torch", version=candidate.torch, families=FAMILIES[:1])
    facts = gather(desk.bucket, request, lambda _address: candidate.store)
    change = final_of("7.10.0rc2")
    wanted = promised(facts, change)
    (family,) = wanted
    assert {name: (one.version, one.requires) for name, one in wanted[family].items()} == {
        "torch": (candidate.torch, ("rocm[libraries]==7.10.0rc2",)),
        "torchaudio": (candidate.audio, (f"torch=={candidate.torch}",)),
    }
    staged = promotion.promoted_files(facts)
    fewer = tuple(one for one in staged if one.distribution != "torchaudio")
    with pytest.raises(MissingInputError, match="has no wheel of torchaudio, which its source lock promises"):
        rewritten(desk.bucket, fewer, change, tmp_path / "fewer", wanted)
    other = {family: {"torch": replace(wanted[family]["torch"], requires=("triton==3.7.0",))}}
    with pytest.raises(CheckError, match="triton"):
        rewritten(desk.bucket, staged, change, tmp_path / "other", other)


def test_a_distribution_that_locks_promise_in_two_versions_is_not_promised() -> None:
    linux = documents.Cell(family="gfx1151", platform="linux", python="cp312")
    versions = {"torch": "2.10.0+rocm7.10.0rc2", "torchaudio": "2.9.0+rocm7.10.0rc2"}
    other = versions | {"torchaudio": "2.10.0+rocm7.10.0rc2", "triton": "3.5.0+rocm7.10.0rc2"}
    facts = Facts(set_name="", wheels=(), promised={linux: versions, replace(linux, python="cp311"): other})
    (found,) = promised(facts, final_of("7.10.0rc2")).values()
    assert set(found) == {"torch", "triton"}
    assert found["torch"].requires == ("rocm[libraries]==7.10.0rc2", "triton==3.5.0+rocm7.10.0rc2")


def test_a_release_killed_at_any_write_can_be_completed(desk: Desk, candidate: Runs, tmp_path: Path) -> None:
    request = SetRequest(distribution="torch", version=candidate.torch, families=FAMILIES[:1])
    facts = gather(desk.bucket, request, lambda _address: candidate.store)
    change = final_of("7.10.0rc2")
    staged = promotion.promoted_files(facts)
    files, origin = rewritten(desk.bucket, staged, change, tmp_path / "scratch")
    # the same files give the same bytes, so that a second run finds nothing else in its place
    assert rewritten(desk.bucket, staged, change, tmp_path / "again")[0] == files
    assert [one.key for one in renamed(staged, change)] == [one.key for one in files]
    decision = decided(facts, files, from_version=change.old, to_version=change.new)

    def release(store: Store) -> None:
        promotion.carry_out(store, decision, origin, now=lambda: DATE, jobs=1)

    ended = stopped_everywhere(MemoryStore(), release, "v2")
    assert len([key for key in ended.objects if key.startswith(documents.DECISIONS)]) == 1


@pytest.mark.usefixtures("split_candidate")
def test_a_release_takes_some_of_a_candidates_targets_and_their_groups(desk: Desk, tmp_path: Path) -> None:
    words = (*WORDS, "--gpu-targets", "gfx942;gfx1201")
    before = desk.bucket.list("")
    assert desk.release(*words, "--dry-run") == 0
    said = desk.said()
    assert "Device code is kept for gfx942, gfx1201. Left out: amd_torch_device_gfx11-2.10" in said
    assert desk.release(*words) == 0
    assert desk.bucket.list("") == before
    decision = decision_in(desk.releases)
    assert decision.gpu_targets == ("gfx942", "gfx1201")
    gone = {"rocm-sdk-device-gfx1100"} | {
        f"amd-torch-device-{gpu}" for gpu in ("gfx1100", "gfx110x", "gfx11")
    }
    assert {canonicalize_name(key.rpartition("/")[2].partition("-")[0]) for key in decision.left_out} == gone
    groups = ("gfx942", "gfx1201", "gfx9-4", "gfx9", "gfx12-0", "gfx12")
    assert {one.distribution for one in decision.files} == {
        *("rocm", "rocm-sdk-core", "rocm-sdk-device-gfx942", "rocm-sdk-device-gfx1201", "rocm-bootstrap"),
        *("torch", "torchaudio", *(f"amd-torch-device-{gpu}" for gpu in groups)),
    }
    names = {one.distribution: one for one in decision.files}
    torch = desk.releases.read(f"{names['torch'].key}.metadata").decode()
    assert "gfx11" not in torch
    assert 'amd-torch-device-gfx12-0 == 2.10.0a0+rocm7.10.0; extra == "device-gfx1201"' in torch
    assert "Requires-Dist: rocm-bootstrap\n" in torch
    # it is ours, and its version is not ROCm's
    assert names["rocm-bootstrap"].sha256 == names["rocm-bootstrap"].staged_sha256
    core = desk.releases.fetch(names["rocm-sdk-core"].key, tmp_path / "got")
    with zipfile.ZipFile(core) as archive:
        text = archive.read("rocm_sdk_core/_dist_info.py").decode()
    assert "AVAILABLE_TARGET_FAMILIES = ['gfx942', 'gfx1201']" in text
    page = desk.releases.read(f"v2/{FAMILIES[0]}/index.html").decode()
    assert "gfx12-0" in page.replace("_", "-")
    assert "gfx1100" not in page
    assert desk.release(*words) == 0
    assert "was already promoted" in desk.said()
    after = desk.releases.list("")
    assert desk.release(*WORDS) == 14
    assert "was released with device code for gfx942, gfx1201 by" in desk.said()
    assert desk.releases.list("") == after
    # as an interruption leaves it
    begun = decision.model_copy(update={"status": "promoting"})
    desk.releases.put_bytes(begun.intent_key, documents.serialized(begun))
    desk.releases.delete(decision.key)
    assert desk.release(*WORDS) == 14
    assert "is being released with device code for gfx942, gfx1201 by" in desk.said()
    assert desk.release(*words) == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((*WORDS, "--gpu-targets", "gfx90a"), 4, "no device code of gfx94X-dcgpu would be left"),
        ((*WORDS, "--gpu-targets", "gfx942,gfx90a"), 4, "has no device packages of ROCm for gfx90a"),
        (("--gpu-targets", "gfx942"), 2, "a name stands for the same bytes forever"),
    ],
)
@pytest.mark.usefixtures("split_candidate")
def test_keep_lists_that_are_refused(desk: Desk, words: tuple[str, ...], code: int, said: str) -> None:
    assert desk.release(*words) == code
    assert said in desk.said()
    assert desk.releases.list("") == []
