import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from core.errors import CheckError, UsageError
from core.status import Pending, UpToDate
from tests.kit.binaries import elf_file
from tests.kit.builds import LocalRun
from tests.kit.front_doors import FrontDoorResult, look_at_verb
from tests.kit.wheels import write_broken_wheel, write_wheel

Front = Callable[..., FrontDoorResult]

FAMILY = "gfx94X-dcgpu"
CPU = ("--torch-ref", "sample", "--gpu-family", "cpu")
ROCM = ("--rocm", "--torch-ref", "sample", "--gpu-family", FAMILY)
INPUTS: Mapping[str, Any] = {"version": "2.10.0a0+cpu.sample", "gpu_targets": [], "rocm": None}
AUDIO_CELL: dict[str, Any] = {"group": "cpu", "gpu_family": "cpu", "torch_ref": "sample", "python": "cp312"}
AUDIO_VERSION = "2.10.0a0+cpu.sample"
TAG = "cp312-cp312-linux_x86_64"


def write_audio(folder: Path, *, needed: Sequence[str] = ()) -> Path:
    """Write a torchaudio that is built without ROCm, with a library that needs others."""
    files: dict[str, bytes | str] = {"torchaudio/__init__.py": ""}
    if needed:
        files["torchaudio/a.so"] = elf_file(needed=needed)
    return write_wheel(folder, name="torchaudio", version=AUDIO_VERSION, tag=TAG, files=files)


def test_named_wheels_are_checked_without_a_run(front: Front, run: LocalRun, tmp_path: Path) -> None:
    wheel = write_audio(tmp_path / "links")

    result = front("check-wheels", wheel, "--json")

    findings = json.loads(result.output)
    assert result.exit_code == 0, result.report
    assert wheel.name in result.report
    assert "error" not in {finding["severity"] for finding in findings}
    assert not (run.root / "out").exists()


def test_wheels_of_a_folder_are_checked(front: Front, tmp_path: Path) -> None:
    write_broken_wheel(
        tmp_path / "links", defect="changed member", name="torchaudio", version=AUDIO_VERSION, tag=TAG
    )

    result = front("check-wheels", tmp_path / "links")

    assert result.exit_code == CheckError.exit_code
    assert "torchaudio.py" in result.report
    assert len(result.errors) == 1


def test_a_run_without_wheels_of_the_ref_is_an_error(front: Front, run: LocalRun) -> None:
    run.publish(run.wheel("torchaudio", "2.9.0+cpu.sample"), group="cpu")

    result = front("check-wheels", *CPU)

    assert result.exit_code == 4
    assert "sample" in result.errors[0]


def test_the_runs_wheels_are_held_to_its_records(front: Front, run: LocalRun) -> None:
    run.built("torch", gpu_family="cpu")
    run.built("audio", gpu_family="cpu")

    result = front("check-wheels", *CPU)

    # This torchaudio does not require the run's torch.
    report = json.loads((run.root / "out/local-linux/reports/cpu/findings.json").read_text())
    assert result.exit_code == CheckError.exit_code
    assert "torch==2.10.0a0+cpu.sample" in result.report
    assert any("torch==" in finding["message"] for finding in report)


@pytest.fixture
def checked_run(front: Front, run: LocalRun) -> LocalRun:
    """Return a run whose wheel needs a library of the machine that built it, and has passed its check."""
    record_audio(run, needed=["libfmt.so.10"], machine_libraries=["libfmt.so.10"])
    result = front("check-wheels", *CPU, *own_policy(run, ""))
    assert result.exit_code == 0, result.report
    return run


def record_audio(run: LocalRun, *, needed: Sequence[str], machine_libraries: Sequence[str]) -> None:
    """Build a torchaudio: its wheel, which needs libraries, and its record."""
    details = {"machine_libraries": machine_libraries}
    run.record("build_audio", publish_audio(run, needed=needed), inputs=INPUTS, details=details, **AUDIO_CELL)


def publish_audio(run: LocalRun, *, needed: Sequence[str] = ()) -> Any:
    """Put a torchaudio into the run, without its record."""
    return run.publish(write_audio(run.root / "made", needed=needed), group="cpu")


def own_policy(run: LocalRun, text: str) -> tuple[str, Path]:
    """Return options that lay a user's policy over the project's."""
    path = run.root / "mine.toml"
    path.write_text(text)
    return ("--policy", path)


# A check has no record that could say that it was done: each input counts each time.
@pytest.mark.parametrize(
    ("needed", "machine_libraries", "policy", "exit_code"),
    [
        pytest.param("libfmt.so.10", "libfmt.so.10", "", 0, id="nothing"),
        pytest.param("libmine.so.1", "libfmt.so.10", "", CheckError.exit_code, id="wheels"),
        pytest.param("libfmt.so.10", "libfmt.so.9", "", CheckError.exit_code, id="the builder's libraries"),
        pytest.param(
            "libfmt.so.10",
            "libfmt.so.10",
            "exempt_labels = []\n[sizes.torchaudio]\nerror_above = 1\n",
            CheckError.exit_code,
            id="policy",
        ),
    ],
)
def test_checks_again_whatever_changed(
    front: Front, checked_run: LocalRun, needed: str, machine_libraries: str, policy: str, exit_code: int
) -> None:
    record_audio(checked_run, needed=[needed], machine_libraries=[machine_libraries])
    report = checked_run.root / "out/local-linux/reports/cpu/findings.json"
    report.unlink()

    result = front("check-wheels", *CPU, *own_policy(checked_run, policy))

    assert result.exit_code == exit_code, result.report
    assert report.is_file()


@pytest.mark.usefixtures("checked_run")
def test_a_look_finds_nothing_to_do_on_checked_wheels(run: LocalRun) -> None:
    assert look_at_verb("pytorch_build", "check-wheels", *CPU, *own_policy(run, "")) == UpToDate()


def test_a_look_finds_wheels_that_would_not_pass(checked_run: LocalRun) -> None:
    record_audio(checked_run, needed=["libmine.so.1"], machine_libraries=["libfmt.so.10"])

    status = look_at_verb("pytorch_build", "check-wheels", *CPU, *own_policy(checked_run, ""))

    assert status == Pending(reasons=("the wheels have not passed",))


def test_a_look_finds_wheels_that_were_not_checked(checked_run: LocalRun) -> None:
    (checked_run.root / "out/local-linux/reports/cpu/findings.json").unlink()

    status = look_at_verb("pytorch_build", "check-wheels", *CPU, *own_policy(checked_run, ""))

    assert status == Pending(reasons=("the wheels were not checked as they are now",))


def test_rocm_wheels_of_an_empty_run_are_an_error(front: Front) -> None:
    result = front("check-wheels", *ROCM)

    assert result.exit_code == 4
    assert FAMILY in result.errors[0]


@pytest.fixture
def rocm_run(run: LocalRun) -> LocalRun:
    """Return a run with ROCm's wheels, beside those of another build."""
    run.rocm("1.0.0")
    run.record("build_rocm", *run.rocm(), gpu_family=FAMILY)
    return run


def test_rocm_wheels_that_the_run_built_are_checked(front: Front, rocm_run: LocalRun) -> None:
    result = front("check-wheels", *ROCM)

    assert result.exit_code == 0, result.report
    assert "3 wheels, 0 errors" in result.report
    assert (rocm_run.root / f"out/local-linux/reports/{FAMILY}/rocm-findings.json").is_file()


@pytest.mark.usefixtures("rocm_run")
def test_rocm_wheels_of_another_version_than_asked_for_are_an_error(front: Front) -> None:
    result = front("check-wheels", *ROCM, "--version", "7.2.4")

    assert result.exit_code == CheckError.exit_code
    assert "7.2.4" in result.report


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([*ROCM, "some.whl"], "WHEEL|DIR has no effect with --rocm"),
        ([*CPU, "--version=7.1"], "--version has no effect without --rocm"),
    ],
)
def test_refuses_what_has_no_effect_on_the_checked_wheels(
    front: Front, options: Sequence[str], message: str
) -> None:
    result = front("check-wheels", *options)

    assert result.exit_code == UsageError.exit_code
    assert message in result.report
