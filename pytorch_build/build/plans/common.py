"""A build's plan, and what the plans of all projects share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from core.environment import need_of
from core.errors import DataError, MissingInputError, RocmError, SourceError
from core.files import digest_of
from pytorch_build.build.cache import launcher_env
from pytorch_build.lock.versions import without_edits

if TYPE_CHECKING:
    from pytorch_build.build.build import Build
    from pytorch_build.build.compilers import Compiler
    from pytorch_build.build.site import Site
    from pytorch_build.sdk import RocmSdk

# A GPU target given by this variable is not part of a compiler cache's key.
_TARGET_VARIABLE = "HCC_AMDGPU_TARGET"
# Another ROCm installation's variables, which would lead hipcc and CMake there.
_OTHER_ROCM = frozenset({"HIP_PATH", "HIP_DEVICE_LIB_PATH", "HIP_CLANG_PATH", "HIP_CLANG_LAUNCHER"})
_ANY_ROCM = _OTHER_ROCM | {"ROCM_HOME", "ROCM_PATH", "PYTORCH_ROCM_ARCH"}
_OURS = frozenset({"rocm", "triton", "torch", "torchaudio", "torchvision", "apex"})
# What differs from run to run and leaves a build folder's contents as they are.
_PASSING = frozenset({"PATH", "MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL"})


@dataclass(frozen=True, kw_only=True)
class Overlay:
    """A file, by content or source, that replaces what is under its name while the tree is built."""

    path: str
    content: str | None = None
    source: PurePath | None = None


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command of a build: argument list and folder."""

    argv: tuple[str, ...]
    cwd: PurePath


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """How to build one wheel. Executing it takes no further decision; `completed` adds to it."""

    distribution: str
    env: Mapping[str, str]
    commands: tuple[Command, ...]
    uninstall: tuple[str, ...] = ()
    requirements_files: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    as_locked: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    overlays: tuple[Overlay, ...] = ()
    notes: tuple[str, ...] = ()
    project: str = ""
    version: str = ""
    unset: frozenset[str] = frozenset()
    compilers: Mapping[str, Compiler] = field(default_factory=dict)
    configuration: str = ""
    cmake_cache: str = ""

    @property
    def wheel_dir(self) -> PurePath:
        """The folder that the commands leave the wheel in."""
        return self.commands[-1].cwd / "dist"

    @property
    def wheel_glob(self) -> str:
        """The pattern of the one wheel that the commands leave in `wheel_dir`."""
        return f"{self.distribution.replace('-', '_')}-*.whl"


def completed(build: Build, site: Site, plan: BuildPlan) -> BuildPlan:
    """Add what all projects share to a plan: the ref's environment last, nothing leaking in."""
    if _TARGET_VARIABLE in build.source.env:
        raise DataError(
            f"The ref's env of {build.project} sets {_TARGET_VARIABLE}, which compiler caches do not see.",
            hint="Give GPU targets by --gpu-family or --pytorch-rocm-arch.",
        )
    env = {**plan.env, **build.source.env}
    made = [plan.wheel_dir, *([plan.wheel_dir.with_name("build")] if build.choices.clean else [])]
    # an edit compiles what it changes, in the folder that there is
    lasting = {name: without_edits(value) for name, value in env.items() if name not in _PASSING}
    settings = {
        "python": str(site.python),
        "env": lasting,
        "flags": build.flags,
        "compilers": {name: asdict(one) for name, one in site.compilers.items()},
    }
    return replace(
        plan,
        project=build.project,
        version=build.tree.version,
        env=env,
        unset=(_OTHER_ROCM if site.rocm else _ANY_ROCM) - env.keys(),
        requirements_files=tuple(name for name in plan.requirements_files if name in site.facts.files),
        requirements=tuple(dict.fromkeys(plan.requirements)),
        removes=(*(path.relative_to(site.tree).as_posix() for path in made), *plan.removes),
        notes=(*plan.notes, *_overridden(build, env)),
        compilers=site.compilers,
        configuration=digest_of(settings),
    )


def _overridden(build: Build, env: Mapping[str, str]) -> Iterator[str]:
    """Name the user's variables that steer a build and that the plan sets otherwise."""
    for name in sorted(env.keys() - _PASSING):
        mine = build.platform.find_variable(build.base_env, name)
        if mine and mine not in env[name] and need_of(name) in {"build flags", "ROCm and GPUs"}:
            set_to = env[name] or "nothing"
            yield f"{name}={mine} of your environment is ignored: the build sets {set_to}."


def chosen(build: Build, name: str, usual: str) -> str:
    """Return a switch as the user's environment has it, else as usual."""
    return build.platform.find_variable(build.base_env, name) or usual


def _with_flags(build: Build, site: Site) -> dict[str, str]:
    """Put what the compiler needs behind the user's flags; CFLAGS count for C++ where CXXFLAGS is not set."""
    if build.platform.windows:
        return {}
    mine = build.base_env
    kept = {"CXXFLAGS": mine.get("CXXFLAGS", mine.get("CFLAGS", "")), "CPPFLAGS": mine.get("CPPFLAGS", "")}
    needed = site.compilers["CXX"].flags if "CXX" in site.compilers else ()
    flags = {name: " ".join(filter(None, (text.strip(), *needed))) for name, text in kept.items()}
    return {name: text for name, text in flags.items() if text}


def build_requires(site: Site) -> tuple[str, ...]:
    """Return the requirements of pyproject.toml without what this pipeline installs: torch must stay."""
    try:
        return tuple(
            line
            for line in site.facts.build_requires
            if canonicalize_name(Requirement(line).name) not in _OURS
        )
    except InvalidRequirement as problem:
        raise SourceError(f"{site.tree / 'pyproject.toml'}: invalid requirement: {problem}") from problem


def common_env(build: Build, site: Site) -> dict[str, str]:
    """Return the environment that every project's build shares."""
    platform, rocm, scripts = build.platform, site.rocm, site.python.parent
    path = [str(scripts), platform.find_variable(build.base_env, "PATH")]
    env = {
        "PYTHONUTF8": "1",
        "USE_KINETO": chosen(build, "USE_KINETO", platform.kineto),
        "USE_GLOO": chosen(build, "USE_GLOO", "ON"),
        # CMake looks for Python here first, and the tool's own environment may be active.
        "VIRTUAL_ENV": str(scripts.parent),
    }
    if rocm:
        path.insert(0, str(rocm.bin))
        env |= _rocm_env(build, rocm)
    env["PATH"] = platform.path_separator.join(filter(None, path))
    env |= platform.compiler_settings(rocm.root if rocm else None)
    env |= _with_flags(build, site)
    env |= launcher_env(
        site.cache,
        platform=platform.name,
        rocm_version=rocm.version if rocm else "",
        # the others' setup.py starts compilers by itself
        by_cmake=build.project in {"torch", "triton"},
        base_env=build.base_env,
    )
    return env | ({"MAX_JOBS": str(site.max_jobs)} if site.max_jobs is not None else {})


def _rocm_env(build: Build, rocm: RocmSdk) -> dict[str, str]:
    env = {
        "CMAKE_PREFIX_PATH": str(rocm.cmake),
        "ROCM_HOME": str(rocm.root),
        "ROCM_PATH": str(rocm.root),
        "PYTORCH_ROCM_ARCH": ";".join(build.gpu_targets),
    }
    if rocm.device_libs:
        # With ROCM_PATH set, clang does not find its device libraries by itself.
        env["HIP_DEVICE_LIB_PATH"] = str(rocm.root / "lib" / "llvm" / "amdgcn" / "bitcode")
    if rocm.host_math:
        env["BLAS"] = "OpenBLAS"
        env["OpenBLAS_HOME"] = str(rocm.root / "lib" / "host-math")
        env["OpenBLAS_LIB_NAME"] = "rocm-openblas"
    return env


def sysdeps_env(build: Build, site: Site) -> dict[str, str]:
    """Let the build find ROCm's bundled system libraries, in front of what the user has set (Linux)."""
    if site.rocm is None or build.platform.windows:
        return {}
    folder = site.rocm.root / "lib" / "rocm_sysdeps"
    if not site.rocm.sysdeps:
        raise RocmError(
            f"{folder} is missing, so {build.project} cannot be built.",
            hint="Install rocm[libraries,devel] completely: nox -s install_rocm.",
        )
    places = {"PKG_CONFIG_PATH": folder / "lib" / "pkgconfig", "LD_LIBRARY_PATH": folder / "lib"}
    return {
        name: build.platform.path_separator.join(filter(None, (str(place), build.base_env.get(name, ""))))
        for name, place in places.items()
    }


def windows_env(build: Build) -> dict[str, str]:
    """Make setuptools take the compiler of the prompt (torch, audio and vision on Windows)."""
    return {"DISTUTILS_USE_SDK": "1"} if build.platform.windows else {}


def needed_torch(build: Build, site: Site) -> str:
    """Return the installed torch's full version: extensions hold for the one torch they are built against."""
    if not site.torch_version:
        raise MissingInputError(
            f"{build.project} is built against torch, and torch is not installed.",
            hint="Build it first: nox -s build_torch.",
        )
    return site.torch_version


def setup_command(build: Build, site: Site, *, folder: str = "") -> Command:
    """Run ``setup.py bdist_wheel`` in a folder of the tree."""
    if f"{folder}/setup.py".lstrip("/") not in site.facts.files:
        raise _no_tree(build, site, "has no setup.py")
    return Command(argv=(str(site.python), "setup.py", "bdist_wheel"), cwd=site.tree / folder)


def build_command(build: Build, site: Site, *arguments: str) -> Command:
    """Run ``python -m build --wheel`` in the tree."""
    if not site.facts.files & {"pyproject.toml", "setup.py"}:
        raise _no_tree(build, site, "has neither pyproject.toml nor setup.py")
    return Command(argv=(str(site.python), "-m", "build", "--wheel", *arguments), cwd=site.tree)


def _no_tree(build: Build, site: Site, what: str) -> SourceError:
    return SourceError(
        f"{site.tree} {what}, so it is not a source tree of {build.project}.",
        hint="Check the ref's origin and commit, or the directory that was given.",
    )
