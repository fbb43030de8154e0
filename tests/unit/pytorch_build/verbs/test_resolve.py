from collections.abc import Callable
from datetime import datetime, time, timedelta
from pathlib import Path

import pytest

from core.errors import UsageError
from core.run.plan import Plan
from pytorch_build import context
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.verbs import resolve
from rocm_packaging.origin import release_indexes
from tests.kit.builds import LocalRun
from tests.kit.front_doors import FrontDoorResult
from tests.kit.plans import make_plan, pytorch_job
from tests.kit.repos import commit_files

Front = Callable[..., FrontDoorResult]

CPU = ("--torch-ref", "mine", "--gpu-family", "cpu")


@pytest.mark.processes
def test_prints_a_lock_that_jobs_can_pass_on(front: Front, refs: dict[str, str], run: LocalRun) -> None:
    result = front("resolve", *CPU, "--compact")

    assert result.exit_code == 0, result.report
    lock = SourceLock.from_compact(result.output)
    assert lock.projects["audio"].commit == refs["audio"]
    assert lock.projects["vision"].commit == refs["vision"]
    assert (run.root / "out/local-linux/manifests/source-lock-mine.json").is_file()


@pytest.mark.processes
def test_shows_commits_and_versions(front: Front, refs: dict[str, str]) -> None:
    result = front("resolve", *CPU)

    for name, commit in refs.items():
        (row,) = [line for line in result.report.splitlines() if line.startswith(name)]
        assert commit[:12] in row
    assert "2.10.0+cpu" in result.report


@pytest.mark.processes
def test_resolves_the_local_run_again(front: Front, refs: dict[str, str], tmp_path: Path) -> None:
    front("resolve", *CPU)
    newer_commit = commit_files(tmp_path / "upstream" / "audio", {"new.py": ""})

    result = front("resolve", *CPU)

    assert newer_commit != refs["audio"]
    assert newer_commit[:12] in result.report


@pytest.mark.processes
def test_resolves_any_other_run_once(front: Front, refs: dict[str, str], tmp_path: Path) -> None:
    front("resolve", *CPU, "--run-id", "77")
    commit_files(tmp_path / "upstream" / "audio", {"new.py": ""})

    result = front("resolve", *CPU, "--run-id", "77")

    assert refs["audio"][:12] in result.report


@pytest.mark.processes
def test_a_commit_that_was_named_stays_for_later_steps(
    front: Front, refs: dict[str, str], tmp_path: Path
) -> None:
    commit_files(tmp_path / "upstream" / "audio", {"new.py": ""})
    assert front("resolve", *CPU, "--at", f"audio={refs['audio']}").exit_code == 0

    result = front("checkout", *CPU, "--components", "audio")

    assert result.exit_code == 0, result.report
    assert refs["audio"][:12] in result.report


@pytest.mark.processes
@pytest.mark.usefixtures("refs")
def test_names_an_origin_that_has_gone(front: Front, tmp_path: Path) -> None:
    (tmp_path / "upstream" / "audio").rename(tmp_path / "moved")

    result = front("resolve", *CPU)

    assert result.exit_code == 6
    assert "audio of torch ref mine" in result.report
    assert len(result.errors) == 1


@pytest.mark.processes
@pytest.mark.usefixtures("refs")
def test_asks_a_mirror_of_an_origin(front: Front, tmp_path: Path) -> None:
    origin = tmp_path / "upstream" / "audio"
    origin.rename(tmp_path / "moved")

    result = front("resolve", *CPU, "--git-mirror", f"{origin}={tmp_path / 'moved'}")

    assert result.exit_code == 0, result.report


def test_resolves_for_processors_without_a_gpu(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(context, "detect", lambda: ())

    context_of_nightly = resolve.context_of_sources(run.common(torch_ref="nightly"))

    assert context_of_nightly.gpu_family == "cpu"
    assert "ROCm" in capsys.readouterr().err


@pytest.mark.processes
@pytest.mark.usefixtures("refs")
def test_tells_no_version_where_the_gpu_family_is_missing(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "detect", lambda: ())

    result = front("resolve", "--torch-ref=mine", "--release-type=release", "--rocm-version=10.0.0")

    assert "--gpu-family" in result.report
    assert "+cpu" not in result.report


def test_refuses_an_unknown_family_without_a_gpu(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "detect", lambda: ())

    with pytest.raises(UsageError, match="gfx94x"):
        resolve.context_of_sources(run.common(torch_ref="nightly", gpu_family="gfx94x"))


@pytest.mark.processes
def test_completes_a_plan_where_it_lies(
    front: Front, refs: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    linux_cell = pytorch_job(
        gpu_family="cpu",
        torch_ref="mine",
        sessions=("build_vision", "build_audio"),
    )
    windows_cell = pytorch_job(
        gpu_family="cpu",
        torch_ref="mine",
        platform="windows",
        sessions=("build_audio",),
    )
    make_plan(linux_cell, windows_cell).write(tmp_path / "plan.json")
    monkeypatch.setenv("GITHUB_OUTPUT", str(tmp_path / "outputs"))

    result = front("resolve", "--plan", tmp_path / "plan.json", "--run-id", "77")

    assert result.exit_code == 0, result.report
    completed_plan = Plan.read(tmp_path / "plan.json")
    completed_cell, _windows_cell = completed_plan.jobs
    outputs = (tmp_path / "outputs").read_text()
    assert completed_cell.versions == {"torchvision": "2.10.0+cpu", "torchaudio": "2.10.0+cpu"}
    # Jobs get the plan as a file, and its digest as an output.
    assert completed_plan.digest() in outputs
    for platform in ("linux", "windows"):
        lock_file = tmp_path / f"out/77-{platform}/manifests/source-lock-mine.json"
        assert refs["audio"] in lock_file.read_text()


@pytest.mark.usefixtures("refs")
@pytest.mark.processes
def test_refuses_a_torch_ref_beside_a_plan(front: Front, tmp_path: Path) -> None:
    make_plan(pytorch_job(gpu_family="cpu", torch_ref="mine")).write(tmp_path / "plan.json")

    result = front("resolve", "--plan", tmp_path / "plan.json", "--torch-ref", "mine")

    assert result.exit_code == 2
    assert "torch ref" in result.errors[0]


@pytest.mark.parametrize(
    ("days", "names"),
    [
        pytest.param(0, [], id="fresh"),
        pytest.param(1000, ["rocm_indexes.toml", "container.toml"], id="old"),
    ],
)
def test_warns_of_data_that_was_compared_with_upstream_long_ago(
    front: Front, monkeypatch: pytest.MonkeyPatch, days: int, names: list[str]
) -> None:
    compared = datetime.combine(release_indexes().checked, time())

    class Clock:
        @staticmethod
        def now(_zone: object) -> datetime:
            return compared + timedelta(days=days)

    monkeypatch.setattr(resolve, "datetime", Clock)

    result = front("resolve", "--plan", "nowhere.json")

    lines = result.report.splitlines()
    warnings = [line for line in lines if line.startswith("warning: ")]
    assert len(warnings) == len(names)
    for warning, name in zip(warnings, names, strict=True):
        assert name in warning
