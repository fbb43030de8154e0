from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from invoke.exceptions import Exit

import tasks
from ci import flows
from core import process
from core.cli.options import ROOT, Common
from core.errors import DataError, ProcessError, UsageError
from pytorch_build.context import Context, context

BUILDS = ("build_triton", "build_torch", "build_audio", "build_vision", "build_apex")
BEFORE = ("resolve", "build_rocm", "checkout")
AFTER = ("check_wheels", "upload", "provenance", "test_smoke", "test_torch", "report")


def chosen(ref: str, family: str) -> Context:
    return context(Common(torch_ref=ref, gpu_family=family, root=ROOT / "core"))


def left_out(ref: str, family: str) -> dict[str, str]:
    return {step.session: step.left_out for step in flows.ci_steps(chosen(ref, family)) if step.left_out}


def test_the_sessions_come_in_the_order_of_the_pipeline() -> None:
    steps = flows.ci_steps(chosen("sample", "gfx94X-dcgpu"))
    assert tuple(step.session for step in steps) == (*BEFORE, *BUILDS, *AFTER)


def test_the_sample_with_rocm_takes_every_session() -> None:
    assert left_out("sample", "gfx94X-dcgpu") == {}


def test_without_rocm_none_is_built() -> None:
    assert left_out("sample", "cpu")["build_rocm"] == "family cpu has no ROCm"


def test_a_real_ref_takes_rocm_from_its_release_index() -> None:
    out = left_out("nightly", "gfx110X-all")
    assert out["build_rocm"] == "ROCm comes from the release index of gfx110X-all"
    assert out["test_torch"] == "upstream's tests take hours: run it by itself"
    assert set(out) <= {"build_rocm", "test_torch", *BUILDS}


def test_what_a_ref_does_not_build_is_left_out() -> None:
    one = chosen("sample", "gfx94X-dcgpu")
    narrow = Context(
        common=one.common,
        ref=one.ref.only(["torch"]),
        gpu_family=one.gpu_family,
        gpu_targets=one.gpu_targets,
    )
    out = {step.session: step.left_out for step in flows.ci_steps(narrow) if step.left_out}
    assert out == {name: "not built for sample" for name in BUILDS if name != "build_torch"}


def test_every_session_gets_what_was_chosen_by_name() -> None:
    one = chosen("sample", "")
    assert flows.posargs(one.common, one) == [
        "--torch-ref=sample",
        "--gpu-family=gfx94X-dcgpu",
        "--run-id=local",
        "--release-type=ci",
    ]


def test_every_option_that_was_given_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = chosen("sample", "gfx942;gfx1100")
    given = Common(refs_file=Path("r.toml"), run_id="17", store="s", release_type="dev")
    words = flows.posargs(replace(given, force=True, dry_run=True), one)
    assert words[1:] == [
        "--gpu-family=gfx942;gfx1100",
        "--run-id=17",
        "--release-type=dev",
        "--store=s",
        f"--refs-file={tmp_path / 'r.toml'}",
        "--force",
        "--dry-run",
    ]


class Nox:
    """What nox was called with, and whether it fails."""

    def __init__(self) -> None:
        self.argv: list[str] = []
        self.calls: list[list[str]] = []
        self.options: dict[str, Any] = {}
        self.problem: Exception | None = None

    def __call__(self, argv: list[str], **options: Any) -> None:
        self.argv, self.options = list(argv), options
        self.calls.append(self.argv)
        if self.problem is not None:
            raise self.problem


@pytest.fixture(name="nox")
def nox_fixture(monkeypatch: pytest.MonkeyPatch) -> Nox:
    nox = Nox()
    monkeypatch.setattr(process, "run", nox)
    return nox


def test_the_flow_is_one_nox_over_the_sessions_that_run(
    nox: Nox, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MATRIX", "ci")  # with it the noxfile has cells in the sessions' place
    flows.run_ci(Common(torch_ref="sample", gpu_family="cpu"), python="3.12")
    assert nox.argv[:3] == [sys.executable, "-m", "nox"]
    sessions = nox.argv[nox.argv.index("-s") + 1 : nox.argv.index("-P")]
    assert sessions == [name for name in (*BEFORE, *BUILDS, *AFTER) if name not in left_out("sample", "cpu")]
    assert nox.argv[nox.argv.index("-P") + 1] == "3.12"
    assert nox.argv[nox.argv.index("--") + 1] == "--torch-ref=sample"
    assert nox.options["cwd"] == ROOT
    assert "MATRIX" not in nox.options["env"]
    assert "build_rocm: left out, family cpu has no ROCm" in capsys.readouterr().err


def test_the_layout_of_rocm_is_for_build_rocm_alone(nox: Nox) -> None:
    flows.run_ci(Common(torch_ref="sample"), rocm_layout="unsplit")
    words = [
        [word for word in call[call.index("-s") :] if not word.startswith("--gpu")] for call in nox.calls
    ]
    assert [call[1 : call.index("--")] for call in words][:2] == [["resolve"], ["build_rocm"]]
    assert ["--rocm-layout=unsplit" in call for call in words] == [False, True, False]
    with pytest.raises(UsageError, match="--rocm-layout is for build_rocm, which is left out: family cpu"):
        flows.run_ci(Common(torch_ref="sample", gpu_family="cpu"), rocm_layout="split")


def test_the_task_ends_with_the_errors_code(nox: Nox, capsys: pytest.CaptureFixture[str]) -> None:
    tasks.ci.body(None, torch_ref="sample", gpu_family="cpu")
    assert "-P" not in nox.argv
    assert nox.argv[2] == "nox"
    nox.problem = ProcessError("nox ended with status 1.", returncode=1)
    with pytest.raises(Exit) as caught:
        tasks.ci.body(None, torch_ref="sample", gpu_family="cpu")
    assert caught.value.code == ProcessError.exit_code
    assert "a session failed; what it said stands above" in capsys.readouterr().err
    # what there is of the run is shown
    assert nox.argv[1:5] == ["-m", "ci", "report", "--torch-ref=sample"]
    with pytest.raises(Exit) as caught:
        tasks.ci.body(None, torch_ref="sampel", refs_file="absent.toml")
    assert caught.value.code not in {0, None, DataError}
