import sys
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.data import use_user_file
from core.env import Interpreter
from core.errors import EnvironmentSetupError, UsageError
from pytorch_build.build import machine
from pytorch_build.build.machine import (
    MachineFacts,
    load_needs,
    machine_facts,
    max_jobs,
    refuse_problems,
)
from pytorch_build.build.request import BuildRequest
from pytorch_build.components import COMPONENTS, MachineNeed
from pytorch_build.refs.torch_refs import torch_ref
from tests.kit.build_plans import PROJECTS
from tests.kit.builds import LocalRun, request_build
from tests.kit.machines import report_hardware
from tests.kit.platforms import LINUX, WINDOWS

GIB = 1 << 30
ON_LINUX = MachineFacts(
    platform="linux",
    python=PurePosixPath("/env/bin/python"),
    has_python_headers=True,
    tree=PurePosixPath("/src/torch"),
    compiler_problems=(),
    tools={"cmake": "3.31.0", "ninja": "1.12.1"},
    disk_gib=200,
    memory_gib=64,
)
ON_WINDOWS = replace(ON_LINUX, platform="windows", python=PureWindowsPath("C:/Python312/python.exe"))
# The locked requirements bring both tools.
WITHOUT_TOOLS = replace(ON_LINUX, tools={})
SMALL = replace(ON_LINUX, disk_gib=1, memory_gib=1, has_python_headers=False)
NO_COMPILER = EnvironmentSetupError("There is no C++ compiler.", hint="Install one.")


def need_for(project: str, *, is_sample: bool = False, has_gpu: bool = True) -> MachineNeed:
    """Return what a project's build takes, as data says."""
    sample_need = torch_ref("sample").need
    if is_sample and sample_need is not None:
        return sample_need
    component = COMPONENTS[project]
    return component.gpu_need if has_gpu else component.cpu_need or component.gpu_need


SAMPLE_NEED = need_for("torch", is_sample=True)

each_project = pytest.mark.parametrize("project", PROJECTS)


def messages_of(
    project: str, facts: MachineFacts, *, is_sample: bool = False, has_gpu: bool = True
) -> list[str]:
    """Return what would fail a project's build on a machine."""
    need = need_for(project, is_sample=is_sample, has_gpu=has_gpu)
    problems = [*machine.problems(project, facts, need), *machine.shortages(project, facts, need)]
    assert all(problem.hint.endswith(".") for problem in problems)
    return [problem.message for problem in problems]


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
    facts = replace(SMALL, compiler_problems=(NO_COMPILER,))

    assert messages_of(project, facts, is_sample=True) == [NO_COMPILER.message]


@pytest.mark.parametrize("platform_facts", [ON_LINUX, ON_WINDOWS], ids=["linux", "windows"])
@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"compiler_problems": (NO_COMPILER,)}, "C++ compiler"),
        ({"tools": {"cmake": "3.16.3"}}, "cmake 3.16.3"),
        ({"tools": {"ninja": "1.7"}}, "ninja 1.7"),
        ({"disk_gib": 10.5}, "10.5 GiB"),
        ({"memory_gib": 3.9}, "3.9 GiB"),
        ({"has_python_headers": False}, "Python.h"),
    ],
    ids=["compiler", "cmake", "ninja", "disk", "memory", "headers"],
)
def test_names_what_fails_a_build(platform_facts: MachineFacts, changes: dict[str, Any], name: str) -> None:
    (message,) = messages_of("torch", replace(platform_facts, **changes))

    assert name in message


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"has_long_paths": False}, "260"),
        ({"python": PureWindowsPath("C:/Program Files/python.exe")}, "Program Files"),
    ],
    ids=["short paths", "space in a path"],
)
def test_names_what_fails_a_build_on_windows_alone(changes: dict[str, Any], name: str) -> None:
    (message,) = messages_of("torch", replace(ON_WINDOWS, **changes))

    assert name in message
    assert messages_of("torch", replace(ON_LINUX, **changes)) == []


def test_goes_on_without_problems() -> None:
    refuse_problems([])


def test_reports_one_problem_with_its_hint() -> None:
    with pytest.raises(EnvironmentSetupError) as caught:
        refuse_problems([EnvironmentSetupError("A is missing.", hint="Install A.")])

    assert caught.value.message == "A is missing."
    assert caught.value.hint == "Install A."


def test_reports_several_problems_together() -> None:
    problems = [
        EnvironmentSetupError("A is missing.", hint="Install A."),
        EnvironmentSetupError("B is old.", hint="Install a newer B."),
    ]

    with pytest.raises(EnvironmentSetupError) as caught:
        refuse_problems(problems)

    lines = [line.strip() for line in caught.value.message.splitlines()]
    assert lines[1:] == ["A is missing. Install A.", "B is old. Install a newer B."]


# What builds take


def test_knows_what_every_project_takes() -> None:
    assert set(load_needs().gpu) == set(PROJECTS)


@each_project
@pytest.mark.parametrize("family", ["gfx94X-dcgpu", "cpu"])
def test_takes_what_the_component_says(run: LocalRun, project: str, family: str) -> None:
    context = run.context(family, ref="nightly")

    need = machine.find_machine_need(context, COMPONENTS[project])

    assert need == need_for(project, has_gpu=family != "cpu")


@each_project
def test_takes_less_without_a_gpu_for_torch_alone(project: str) -> None:
    gpu_need = need_for(project)
    cpu_need = need_for(project, has_gpu=False)

    if project == "torch":
        assert cpu_need.disk < gpu_need.disk
        assert cpu_need.job < gpu_need.job
    else:
        assert cpu_need == gpu_need


@each_project
@pytest.mark.parametrize("has_gpu", [True, False])
def test_takes_memory_for_one_compiler_at_least(project: str, *, has_gpu: bool) -> None:
    need = need_for(project, has_gpu=has_gpu)

    assert need.memory >= need.job


def test_takes_for_the_sample_what_its_ref_says(run: LocalRun) -> None:
    assert machine.find_machine_need(run.context(), COMPONENTS["torch"]) == SAMPLE_NEED
    assert SAMPLE_NEED.disk < need_for("torch", has_gpu=False).disk


def test_takes_what_a_users_file_says_of_a_component(run: LocalRun, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[needs.gpu.torch]\ndisk = 99\n")
    use_user_file(file)

    need = machine.find_machine_need(run.context(ref="nightly"), COMPONENTS["torch"])

    assert need == need_for("torch").model_copy(update={"disk": 99})


def test_builds_torch_without_a_gpu_in_27_gib() -> None:
    # What was free on the machine of such a build.
    assert messages_of("torch", replace(ON_LINUX, disk_gib=26.6), has_gpu=False) == []


# The number of compilers


def set_machine(monkeypatch: pytest.MonkeyPatch, *, cores: int, memory: int) -> None:
    """Let the operating system report so many cores and so many bytes of memory, and no limits."""
    report_hardware(monkeypatch, cores=cores, memory=memory)
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
    need = need_for(project)
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
    need = need_for(project)

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
        user_env={"PATH": f"{system}:/bin"},
        need=SAMPLE_NEED,
    )

    # The environment's ninja comes before the machine's.
    assert facts.tools == {"cmake": "3.31.6", "ninja": "1.13.0"}
    assert facts.has_python_headers
    assert facts.compiler_problems == ()


def look_at(tree: Path, target: Interpreter, need: MachineNeed) -> MachineFacts:
    """Return the facts of a machine without programs, for a source tree."""
    # Windows looks for one compiler, and for no program by a script.
    return machine_facts(WINDOWS, target=target, tree=tree, user_env={"Path": ""}, need=need)


@pytest.mark.processes
def test_measures_disk_and_memory_for_a_tree_that_does_not_exist(tmp_path: Path, run: LocalRun) -> None:
    facts = look_at(tmp_path / "not" / "yet", run.target(), SAMPLE_NEED)

    assert facts.disk_gib > 0
    assert facts.memory_gib > 0.1


@pytest.mark.processes
def test_counts_the_disk_that_a_tree_has_taken_already(tmp_path: Path, run: LocalRun) -> None:
    with (tmp_path / "large.o").open("wb") as large_file:
        large_file.truncate(1 << 40)
    need = SAMPLE_NEED.model_copy(update={"disk": 1 << 20})

    assert look_at(tmp_path, run.target(), need).disk_gib > 1 << 10


@pytest.mark.processes
def test_finds_no_headers_in_an_environment_without_them(tmp_path: Path, target: Interpreter) -> None:
    without_headers = replace(target, include=tmp_path)

    assert look_at(tmp_path, target, SAMPLE_NEED).has_python_headers
    assert not look_at(tmp_path, without_headers, SAMPLE_NEED).has_python_headers


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
        user_env={"PATH": str(tmp_path), **variables},
        need=SAMPLE_NEED,
    )

    messages = [problem.message for problem in facts.compiler_problems]
    assert len(messages) == (0 if names is None else 1)
    assert [name for name in names or [] if name not in messages[0]] == []


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")
@pytest.mark.parametrize(
    ("variables", "option"),
    [({}, "/?"), ({"CXX": "g++"}, "--version")],
    ids=["Visual Studio's", "the user's"],
)
def test_asks_a_compiler_of_windows_in_its_own_way(
    tmp_path: Path, target: Interpreter, variables: dict[str, str], option: str
) -> None:
    for name in ("cl", "g++"):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\ntest "$1" = "{option}"\n', encoding="utf-8")
        script.chmod(0o755)

    facts = machine_facts(
        WINDOWS,
        target=target,
        tree=tmp_path,
        user_env={"PATH": str(tmp_path), **variables},
        need=SAMPLE_NEED,
    )

    assert facts.compiler_problems == ()


# A machine that is too small


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine have little disk and memory."""
    facts = replace(ON_LINUX, disk_gib=3, memory_gib=2)
    monkeypatch.setattr(machine, "machine_facts", lambda *_arguments, **_options: facts)


def cpu_build(run: LocalRun, *, ignore_needs: bool = False) -> BuildRequest:
    """Return the request for a torch without a GPU."""
    request = request_build(run, "torch", context=run.context("cpu", ref="nightly"))
    return replace(request, ignore_needs=ignore_needs)


@pytest.mark.usefixtures("small_machine")
def test_names_what_a_machine_has_too_little_of(run: LocalRun) -> None:
    disk, memory = machine.find_problems(cpu_build(run))

    assert "5 GiB of disk" in disk.message
    assert "4 GiB of memory" in memory.message


@pytest.mark.usefixtures("small_machine")
def test_warns_of_shortages_that_a_user_ignores(run: LocalRun, capsys: pytest.CaptureFixture[str]) -> None:
    problems = machine.find_problems(cpu_build(run, ignore_needs=True))

    assert problems == []
    assert "5 GiB of disk" in capsys.readouterr().err
