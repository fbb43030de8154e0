import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ci.promote import documents
from core.run import key_name, records
from tests.unit.ci.promote.conftest import Desk, counted

GFX94, GFX1151, NO_RUNNER = "gfx94X-dcgpu", "gfx1151", "gfx900-dgpu"


def test_a_tested_set_is_promoted_whole_with_pages_and_a_decision(desk: Desk) -> None:
    desk.staged(GFX94, GFX1151, pythons=["cp311", "cp312"])
    assert desk.promote() == 0
    for family in (GFX94, GFX1151):
        assert len(desk.released(family)) == 5
        page = desk.bucket.read(f"v2/{family}/index.html").decode()
        for file in desk.runs.made.values():
            if f"/{family}/" in file.key:
                assert file.sha256 in page
                assert desk.bucket.digest(f"v2/{family}/{file.name}") == file.sha256
                if file.metadata_sha256:
                    assert desk.bucket.digest(f"v2/{family}/{file.name}.metadata") == file.metadata_sha256
    done = desk.decision()
    assert (done.status, done.release_type, done.by) == ("promoted", "nightly", "the release job")
    assert len(done.files) == 12
    assert {one.rule for one in done.rulings} == {"tests"}
    assert {one.stage for ruling in done.rulings for one in ruling.evidence} == {
        *("test_rocm", "test_smoke", "test_torch")
    }
    for ruling in done.rulings:
        for evidence in ruling.evidence:
            assert desk.runs.store.digest(evidence.record.key) == evidence.record.sha256
            assert evidence.report
            assert desk.runs.store.digest(evidence.report.key) == evidence.report.sha256
    assert desk.bucket.list(documents.INTENTS) == []
    before = desk.bucket.list("")
    assert desk.promote() == 0
    assert desk.bucket.list("") == before
    assert "was already promoted by the release job" in desk.said()


def test_every_reason_is_given_at_once_cell_by_cell(desk: Desk) -> None:
    desk.runs.whole(GFX94, ["cp311", "cp312"])
    desk.runs.whole(GFX1151, ["cp311"])
    desk.staged(NO_RUNNER, pythons=["cp311", "cp312"], tested=False)
    desk.runs.failed("test_smoke", GFX94, "cp311", error="Smoke tests: 3 of 22 failed.\nAgain: nox")
    desk.runs.failed("build_audio", NO_RUNNER, "cp312")
    gone = next(
        one for one in desk.bucket.list(f"v2-staging/{GFX1151}") if one.key.endswith("cp311-linux_x86_64.whl")
    )
    desk.bucket.delete(gone.key)
    said = desk.refused()
    assert f"  {GFX94} linux cp311:\n    test_smoke failed: Smoke tests: 3 of 22 failed.\n" in said
    absent = (f"torch {desk.runs.torch} is not staged", f"torchaudio {desk.runs.audio} is not staged")
    assert f"  {GFX1151} linux cp312:\n    {absent[0]}\n    {absent[1]}\n" in said
    assert f"{gone.key.rpartition('/')[2]} was staged and is gone" in said
    assert "build_audio failed: It broke." in said
    assert "no machine tests this family" in said
    assert "no test_smoke has passed" in said
    assert "--override-by" not in said
    assert desk.released_nothing()


def test_no_runner_blocks_unless_excused(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.staged(NO_RUNNER, tested=False)
    assert desk.promote() == 9
    said = desk.said()
    assert re.search("tests: nox -s promote -- .+ --override-by NAME --override-reason TEXT\n", said)
    assert desk.released_nothing()
    # a downstream's own data counts, as when its plan was made
    mine = tmp_path / "mine.toml"
    mine.write_text(f"[runners.families.{NO_RUNNER}.linux]\nbypass_tests_for_releases = true\n")
    assert desk.promote("--config-file", str(mine), "--dry-run") == 0
    monkeypatch.setenv("CI_CONFIG", str(mine))
    assert desk.promote() == 0
    assert {one.rule for one in desk.decision().rulings} == {"bypass"}


def test_a_downstream_has_gates_of_its_own(desk: Desk, tmp_path: Path) -> None:
    desk.staged(GFX1151)
    mine = tmp_path / "mine.toml"
    required = '[[promotion.required]]\nplatforms = ["linux"]\nrelease_types = ["nightly"]\n'
    mine.write_text(f'{required}stage = "test_torch_distributed"\n')
    assert "no test_torch_distributed has passed" in desk.refused("--config-file", str(mine))
    mine.write_text('[[promotion.required]]\nstage = "test_torch"\nplatform = ["linux"]\n')
    assert desk.promote("--config-file", str(mine)) == 3
    assert "Did you mean 'platforms'" in desk.said()
    mine.write_text('[[promotion.required]]\nstage = "test_torch"\nfamilies = ["gfx1511"]\n')
    assert desk.promote("--config-file", str(mine)) == 3
    assert "unknown GPU family 'gfx1511'. Did you mean 'gfx1151'" in desk.said()
    assert desk.released_nothing()


def test_a_person_decides_against_tests_by_name_and_reason_only(desk: Desk) -> None:
    desk.staged(GFX94, pythons=["cp311", "cp312"])
    desk.runs.failed("test_smoke", GFX94, "cp311")
    assert desk.promote("--override-by", "A. Person") == 2
    assert desk.promote("--override-reason", "because") == 2
    assert desk.promote("--override-by", " ", "--override-reason", "because") == 2
    assert desk.promote("--override-by", "A. Person", "--override-reason", "The runner's driver is old.") == 0
    done = desk.decision()
    assert done.override == documents.Override(by="A. Person", reason="The runner's driver is old.")
    (overridden,) = [one for one in done.rulings if one.rule == "override"]
    assert (overridden.python, overridden.overridden) == ("cp311", ("test_smoke failed: It broke.",))


@pytest.mark.parametrize("override", [False, True])
@pytest.mark.parametrize("with_record", [False, True])
def test_an_overwritten_staged_wheel_is_refused(desk: Desk, *, override: bool, with_record: bool) -> None:
    desk.staged(GFX94)
    key = next(
        one.key
        for one in desk.bucket.list(f"v2-staging/{GFX94}")
        if "torch-2" in one.key and one.key.endswith(".whl")
    )
    desk.bucket.put_bytes(key, b"other bytes")
    if with_record:
        # whoever can write a wheel can write the staging record, too; the run's own records disagree
        where = documents.staging_record(GFX94, "17-linux")
        document = json.loads(desk.bucket.read(where))
        for file in document["files"]:
            if file["key"] == key:
                file |= {"sha256": desk.bucket.digest(key), "size": 11}
        desk.bucket.put_bytes(where, json.dumps(document).encode())
    words = ["--override-by", "A. Person", "--override-reason", "Wanted."] if override else []
    said = desk.refused(*words)
    assert (
        "is not what the run's records name" if with_record else "was replaced after it was staged"
    ) in said
    assert desk.released_nothing()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"diff": "d" * 64, "edited": 2}, "edited tree, 2 files differ"),
        (
            {"diff": "", "edited": 0, "commit": "b" * 40},
            "commit bbbbbbbbbbbb, and the source lock has aaaaaaaaaaaa",
        ),
        ({"diff": "", "edited": 0, "commit": "a" * 40}, ""),
    ],
)
def test_what_was_built_from_an_edited_tree_is_refused(desk: Desk, source: dict[str, Any], said: str) -> None:
    desk.staged(GFX94)
    name = key_name(f"build_torch-{desk.runs.ref}-cp312")
    key = desk.runs.outputs.record_key(GFX94, name)
    record = json.loads(desk.runs.store.read(key))
    record["details"] = {"source": {"tree": "/mine", "commit": "a" * 40, **source}}
    desk.runs.store.put_bytes(key, json.dumps(record).encode())
    words = ("--override-by", "A. Person", "--override-reason", "Wanted.")
    assert desk.promote(*words) == (9 if said else 0)
    assert f"was built from: {said}" in desk.said() or not said


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"inputs": {"installed": False}}, "it tested what an environment held already"),
        ({"inputs": {"arguments": ["--pytorch-dir", "/mine"]}}, "it ran with --pytorch-dir /mine"),
        ({"details": {"tests": counted(1, existing=91)}}, "1 of 91 tests ran"),
        ({"details": {"tests": counted(91, skipped=90, unexplained=90)}}, "90 of 91 tests were skipped"),
        ({"details": {"tests": {"tests": 1, "failures": 0}}}, "does not say which tests exist"),
        ({"details": {"left_out": "59 of 60 test files did not run"}}, "59 of 60 test files did not run"),
        ({"inputs": {"gpu": []}}, "it ran on a machine without a GPU"),
        ({"details": {"report": {"key": "17-linux/reports/nowhere.xml", "sha256": "0" * 64}}}, "is gone"),
        ({"details": {"report": None}}, "its record names no report"),
        ({"details": {"tests": counted(3, skipped=3)}}, "no test passed"),
        ({"details": {"tests": counted(3, failures=1)}}, "1 tests failed"),
        ({"details": {"tests": None}}, "its record holds no totals"),
        ({"inputs": {"files": {}}}, "test_smoke names no torch-2"),
    ],
)
def test_a_test_that_no_release_can_rest_on_is_none(desk: Desk, facts: dict[str, Any], said: str) -> None:
    desk.runs.whole(GFX94)
    desk.runs.smoke(GFX94, "cp312", **facts)
    desk.stage()
    assert said in desk.refused()
    assert desk.released_nothing()


def test_tests_of_other_bytes_and_a_report_that_was_replaced_count_for_nothing(desk: Desk) -> None:
    desk.staged(GFX94)
    cell = records.Cell(python="cp312", torch_ref=desk.runs.ref)
    report = f"{desk.runs.outputs.reports_prefix(GFX94)}/{records.record_name('test_smoke', cell)}.xml"
    desk.runs.store.put_bytes(report, b"<testsuites/>")
    assert f"its report {report.rpartition('/')[2]} was replaced" in desk.refused()
    named = {one.name: "0" * 64 for one in desk.runs.made.values()}
    desk.runs.smoke(GFX94, "cp312", inputs={"files": named})
    assert "test_smoke ran on other bytes of torch-2.10" in desk.refused()


def test_families_pythons_and_platforms_that_were_asked_for_must_be_there(desk: Desk) -> None:
    desk.runs.ref = "nightly"
    desk.staged(GFX94, GFX1151)
    said = desk.refused("--matrix", "release", "--platform", "linux")
    assert "gfx950-dcgpu linux:\n    no torch" in said
    assert f"{GFX94} linux cp313:\n    torch {desk.runs.torch} is not staged" in said
    assert desk.promote("--matrix", "ci", "--platform", "linux", "--dry-run") == 0
    assert f"gfx950-dcgpu:\n    no torch {desk.runs.torch} is staged" in desk.refused(
        "--gpu-family", f"{GFX94};gfx950-dcgpu"
    )
    assert f"{GFX94} linux cp313:\n    torch {desk.runs.torch} is not staged" in desk.refused(
        "--gpu-family", GFX94, "--pythons", "3.12,3.13"
    )
    assert "windows:\n    no torch" in desk.refused("--gpu-family", GFX94, "--platform", "windows")
    assert desk.released_nothing()
    assert desk.promote("--gpu-family", GFX94, "--pythons", "3.12") == 0
    assert desk.released(GFX94)
    assert not desk.bucket.list(f"v2/{GFX1151}")


def test_rocm_packages_alone_are_a_set_too_and_serve_torch_from_the_index(desk: Desk) -> None:
    desk.runs.whole(GFX94)
    desk.stage("--distributions", "pytorch")
    assert "requires rocm[libraries]==7.10.0a20251120, which the index would not have" in desk.refused()
    desk.stage("--distributions", "rocm")
    assert desk.promote("--rocm-version", desk.runs.rocm) == 0
    assert desk.released(GFX94) == ["rocm_sdk_core-7.10.0a20251120-py3-none-linux_x86_64.whl"]
    assert desk.promote() == 0
    assert len(desk.released(GFX94)) == 3


@pytest.mark.parametrize("shared", [False, True])
def test_a_set_is_removed_with_its_staging_but_for_what_another_set_has(desk: Desk, *, shared: bool) -> None:
    desk.staged(GFX94, GFX1151)
    rocm, torch = f"rocm-{desk.runs.rocm}", f"torch-{desk.runs.torch}"
    assert (desk.promote("--rocm-version", desk.runs.rocm) if shared else 0) == desk.promote() == 0
    before = {one.key: one.etag for one in desk.bucket.list("")}
    assert desk.indexes("--remove", torch) == 0
    assert "nothing is changed yet" in desk.said()
    assert {one.key: one.etag for one in desk.bucket.list("")} == before
    assert desk.indexes("--remove", "torch-2", "--write") == 2
    assert f"Did you mean {torch!r}?" in desk.said()
    # as where it was interrupted
    desk.bucket.delete(next(key for key in before if key.startswith(f"manifests/v2/{GFX94}/{torch}")))
    desk.said()
    assert desk.indexes("--write") == desk.indexes("--remove", torch, "--write") == 0
    assert re.search(rf"{re.escape(torch)} is removed, \d+ files; \d+ pages written in", desk.said())
    assert desk.indexes() == 0
    for area, family in product(("v2", "v2-staging"), (GFX94, GFX1151)):
        page = desk.bucket.read(f"{area}/{family}/index.html").decode()
        keys = "".join(one.key for one in desk.bucket.list(f"{area}/{family}"))
        assert ("torch" in page, "torch" in keys) == (False, False)
        there = shared or area == "v2-staging"
        assert ("rocm_sdk_core" in page, "rocm_sdk_core" in keys) == (there, there)
    assert desk.promote() == 2
    said = desk.said()
    assert "No torch versions are staged" in said
    assert f"ROCm's own packages are: --rocm-version {desk.runs.rocm}." in said
    if shared:
        assert desk.indexes("--remove", rocm, "--write") == desk.indexes() == 0
        assert not [one.key for one in desk.bucket.list("") if one.key.endswith((".whl", ".tar.gz"))]


def test_what_is_yanked_is_named_in_every_index_that_has_it(desk: Desk) -> None:
    desk.staged(GFX94, GFX1151)
    assert desk.promote() == 0
    what = f"torch=={desk.runs.torch}"
    assert desk.indexes("--yank", what, "--write") == desk.indexes("--yank", "torch==2", "--reason", "x") == 2
    assert f"has released no torch==2. Did you mean {what!r}?" in desk.said()
    for reason in ("wrong sums", "wrong <results>"):
        assert desk.indexes("--yank", what, "--reason", reason, "--write") == 0
        assert f"{what} is yanked; " in desk.said()
    for family in (GFX94, GFX1151):
        page = desk.bucket.read(f"v2/{family}/simple/torch/index.html").decode()
        assert 'data-yanked="wrong &lt;results&gt;"' in page
        assert not desk.bucket.list(f"v2-staging/{family}/yanked.json")
    assert desk.indexes() == 0


def test_the_version_is_chosen_where_there_is_one(desk: Desk) -> None:
    assert desk.promote() == 2
    assert "No torch versions are staged" in desk.said()
    desk.staged(GFX94)
    desk.runs.run_id, desk.runs.rocm = "18", "7.10.0a20251121"
    desk.staged(GFX94)
    assert desk.promote() == 2
    assert "2 torch versions are staged" in desk.said()
    assert desk.promote("--torch-version", "2.10.0a0+rocm7.10.0a20251122") == 4
    assert "Did you mean '2.10.0a0+rocm7.10.0a2025112" in desk.said()
    assert desk.promote("--torch-version", desk.runs.torch, "--gpu-family", GFX1151) == 4
    assert f"There is one of {GFX94}." in desk.said()
    assert desk.promote("--torch-version", desk.runs.torch) == 0
    assert desk.promote("--torch-version", desk.runs.torch, "--rocm-version", "7.10.0") == 2


def test_cells_of_other_commits_and_those_without_records_are_no_set(desk: Desk) -> None:
    desk.staged(GFX94)
    desk.runs.run_id = "18"
    desk.runs.whole(GFX1151)
    desk.runs.lock(commit="b")
    desk.stage()
    assert "torch was built from aaaaaaaaaaaa, for gfx1151 linux from bbbbbbbbbbbb" in desk.refused()
    for one in desk.runs.store.list("17-linux/manifests"):
        desk.runs.store.delete(one.key)
    assert f"run 17 in {desk.runs.store.url} has no records of it" in desk.refused()
    assert desk.released_nothing()


def test_a_dry_run_shows_the_decision_and_the_plan(desk: Desk) -> None:
    desk.staged(GFX94)
    assert desk.promote("--dry-run") == 0
    said = desk.said()
    assert desk.released_nothing()
    assert f"{GFX94}  linux     cp312   2      tests  test_smoke" in said
    assert f"v2/{GFX94}/torch-2.10.0a0+rocm7.10.0a20251120-cp312-cp312-linux_x86_64.whl" in said
    assert "4 files" in said
    assert desk.promote() == 0
    assert desk.promote("--dry-run") == 0
    assert "already promoted" in desk.said()
