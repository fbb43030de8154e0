"""What builds take of the machine, and what will fail later, said before anything is built.

`problems` is pure; `machine_facts` collects what it looks at. What builds take is data (`needs.toml`).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from packaging.version import Version
from pydantic import Field

from core import process
from core.data import Model, data_file
from core.errors import EnvironmentSetupError, UsageError

if TYPE_CHECKING:
    from core.env import Interpreter
    from pytorch_build.platforms import Platform

_FILE = Path(__file__).with_name("needs.toml")
_GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")


class Need(Model):
    """What one build takes: GiB of disk, of memory, and of memory for one compiler."""

    disk: float = Field(gt=0)
    memory: float = Field(gt=0)
    job: float = Field(gt=0)
    python_headers: bool


class Tools(Model):
    """The oldest versions that work."""

    cmake: str
    ninja: str
    ninja_windows: str


class Needs(Model):
    """Content of needs.toml."""

    projects: dict[str, Need]
    sample: Need
    tools: Tools

    def of(self, project: str, *, sample: bool) -> Need:
        """Return what a project's build takes; the sample's builds take little."""
        return self.sample if sample else self.projects[project]


load_needs = data_file(_FILE, Needs)


def max_jobs(need: Need, wanted: str = "") -> int:
    """Return how many compilers run at a time: as wanted, else as many as cores and memory allow."""
    if not wanted:
        return max(1, min(cores(), int(memory_bytes() / _GIB // need.job)))
    if not (wanted.isascii() and wanted.isdecimal() and int(wanted)):
        raise UsageError(f"MAX_JOBS={wanted} is not a number of jobs.", hint="Give a number from 1 up.")
    return int(wanted)


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """What a machine has for a build."""

    platform: str
    python: PurePath
    python_headers: bool
    tree: PurePath
    compiler: str
    tools: Mapping[str, str]
    disk_gib: float
    memory_gib: float
    long_paths: bool = True


def machine_facts(
    platform: Platform, *, target: Interpreter, tree: Path, base_env: Mapping[str, str]
) -> MachineFacts:
    """Collect what `problems` looks at."""
    path, python = platform.find_variable(base_env, "PATH"), target.executable
    # what is installed into the target environment comes first on the build's PATH
    whole = platform.path_separator.join(filter(None, (str(python.parent), path)))
    named = platform.find_variable(base_env, "CXX").split()[:1]
    usual = ("cl", "clang-cl") if platform.windows else ("c++", "g++", "clang++")
    compilers = (process.which(program, path=path) for program in (named or usual))
    return MachineFacts(
        platform=platform.name,
        python=python,
        python_headers=(target.include / "Python.h").is_file(),
        tree=tree,
        compiler=next((str(program) for program in compilers if program), ""),
        tools={name: _tool_version(name, whole) for name in ("cmake", "ninja")},
        disk_gib=_free_disk(tree) / _GIB,
        memory_gib=memory_bytes() / _GIB,
        long_paths=_long_paths() if platform.windows else True,
    )


def problems(project: str, machine: MachineFacts, *, sample: bool = False) -> Iterator[tuple[str, str]]:
    """Find everything about a machine that will fail a project's build, each with a hint."""
    need, tools = load_needs().of(project, sample=sample), load_needs().tools
    windows = machine.platform == "windows"
    if not machine.compiler:
        prompt = "Start from a Visual Studio developer prompt."
        hint = prompt if windows else "Install g++ (build-essential), or set CXX."
        yield "There is no C++ compiler on the PATH.", hint
    for name, oldest in (("cmake", tools.cmake), ("ninja", tools.ninja)):
        if (found := machine.tools[name]) and Version(found) < Version(oldest):
            yield (
                f"{name} {found} is on the PATH, and builds need {oldest} or newer.",
                f"Install a newer {name}.",
            )
    if machine.disk_gib < need.disk:
        yield (
            f"{project} takes {need.disk:g} GiB of disk; {machine.tree} has {machine.disk_gib:.1f} GiB free.",
            "Free some, or check out to another disk (--checkout-dir).",
        )
    if machine.memory_gib < need.memory:
        yield (
            f"{project} takes {need.memory:g} GiB of memory, and there are {machine.memory_gib:.1f} GiB.",
            "Use a larger machine, or add swap and set MAX_JOBS=1.",
        )
    if need.python_headers and not machine.python_headers:
        yield (
            f"{machine.python} has no Python.h, and {project} compiles against it.",
            "Install that Python's headers (python3-dev), or use another Python.",
        )
    # https://github.com/pytorch/vision/issues/9165
    if windows and " " in str(machine.python):
        yield (
            f"The path of {machine.python} has a space, which breaks setuptools' command lines.",
            r"Install Python for the current user, to a path without spaces such as C:\Python312.",
        )
    if windows and not machine.long_paths:
        yield (
            "Windows does not allow paths beyond 260 characters, and these builds make them.",
            "Set LongPathsEnabled to 1 in the registry, and git config --global core.longpaths true.",
        )


def require_none(found: Sequence[tuple[str, str]]) -> None:
    """End the stage if there is a problem, naming all of them."""
    match found:
        case []:
            return
        case [(message, hint)]:
            raise EnvironmentSetupError(message, hint=hint)
    listed = "\n".join(f"  {message} {hint}" for message, hint in found)
    raise EnvironmentSetupError(
        f"This machine cannot build it, for {len(found)} reasons:\n{listed}",
        hint="Correct these and run the same command again.",
    )


def _tool_version(program: str, path: str) -> str:
    found = process.which(program, path=path)
    said = process.capture([found, "--version"], check=False).stdout if found else ""
    match = re.search(r"\d+(?:\.\d+)+", said)
    return match[0] if match else ""


def _free_disk(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def cores() -> int:
    """Count the cores that this process may use: fewer than the machine's in a container."""
    # Windows has no such call, and no groups that limit a process to fewer cores.
    affinity = getattr(os, "sched_getaffinity", None)
    allowed = len(affinity(0)) if affinity else os.cpu_count() or 1
    quota, _, period = _cgroup("cpu.max").partition(" ")
    if quota.isdecimal() and period.isdecimal():
        allowed = min(allowed, max(1, int(quota) // int(period)))
    return allowed


def memory_bytes() -> int:
    """Measure the memory that this process may use: less than the machine's in a container."""
    limit = _cgroup("memory.max")
    return min(_physical_memory(), int(limit)) if limit.isdecimal() else _physical_memory()


def _cgroup(name: str) -> str:
    try:
        return (_CGROUP / name).read_text(encoding="ascii").strip()
    except OSError:
        return ""


if sys.platform == "win32":  # pragma: no cover - no Windows runs the tests

    def _physical_memory() -> int:
        import ctypes

        kilobytes = ctypes.c_ulonglong()
        ctypes.windll.kernel32.GetPhysicallyInstalledSystemMemory(ctypes.byref(kilobytes))
        return kilobytes.value << 10

    def _long_paths() -> bool:
        import winreg

        key = r"SYSTEM\CurrentControlSet\Control\FileSystem"
        try:
            with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, key) as opened:
                return bool(winreg.QueryValueEx(opened, "LongPathsEnabled")[0])
        except OSError:
            return False

else:

    def _physical_memory() -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def _long_paths() -> bool:
        return True
