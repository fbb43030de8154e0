"""What the builds of all projects share: their common environment, and how a plan is closed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from core.errors import DataError, MissingInputError, RocmError, SourceError, UsageError
from core.files import digest_of
from pytorch_build.build.cache import launcher_env

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import PurePath

    from pytorch_build.build.cache import CompilerCache
    from pytorch_build.platforms import Platform


# A GPU target given by this variable is no part of a compiler cache's key.
_TARGET_VARIABLE = "HCC_AMDGPU_TARGET"
# The run's credentials are for this tool, not for what it builds.
_CREDENTIALS = frozenset(
    {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_WEB_IDENTITY_TOKEN_FILE"}
)
_LEAKS = _CREDENTIALS | {
    _TARGET_VARIABLE,
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSAFEPATH",
    "TRITON_WHEEL_NAME",
}
# The others' setup.py starts compilers by itself.
_BUILT_BY_CMAKE = frozenset({"torch", "triton"})
# Another ROCm installation's variables, which would lead hipcc and CMake there.
_OTHER_ROCM = frozenset({"HIP_PATH", "HIP_DEVICE_LIB_PATH", "HIP_CLANG_PATH", "HIP_CLANG_LAUNCHER"})
_ANY_ROCM = _OTHER_ROCM | {"ROCM_HOME", "ROCM_PATH", "PYTORCH_ROCM_ARCH"}
_OURS = frozenset({"rocm", "triton", "torch", "torchaudio", "torchvision", "apex"})
# What differs from run to run and leaves a build folder's contents as they are.
_PASSING = frozenset({"PATH", "MAX_JOBS", "CMAKE_BUILD_PARALLEL_LEVEL"})
_TARGET = re.compile(r"gfx[0-9a-f]{3,4}(?::[a-z]+[+-])*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Context:
    """A request with everything that its plan is computed from."""

    request: BuildRequest
    facts: BuildFacts
    platform: Platform
    base_env: Mapping[str, str]

    @property
    def windows(self) -> bool:
        """Whether the wheel is for Windows."""
        return self.platform.NAME == "windows"


@dataclass(frozen=True, kw_only=True)
class Steps:
    """What a project's own module says of its plan; `close` adds what is common."""

    distribution: str
    env: Mapping[str, str]
    commands: tuple[Command, ...]
    import_code: str
    folder: str = ""
    uninstall: tuple[str, ...] = ()
    requirements_files: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    as_locked: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    file_drops: tuple[FileDrop, ...] = ()
    install: bool = False
    notes: tuple[str, ...] = ()


def build_requires(context: Context) -> tuple[str, ...]:
    """Give what the project's pyproject.toml asks for, less what this pipeline itself installs.

    Some projects name torch there; the installed one must stay, and no index may answer for it.
    """
    kept = []
    for line in context.facts.tree.build_requires:
        try:
            name = canonicalize_name(Requirement(line).name)
        except InvalidRequirement as problem:
            raise SourceError(
                f"{context.request.tree / 'pyproject.toml'}: {line!r} is no requirement: {problem}"
            ) from problem
        if name not in _OURS:
            kept.append(line)
    return tuple(kept)


def gpu_targets(*, asked: str, inherited: str, sdk: Iterable[str]) -> tuple[str, ...]:
    """Choose the GPU targets: the command line, else PYTORCH_ROCM_ARCH, else what the SDK is for."""
    for source, text in (("--pytorch-rocm-arch", asked), ("PYTORCH_ROCM_ARCH", inherited)):
        words = tuple(dict.fromkeys(word for word in re.split(r"[,;\s]+", text) if word))
        wrong = [word for word in words if not _TARGET.fullmatch(word)]
        if wrong:
            raise UsageError(f"{wrong[0]!r} in {source} is no GPU target.", hint="Targets look like gfx942.")
        if words:
            return words
    if found := tuple(dict.fromkeys(sdk)):
        return found
    raise RocmError("The ROCm SDK names no GPU targets.", hint="Give them: --pytorch-rocm-arch gfx942.")


def common_env(context: Context) -> dict[str, str]:
    """Give the environment that every project's build shares."""
    request, platform = context.request, context.platform
    scripts = request.python.parent
    path = [str(scripts), platform.find_variable(context.base_env, "PATH")]
    env = {
        "PYTHONUTF8": "1",
        "USE_KINETO": platform.find_variable(context.base_env, "USE_KINETO") or platform.KINETO,
        "USE_GLOO": "ON",
        # CMake looks for Python here first, and the tool's own environment may be active.
        "VIRTUAL_ENV": str(scripts.parent),
    }
    if request.rocm:
        path.insert(0, str(request.rocm.bin))
        env |= _rocm_env(request, request.rocm, _rocm_facts(context))
    env["PATH"] = platform.PATH_SEPARATOR.join(filter(None, path))
    env |= platform.compiler_settings(context.base_env, request.rocm.root if request.rocm else None)
    env |= launcher_env(
        request.options.compiler_cache,
        platform=platform.NAME,
        rocm_version=request.rocm.version if request.rocm else "",
        by_cmake=request.project in _BUILT_BY_CMAKE,
        base_env=context.base_env,
    )
    if request.options.max_jobs is not None:
        env["MAX_JOBS"] = str(request.options.max_jobs)
    return env


def _rocm_facts(context: Context) -> RocmFacts:
    if context.facts.rocm is None:
        raise RocmError("Nothing is known of the ROCm SDK that this build is for.")
    return context.facts.rocm


def _rocm_env(request: BuildRequest, rocm: RocmPaths, facts: RocmFacts) -> dict[str, str]:
    if not request.gpu_targets:
        raise RocmError(
            f"There are no GPU targets to build {request.project} for.", hint="Give --gpu-family."
        )
    env = {
        "CMAKE_PREFIX_PATH": str(rocm.cmake),
        "ROCM_HOME": str(rocm.root),
        "ROCM_PATH": str(rocm.root),
        "PYTORCH_ROCM_ARCH": ";".join(request.gpu_targets),
    }
    if facts.device_libs:
        # With ROCM_PATH set, clang does not find its device libraries by itself.
        env["HIP_DEVICE_LIB_PATH"] = str(rocm.root / "lib" / "llvm" / "amdgcn" / "bitcode")
    if facts.host_math:
        env["BLAS"] = "OpenBLAS"
        env["OpenBLAS_HOME"] = str(rocm.root / "lib" / "host-math")
        env["OpenBLAS_LIB_NAME"] = "rocm-openblas"
    return env


def sysdeps_env(context: Context) -> dict[str, str]:
    """Let the build find ROCm's bundled system libraries (liblzma, libdrm): Linux with ROCm only.

    Linking against ROCm's libraries, and running programs so linked, takes them. They go to
    the commands of the build alone, in front of what a person has set.
    """
    rocm = context.request.rocm
    if rocm is None or context.windows:
        return {}
    folder = rocm.root / "lib" / "rocm_sysdeps"
    if not _rocm_facts(context).sysdeps:
        raise RocmError(
            f"{folder} is missing, so {context.request.project} cannot be built.",
            hint="Install rocm[libraries,devel] completely: nox -s install_rocm.",
        )
    return {
        name: context.platform.PATH_SEPARATOR.join(filter(None, (str(place), context.base_env.get(name, ""))))
        for name, place in (
            ("PKG_CONFIG_PATH", folder / "lib" / "pkgconfig"),
            ("LD_LIBRARY_PATH", folder / "lib"),
        )
    }


def windows_env(context: Context) -> dict[str, str]:
    """Make setuptools take the compiler of the prompt (torch, audio and vision on Windows)."""
    return {"DISTUTILS_USE_SDK": "1"} if context.windows else {}


def needed_torch(context: Context) -> str:
    """Give the installed torch's version, which the wheel is then pinned to.

    The full version, local part too: extensions hold for the one torch they are built against.
    """
    if not context.request.torch_version:
        raise MissingInputError(
            f"{context.request.project} is built against torch, and torch is not installed.",
            hint="Build it first: nox -s build_torch.",
        )
    return context.request.torch_version


def setup_command(context: Context, *arguments: str, folder: str = "") -> Command:
    """Run setup.py in a folder of the tree."""
    place = context.request.tree / folder if folder else context.request.tree
    if (f"{folder}/setup.py" if folder else "setup.py") not in context.facts.tree.files:
        raise SourceError(
            f"{place} has no setup.py, so it is no source tree of {context.request.project}.",
            hint="Check the ref's origin and commit, or the directory that was given.",
        )
    return Command(argv=(str(context.request.python), "setup.py", *arguments), cwd=place)


def build_command(context: Context, *arguments: str) -> Command:
    """Run ``python -m build --wheel`` in the tree."""
    if not context.facts.tree.files & {"pyproject.toml", "setup.py"}:
        raise SourceError(
            f"{context.request.tree} has neither pyproject.toml nor setup.py, so it is no source tree"
            f" of {context.request.project}.",
            hint="Check the ref's origin and commit, or the directory that was given.",
        )
    argv = (str(context.request.python), "-m", "build", "--wheel", *arguments)
    return Command(argv=argv, cwd=context.request.tree)


def close(context: Context, steps: Steps) -> BuildPlan:
    """Turn a project's steps into its plan: the ref's environment last, nothing leaking in."""
    request = context.request
    if _TARGET_VARIABLE in request.ref_env:
        raise DataError(
            f"The ref's env of {request.project} sets {_TARGET_VARIABLE}, which compiler caches do not see.",
            hint="Give GPU targets by --gpu-family or --pytorch-rocm-arch.",
        )
    env = {**steps.env, **request.ref_env}
    unset = (_LEAKS | (_OTHER_ROCM if request.rocm else _ANY_ROCM)) - env.keys()
    at = f"{steps.folder}/" if steps.folder else ""
    cleaned = (f"{at}build",) if request.options.clean else ()
    place: PurePath = request.tree / steps.folder if steps.folder else request.tree
    lasting = {name: value for name, value in env.items() if name not in _PASSING}
    return BuildPlan(
        project=request.project,
        distribution=steps.distribution,
        version=request.version,
        env=env,
        unset=unset,
        uninstall=steps.uninstall,
        requirements_files=tuple(
            name for name in steps.requirements_files if name in context.facts.tree.files
        ),
        requirements=tuple(dict.fromkeys((*steps.requirements, *request.build_requirements))),
        as_locked=steps.as_locked,
        removes=(f"{at}dist", *cleaned, *steps.removes),
        file_drops=steps.file_drops,
        commands=steps.commands,
        wheel_dir=place / "dist",
        wheel_glob=f"{steps.distribution.replace('-', '_')}-*.whl",
        install=steps.install,
        import_check=(str(request.python), "-c", steps.import_code),
        notes=steps.notes,
        configuration=digest_of({"python": str(request.python), "env": lasting}),
    )


class RocmPaths(Protocol):
    """What an installed ROCm SDK says of itself; `pytorch_build.rocm.RocmSdk` is one."""

    @property
    def version(self) -> str:
        """The SDK's version."""
        ...

    @property
    def root(self) -> PurePath:
        """Its folder."""
        ...

    @property
    def bin(self) -> PurePath:
        """Its programs."""
        ...

    @property
    def cmake(self) -> PurePath:
        """Its CMake packages."""
        ...

    @property
    def targets(self) -> tuple[str, ...]:
        """GPU targets that it is for."""
        ...


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    """What a person may choose about a build."""

    compiler_cache: CompilerCache | None = None
    flash_attention: bool | None = None
    clean: bool = False
    max_jobs: int | None = None


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """One wheel to build."""

    project: str
    version: str
    tree: PurePath
    python: PurePath
    rocm: RocmPaths | None
    gpu_targets: tuple[str, ...] = ()
    torch_version: str = ""
    triton_version: str = ""
    ref_env: Mapping[str, str] = field(default_factory=dict)
    build_requirements: tuple[str, ...] = ()
    options: BuildOptions = field(default_factory=BuildOptions)


@dataclass(frozen=True, kw_only=True)
class RocmFacts:
    """What is there in an SDK."""

    device_libs: bool
    host_math: bool
    sysdeps: bool
    libraries: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class TreeFacts:
    """What is there in a source tree."""

    files: frozenset[str]
    build_backend: str = ""
    build_requires: tuple[str, ...] = ()
    build_env: Mapping[str, str] = field(default_factory=dict)
    reads_build_version: bool = True
    git_suffix: str = ""
    llvm_hash: str = ""


@dataclass(frozen=True, kw_only=True)
class BuildFacts:
    """Everything that a plan has to know of the machine."""

    tree: TreeFacts
    rocm: RocmFacts | None = None
    openmp: PurePath | None = None
    uv: PurePath | None = None
    licenses: Mapping[str, PurePath] = field(default_factory=dict)
    llvm: PurePath | None = None


@dataclass(frozen=True, kw_only=True)
class FileDrop:
    """A file that lies in the tree while it is built, and is taken away again afterwards.

    What was there under its name is put back. Exactly one of content and source is given.
    """

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
    """How to build one wheel. Executing it takes no further decision."""

    project: str
    distribution: str
    version: str
    env: Mapping[str, str]
    unset: frozenset[str]
    uninstall: tuple[str, ...]
    requirements_files: tuple[str, ...]
    requirements: tuple[str, ...]
    as_locked: tuple[str, ...]
    removes: tuple[str, ...]
    file_drops: tuple[FileDrop, ...]
    commands: tuple[Command, ...]
    wheel_dir: PurePath
    wheel_glob: str
    install: bool
    import_check: tuple[str, ...]
    notes: tuple[str, ...]
    configuration: str
