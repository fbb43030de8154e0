from __future__ import annotations

import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.utils import canonicalize_name

from ci.plan.runners import runners
from ci.promote import documents, promotion
from ci.promote.candidates import final_of, promised, renamed, rewritten
from ci.promote.documents import Cell, Decision
from ci.promote.facts import Facts, SetRequest, gather
from ci.promote.policy import Rules, decide, gates
from ci.promote.promotion import Circumstances, decision_of, promoted_files
from core.cli import Verb, main
from core.errors import CheckError, MissingInputError
from core.stores.directory import DirectoryStore
from core.wheel import read_metadata
from tests.unit.ci.promote.conftest import DATE
from tests.unit.ci.promote.memory_store import MemoryStore, stopped_everywhere

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.stores import Store

VERBS = (Verb("stage", "ci.verbs.stage", "stage"), Verb("promote", "ci.verbs.promote", "promote"))
FAMILIES = ("gfx94X-dcgpu", "gfx1151")
WORDS = ("--from-version", "7.10.0rc2", "--version", "7.10.0")


@pytest.fixture
def releases(tmp_path: Path) -> Store:
    return DirectoryStore(tmp_path / "releases")


@pytest.fixture
def candidate(runs: Any, bucket: Store) -> Any:
    """Stage a tested release candidate of two families."""
    runs.rocm = "7.10.0rc2"
    for family in FAMILIES:
        runs.whole(family)
    words = ["--run-id", "17", "--store", runs.store.url, "--distribution-store", bucket.url]
    assert main("ci", "", VERBS, ["stage", *words]) == 0
    return runs


@pytest.fixture
def promote(
    bucket: Store, releases: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    from core.cli import options

    # the scratch folder is the checkout's
    monkeypatch.setattr(options.Common, "cache", property(lambda _self: tmp_path / "cache"))
    # a torch of a kilobyte would be found too small
    monkeypatch.setattr("ci.promote.candidates.check_wheel", lambda *_wheel, **_how: ())

    def call(*words: str) -> int:
        stores = [
            "--from-store",
            bucket.url,
            "--distribution-store",
            releases.url,
            "--release-type",
            "release",
        ]
        return main("ci", "", VERBS, ["promote", *stores, *words])

    return call


@pytest.mark.usefixtures("candidate")
def test_a_candidates_wheels_are_released_under_the_releases_version(
    bucket: Store, releases: Store, promote: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    before = bucket.list("")
    assert promote(*WORDS, "--dry-run") == 0
    assert releases.list("") == []
    assert "v2/gfx1151/torch-2.10.0a0+rocm7.10.0-cp312-cp312-linux_x86_64.whl" in capsys.readouterr().err
    assert promote(*WORDS) == 0
    assert bucket.list("") == before
    (one,) = releases.list(documents.DECISIONS)
    decision = documents.read(releases, one.key, Decision)[0]
    assert decision.set_name == "torch-2.10.0a0+rocm7.10.0"
    assert (decision.from_version, decision.to_version) == ("7.10.0rc2", "7.10.0")
    assert len(decision.files) == 8
    for file in decision.files:
        assert file.sha256 == releases.digest(file.key) != file.staged_sha256
        assert file.staged_sha256 == bucket.digest(file.staged_key)
        assert "rc2" not in file.name
        assert "rc2" in file.staged_key
        assert file.sha256 in releases.read(f"v2/{file.family}/index.html").decode()
        if file.name.endswith(".whl"):
            metadata = read_metadata(DirectoryStore.fetch(releases, file.key, None))  # type: ignore[arg-type]
            assert str(metadata.version) == file.version
            assert "rc2" not in metadata.raw.decode()
            assert releases.read(f"{file.key}.metadata") == metadata.raw
    after = releases.list("")
    assert promote(*WORDS) == 0
    assert releases.list("") == after
    assert "was already promoted" in capsys.readouterr().err


@pytest.mark.usefixtures("candidate")
def test_a_candidate_that_was_not_tested_becomes_no_release(
    runs: Any, releases: Store, promote: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    runs.failed("test_smoke", FAMILIES[0])
    assert promote(*WORDS) == 9
    assert "test_smoke failed" in capsys.readouterr().err
    assert releases.list("") == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--from-version", "7.10.0rc2"], "with --from-version and --version"),
        (["--version", "7.10.0"], "with --from-version and --version"),
        (["--from-version", "7.10.0rc2", "--version", "7.11.0"], "becomes 7.10.0, not 7.11.0"),
        (["--from-version", "7.10.0", "--version", "7.10.0"], "is no release candidate"),
        (["--from-version", "7.10.0rc1", "--version", "7.10.0"], "No torch versions of ROCm 7.10.0rc1"),
    ],
)
@pytest.mark.usefixtures("candidate")
def test_what_is_no_release_of_a_candidate_is_refused(
    releases: Store,
    promote: Callable[..., int],
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert promote(*words) == 2
    assert said in capsys.readouterr().err
    assert releases.list("") == []


def test_a_candidate_becomes_a_release_and_nothing_else(
    releases: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--distribution-store", releases.url, "--release-type", "nightly"]
    assert main("ci", "", VERBS, ["promote", *store, *WORDS]) == 2
    assert "A release candidate does not become a nightly." in capsys.readouterr().err


def test_the_source_locks_say_what_a_candidates_set_must_hold(
    candidate: Any, bucket: Store, tmp_path: Path
) -> None:
    request = SetRequest(distribution="torch", version=candidate.torch, families=FAMILIES[:1])
    facts = gather(bucket, request, lambda _address: candidate.store)
    change = final_of("7.10.0rc2")
    wanted = promised(facts, change)
    (family,) = wanted
    assert {name: (one.version, one.requires) for name, one in wanted[family].items()} == {
        "torch": (candidate.torch, ("rocm[libraries]==7.10.0rc2",)),
        "torchaudio": (candidate.audio, (f"torch=={candidate.torch}",)),
    }
    staged = promoted_files(facts)
    fewer = tuple(one for one in staged if one.distribution != "torchaudio")
    with pytest.raises(MissingInputError, match="has no wheel of torchaudio, which its source lock promises"):
        rewritten(bucket, fewer, change, tmp_path / "fewer", wanted)
    other = {family: {"torch": replace(wanted[family]["torch"], requires=("triton==3.7.0",))}}
    with pytest.raises(CheckError, match="triton"):
        rewritten(bucket, staged, change, tmp_path / "other", other)


def test_a_distribution_that_locks_promise_in_two_versions_is_not_promised() -> None:
    linux = Cell(family="gfx1151", platform="linux", python="cp312")
    versions = {"torch": "2.10.0+rocm7.10.0rc2", "torchaudio": "2.9.0+rocm7.10.0rc2"}
    other = versions | {"torchaudio": "2.10.0+rocm7.10.0rc2", "triton": "3.5.0+rocm7.10.0rc2"}
    facts = Facts(set_name="", wheels=(), promised={linux: versions, replace(linux, python="cp311"): other})
    (found,) = promised(facts, final_of("7.10.0rc2")).values()
    assert set(found) == {"torch", "triton"}
    assert found["torch"].requires == ("rocm[libraries]==7.10.0rc2", "triton==3.5.0+rocm7.10.0rc2")


def test_a_release_that_is_killed_at_any_write_is_run_again_and_ends_the_same(
    candidate: Any, bucket: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci.promote.candidates.check_wheel", lambda *_wheel, **_how: ())
    request = SetRequest(distribution="torch", version=candidate.torch, families=FAMILIES[:1])
    facts = gather(bucket, request, lambda _address: candidate.store)
    verdict = decide(facts, Rules(runners=runners(), gates=gates()))
    change = final_of("7.10.0rc2")
    told = Circumstances(
        set_name="torch-2.10.0a0+rocm7.10.0",
        release_type="release",
        by="one",
        decided=DATE,
        from_version=change.old,
        to_version=change.new,
    )
    staged = promoted_files(facts)
    planned = decision_of(facts, verdict, renamed(staged, change), told)

    final = rewritten(bucket, staged, change, tmp_path / "scratch")
    # the same files give the same bytes, so that a second run finds nothing else in its place
    assert rewritten(bucket, staged, change, tmp_path / "again").files == final.files
    decision = planned.model_copy(update={"files": final.files})

    def release(store: Any) -> None:
        promotion.carry_out(store, decision, final.origin, now=lambda: DATE, jobs=1)

    ended = stopped_everywhere(MemoryStore(), release, "v2")
    assert len([key for key in ended.objects if key.startswith(documents.DECISIONS)]) == 1


@pytest.fixture
def split_candidate(runs: Any, bucket: Store) -> Any:
    """Stage a tested release candidate in the split layout, for targets of two groups."""
    runs.rocm, runs.devices = "7.10.0rc2", ("gfx942", "gfx1100", "gfx1201")
    runs.whole(FAMILIES[0])
    words = ["--run-id", "17", "--store", runs.store.url, "--distribution-store", bucket.url]
    assert main("ci", "", VERBS, ["stage", *words]) == 0
    return runs


@pytest.mark.usefixtures("split_candidate")
def test_a_release_takes_some_of_a_candidates_targets_and_their_groups(
    bucket: Store, releases: Store, promote: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*WORDS, "--gpu-targets", "gfx942;gfx1201")
    before = bucket.list("")
    assert promote(*words, "--dry-run") == 0
    said = capsys.readouterr().err
    assert "Device code is kept for gfx942, gfx1201. Left out: amd_torch_device_gfx11-2.10" in said
    assert promote(*words) == 0
    assert bucket.list("") == before
    (one,) = releases.list(documents.DECISIONS)
    decision = documents.read(releases, one.key, Decision)[0]
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
    torch = releases.read(f"{names['torch'].key}.metadata").decode()
    assert "gfx11" not in torch
    assert 'amd-torch-device-gfx12-0 == 2.10.0a0+rocm7.10.0; extra == "device-gfx1201"' in torch
    assert "Requires-Dist: rocm-bootstrap\n" in torch
    # it is ours, and its version is not ROCm's
    assert names["rocm-bootstrap"].sha256 == names["rocm-bootstrap"].staged_sha256
    core = releases.fetch(names["rocm-sdk-core"].key, Path(str(releases.url)) / "got")
    with zipfile.ZipFile(core) as archive:
        text = archive.read("rocm_sdk_core/_dist_info.py").decode()
    assert "AVAILABLE_TARGET_FAMILIES = ['gfx942', 'gfx1201']" in text
    page = releases.read(f"v2/{FAMILIES[0]}/index.html").decode()
    assert "gfx12-0" in page.replace("_", "-")
    assert "gfx1100" not in page
    capsys.readouterr()
    assert promote(*words) == 0
    assert "was already promoted" in capsys.readouterr().err
    after = releases.list("")
    assert promote(*WORDS) == 14
    assert "was released with device code for gfx942, gfx1201 by" in capsys.readouterr().err
    assert releases.list("") == after


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((*WORDS, "--gpu-targets", "gfx90a"), 4, "no device code of gfx94X-dcgpu would be left"),
        ((*WORDS, "--gpu-targets", "gfx942,gfx90a"), 4, "has no device packages of ROCm for gfx90a"),
        (("--gpu-targets", "gfx942"), 2, "a name stands for the same bytes for ever"),
    ],
)
@pytest.mark.usefixtures("split_candidate")
def test_keep_lists_that_are_refused(
    words: tuple[str, ...],
    code: int,
    said: str,
    releases: Store,
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert promote(*words) == code
    assert said in capsys.readouterr().err
    assert releases.list("") == []


@pytest.mark.parametrize(
    ("gone", "by"),
    [
        ("amd-torch-device-gfx11", "amd_torch_device_gfx1100"),
        ("amd-torch-device-gfx12-0", "torch"),
        ("amd-torch-device-gfx1201", "torch"),
        ("rocm-sdk-device-gfx942", "amd_torch_device_gfx942"),
        ("rocm-bootstrap", "torch"),
    ],
)
def test_a_set_that_lacks_a_device_wheel_or_that_of_a_group_is_refused_by_name(
    gone: str,
    by: str,
    runs: Any,
    bucket: Store,
    releases: Store,
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs.rocm, runs.devices = "7.10.0rc2", ("gfx942", "gfx1100", "gfx1201")
    runs.whole(FAMILIES[0])
    there = ",".join({one.distribution for one in runs.made.values()} - {gone})
    words = ["--run-id", "17", "--store", runs.store.url, "--distribution-store", bucket.url]
    assert main("ci", "", VERBS, ["stage", *words, "--packages", there]) == 0
    assert promote(*WORDS) == 9
    said = capsys.readouterr().err
    assert re.search(rf"{by}-\S+ requires {gone}\b.*, which the index would not have", said)
    assert releases.list("") == []
