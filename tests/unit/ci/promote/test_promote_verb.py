from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ci.promote import documents
from ci.promote.documents import Decision
from core.cli import Verb, main
from core.run import records
from core.run.records import Cell

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from core.stores import Store

VERBS = (Verb("stage", "ci.verbs.stage", "stage"), Verb("promote", "ci.verbs.promote", "promote"))
GFX94, GFX1151, NO_RUNNER = "gfx94X-dcgpu", "gfx1151", "gfx900-dgpu"


@pytest.fixture
def stage(runs: Any, bucket: Store) -> Callable[..., int]:
    def call(*words: str) -> int:
        stores = ["--store", runs.store.url, "--distribution-store", bucket.url]
        return main("ci", "", VERBS, ["stage", "--run-id", runs.run_id, *stores, *words])

    return call


@pytest.fixture
def promote(bucket: Store) -> Callable[..., int]:
    def call(*words: str) -> int:
        stores = ["--distribution-store", bucket.url, "--release-type", "nightly", "--by", "the release job"]
        return main("ci", "", VERBS, ["promote", *stores, *words])

    return call


def released(store: Store, family: str) -> list[str]:
    prefix = f"v2/{family}/"
    return [
        one.key.removeprefix(prefix)
        for one in store.list(prefix, recursive=False)
        if one.key.endswith(".whl")
    ]


def decision(store: Store) -> Decision:
    (one,) = store.list(documents.DECISIONS)
    return documents.read(store, one.key, Decision)[0]


def test_a_tested_set_is_promoted_whole_with_pages_and_a_decision(
    runs: Any,
    bucket: Store,
    stage: Callable[..., int],
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for family in (GFX94, GFX1151):
        runs.whole(family, ["cp311", "cp312"])
    stage()
    assert promote() == 0
    for family in (GFX94, GFX1151):
        assert len(released(bucket, family)) == 5
        page = bucket.read(f"v2/{family}/index.html").decode()
        for file in runs.made.values():
            if f"/{family}/" in file.key:
                assert file.sha256 in page
                assert bucket.digest(f"v2/{family}/{file.name}") == file.sha256
                if file.metadata_sha256:
                    assert bucket.digest(f"v2/{family}/{file.name}.metadata") == file.metadata_sha256
    done = decision(bucket)
    assert (done.status, done.release_type, done.by) == ("promoted", "nightly", "the release job")
    assert len(done.files) == 12
    assert {one.rule for one in done.rulings} == {"tests"}
    assert {one.stage for ruling in done.rulings for one in ruling.evidence} == {
        *("test_rocm", "test_smoke", "test_torch"),
    }
    for ruling in done.rulings:
        for evidence in ruling.evidence:
            assert runs.store.digest(evidence.record.key) == evidence.record.sha256
            assert evidence.report
            assert runs.store.digest(evidence.report.key) == evidence.report.sha256
    assert bucket.list(documents.INTENTS) == []
    before = bucket.list("")
    assert promote() == 0
    assert bucket.list("") == before
    assert "was already promoted by the release job" in capsys.readouterr().err


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.partition("error: ")[2]


def nothing_released(store: Store) -> bool:
    return not store.list("v2") and not store.list(documents.DECISIONS) and not store.list(documents.INTENTS)


def test_every_reason_is_given_at_once_cell_by_cell(
    runs: Any,
    bucket: Store,
    stage: Callable[..., int],
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs.whole(GFX94, ["cp311", "cp312"])
    runs.whole(GFX1151, ["cp311"])
    runs.whole(NO_RUNNER, ["cp311", "cp312"], tested=False)
    stage()
    runs.failed("test_smoke", GFX94, "cp311", error="Smoke tests: 3 of 22 failed.\nAgain: nox")
    runs.failed("build_audio", NO_RUNNER, "cp312")
    gone = next(
        one for one in bucket.list(f"v2-staging/{GFX1151}") if one.key.endswith("cp311-linux_x86_64.whl")
    )
    bucket.delete(gone.key)
    assert promote() == 9
    said = refusal(capsys)
    assert f"  {GFX94} linux cp311:\n    test_smoke failed: Smoke tests: 3 of 22 failed.\n" in said
    absent = (f"torch {runs.torch} is not staged", f"torchaudio {runs.audio} is not staged")
    assert f"  {GFX1151} linux cp312:\n    {absent[0]}\n    {absent[1]}\n" in said
    assert f"{gone.key.rpartition('/')[2]} was staged and is gone" in said
    assert "build_audio failed: It broke." in said
    assert "no machine tests this family" in said
    assert "no test_smoke has passed" in said
    assert "--override-by" not in said
    assert nothing_released(bucket)


def test_a_family_without_a_runner_blocks_unless_its_data_excuses_it(
    runs: Any,
    bucket: Store,
    stage: Callable[..., int],
    promote: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs.whole(NO_RUNNER, tested=False)
    stage()
    assert promote() == 9
    assert "Test again; or decide against the tests" in capsys.readouterr().err
    assert nothing_released(bucket)
    # a downstream's own data counts, as when its plan was made
    mine = tmp_path / "mine.toml"
    mine.write_text(f"[runners.families.{NO_RUNNER}.linux]\nbypass_tests_for_releases = true\n")
    assert promote("--config", str(mine), "--dry-run") == 0
    monkeypatch.setenv("CI_CONFIG", str(mine))
    assert promote() == 0
    assert {one.rule for one in decision(bucket).rulings} == {"bypass"}


def test_upstreams_tests_are_needed_where_the_data_says_so_and_heeded_wherever_they_ran(
    runs: Any,
    bucket: Store,
    stage: Callable[..., int],
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for family in (GFX94, GFX1151):
        runs.lock()
        runs.build_rocm(family)
        runs.test_rocm(family)
        for python in ("cp311", "cp312"):
            runs.build(family, python)
            runs.smoke(family, python)
    stage()
    assert promote() == 9
    said = refusal(capsys)
    assert f"for 1 reason:\n  {GFX94} linux cp312:\n    no test_torch has passed\n" in said
    # parts of it prove nothing alone, and one that failed counts at once
    runs.upstream(GFX94, "cp312", "test_torch-1-of-2")
    runs.failed("test_torch_inductor-2-of-2", GFX1151, "cp311", error="3 of 70 failed.")
    assert promote() == 9
    said = refusal(capsys)
    assert "no test_torch has passed" in said
    assert f"{GFX1151} linux cp311:\n    test_torch_inductor-2-of-2 failed: 3 of 70 failed." in said
    runs.upstream(GFX94, "cp312")
    runs.upstream(GFX1151, "cp311", "test_torch_inductor-2-of-2")
    assert promote() == 0
    assert {one.stage for one in decision(bucket).rulings[1].evidence} == {"test_smoke"}


def test_a_downstream_has_gates_of_its_own(
    runs: Any,
    bucket: Store,
    stage: Callable[..., int],
    promote: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs.whole(GFX1151)
    stage()
    mine = tmp_path / "mine.toml"
    mine.write_text('[[promotion.required]]\nstage = "test_torch_distributed"\nplatforms = ["linux"]\n')
    assert promote("--config", str(mine)) == 9
    assert "no test_torch_distributed has passed" in refusal(capsys)
    mine.write_text('[[promotion.required]]\nstage = "test_torch"\nplatform = ["linux"]\n')
    assert promote("--config", str(mine)) == 3
    assert "Did you mean 'platforms'" in capsys.readouterr().err
    mine.write_text('[[promotion.required]]\nstage = "test_torch"\nfamilies = ["gfx1511"]\n')
    assert promote("--config", str(mine)) == 3
    assert "'gfx1511' is not known. Did you mean 'gfx1151'" in capsys.readouterr().err
    assert nothing_released(bucket)


def test_a_person_decides_against_tests_by_name_and_reason_only(
    runs: Any,
    bucket: Store,
    stage: Callable[..., int],
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs.whole(GFX94, ["cp311", "cp312"])
    stage()
    runs.failed("test_smoke", GFX94, "cp311")
    assert promote("--override-by", "A. Person") == 2
    assert promote("--override-reason", "because") == 2
    assert promote("--override-by", " ", "--override-reason", "because") == 2
    capsys.readouterr()
    assert promote("--override-by", "A. Person", "--override-reason", "The runner's driver is old.") == 0
    done = decision(bucket)
    assert done.override == documents.Override(by="A. Person", reason="The runner's driver is old.")
    (overridden,) = [one for one in done.rulings if one.rule == "override"]
    assert (overridden.python, overridden.overridden) == ("cp311", ("test_smoke failed: It broke.",))


def test_nothing_is_promoted_whose_build_failed_whatever_a_person_says(
    runs: Any, bucket: Store, stage: Callable[..., int], promote: Callable[..., int]
) -> None:
    runs.whole(GFX94)
    stage()
    runs.failed("build_vision", GFX94)
    assert promote("--override-by", "A. Person", "--override-reason", "Wanted.") == 9
    assert nothing_released(bucket)


@pytest.mark.parametrize("override", [False, True])
@pytest.mark.parametrize("with_record", [False, True])
def test_a_staging_wheel_that_somebody_overwrote_is_refused(
    runs: Any,
    bucket: Store,
    stage: Callable[..., int],
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    *,
    override: bool,
    with_record: bool,
) -> None:
    runs.whole(GFX94)
    stage()
    key = next(
        one.key
        for one in bucket.list(f"v2-staging/{GFX94}")
        if "torch-2" in one.key and one.key.endswith(".whl")
    )
    bucket.put_bytes(key, b"other bytes")
    if with_record:
        # whoever can write a wheel can write the staging record, too; the run's own records disagree
        where = documents.staging_record(GFX94, "17-linux")
        document = json.loads(bucket.read(where))
        for file in document["files"]:
            if file["key"] == key:
                file |= {"sha256": bucket.digest(key), "size": 11}
        bucket.put_bytes(where, json.dumps(document).encode())
    words = ["--override-by", "A. Person", "--override-reason", "Wanted."] if override else []
    assert promote(*words) == 9
    said = refusal(capsys)
    assert (
        "is not what the run's records name" if with_record else "was replaced after it was staged"
    ) in said
    assert nothing_released(bucket)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"inputs": {"installed": False}}, "it tested what an environment held already"),
        ({"inputs": {"arguments": ["-k", "versions", "uv"]}}, "it ran with"),
        ({"inputs": {"gpu": []}}, "it ran on a machine without a GPU"),
        ({"details": {"report": {"key": "17-linux/reports/nowhere.xml", "sha256": "0" * 64}}}, "is gone"),
        ({"details": {"report": None}}, "its record names no report"),
        ({"details": {"tests": {"tests": 3, "failures": 0, "errors": 0, "skipped": 3}}}, "no test passed"),
        ({"details": {"tests": {"tests": 3, "failures": 1, "errors": 0, "skipped": 0}}}, "1 tests failed"),
        ({"details": {"tests": None}}, "its record holds no totals"),
        ({"inputs": {"files": {}}}, "test_smoke names no torch-2"),
    ],
)
def test_a_test_that_no_release_can_rest_on_is_none(
    runs: Any,
    bucket: Store,
    stage: Callable[..., int],
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    facts: dict[str, Any],
    said: str,
) -> None:
    runs.whole(GFX94)
    runs.smoke(GFX94, "cp312", **facts)
    stage()
    assert promote() == 9
    assert said in refusal(capsys)
    assert nothing_released(bucket)


def test_tests_of_other_bytes_and_a_report_that_was_replaced_count_for_nothing(
    runs: Any,
    stage: Callable[..., int],
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs.whole(GFX94)
    stage()
    cell = Cell(python="cp312", torch_ref=runs.ref)
    report = f"{runs.outputs.reports_prefix(GFX94)}/{records.record_name('test_smoke', cell)}.xml"
    runs.store.put_bytes(report, b"<testsuites/>")
    assert promote() == 9
    assert f"its report {report.rpartition('/')[2]} was replaced" in refusal(capsys)
    named = {one.name: "0" * 64 for one in runs.made.values()}
    runs.smoke(GFX94, "cp312", inputs={"files": named})
    assert promote() == 9
    assert "test_smoke ran on other bytes of torch-2.10" in refusal(capsys)


def test_families_pythons_and_platforms_that_were_asked_for_must_be_there(
    runs: Any,
    bucket: Store,
    stage: Callable[..., int],
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs.whole(GFX94)
    runs.whole(GFX1151)
    stage()
    assert promote("--gpu-family", f"{GFX94};gfx950-dcgpu") == 9
    assert f"gfx950-dcgpu:\n    no torch {runs.torch} is staged" in refusal(capsys)
    assert promote("--gpu-family", GFX94, "--pythons", "3.12,3.13") == 9
    assert f"{GFX94} linux cp313:\n    torch {runs.torch} is not staged" in refusal(capsys)
    assert promote("--gpu-family", GFX94, "--platform", "windows") == 9
    assert "windows:\n    no torch" in refusal(capsys)
    assert nothing_released(bucket)
    assert promote("--gpu-family", GFX94, "--pythons", "3.12") == 0
    assert released(bucket, GFX94)
    assert not bucket.list(f"v2/{GFX1151}")


def test_a_matrix_says_which_cells_must_be_there(
    runs: Any,
    stage: Callable[..., int],
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs.ref = "nightly"
    runs.whole("gfx94X-dcgpu")
    stage()
    assert promote("--matrix", "ci", "--platform", "linux") == 0
    assert promote("--matrix", "release", "--platform", "linux") == 9
    said = refusal(capsys)
    assert "gfx950-dcgpu linux:\n    no torch" in said
    assert f"{GFX94} linux cp313:\n    torch {runs.torch} is not staged" in said


def test_rocm_packages_alone_are_a_set_too_and_serve_torch_from_the_index(
    runs: Any,
    bucket: Store,
    stage: Callable[..., int],
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs.whole(GFX94)
    stage("--distributions", "pytorch")
    assert promote() == 9
    assert "requires rocm[libraries]==7.10.0a20251120, which the index would not have" in refusal(capsys)
    stage("--distributions", "rocm")
    assert promote("--rocm-version", runs.rocm) == 0
    assert released(bucket, GFX94) == ["rocm_sdk_core-7.10.0a20251120-py3-none-linux_x86_64.whl"]
    assert promote() == 0
    assert len(released(bucket, GFX94)) == 3


def test_cells_of_other_commits_are_no_set(
    runs: Any,
    stage: Callable[..., int],
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs.whole(GFX94)
    stage()
    runs.run_id = "18"
    runs.whole(GFX1151)
    runs.lock(commit="b")
    stage()
    assert promote() == 9
    assert "torch was built from aaaaaaaaaaaa, for gfx1151 linux from bbbbbbbbbbbb" in refusal(capsys)


def test_the_version_is_chosen_where_there_is_one(
    runs: Any,
    stage: Callable[..., int],
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert promote() == 2
    assert "No torch versions are staged" in capsys.readouterr().err
    runs.whole(GFX94)
    stage()
    runs.run_id, runs.rocm = "18", "7.10.0a20251121"
    runs.whole(GFX94)
    stage()
    assert promote() == 2
    assert "2 torch versions are staged" in capsys.readouterr().err
    assert promote("--torch-version", "2.10.0a0+rocm7.10.0a20251122") == 4
    assert "Did you mean '2.10.0a0+rocm7.10.0a2025112" in capsys.readouterr().err
    assert promote("--torch-version", runs.torch) == 0
    assert promote("--torch-version", runs.torch, "--rocm-version", "7.10.0") == 2


def test_a_dry_run_shows_the_decision_and_the_plan(
    runs: Any,
    bucket: Store,
    stage: Callable[..., int],
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs.whole(GFX94)
    stage()
    assert promote("--dry-run") == 0
    said = capsys.readouterr().err
    assert nothing_released(bucket)
    assert f"{GFX94}  linux     cp312   2      tests  test_smoke" in said
    assert f"v2/{GFX94}/torch-2.10.0a0+rocm7.10.0a20251120-cp312-cp312-linux_x86_64.whl" in said
    assert "4 files" in said
    assert promote() == 0
    assert promote("--dry-run") == 0
    assert "already promoted" in capsys.readouterr().err


def test_a_run_whose_records_are_gone_proves_nothing(
    runs: Any,
    bucket: Store,
    stage: Callable[..., int],
    promote: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs.whole(GFX94)
    stage()
    for one in runs.store.list("17-linux/manifests"):
        runs.store.delete(one.key)
    assert promote() == 9
    assert f"run 17 in {runs.store.url} has no records of it" in refusal(capsys)
    assert nothing_released(bucket)
