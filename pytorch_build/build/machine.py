"""What builds take of the machine, as data, and how many compilers fit into it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version
from pydantic import Field

from core.data import Model, load_toml
from core.errors import EnvironmentSetupError, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import PurePath


_FILE = Path(__file__).with_name("needs.toml")


class Need(Model):
    """What one build takes."""

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


@cache
def load_needs() -> Needs:
    """Read needs.toml."""
    return load_toml(_FILE, Needs)


def need_of(project: str, *, sample: bool) -> Need:
    """Look up what a project's build takes; the sample's builds take little."""
    needs = load_needs()
    if project not in needs.projects:
        raise UsageError(f"{project!r} is no component.", hint=nearest(project, needs.projects))
    return needs.sample if sample else needs.projects[project]


def max_jobs(need: Need, *, cores: int, memory_gib: float, wanted: str = "") -> int:
    """Say how many compilers run at a time: as asked, else as many as cores and memory allow."""
    if not wanted:
        return max(1, min(cores, int(memory_gib // need.job)))
    if not (wanted.isascii() and wanted.isdecimal() and int(wanted)):
        raise UsageError(f"MAX_JOBS={wanted} is no number of jobs.", hint="Give a number from 1 up.")
    return int(wanted)


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """What a machine has for a build."""

    platform: str
    python: PurePath
    python_headers: bool
    tree: PurePath
    compiler: str
    cmake: str
    ninja: str
    disk_gib: float
    memory_gib: float
    cores: int
    long_paths: bool = True


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Something that will fail the build."""

    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.message} {self.hint}"


def check(project: str, machine: MachineFacts, *, sample: bool = False) -> tuple[Problem, ...]:
    """Find everything about a machine that will fail a project's build."""
    need = need_of(project, sample=sample)
    found = [*_compiler(machine), *_tools(machine, load_needs().tools), *_room(project, machine, need)]
    if need.python_headers and not machine.python_headers:
        found.append(
            Problem(
                message=f"{machine.python} has no Python.h, and {project} compiles against it.",
                hint="Install that Python's headers (python3-dev), or use another Python.",
            )
        )
    if machine.platform == "windows":
        found += _windows(machine)
    return tuple(found)


def require(problems: tuple[Problem, ...]) -> None:
    """End the stage if there is a problem, naming all of them."""
    if not problems:
        return
    if len(problems) == 1:
        raise EnvironmentSetupError(problems[0].message, hint=problems[0].hint)
    listed = "\n".join(f"  {problem}" for problem in problems)
    raise EnvironmentSetupError(
        f"This machine cannot build it, for {len(problems)} reasons:\n{listed}",
        hint="Correct these and run the same command again.",
    )


def _compiler(machine: MachineFacts) -> Iterator[Problem]:
    if not machine.compiler:
        windows = machine.platform == "windows"
        yield Problem(
            message="There is no C++ compiler on the PATH.",
            hint="Start from a Visual Studio developer prompt."
            if windows
            else "Install g++ (build-essential), or set CXX.",
        )


def _tools(machine: MachineFacts, tools: Tools) -> Iterator[Problem]:
    if _older(machine.cmake, tools.cmake):
        yield Problem(
            message=f"cmake {machine.cmake} is on the PATH, and builds need {tools.cmake} or newer.",
            hint="Install a newer cmake.",
        )
    if _older(machine.ninja, tools.ninja):
        yield Problem(
            message=f"ninja {machine.ninja} is on the PATH, and builds need {tools.ninja} or newer.",
            hint="Install a newer ninja.",
        )


def _older(version: str, oldest: str) -> bool:
    """Compare two versions; an unknown one is not held against the machine."""
    try:
        return bool(version) and Version(version) < Version(oldest)
    except InvalidVersion:
        return False


def _room(project: str, machine: MachineFacts, need: Need) -> Iterator[Problem]:
    if machine.disk_gib < need.disk:
        yield Problem(
            message=f"{project} takes {need.disk:g} GiB of disk, and {machine.tree} has"
            f" {machine.disk_gib:.1f} GiB free.",
            hint="Free some, or check out to another disk (--checkout-dir).",
        )
    if machine.memory_gib < need.memory:
        yield Problem(
            message=f"{project} takes {need.memory:g} GiB of memory, and there are"
            f" {machine.memory_gib:.1f} GiB.",
            hint="Use a larger machine, or add swap and set MAX_JOBS=1.",
        )


def _windows(machine: MachineFacts) -> Iterator[Problem]:
    # https://github.com/pytorch/vision/issues/9165
    if " " in str(machine.python):
        yield Problem(
            message=f"The path of {machine.python} has a space, which breaks setuptools' command lines.",
            hint=r"Install Python for the current user, to a path without spaces such as C:\Python312.",
        )
    if not machine.long_paths:
        yield Problem(
            message="Windows does not allow paths beyond 260 characters, and these builds make them.",
            hint="Set LongPathsEnabled to 1 in the registry, and git config --global core.longpaths true.",
        )
