from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from core.errors import UsageError
from core.run.plan import Plan
from pytorch_build import context
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.verbs import resolve
from rocm_packaging.origin import release_indexes
from tests.conftest import Commit
from tests.kit.plans import plan
from tests.unit.pytorch_build.lock.test_plan import cell


@pytest.mark.processes
def test_a_ref_becomes_a_lock_that_a_job_can_pass_on(front: Any, refs: dict[str, str], run: Any) -> None:
    answer = front("resolve", "--torch-ref", "mine", "--gpu-family", "cpu", "--compact")
    assert answer.exit_code == 0, answer.report
    lock = SourceLock.from_compact(answer.output)
    assert {name: one.commit for name, one in lock.projects.items() if name != "torch"} == refs
    assert (run.root / "out/local-linux/manifests/source-lock-mine.json").is_file()
    for name, commit in refs.items():
        assert any(line.startswith(name) and commit[:12] in line for line in answer.report.splitlines())
    assert "2.10.0+cpu" in answer.report


@pytest.mark.processes
def test_the_local_run_is_resolved_anew_and_any_other_once(
    front: Any, refs: dict[str, str], tmp_path: Path, commit_files: Commit
) -> None:
    words = ("resolve", "--torch-ref", "mine", "--gpu-family", "cpu")
    front(*words)
    front(*words, "--run-id", "77")
    newer = commit_files(tmp_path / "upstream" / "audio", {"new.py": ""})
    assert newer[:12] in front(*words).report
    assert refs["audio"][:12] in front(*words, "--run-id", "77").report
    assert front(*words, "--at", f"audio={refs['audio']}").exit_code == 0
    # what was named by --at stays for the stages that follow
    checked_out = front("checkout", *words[1:], "--components", "audio")
    assert checked_out.exit_code == 0, checked_out.report
    assert refs["audio"][:12] in checked_out.report


@pytest.mark.processes
@pytest.mark.usefixtures("refs")
def test_an_origin_that_has_gone_is_named(front: Any, tmp_path: Path) -> None:
    (tmp_path / "upstream" / "audio").rename(tmp_path / "moved")
    answer = front("resolve", "--torch-ref", "mine", "--gpu-family", "cpu")
    assert answer.exit_code == 6
    assert "audio of torch ref mine" in answer.report
    assert len(answer.errors) == 1
    moved = front(
        *("resolve", "--torch-ref", "mine", "--gpu-family", "cpu"),
        *("--git-mirror", f"{tmp_path / 'upstream' / 'audio'}={tmp_path / 'moved'}"),
    )
    assert moved.exit_code == 0, moved.report


def test_a_machine_without_a_gpu_resolves_all_the_same(
    run: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(context, "detect", lambda: ())
    assert resolve.any_context(run.common(torch_ref="nightly")).gpu_family == "cpu"
    assert "versions without ROCm are locked" in capsys.readouterr().err
    with pytest.raises(UsageError, match="gfx94x"):
        resolve.any_context(run.common(torch_ref="nightly", gpu_family="gfx94x"))


@pytest.mark.processes
def test_a_plan_is_completed_where_it_lies(
    front: Any, refs: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = cell(gpu_family="cpu", torch_ref="mine", sessions=("build_vision", "build_audio"))
    there = cell(gpu_family="cpu", torch_ref="mine", platform="windows", sessions=("build_audio",))
    plan(built, there).write(tmp_path / "plan.json")
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "outputs"))
    answer = front("resolve", "--plan", "plan.json", "--run-id", "77")
    assert answer.exit_code == 0, answer.report
    found, _ = Plan.read(tmp_path / "plan.json").cells
    assert found.versions == {"torchvision": "2.10.0+cpu", "torchaudio": "2.10.0+cpu"}
    assert "linux_source_locks<<" in (tmp_path / "outputs").read_text()
    assert refs["audio"] in (tmp_path / "outputs").read_text()
    for platform in ("linux", "windows"):
        assert (tmp_path / f"out/77-{platform}/manifests/source-lock-mine.json").is_file()
    again = front("resolve", "--plan", "plan.json", "--torch-ref", "mine")
    assert (again.exit_code, "A plan names its torch refs" in again.report) == (2, True)


def test_data_that_was_compared_too_long_ago_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    checked = release_indexes().checked
    resolve._warn_of_old_data(checked)
    assert capsys.readouterr().err == ""
    resolve._warn_of_old_data(checked + timedelta(days=1000))
    said = capsys.readouterr().err
    assert "What rocm_indexes.toml says of release indexes is 1000 days old" in said
    assert "What container.toml says of the image" in said
