import os
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
from pytorch_build.build.machine import (
    MachineFacts,
    Need,
    load_needs,
    machine_facts,
    max_jobs,
    require_none,
)
from pytorch_build.platforms import LINUX, WINDOWS
from pytorch_build.sdk import RocmOptions
from tests.kit.build_plans import PROJECTS
from tests.kit.builds import FAMILY, LocalRun

GIB = 1 << 30
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
# The locked requirements bring both tools.
WITHOUT_TOOLS = replace(ON_LINUX, tools={"cmake": "", "ninja": ""})
SMALL = replace(ON_LINUX, disk_gib=1, memory_gib=1, python_headers=False)
NO_COMPILER = ("There is no C++ compiler.", "Install one.")

each_project = pytest.mark.parametrize("project", PROJECTS)


def messages_of(
    project: str, facts: MachineFacts, *, is_sample: bool = False, has_gpu: bool = True
) -> list[str]:
    """Return what would fail a project's build on a machine."""
    need = load_needs().of(project, gpu=has_gpu, sample=is_sample)
    problems = [*machine.problems(project, facts, need), *machine.shortages(project, facts, need)]
    assert all(hint.endswith(".") for _message, hint in problems)
    return [message for message, _hint in problems]


# Problems of a machine


@each_project
@pytest.mark.parametrize("facts", [ON_LINUX, ON_WINDOWS, WITHOUT_TOOLS], ids=["linux", "windows", "tools"])
def test_finds_no_problem_of_a_good_machine(project: str, facts: MachineFacts) -> None:
    assert messages_of(project, facts) == []


@each_project
def test_builds_the_sample_on_a_small_machine(project: str) -> None:
    assert messages_of(project, SMALL, is_sample=True) == []
    assert len(messages_of(project, SMALL)) == 3


@each_project
def test_needs_a_compiler_for_the_sample(project: str) -> None:
    facts = replace(SMALL, compilers=[NO_COMPILER])

    assert messages_of(project, facts, is_sample=True) == [NO_COMPILER[0]]


@pytest.mark.parametrize("platform_facts", [ON_LINUX, ON_WINDOWS], ids=["linux", "windows"])
@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"compilers": [NO_COMPILER]}, "C++ compiler"),
        ({"tools": {"cmake": "3.16.3", "ninja": ""}}, "cmake 3.16.3"),
        ({"tools": {"cmake": "", "ninja": "1.7"}}, "ninja 1.7"),
        ({"disk_gib": 10.5}, "10.5 GiB"),
        ({"memory_gib": 3.9}, "3.9 GiB"),
        ({"python_headers": False}, "Python.h"),
    ],
    ids=["compiler", "cmake", "ninja", "disk", "memory", "headers"],
)
def test_names_what_fails_a_build(platform_facts: MachineFacts, changes: dict[str, Any], name: str) -> None:
    (message,) = messages_of("torch", replace(platform_facts, **changes))

    assert name in message


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"long_paths": False}, "260"),
        ({"python": PureWindowsPath("C:/Program Files/python.exe")}, "Program Files"),
    ],
    ids=["short paths", "space in a path"],
)
def test_names_what_fails_a_build_on_windows_alone(changes: dict[str, Any], name: str) -> None:
    (message,) = messages_of("torch", replace(ON_WINDOWS, **changes))

    assert name in message
    assert messages_of("torch", replace(ON_LINUX, **changes)) == []


def test_goes_on_without_problems() -> None:
    require_none([])


def test_reports_one_problem_with_its_hint() -> None:
    with pytest.raises(EnvironmentSetupError) as caught:
        require_none([("A is missing.", "Install A.")])

    assert caught.value.message == "A is missing."
    assert caught.value.hint == "Install A."


def test_reports_several_problems_together() -> None:
    with pytest.raises(EnvironmentSetupError) as caught:
        require_none([("A is missing.", "Install A."), ("B is old.", "Install a newer B.")])

    lines = [line.strip() for line in caught.value.message.splitlines()]
    assert lines[1:] == ["A is missing. Install A.", "B is old. Install a newer B."]


# What builds take


def test_knows_what_every_project_takes() -> None:
    assert set(load_needs().gpu) == set(PROJECTS)


@each_project
def test_takes_less_without_a_gpu_for_torch_alone(project: str) -> None:
    gpu_need = load_needs().of(project, gpu=True, sample=False)
    cpu_need = load_needs().of(project, gpu=False, sample=False)

    if project == "torch":
        assert cpu_need.disk < gpu_need.disk
        assert cpu_need.job < gpu_need.job
    else:
        assert cpu_need == gpu_need


@each_project
@pytest.mark.parametrize("has_gpu", [True, False])
def test_takes_memory_for_one_compiler_at_least(project: str, *, has_gpu: bool) -> None:
    need = load_needs().of(project, gpu=has_gpu, sample=False)

    assert need.memory >= need.job


@each_project
def test_takes_less_disk_for_the_sample(project: str) -> None:
    needs = load_needs()

    sample_need = needs.of(project, gpu=False, sample=True)

    assert sample_need.disk < needs.of(project, gpu=False, sample=False).disk


def test_builds_torch_without_a_gpu_in_27_gib() -> None:
    # What was free on the machine of such a build.
    assert messages_of("torch", replace(ON_LINUX, disk_gib=26.6), has_gpu=False) == []


# The number of compilers


def set_machine(monkeypatch: pytest.MonkeyPatch, *, cores: int, memory: int) -> None:
    """Let the operating system report so many cores and so many bytes of memory, and no limits."""
    sizes = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": memory}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: range(cores), raising=False)
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)
    set_limits(monkeypatch, {})


def set_limits(monkeypatch: pytest.MonkeyPatch, limits: dict[str, str]) -> None:
    """Let the kernel name these limits of a control group, and no others."""
    read_text = Path.read_text

    def read(path: Path, encoding: str | None = None, errors: str | None = None) -> str:
        if path.parent != Path("/sys/fs/cgroup"):
            return read_text(path, encoding=encoding, errors=errors)
        if path.name not in limits:
            raise FileNotFoundError(path)
        return limits[path.name]

    monkeypatch.setattr(Path, "read_text", read)


def count_jobs(project: str, *, cores: int, memory_gib: float, requested: str = "") -> int:
    """Return how many compilers run at a time on a machine."""
    need = load_needs().of(project, gpu=True, sample=False)
    with pytest.MonkeyPatch.context() as monkeypatch:
        set_machine(monkeypatch, cores=cores, memory=int(memory_gib * GIB))
        return max_jobs(need, requested)


@pytest.mark.parametrize(("cores", "memory_gib", "jobs"), [(32, 64, 16), (4, 64, 4), (4, 1, 1)])
def test_runs_as_many_jobs_as_cores_and_memory_allow(cores: int, memory_gib: int, jobs: int) -> None:
    assert count_jobs("torch", cores=cores, memory_gib=memory_gib) == jobs


def test_runs_as_many_jobs_as_requested() -> None:
    assert count_jobs("torch", cores=2, memory_gib=1, requested="32") == 32


@pytest.mark.parametrize("requested", ["0", "-1", "many", "2.5", "²"])
def test_rejects_a_number_of_jobs_that_is_none(requested: str) -> None:
    with pytest.raises(UsageError, match=f"MAX_JOBS={requested}"):
        count_jobs("torch", cores=2, memory_gib=1, requested=requested)


@given(project=st.sampled_from(PROJECTS), cores=st.integers(1, 512), memory_gib=st.integers(1, 4096))
def test_runs_no_more_jobs_than_cores_and_memory_allow(project: str, cores: int, memory_gib: int) -> None:
    need = load_needs().of(project, gpu=True, sample=False)

    jobs = count_jobs(project, cores=cores, memory_gib=memory_gib)

    assert 1 <= jobs <= cores
    assert jobs == 1 or jobs * need.job <= memory_gib


@pytest.mark.parametrize(
    ("cpu_limit", "memory_limit", "cores", "memory"),
    [
        ("100000 100000", f"{1 << 20}", 1, 1 << 20),
        ("50000 100000", "max", 1, 64 * GIB),
        ("max 100000", "max", 8, 64 * GIB),
    ],
    ids=["cores and memory", "half a core", "no limits"],
)
def test_observes_the_limits_of_a_container(
    monkeypatch: pytest.MonkeyPatch, cpu_limit: str, memory_limit: str, cores: int, memory: int
) -> None:
    set_machine(monkeypatch, cores=8, memory=64 * GIB)

    set_limits(monkeypatch, {"cpu.max": f"{cpu_limit}\n", "memory.max": f"{memory_limit}\n"})

    assert machine.cores() == cores
    assert machine.memory_bytes() == memory


# What a machine has


def write_script(path: Path, output: str, *, status: int = 0) -> None:
    """Write a program that prints something and ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{output}'\nexit {status}\n")
    path.chmod(0o755)


@pytest.fixture
def target(run: LocalRun, tmp_path: Path) -> Interpreter:
    """Return the interpreter of an environment that has ninja and Python's headers."""
    write_script(tmp_path / "env" / "bin" / "ninja", "1.13.0.git.kitware")
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "Python.h").touch()
    return run.target(include=tmp_path / "include")


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")
def test_finds_tools_headers_and_compilers(tmp_path: Path, target: Interpreter) -> None:
    system = tmp_path / "system"
    write_script(system / "ninja", "1.11.1")
    write_script(system / "cmake", "cmake version 3.31.6\n\nCMake suite")
    write_script(system / "g++", "")

    facts = machine_facts(
        LINUX,
        target=target,
        tree=tmp_path / "absent",
        base_env={"PATH": f"{system}:/bin"},
        need=load_needs().sample,
    )

    # The environment's ninja comes before the machine's.
    assert facts.tools == {"cmake": "3.31.6", "ninja": "1.13.0"}
    assert facts.python_headers
    assert facts.compilers == ()


def look_at(tree: Path, target: Interpreter, need: Need) -> MachineFacts:
    """Return the facts of a machine without programs, for a source tree."""
    # Windows looks for one compiler, and for no program by a script.
    return machine_facts(WINDOWS, target=target, tree=tree, base_env={"Path": ""}, need=need)


@pytest.mark.processes
def test_measures_disk_and_memory_for_a_tree_that_does_not_exist(tmp_path: Path, run: LocalRun) -> None:
    facts = look_at(tmp_path / "not" / "yet", run.target(), load_needs().sample)

    assert facts.disk_gib > 0
    assert facts.memory_gib > 0.1


@pytest.mark.processes
def test_counts_the_disk_that_a_tree_has_taken_already(tmp_path: Path, run: LocalRun) -> None:
    with (tmp_path / "large.o").open("wb") as large_file:
        large_file.truncate(1 << 40)
    need = load_needs().sample.model_copy(update={"disk": 1 << 20})

    assert look_at(tmp_path, run.target(), need).disk_gib > 1 << 10


@pytest.mark.processes
def test_finds_no_headers_in_an_environment_without_them(tmp_path: Path, target: Interpreter) -> None:
    without_headers = replace(target, include=tmp_path)

    assert look_at(tmp_path, target, load_needs().sample).python_headers
    assert not look_at(tmp_path, without_headers, load_needs().sample).python_headers


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")
@pytest.mark.parametrize(
    ("variables", "names"),
    [
        pytest.param({"CC": "my-gcc", "CXX": "my-gcc -m64"}, None, id="both work"),
        pytest.param({"CC": "absent -m64", "CXX": "my-gcc"}, ["C compiler", "absent"], id="absent"),
        pytest.param({"CXX": "broken -x"}, ["C++ compiler", "broken -x", "status 3"], id="broken"),
        pytest.param({}, ["C++ compiler", "c++"], id="none is usual"),
    ],
)
def test_names_the_compiler_that_does_not_work(
    tmp_path: Path, target: Interpreter, variables: dict[str, str], names: list[str] | None
) -> None:
    write_script(tmp_path / "my-gcc", "")
    write_script(tmp_path / "gcc", "")
    write_script(tmp_path / "broken", "cannot execute", status=3)

    facts = machine_facts(
        LINUX,
        target=target,
        tree=tmp_path,
        base_env={"PATH": str(tmp_path), **variables},
        need=load_needs().sample,
    )

    messages = [message for message, _hint in facts.compilers]
    assert len(messages) == (0 if names is None else 1)
    assert [name for name in names or [] if name not in messages[0]] == []


# What past builds took


def record_build(
    run: LocalRun, run_id: str, *, ref: str = "nightly", details: dict[str, Any] | None = None
) -> None:
    """Write the record of a build of torch without a GPU."""
    run.record(
        "build_torch",
        group="cpu",
        run_id=run_id,
        details=details or {},
        torch_ref=ref,
        python="cp312",
    )


def need_of(run: LocalRun, *, family: str = "cpu", ref: str = "nightly") -> Need:
    """Return what a build of torch takes."""
    return machine.need_of(run.context(family, ref=ref), "torch")


def test_expects_what_the_data_says_before_the_first_build(run: LocalRun) -> None:
    assert need_of(run) == load_needs().of("torch", gpu=False, sample=False)


def test_expects_the_most_that_a_past_build_took_and_a_quarter(run: LocalRun) -> None:
    record_build(run, "local", details={"disk": 10 * GIB})
    record_build(run, "local-mine", details={"disk": 4 * GIB, "job": 2 * GIB})

    need = need_of(run)

    assert need.disk == 12.5
    assert need.job == 2.5


def test_learns_nothing_of_compilers_behind_a_cache(run: LocalRun) -> None:
    record_build(run, "local", details={"job": 100 << 20, "compiler_cache": {}})

    assert need_of(run).job == load_needs().of("torch", gpu=False, sample=False).job


def test_learns_nothing_from_builds_of_another_family_or_of_the_sample(run: LocalRun) -> None:
    record_build(run, "local", details={"disk": 10 * GIB})
    record_build(run, "17", ref="sample", details={"disk": 99 * GIB})

    assert need_of(run, family=FAMILY).disk == load_needs().of("torch", gpu=True, sample=False).disk
    assert need_of(run).disk == 12.5
    assert need_of(run, ref="sample").disk == 99 * 1.25


def test_learns_nothing_from_a_record_of_another_version(run: LocalRun) -> None:
    run.store.put_bytes("18-linux/manifests/cpu/build_torch-nightly-cp312.json", b"{}")

    assert need_of(run) == load_needs().of("torch", gpu=False, sample=False)


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine have little disk and memory."""
    facts = replace(ON_LINUX, disk_gib=12, memory_gib=2)
    monkeypatch.setattr(machine, "machine_facts", lambda *_arguments, **_options: facts)


@pytest.mark.usefixtures("small_machine")
def test_names_the_past_build_that_a_machine_is_too_small_for(run: LocalRun) -> None:
    record_build(run, "local", details={"disk": 10 * GIB})
    record_build(run, "local-mine", details={"job": 2 * GIB})
    choices = BuildChoices(rocm=RocmOptions(), own_trees={}, mirrors={})

    problems = machine.look(run.context("cpu", ref="nightly"), choices, "torch", run.target())

    disk, memory = (message for message, _hint in problems)
    assert [fact for fact in ("10.0 GiB of disk", "run local (", "12.5 GiB") if fact not in disk] == []
    assert [fact for fact in ("2.0 GiB of memory", "run local-mine (") if fact not in memory] == []


@pytest.mark.usefixtures("small_machine")
def test_warns_of_shortages_that_a_user_ignores(run: LocalRun, capsys: pytest.CaptureFixture[str]) -> None:
    record_build(run, "local", details={"disk": 10 * GIB})
    choices = BuildChoices(rocm=RocmOptions(), own_trees={}, mirrors={}, ignore_needs=True)

    problems = machine.look(run.context("cpu", ref="nightly"), choices, "torch", run.target())

    assert problems == []
    assert "12.5 GiB" in capsys.readouterr().err
