import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from core.errors import CheckError
from core.run import records
from core.run.records import Cell
from core.run.stage import Stage
from pytorch_build.build import refused
from tests.unit.pytorch_build.check.conftest import elf_file, write_wheel

CPU = ("--torch-ref", "sample", "--gpu-family", "cpu")
INPUTS: Mapping[str, Any] = {"version": "2.10.0a0+cpu.sample", "gpu_targets": [], "rocm": None}
CELL = {"gpu_family": "cpu", "torch_ref": "sample", "python": "cp312"}


@pytest.fixture
def audio(run: Any) -> Path:
    path: Path = run.wheel("torchaudio", "2.10.0a0+cpu.sample", "cp312-cp312-linux_x86_64")
    return path


def broken(wheel: Path) -> Path:
    """Change a stored member of a wheel behind its RECORD."""
    import zipfile

    target = wheel.parent / "broken" / wheel.name
    target.parent.mkdir()
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(target, "w") as new:
        for info in old.infolist():
            new.writestr(info, old.read(info) + (b"#" if info.filename.endswith(".py") else b""))
    return target


def test_named_wheels_are_checked_without_a_run(front: Any, audio: Path, run: Any) -> None:
    answer = front("check-wheels", audio, "--json")
    findings = json.loads(answer.out)
    assert answer.code == 0, answer.said
    assert "check_wheels: 1 wheel, 0 errors" in answer.said
    assert audio.name in answer.said
    assert all(one["severity"] != "error" for one in findings), findings
    assert not (run.root / "out").exists()


def test_a_folder_is_searched_and_a_broken_record_is_an_error(front: Any, audio: Path) -> None:
    answer = front("check-wheels", broken(audio).parent)
    assert answer.code == 9
    assert "torchaudio.py" in answer.said
    assert len(answer.errors) == 1


def test_the_runs_wheels_are_held_to_its_records(front: Any, run: Any) -> None:
    run.publish(run.wheel("torchaudio", "2.9.0+cpu.sample"), group="cpu")
    answer = front("check-wheels", *CPU)
    assert (answer.code, "has no wheel of sample for cpu to check" in answer.said) == (4, True)
    run.built("torch", gpu_family="cpu")
    run.built("audio", gpu_family="cpu")
    answer = front("check-wheels", *CPU)
    # a torchaudio that does not require the run's torch
    assert answer.code == 9, answer.said
    assert "torch==2.10.0a0+cpu.sample" in answer.said
    report = json.loads((run.root / "out/local-linux/reports/cpu/findings.json").read_text())
    assert any("torch==" in one["message"] for one in report)


def test_the_rocm_wheels_that_the_run_built_are_checked(front: Any, run: Any) -> None:
    words = ("check-wheels", "--rocm", "--torch-ref", "sample", "--gpu-family", "gfx94X-dcgpu")
    answer = front(*words)
    assert (answer.code, "has built no ROCm wheels for gfx94X-dcgpu" in answer.said) == (4, True)
    run.rocm("1.0.0")  # of another build
    run.record("build_rocm", *run.rocm(), gpu_family="gfx94X-dcgpu")
    answer = front(*words)
    assert answer.code == 0, answer.said
    assert "check_rocm: 3 wheels, 0 errors" in answer.said
    assert (run.root / "out/local-linux/reports/gfx94X-dcgpu/rocm-findings.json").is_file()
    answer = front(*words, "--version", "7.2.4")
    assert answer.code == 9
    assert "7.2.4 is expected" in answer.said


def test_what_a_build_refused_is_checked_again_by_ones_own_policy(front: Any, run: Any) -> None:
    name = "torchaudio-2.10.0a0+cpu.sample-cp312-cp312-linux_x86_64.whl"
    wheel = write_wheel(run.root, name, {"torchaudio/a.so": elf_file(needed=["libmine.so.1"])})
    stage = Stage(name="build_audio", common=run.common(), artifact_group="cpu", cell=Cell(**CELL))
    failed = run.record("build_audio", group="cpu", inputs=INPUTS, **CELL)
    again = "nox -s build_audio -- --gpu-family cpu --force"
    details = {"refused": refused.keep(stage, [wheel], CheckError(""))}
    changes = {"status": "failed", "again": again, "details": details}
    run.store.delete(run.common().outputs.record_key("cpu", failed.name))
    records.write(run.store, run.common().outputs, "cpu", failed.model_copy(update=changes))
    answer = front("check-wheels", *CPU)
    assert answer.code == 9
    assert "refused by its build: not yet: It needs libmine.so.1" in answer.said
    policy = run.root / "mine.toml"
    policy.write_text('machine_libraries = ["libmine.so.*"]\n')
    answer = front("check-wheels", *CPU, "--policy", policy)
    assert answer.code == 0, answer.said
    assert (
        f"into the run by: {again.removesuffix(' --force')} --policy {policy}" in answer.said.splitlines()[-1]
    )
    assert not (run.root / "out/local-linux/reports").exists(), "it is no wheel of the run"


def test_a_runs_wheels_have_the_libraries_of_the_machine_that_built_them(front: Any, run: Any) -> None:
    name = "torchaudio-2.10.0a0+cpu.sample-cp312-cp312-linux_x86_64.whl"
    wheel = write_wheel(run.root, name, {"torchaudio/a.so": elf_file(needed=["libfmt.so.10"])})
    made = run.record("build_audio", run.publish(wheel, group="cpu"), group="cpu", inputs=INPUTS, **CELL)
    assert front("check-wheels", *CPU).code == 9
    made = made.model_copy(update={"details": {"machine_libraries": ["libfmt.so.10"]}})
    records.write(run.store, run.common().outputs, "cpu", made)
    assert front("check-wheels", *CPU).code == 0
