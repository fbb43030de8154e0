"""What builds take of the machine, and what will fail later, said before anything is built.

`problems` and `shortages` are pure; `machine_facts` collects what they look at.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath, PureWindowsPath
from typing import TYPE_CHECKING, Any, Literal

from packaging.version import Version
from pydantic import model_validator

from core import console, files, process
from core.data import Model, data_file, merge_tables
from core.errors import EnvironmentSetupError, ProcessError, UsageError
from pytorch_build.build.compilers import compiler_commands
from pytorch_build.components import COMPONENTS, Component, MachineNeed
from pytorch_build.sources.trees import build_tree_path, find_tree_problems

if TYPE_CHECKING:
    from core.env import Interpreter
    from pytorch_build.build.request import BuildRequest
    from pytorch_build.context import Context
    from pytorch_build.platforms import Platform

_FILE = Path(__file__).with_name("needs.toml")
_GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")
_MEMORY_STATUS_WORDS = 8  # of 64 bits: MEMORYSTATUSEX of <sysinfoapi.h>, whose second one is all the memory

# What paths may not have: installers take # for the fragment of an address, compilers , for the end of an
# option for the linker, setuptools and makefiles $ for a variable, CMake ; for the next folder of a list, and
# all others : for it.
_UNUSABLE_CHARACTERS = re.compile(r"[#,$;:\"`\\*?\[\]<>|]")


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """What a machine has for a build: Python, compilers, tools, disk and memory.

    Attributes:
        platform: The platform's name.
        python: The Python that the wheel is built with.
        has_python_headers: Whether that Python can be compiled against.
        tree: Where the source tree is, or will be.
        compiler_problems: What is wrong with the compilers.
        tools: The versions of tools on the PATH; without those that are not there.
        disk_gib: What is free, or taken by the tree already.
        memory_gib: The memory that a build may use.
        has_long_paths: Whether paths may have more than 260 characters.
    """

    platform: str
    python: PurePath
    has_python_headers: bool
    tree: PurePath
    compiler_problems: tuple[EnvironmentSetupError, ...]
    tools: Mapping[str, str]
    disk_gib: float
    memory_gib: float
    has_long_paths: bool = True


class Needs(Model):
    """Content of needs.toml: disk and memory that builds of components need, with and without a GPU.

    `tools` are the oldest versions that work.
    """

    gpu: dict[str, MachineNeed]
    cpu: dict[str, MachineNeed]
    tools: dict[Literal["cmake", "ninja"], str]

    @model_validator(mode="before")
    @classmethod
    def _lay_over_components(cls, tables: Any) -> Any:  # noqa: ANN401 - what a TOML file holds
        """Return the file's tables merged over the needs that the components state."""
        gpu: dict[str, Any] = {}
        cpu: dict[str, Any] = {}
        for component in COMPONENTS.values():
            gpu[component.name] = component.gpu_need.model_dump()
            if component.cpu_need is not None:
                cpu[component.name] = component.cpu_need.model_dump()
        return merge_tables({"gpu": gpu, "cpu": cpu}, tables)


load_needs = data_file(_FILE, Needs)


def find_machine_need(context: Context, component: Component) -> MachineNeed:
    """Return the disk and memory that a build needs: as the torch ref says, else the component."""
    if context.ref.need is not None:
        return context.ref.need

    needs = load_needs()
    need_with_gpu = needs.gpu[component.name]
    if context.gpu:
        return need_with_gpu
    return needs.cpu.get(component.name, need_with_gpu)


def max_jobs(need: MachineNeed, requested: str = "") -> int:
    """Return how many compilers run at a time: as requested, else as many as cores and memory allow."""
    if not requested:
        fitting_jobs = int(memory_bytes() / _GIB // need.job)
        return max(1, min(cores(), fitting_jobs))

    is_number = requested.isascii() and requested.isdecimal()
    if not is_number or int(requested) == 0:
        raise UsageError(f"MAX_JOBS={requested} is not a number of jobs.", hint="Give a number from 1 up.")
    return int(requested)


def find_problems(request: BuildRequest) -> Sequence[EnvironmentSetupError]:
    """Return the errors that a build would meet on this machine; warn of shortages that are ignored."""
    name = request.component.name
    own_tree = request.own_tree
    need = find_machine_need(request.context, request.component)
    facts = machine_facts(
        request.platform,
        target=request.target,
        tree=build_tree_path(request.context, name, own_tree),
        user_env=request.user_env,
        need=need,
    )
    found_problems: list[EnvironmentSetupError] = []
    if own_tree is not None:
        found_problems += find_tree_problems(own_tree, name, request.user_env)
    found_problems += problems(name, facts, need)

    found_shortages = list(shortages(name, facts, need))
    if not request.ignore_needs:
        return found_problems + found_shortages
    for shortage in found_shortages:
        console.warn(f"{shortage.message} It is built anyway.")
    return found_problems


def refuse_problems(found_problems: Sequence[EnvironmentSetupError]) -> None:
    """Raise an error that names all problems, if there are any."""
    if not found_problems:
        return
    if len(found_problems) == 1:
        raise found_problems[0]

    lines = "\n".join(f"  {problem.message} {problem.hint}" for problem in found_problems)
    raise EnvironmentSetupError(
        f"It cannot be built here, for {len(found_problems)} reasons:\n{lines}",
        hint="Correct these and run the same command again.",
    )


def machine_facts(
    platform: Platform,
    *,
    target: Interpreter,
    tree: Path,
    user_env: Mapping[str, str],
    need: MachineNeed,
) -> MachineFacts:
    """Return what this machine has for a build; the source tree need not be there yet."""
    # What is installed into the target environment comes first on the build's PATH.
    folders = [str(target.executable.parent), platform.find_variable(user_env, "PATH")]
    search_path = platform.path_separator.join(folder for folder in folders if folder)
    tools: dict[str, str] = {}
    for name in ("cmake", "ninja"):
        version = _tool_version(name, search_path)
        if version is not None:
            tools[name] = version

    return MachineFacts(
        platform=platform.name,
        python=target.executable,
        has_python_headers=(target.include / "Python.h").is_file(),
        tree=tree,
        compiler_problems=tuple(_compiler_problems(platform, user_env)),
        tools=tools,
        disk_gib=_usable_disk(tree, need),
        memory_gib=memory_bytes() / _GIB,
        has_long_paths=_allows_long_paths() if platform.windows else True,
    )


def problems(project: str, machine: MachineFacts, need: MachineNeed) -> Iterator[EnvironmentSetupError]:
    """Yield an error for everything about a machine that will fail a project's build."""
    yield from machine.compiler_problems
    yield from _path_problems((machine.python, machine.tree))

    for name, oldest in load_needs().tools.items():
        version = machine.tools.get(name)
        if version is not None and Version(version) < Version(oldest):
            yield EnvironmentSetupError(
                f"{name} {version} is on the PATH, and builds need {oldest} or newer.",
                hint=f"Install a newer {name}.",
            )

    if need.python_headers and not machine.has_python_headers:
        yield EnvironmentSetupError(
            f"{machine.python} has no Python.h, and {project} compiles against it.",
            hint="Install that Python's headers (python3-dev), or use another Python.",
        )
    if machine.platform == "windows":
        yield from _windows_problems(machine)


def _path_problems(paths: Iterable[PurePath]) -> Iterator[EnvironmentSetupError]:
    """Yield an error for each path with a character that build tools cannot take."""
    for path in paths:
        # Windows' drives have a colon.
        folders = path.as_posix().removeprefix(path.drive)
        match = _UNUSABLE_CHARACTERS.search(folders)
        if match is not None:
            yield EnvironmentSetupError(
                f"The path {path} has a {match[0]!r}, which the tools of a build cannot take.",
                hint="Rename the folder, or build in another one.",
            )


def _windows_problems(machine: MachineFacts) -> Iterator[EnvironmentSetupError]:
    """Yield errors for a Python's path with a space, and for a Windows that refuses long paths."""
    # https://github.com/pytorch/vision/issues/9165
    if " " in str(machine.python):
        yield EnvironmentSetupError(
            f"The path of {machine.python} has a space, which breaks setuptools' command lines.",
            hint=r"Install Python for the current user, to a path without spaces such as C:\Python312.",
        )
    if not machine.has_long_paths:
        yield EnvironmentSetupError(
            "Windows does not allow paths beyond 260 characters, and these builds make them.",
            hint="Set LongPathsEnabled to 1 in the registry, and git config --global core.longpaths true.",
        )


def shortages(project: str, machine: MachineFacts, need: MachineNeed) -> Iterator[EnvironmentSetupError]:
    """Yield an error for too little disk or memory, which a user may ignore."""
    if machine.disk_gib < need.disk:
        yield EnvironmentSetupError(
            f"{project} takes {need.disk:.3g} GiB of disk; {machine.tree.parent} has "
            f"{machine.disk_gib:.1f} GiB free or taken for it already.",
            hint="Free some (nox -s clean), name another disk's folder in SOURCES_DIR, or add "
            "--ignore-needs.",
        )
    if machine.memory_gib < need.memory:
        yield EnvironmentSetupError(
            f"{project} takes {need.memory:.3g} GiB of memory, and there are {machine.memory_gib:.1f} GiB.",
            hint="Use a larger machine, or add swap and set MAX_JOBS=1 and --ignore-needs.",
        )


def _usable_disk(tree: Path, need: MachineNeed) -> float:
    """Return the GiB of disk that a build may take: what is free, and what its tree takes already."""
    existing_folder = next((folder for folder in (tree, *tree.parents) if folder.exists()), tree)
    free = shutil.disk_usage(existing_folder).free / _GIB
    if free >= need.disk:
        # Measuring a large tree takes time, so only where that counts.
        return free
    return free + files.measure_folder(tree)[0] / _GIB


def _compiler_problems(platform: Platform, env: Mapping[str, str]) -> Iterator[EnvironmentSetupError]:
    """Yield an error for each of the C and C++ compilers that does not run."""
    search_path = platform.find_variable(env, "PATH")
    commands = compiler_commands(platform, env)
    languages = {"CC": "C", "CXX": "C++"}
    if platform.windows:
        # cl is that of both languages.
        languages = {"CXX": "C++"}

    for variable, language in languages.items():
        command = commands[variable]
        # cl knows no --version.
        is_cl = PureWindowsPath(command[0]).stem.lower() == "cl"
        version_option = "/?" if is_cl else "--version"
        try:
            process.capture([*command, version_option], env=process.handed_on(PATH=search_path))
        except ProcessError as problem:
            reason = problem.message.splitlines()[0].rstrip(":.")
            hint = f"Install a {language} compiler, or name one in {variable}."
            if platform.windows:
                hint = "Start from a Visual Studio developer prompt, or name compilers in CC and CXX."
            yield EnvironmentSetupError(f"No {language} compiler works: {reason}.", hint=hint)


def _tool_version(program: str, search_path: str) -> str | None:
    """Return the version of a program, looked for on a PATH; None where it is not there, or does not say."""
    executable = process.which(program, path=search_path)
    if executable is None:
        return None
    completed = process.capture([executable, "--version"], check=False)
    match = re.search(r"\d+(?:\.\d+)+", completed.stdout)
    return None if match is None else match[0]


def cores() -> int:
    """Return how many cores this process may use, which a container may limit."""
    # Windows has no such call, and no groups that limit a process to fewer cores.
    affinity = getattr(os, "sched_getaffinity", None)
    usable_cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota, _space, period = _cgroup_limit("cpu.max").partition(" ")
    if not quota:
        quota = _cgroup_limit("cpu/cpu.cfs_quota_us")
        period = _cgroup_limit("cpu/cpu.cfs_period_us")
    if quota.isdecimal() and period.isdecimal():
        usable_cores = min(usable_cores, max(1, int(quota) // int(period)))
    return usable_cores


def memory_bytes() -> int:
    """Return how many bytes of memory this process may use, which a container may limit."""
    limit = _cgroup_limit("memory.max") or _cgroup_limit("memory/memory.limit_in_bytes")
    if limit.isdecimal():
        return min(_physical_memory_bytes(), int(limit))
    return _physical_memory_bytes()


def _cgroup_limit(name: str) -> str:
    """Return the text of a limit file of this process's control group; "" where there is none.

    Version 2 has one folder for all limits, and version 1 a folder for each kind.
    """
    try:
        return (_CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return ""


if sys.platform == "win32":  # pragma: no cover - coverage is measured on Linux

    def _physical_memory_bytes() -> int:
        import ctypes

        # GetPhysicallyInstalledSystemMemory asks the firmware, which some virtual machines have not.
        status = (ctypes.c_ulonglong * _MEMORY_STATUS_WORDS)(_MEMORY_STATUS_WORDS * 8)
        if not ctypes.windll.kernel32.GlobalMemoryStatusEx(status):
            raise ctypes.WinError()
        return status[1]

    def _allows_long_paths() -> bool:
        import winreg

        key = r"SYSTEM\CurrentControlSet\Control\FileSystem"
        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
                return bool(winreg.QueryValueEx(opened, "LongPathsEnabled")[0])
        except OSError:
            return False

else:

    def _physical_memory_bytes() -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def _allows_long_paths() -> bool:
        return True
