import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.env import Interpreter
from core.errors import EnvironmentSetupError, UsageError
from pytorch_build.build import machine
from pytorch_build.build.build import BuildChoices
from pytorch_build.build.machine import MachineFacts, load_needs, machine_facts, max_jobs, require_none
from pytorch_build.platforms import LINUX, WINDOWS
from pytorch_build.sdk import RocmOptions

ON_LINUX = MachineFacts(
    platform="linux",
    python=PurePosixPath("/env/bin/python"),
    python_headers=True,
    tree=PurePosixPath("/src/torch"),
    compilers=(),
    tools={"cmake": "3.31.0", "ninja": "1.12.1"},
    disk_gib=200,
    memory_gib=64,
)
ON_WINDOWS = replace(ON_LINUX, platform="windows", python=PureWindowsPath("C:/Python312/python.exe"))
ABSENT = ("There is no C++ compiler.", "Install one.")
CHOICES = BuildChoices(rocm=RocmOptions(), own_trees={}, mirrors={})
PROJECTS = ("triton", "torch", "audio", "vision", "apex")


def problems(project: str, facts: MachineFacts, *, sample: bool = False, gpu: bool = True) -> list[str]:
    need = load_needs().of(project, gpu=gpu, sample=sample)
    found = [*machine.problems(project, facts, need), *machine.shortages(project, facts, need)]
    assert all(hint.endswith(".") for _, hint in found)
    return [message for message, _ in found]


@pytest.mark.parametrize("project", PROJECTS)
def test_a_good_machine_has_no_problems_and_the_sample_takes_little(project: str) -> None:
    bare = replace(ON_LINUX, tools={"cmake": "", "ninja": ""})  # requirements bring both
    for facts in (ON_LINUX, ON_WINDOWS, bare):
        assert problems(project, facts) == []
    small = replace(ON_LINUX, disk_gib=1, memory_gib=1, python_headers=False)
    assert problems(project, small, sample=True) == []
    assert problems(project, replace(small, compilers=[ABSENT]), sample=True) == [ABSENT[0]]
    assert len(problems(project, small)) == 3


@pytest.mark.parametrize(
    ("changes", "message", "windows"),
    [
        ({"compilers": [ABSENT]}, "no C++ compiler", True),
        ({"tools": {"cmake": "3.16.3", "ninja": ""}}, "cmake 3.16.3", True),
        ({"tools": {"cmake": "", "ninja": "1.7"}}, "ninja 1.7", True),
        ({"disk_gib": 10.5}, "10.5 GiB free", True),
        ({"memory_gib": 3.9}, "there are 3.9 GiB", True),
        ({"python_headers": False}, "no Python.h", True),
        ({"long_paths": False}, "260 characters", False),
        ({"python": PureWindowsPath("C:/Program Files/python.exe")}, "has a space", False),
    ],
)
def test_what_fails_a_build(changes: dict[str, Any], message: str, *, windows: bool) -> None:
    def found(facts: MachineFacts) -> list[bool]:
        return [message in problem for problem in problems("torch", replace(facts, **changes))]

    assert found(ON_WINDOWS) == ([True] if message else [])
    assert found(ON_LINUX) == ([True] if message and windows else [])


def test_problems_end_the_stage_together() -> None:
    require_none([])
    one, two = ("A is missing.", "Install A."), ("B is old.", "Install a newer B.")
    with pytest.raises(EnvironmentSetupError, match=r"^A is missing\.\nInstall A\.$"):
        require_none([one])
    with pytest.raises(EnvironmentSetupError, match="2 reasons") as both:
        require_none([one, two])
    assert "A is missing. Install A.\n  B is old. Install a newer B." in both.value.message


def test_every_project_has_its_needs() -> None:
    assert set(load_needs().gpu) == set(PROJECTS)
    for project, need in load_needs().gpu.items():
        cpu = load_needs().of(project, gpu=False, sample=False)
        assert need == load_needs().of(project, gpu=True, sample=False)
        assert (cpu.disk < need.disk, cpu.job < need.job) == (project == "torch",) * 2
        assert min(need.memory - need.job, cpu.memory - cpu.job) >= 0, "one compiler must fit"
        assert load_needs().of(project, gpu=False, sample=True).disk < cpu.disk
    # what is free here and there for a build of torch without a GPU
    assert problems("torch", replace(ON_LINUX, disk_gib=26.6), gpu=False) == []


def jobs(project: str, cores: int, memory_gib: float, wanted: str = "") -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(machine, "cores", lambda: cores)
        patch.setattr(machine, "memory_bytes", lambda: int(memory_gib * (1 << 30)))
        return max_jobs(load_needs().of(project, gpu=True, sample=False), wanted)


def test_jobs_fit_cores_and_memory_or_are_the_users() -> None:
    assert [jobs("torch", *machine) for machine in ((32, 64), (4, 64), (4, 1))] == [16, 4, 1]
    assert jobs("torch", 2, 1, wanted="32") == 32
    for wrong in ("0", "-1", "many", "2.5", "²"):
        with pytest.raises(UsageError, match="not a number of jobs"):
            jobs("torch", 2, 1, wanted=wrong)


@given(st.sampled_from(PROJECTS), st.integers(1, 512), st.floats(0.1, 4096))
def test_jobs_never_take_more_than_there_is(project: str, cores: int, memory: float) -> None:
    found = jobs(project, cores, memory)
    assert 1 <= found <= cores
    assert found == 1 or found * load_needs().of(project, gpu=True, sample=False).job <= memory


def script(path: Path, output: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{output}'\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def target(run: Any, tmp_path: Path) -> Interpreter:
    """Return the interpreter of an environment that has ninja and Python's headers."""
    script(tmp_path / "env" / "bin" / "ninja", "1.13.0.git.kitware")
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").touch()
    found: Interpreter = run.target(include=tmp_path / "include")
    return found


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")
def test_what_a_machine_has(tmp_path: Path, target: Interpreter) -> None:
    system = tmp_path / "system"
    script(system / "ninja", "1.11.1")
    script(system / "cmake", "cmake version 3.31.6\n\nCMake suite")
    script(system / "g++", "")
    base_env = {"PATH": f"{system}:/bin"}
    need = load_needs().sample
    found = machine_facts(LINUX, target=target, tree=tmp_path / "not" / "yet", base_env=base_env, need=need)
    assert found.tools == {"cmake": "3.31.6", "ninja": "1.13.0"}
    assert (found.python_headers, found.compilers) == (True, ())
    assert 0 < found.disk_gib <= shutil.disk_usage(tmp_path).total / (1 << 30)
    assert found.memory_gib > 0.1
    # what a build has made already is not needed once more
    with (system / "large.o").open("wb") as large:
        large.truncate(1 << 40)
    need = need.model_copy(update={"disk": 1 << 20})
    held = machine_facts(LINUX, target=target, tree=system, base_env=base_env, need=need)
    assert held.disk_gib > 1 << 10
    other, env = replace(target, include=tmp_path), {"Path": str(system)}
    on_windows = machine_facts(WINDOWS, target=other, tree=tmp_path, base_env=env, need=need)
    assert not on_windows.python_headers


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")
def test_the_compilers_that_the_user_names_exist_and_run(tmp_path: Path, target: Interpreter) -> None:
    script(tmp_path / "my-gcc", "")
    script(tmp_path / "gcc", "")
    broken = script(tmp_path / "broken", "cannot execute")
    broken.write_text(broken.read_text() + "exit 3\n")
    for env, said in (
        ({"CC": "my-gcc", "CXX": "my-gcc -m64"}, []),
        ({"CC": "absent -m64", "CXX": "my-gcc"}, ["No C compiler works: absent is not installed"]),
        ({"CXX": "broken -x"}, ["No C++ compiler works: broken -x --version ended with status 3."]),
        ({}, ["No C++ compiler works: c++ is not installed"]),
    ):
        base_env, need = {"PATH": f"{tmp_path}", **env}, load_needs().sample
        found = machine_facts(LINUX, target=target, tree=tmp_path, base_env=base_env, need=need).compilers
        assert [one[: len(start)] for (one, _), start in zip(found, said, strict=True)] == said


def test_needs_are_what_past_builds_took(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def built(run_id: str, ref: str = "nightly", **details: Any) -> None:
        run.record("build_torch", group="cpu", run_id=run_id, details=details, torch_ref=ref, python="cp312")

    def need_of(family: str = "cpu", ref: str = "nightly") -> machine.Need:
        return machine.need_of(run.context(family, ref=ref), "torch")

    assert need_of() == load_needs().of("torch", gpu=False, sample=False)
    built("local", disk=10 << 30, job=100 << 20, compiler_cache={})
    built("local-mine", disk=4 << 30, job=2 << 30)
    built("17", ref="sample", disk=99 << 30)
    run.store.put_bytes("18-linux/manifests/cpu/build_torch-nightly-cp312.json", b"{}")
    # the most that one took, and a quarter; compilers behind a cache tell nothing
    assert (need_of().disk, need_of().job) == (12.5, 2.5)
    assert need_of("gfx94X-dcgpu").disk == 40
    assert need_of(ref="sample").disk == 99 * 1.25
    monkeypatch.setattr(
        machine, "machine_facts", lambda *_, **__: replace(ON_LINUX, disk_gib=12, memory_gib=2)
    )
    looked = run.context("cpu", ref="nightly"), CHOICES, "torch", run.target()
    (disk, _), (memory, _) = machine.look(*looked)
    assert disk.startswith("torch took 10.0 GiB of disk in run local (20")
    assert "so 12.5 GiB of disk are asked for" in disk
    assert "took 2.0 GiB of memory for one compiler in run local-mine (20" in memory
    assert machine.look(looked[0], replace(CHOICES, ignore_needs=True), *looked[2:]) == []


def test_limits_of_a_container_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    free = machine.cores(), machine.memory_bytes()
    assert free[0] == len(os.sched_getaffinity(0))
    for cpu, memory, expected in (
        ("100000 100000", f"{1 << 20}", (1, 1 << 20)),
        ("max 100000", "max", free),
        ("50000 100000", "max", (1, free[1])),
    ):
        (tmp_path / "cpu.max").write_text(f"{cpu}\n")
        (tmp_path / "memory.max").write_text(f"{memory}\n")
        assert (machine.cores(), machine.memory_bytes()) == expected
