"""What builds take of the machine, and what will fail later, said before anything is built.

`problems` and `shortages` are pure; `machine_facts` collects what they look at. What builds take is what past
ones on this machine took, else data (`needs.toml`).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from packaging.version import Version
from pydantic import Field

from core import console, files, process
from core.cli.options import environment
from core.data import Model, data_file
from core.errors import DataError, EnvironmentSetupError, ProcessError, UsageError
from core.run import records
from pytorch_build.build.compilers import commands
from pytorch_build.platforms import PLATFORMS
from pytorch_build.refs.torch_refs import load_refs
from pytorch_build.sources.trees import lacks, place

if TYPE_CHECKING:
    from core.env import Interpreter
    from core.run.records import Record
    from pytorch_build.build.build import BuildChoices
    from pytorch_build.context import Context
    from pytorch_build.platforms import Platform

Problem = tuple[str, str]  # with its hint
_FILE = Path(__file__).with_name("needs.toml")
_GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")
# so few runs are looked into, and records read
_MOST_RUNS, _MOST_RECORDS = 20, 5


class Need(Model):
    """What one build takes: GiB of disk, of memory, and of memory for one compiler; `seen` in past builds."""

    disk: float = Field(gt=0)
    memory: float = Field(gt=0)
    job: float = Field(gt=0)
    python_headers: bool = True
    seen: dict[str, str] = Field(default_factory=dict)

    def said(self, name: str, what: str) -> str:
        """Say how much of something is needed, and how that is known."""
        asked = f"{getattr(self, name):.3g} GiB of {what}"
        return f"took {self.seen[name]}, so {asked} are asked for" if name in self.seen else f"takes {asked}"


class Tools(Model):
    """The oldest versions that work."""

    cmake: str
    ninja: str
    ninja_windows: str


class Needs(Model):
    """Content of needs.toml."""

    margin: float = Field(ge=1)
    gpu: dict[str, Need]
    cpu: dict[str, Need]  # of those that take less
    sample: Need
    tools: Tools

    def of(self, project: str, *, gpu: bool, sample: bool) -> Need:
        """Return what a project's build takes; the sample's builds take little."""
        return self.sample if sample else ({} if gpu else self.cpu).get(project, self.gpu[project])


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
    compilers: Sequence[Problem]  # what is wrong with them
    tools: Mapping[str, str]
    disk_gib: float  # free, or taken by the tree already
    memory_gib: float
    long_paths: bool = True


def machine_facts(
    platform: Platform, *, target: Interpreter, tree: Path, base_env: Mapping[str, str], need: Need
) -> MachineFacts:
    """Collect what `problems` and `shortages` look at; `tree` need not be there yet."""
    path, python = platform.find_variable(base_env, "PATH"), target.executable
    # what is installed into the target environment comes first on the build's PATH
    whole = platform.path_separator.join(filter(None, (str(python.parent), path)))
    there = next((one for one in (tree, *tree.parents) if one.exists()), tree)
    free = shutil.disk_usage(there).free / _GIB
    return MachineFacts(
        platform=platform.name,
        python=python,
        python_headers=(target.include / "Python.h").is_file(),
        tree=tree,
        compilers=tuple(_compilers(platform, base_env)),
        tools={name: _tool_version(name, whole) for name in ("cmake", "ninja")},
        # the tree is only measured where that counts
        disk_gib=free if free >= need.disk else free + files.measured(tree)[0] / _GIB,
        memory_gib=memory_bytes() / _GIB,
        long_paths=_long_paths() if platform.windows else True,
    )


def problems(project: str, machine: MachineFacts, need: Need) -> Iterator[Problem]:
    """Find everything about a machine that will fail a project's build, each with a hint."""
    tools, windows = load_needs().tools, machine.platform == "windows"
    yield from machine.compilers
    for name, oldest in (("cmake", tools.cmake), ("ninja", tools.ninja)):
        if (found := machine.tools[name]) and Version(found) < Version(oldest):
            yield (
                f"{name} {found} is on the PATH, and builds need {oldest} or newer.",
                f"Install a newer {name}.",
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


def shortages(project: str, machine: MachineFacts, need: Need) -> Iterator[Problem]:
    """Find what a machine has too little of; a user who knows better builds nevertheless."""
    if machine.disk_gib < need.disk:
        hint = "Free some (nox -s clean), name another disk's folder in SOURCES_DIR, or add --ignore-needs."
        where = f"{machine.tree.parent} has {machine.disk_gib:.1f} GiB free"
        yield f"{project} {need.said('disk', 'disk')}; {where} or taken for it already.", hint
    name = "job" if "job" in need.seen else "memory"  # one compiler has to fit
    if machine.memory_gib < getattr(need, name):
        hint = "Use a larger machine, or add swap and set MAX_JOBS=1 and --ignore-needs."
        there = f"there are {machine.memory_gib:.1f} GiB"
        yield f"{project} {need.said(name, 'memory')}, and {there}.", hint


def look(
    context: Context, choices: BuildChoices, project: str, target: Interpreter, need: Need | None = None
) -> Sequence[Problem]:
    """Find what would fail a build, of a tree that need not be there; warn of shortages that are ignored."""
    env, own, need = environment(), choices.own_trees.get(project), need or need_of(context, project)
    tree, platform = place(context, project, own), PLATFORMS[context.common.platform]
    facts = machine_facts(platform, target=target, tree=tree, base_env=env, need=need)
    found = [*(lacks(own, project, env) if own else ()), *problems(project, facts, need)]
    short = list(shortages(project, facts, need))
    if not choices.ignore_needs:
        return found + short
    for message, _ in short:
        console.warn(f"{message} It is built anyway.")
    return found


def need_of(context: Context, project: str) -> Need:
    """Return what a project's build takes: the most that past ones took and a margin, else what data says."""
    needs, changes, seen = load_needs(), dict[str, Any](), dict[str, str]()
    past = _past_builds(context, project)
    # compilers whose results come out of a cache do not run
    ran = [one for one in past if "compiler_cache" not in one.details]
    for name, what, where in (("disk", "disk", past), ("job", "memory for one compiler", ran)):
        if took := [(size, one) for one in where if isinstance(size := one.details.get(name), int)]:
            most, one = max(took, key=itemgetter(0))
            seen[name] = f"{console.size(most)} of {what} in run {one.run_id} ({one.started[:10]})"
            changes[name] = most / _GIB * needs.margin
    need = needs.of(project, gpu=context.gpu, sample=bool(context.ref.local_label))
    return need.model_copy(update={**changes, "seen": seen})


def _past_builds(context: Context, project: str) -> Sequence[Record]:
    """Read the newest records of a project's builds for the family, of this run and a folder's others."""
    store, outputs, group = context.common.open_store(), context.common.outputs, context.artifact_group
    below, end = outputs.manifests_prefix(group).removeprefix(outputs.prefix), f"-{outputs.platform}"
    # a bucket has those of all machines
    others = () if outputs.bucket else [one for one in store.folders("") if one.endswith(end)]
    runs = {outputs.prefix, *others[-_MOST_RUNS:]}
    listed = [one for run in runs for one in store.list(f"{run}{below}") if f"/build_{project}-" in one.key]
    labels, found = {name: ref.local_label for name, ref in load_refs().items()}, []
    for stored in sorted(listed, key=attrgetter("modified"))[-_MOST_RECORDS:]:
        with suppress(DataError):  # of another version of this tool
            found.append(records.parse(store.read(stored.key), where=stored.key))
    return [one for one in found if labels.get(one.cell.torch_ref or "", "") == context.ref.local_label]


def require_none(found: Sequence[Problem]) -> None:
    """End the stage if there is a problem, naming all of them."""
    match found:
        case []:
            return
        case [(message, hint)]:
            raise EnvironmentSetupError(message, hint=hint)
    listed = "\n".join(f"  {message} {hint}" for message, hint in found)
    raise EnvironmentSetupError(
        f"It cannot be built here, for {len(found)} reasons:\n{listed}",
        hint="Correct these and run the same command again.",
    )


def _compilers(platform: Platform, env: Mapping[str, str]) -> Iterator[Problem]:
    """Find what is wrong with the compilers that variables name, or else with the usual ones."""
    path, known = platform.find_variable(env, "PATH"), commands(platform, env)
    # cl knows no --version, and is that of both languages
    languages, asked = {"CC": "C", "CXX": "C++"}, "--version"
    if platform.windows:
        languages, asked = {"CXX": "C++"}, "/?"
    for variable, language in languages.items():
        try:
            process.capture([*known[variable], asked], env=process.handed_on(PATH=path))
        except ProcessError as problem:
            why = problem.message.splitlines()[0].rstrip(":.")
            hint = f"Install a {language} compiler, or name one in {variable}."
            prompt = "Start from a Visual Studio developer prompt."
            yield f"No {language} compiler works: {why}.", prompt if platform.windows else hint


def _tool_version(program: str, path: str) -> str:
    found = process.which(program, path=path)
    said = process.capture([found, "--version"], check=False).stdout if found else ""
    match = re.search(r"\d+(?:\.\d+)+", said)
    return match[0] if match else ""


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
