"""Reads what builds have to know: of source trees, the ROCm SDK, the toolchain and the machine.

The thin edge in front of `pytorch_build.build` and `pytorch_build.build.machine`, which are pure.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, process
from core.data import parse_toml
from core.errors import DataError, MissingInputError
from pytorch_build.build.machine import MachineFacts
from pytorch_build.build.plans.common import BuildFacts, RocmFacts, TreeFacts
from pytorch_build.build.toolchain import LICENSE, load_toolchain
from pytorch_build.lock.pins import SETUP_FILES, adds_commit

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import PurePath

    from pytorch_build.build.toolchain import Places
    from pytorch_build.platforms import Platform

_BUILD_ENV, _LLVM_HASH = "build_env.json", "cmake/llvm-hash.txt"
ASKED = (
    "pyproject.toml",
    "setup.py",
    "python/setup.py",
    "python/requirements.txt",
    "requirements.txt",
    "requirements-build.txt",
    _BUILD_ENV,
    _LLVM_HASH,
)
_GIB = 1 << 30
_CGROUP = Path("/sys/fs/cgroup")


def tree_facts(tree: Path) -> TreeFacts:
    """Read what a build has to know of a source tree."""
    if not tree.is_dir():
        raise MissingInputError(f"There is no source tree at {tree}.", hint="Fetch it: nox -s checkout.")
    texts = {
        name: path.read_text(encoding="utf-8", errors="replace")
        for name in ASKED
        if (path := tree / name).is_file()
    }
    return facts_of_texts(texts, where=tree, git_suffix=lambda: _git_suffix(tree))


def facts_of_texts(texts: Mapping[str, str], *, where: PurePath, git_suffix: Callable[[], str]) -> TreeFacts:
    """Say what a build has to know of a tree whose files of `ASKED` have these texts."""
    setup = next((texts[name] for name in SETUP_FILES if name in texts), "")
    backend, requires = _build_system(texts.get("pyproject.toml", ""), where / "pyproject.toml")
    return TreeFacts(
        files=frozenset(texts) - {_BUILD_ENV, _LLVM_HASH},
        build_backend=backend,
        build_requires=requires,
        build_env=_build_env(texts.get(_BUILD_ENV, "{}"), where / _BUILD_ENV),
        reads_build_version="BUILD_VERSION" in setup,
        git_suffix=git_suffix() if adds_commit(setup) else "",
        llvm_hash=texts.get(_LLVM_HASH, "").strip(),
    )


def _build_system(text: str, where: PurePath) -> tuple[str, tuple[str, ...]]:
    table: Any = parse_toml(text, where=str(where)).get("build-system", {})
    requires = table.get("requires", [])
    if not isinstance(requires, list) or not all(isinstance(entry, str) for entry in requires):
        raise DataError(f"{where}: build-system.requires is no list of requirements.")
    return str(table.get("build-backend", "")), tuple(requires)


def _build_env(text: str, where: PurePath) -> dict[str, str]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as problem:
        raise DataError(f"{where} is not valid JSON: {problem}.") from problem
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise DataError(f"{where} is no table of variables.", hint="Run nox -s checkout again.")
    return content


def _git_suffix(tree: Path) -> str:
    """Say what triton's setup.py adds: the commit, except on a branch of a release."""
    if not (tree / ".git").is_dir():
        return ""
    branch = process.capture(["git", "rev-parse", "--abbrev-ref", "HEAD"], cwd=tree).stdout.strip()
    if branch.startswith("release"):
        return ""
    return "+git" + process.capture(["git", "rev-parse", "--short=8", "HEAD"], cwd=tree).stdout.strip()


def rocm_facts(root: Path, libraries: Collection[str]) -> RocmFacts:
    """Read what an SDK has; `libraries` is what `rocm_init.query_code` printed, split into words."""
    if not root.is_dir():
        raise MissingInputError(f"There is no ROCm SDK at {root}.", hint="Install it: nox -s install_rocm.")
    return RocmFacts(
        device_libs=(root / "lib" / "llvm" / "amdgcn" / "bitcode").is_dir(),
        host_math=(root / "lib" / "host-math").is_dir(),
        sysdeps=(root / "lib" / "rocm_sysdeps").is_dir(),
        libraries=frozenset(libraries),
    )


def build_facts(
    tree: TreeFacts,
    rocm: RocmFacts | None,
    *,
    platform: Platform,
    base_env: Mapping[str, str],
    provided: Places,
    shared: bool,
) -> BuildFacts:
    """Add what the toolchain has to ship: Windows' DLLs, as provided or as variables name them."""
    if platform.NAME != "windows":
        return BuildFacts(tree=tree, rocm=rocm)
    openmp, uv = _openmp(platform, base_env, provided, shared=shared), _uv(platform, base_env, provided)
    carried = {"llvm-openmp": provided.openmp if openmp else None, "libuv": uv and uv.parent.parent}
    return BuildFacts(
        tree=tree,
        rocm=rocm,
        openmp=openmp,
        uv=uv,
        licenses={
            name: folder / LICENSE
            for name, folder in carried.items()
            if folder and (folder / LICENSE).is_file()
        },
        llvm=_llvm(platform, base_env),
    )


def _openmp(
    platform: Platform, base_env: Mapping[str, str], provided: Places, *, shared: bool
) -> Path | None:
    """Find the first OpenMP runtime of toolchain.toml that is there and may be carried."""
    data = load_toolchain().openmp
    redist = platform.find_variable(base_env, data.visual_studio.variable)
    found = {
        "download": [path] if (path := provided.openmp / data.dll).is_file() else [],
        "visual_studio": sorted(Path(redist).glob(data.visual_studio.pattern)) if redist else [],
    }
    for name in data.order:
        source = data.download if name == "download" else data.visual_studio
        if not found[name] or (shared and not source.redistributable):
            continue
        if not source.redistributable:
            console.warn(
                f"The wheel gets {found[name][-1]}, which may not be redistributed: keep it to yourself, "
                "or run nox -s prepare first."
            )
        return found[name][-1]
    return None


def _uv(platform: Platform, base_env: Mapping[str, str], provided: Places) -> Path | None:
    named = platform.find_variable(base_env, "libuv_ROOT")
    found = (Path(named) if named else provided.libuv) / load_toolchain().libuv.libraries[platform.NAME]
    if found.is_file():
        return found
    if named:
        raise MissingInputError(
            f"libuv_ROOT is {named}, and {found} does not exist.",
            hint="Unset libuv_ROOT, and run nox -s prepare.",
        )
    return None


def _llvm(platform: Platform, base_env: Mapping[str, str]) -> Path | None:
    named = platform.find_variable(base_env, "LLVM_SYSPATH")
    if named and not (Path(named) / "include").is_dir():
        raise MissingInputError(
            f"LLVM_SYSPATH is {named}, and no LLVM lies there.",
            hint="Name the folder of its include and lib.",
        )
    return Path(named) if named else None


def machine_facts(
    platform: Platform, *, python: Path, include: Path, tree: Path, base_env: Mapping[str, str]
) -> MachineFacts:
    """Collect what `preflight.check` looks at."""
    path = platform.find_variable(base_env, "PATH")
    # what is installed into the target environment comes first on the build's PATH
    whole = platform.PATH_SEPARATOR.join(filter(None, (str(python.parent), path)))
    return MachineFacts(
        platform=platform.NAME,
        python=python,
        python_headers=(include / "Python.h").is_file(),
        tree=tree,
        compiler=_compiler(platform, base_env, path),
        cmake=_tool_version("cmake", whole),
        ninja=_tool_version("ninja", whole),
        disk_gib=_free_disk(tree) / _GIB,
        memory_gib=memory_bytes() / _GIB,
        cores=cores(),
        long_paths=_long_paths() if platform.NAME == "windows" else True,
    )


def _compiler(platform: Platform, base_env: Mapping[str, str], path: str) -> str:
    named = platform.find_variable(base_env, "CXX").split()[:1]
    usual = ("cl", "clang-cl") if platform.NAME == "windows" else ("c++", "g++", "clang++")
    found = (process.which(program, path=path) for program in (named or usual))
    return next((str(program) for program in found if program), "")


def _tool_version(program: str, path: str) -> str:
    found = process.which(program, path=path)
    if found is None:
        return ""
    said = process.capture([found, "--version"], check=False).stdout
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
    whole = _physical_memory()
    limit = _cgroup("memory.max")
    return min(whole, int(limit)) if limit.isdecimal() else whole


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
