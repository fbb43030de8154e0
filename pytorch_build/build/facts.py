"""What is known of machine, tree and ROCm when a build is planned.

A real build observes these facts and a dry run assumes some of them: both ways stand side by side at the
end, so that a fact that one has and the other lacks is seen. The plan that follows from them is the same
(`plan`). Paths are pure, so that a build for Windows can be planned on Linux.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from core.data import json_object, parse_toml
from core.env import installed_version
from core.errors import DataError, MissingInputError
from core.run import key_name
from pytorch_build.build import machine
from pytorch_build.build.compilers import Compiler, find_compilers
from pytorch_build.build.toolchain import LICENSE, ToolchainParts, find_toolchain_parts, load_toolchain
from pytorch_build.lock.versions import SETUP_FILES, adds_commit
from pytorch_build.sdk import RocmSdk
from pytorch_build.sources.git import Repository

if TYPE_CHECKING:
    from pytorch_build.build.build import Work
    from pytorch_build.build.cache import CompilerCache
    from pytorch_build.build.cache_use import CacheUse
    from pytorch_build.build.request import BuildRequest
    from pytorch_build.platforms import Platform


_BUILD_ENV = "build_env.json"
_LLVM_HASH = "cmake/llvm-hash.txt"
_PROJECT_FILES = (
    "pyproject.toml",
    "setup.py",
    "python/setup.py",
    "python/requirements.txt",
    "requirements.txt",
    "requirements-build.txt",
)

# The few files of a tree that a plan depends on.
PLANNED_FROM = (*_PROJECT_FILES, _BUILD_ENV, _LLVM_HASH)


@dataclass(frozen=True, kw_only=True)
class TreeFacts:
    """What a source tree's own files say of how it is built.

    Attributes:
        files: Which of the files that builds use there are.
        build_backend: pyproject.toml's build backend.
        build_requires: pyproject.toml's build requirements.
        build_env: The variables that the checkout left for the build.
        reads_build_version: Whether setup.py takes the version from BUILD_VERSION.
        git_suffix: What setup.py adds to the version by itself; "" for nothing.
        llvm_hash: The commit of the LLVM that triton is built against.
    """

    files: frozenset[str]
    build_backend: str = ""
    build_requires: tuple[str, ...] = ()
    build_env: Mapping[str, str] = field(default_factory=dict)
    reads_build_version: bool = True
    git_suffix: str = ""
    llvm_hash: str = ""

    @property
    def uses_scikit_build_core(self) -> bool:
        """Whether scikit-build-core makes the wheel, as of torch 2.14, and not setuptools."""
        return self.build_backend.startswith("scikit_build_core.")


@dataclass(frozen=True, kw_only=True)
class BuildFacts:
    """What is known of the machine, the source tree and ROCm when a build is planned, besides its inputs.

    Attributes:
        platform: The platform that the wheel is for.
        gpu_family: The GPU family; ``cpu`` for none.
        tree: Where the source tree is.
        python: The Python of the environment that the wheel is built in.
        tree_facts: What the tree says of its build.
        rocm: The ROCm in the environment; None for CPUs.
        toolchain_parts: What Windows' builds link or ship besides ROCm.
        torch_version: The version of the torch in the environment; None where there is none.
        compiler_cache: What compilers are started through.
        compilers: The compilers for C and C++, by the variables that name them.
        max_jobs: How many compilers run at a time; None where the machine is not known.
        user_env: The user's variables.
    """

    platform: Platform
    gpu_family: str
    tree: PurePath
    python: PurePath
    tree_facts: TreeFacts
    rocm: RocmSdk | None = None
    toolchain_parts: ToolchainParts
    torch_version: str | None = None
    compiler_cache: CompilerCache | None = None
    compilers: Mapping[str, Compiler] = field(default_factory=dict)
    max_jobs: int | None = None
    user_env: Mapping[str, str]

    def variable(self, name: str) -> str:
        """Return the user's value of a variable; "" where it is unset, which upstream treats alike."""
        return self.platform.find_variable(self.user_env, name)

    def extend_path(self, name: str, folder: PurePath) -> str:
        """Return the user's value of a PATH-like variable with another folder in front."""
        folders = [str(folder)]
        if user_folders := self.user_env.get(name, ""):
            folders.append(user_folders)
        return self.platform.path_separator.join(folders)

    def compiler_flags(self) -> dict[str, str]:
        """Return CXXFLAGS and CPPFLAGS: the user's, then those that the compiler needs; none on Windows."""
        if self.platform.windows:
            return {}

        # Where CXXFLAGS is not set, upstream takes CFLAGS for C++, too.
        user_flags = {
            "CXXFLAGS": self.user_env.get("CXXFLAGS", self.user_env.get("CFLAGS", "")),
            "CPPFLAGS": self.user_env.get("CPPFLAGS", ""),
        }
        needed_flags: tuple[str, ...] = ()
        if "CXX" in self.compilers:
            needed_flags = self.compilers["CXX"].flags

        flags: dict[str, str] = {}
        for name, text in user_flags.items():
            joined = " ".join([text.strip(), *needed_flags]).strip()
            if joined:
                flags[name] = joined
        return flags


def read_tree_facts(tree: Path) -> TreeFacts:
    """Return what the files of a source tree on this machine say of how it is built."""
    if not tree.is_dir():
        raise MissingInputError(f"There is no source tree at {tree}.", hint="Fetch it: nox -s checkout.")

    texts: dict[str, str] = {}
    for name in PLANNED_FROM:
        if (tree / name).is_file():
            texts[name] = (tree / name).read_text(
                encoding="utf-8",
                errors="replace",
            )
    return tree_facts_from(
        texts,
        tree=tree,
        git_suffix=lambda: _git_suffix(tree),
    )


def tree_facts_from(
    texts: Mapping[str, str],
    *,
    tree: PurePath,
    git_suffix: Callable[[], str],
) -> TreeFacts:
    """Return what the given texts of a source tree's files say of how it is built.

    Args:
        texts: Those of the files in `PLANNED_FROM` that there are.
        tree: Where the tree is, for errors.
        git_suffix: Answers what a setup.py that adds the commit to the version would add.
    """
    setup_text = next((texts[name] for name in SETUP_FILES if name in texts), "")
    build_system = _read_build_system(texts.get("pyproject.toml", ""), path=tree / "pyproject.toml")
    return TreeFacts(
        files=frozenset(texts).intersection(_PROJECT_FILES),
        build_backend=str(build_system.get("build-backend", "")),
        build_requires=tuple(build_system.get("requires", [])),
        build_env=_read_build_env(texts.get(_BUILD_ENV, "{}"), path=tree / _BUILD_ENV),
        reads_build_version="BUILD_VERSION" in setup_text,
        git_suffix=git_suffix() if adds_commit(setup_text) else "",
        llvm_hash=texts.get(_LLVM_HASH, "").strip(),
    )


def _read_build_system(text: str, *, path: PurePath) -> Mapping[str, Any]:
    """Return the ``build-system`` table of pyproject.toml."""
    table: Mapping[str, Any] = parse_toml(text, where=str(path)).get("build-system", {})
    requires = table.get("requires", [])
    if not isinstance(requires, list) or not all(isinstance(line, str) for line in requires):
        raise DataError(f"{path}: build-system.requires is not a list of requirements.")
    return table


def _read_build_env(text: str, *, path: PurePath) -> Mapping[str, str]:
    """Return the environment variables that a tree's build_env.json sets."""
    hint = "Run nox -s checkout again."
    variables = json_object(
        text,
        where=str(path),
        hint=hint,
    )
    if not all(isinstance(value, str) for value in variables.values()):
        raise DataError(f"{path} is not a table of variables.", hint=hint)
    return variables


def _git_suffix(tree: Path) -> str:
    """Return what triton's setup.py appends to the version: ``+git`` and the commit, or "" on a release."""
    # setup.py asks the same: in a linked work tree, whose .git is a file, it adds nothing.
    if not (tree / ".git").is_dir():
        return ""

    git = Repository(path=tree)
    if git.read_output("rev-parse", "--abbrev-ref", "HEAD").startswith("release"):
        return ""
    return f"+git{git.read_output('rev-parse', '--short=8', 'HEAD')}"


# --- Observed, or assumed ---------------------------------------------------------------------

# A checkout at a short path, as the documentation advises for Windows.
_CHECKOUT_ELSEWHERE = {
    "linux": PurePosixPath("/b/wheels"),
    "windows": PureWindowsPath("C:/b/wheels"),
}
_USERS_PATH = {"linux": "$PATH", "windows": "%PATH%"}

# Where a machine is not known, it is taken for one with today's GCC.
_USUAL_COMPILERS = {"CXX": Compiler(path="c++", kind="gcc")}


def observe_facts(
    work: Work,
    tree: Path,
    *,
    rocm: RocmSdk | None,
    cache_use: CacheUse | None,
    max_jobs: int,
) -> BuildFacts:
    """Return the facts for planning a real build, read from its finished tree and environment.

    Args:
        work: The build.
        tree: Its source tree.
        rocm: What the ROCm in its environment says of itself.
        cache_use: The compiler cache, where one is in use.
        max_jobs: How many compilers run at a time.
    """
    request = work.request
    common = request.context.common
    torch_version = None
    if work.inputs.dependency("torch") is not None:
        torch_version = installed_version(request.target, "torch")

    return BuildFacts(
        platform=request.platform,
        gpu_family=request.context.gpu_family,
        tree=tree,
        python=request.target.executable,
        tree_facts=read_tree_facts(tree),
        rocm=rocm,
        toolchain_parts=find_toolchain_parts(
            common.cache,
            platform=request.platform,
            base_env=request.user_env,
            is_redistributed=common.outputs.immutable,
        ),
        torch_version=torch_version,
        # None where the cache did not start: then no compiler is started through it.
        compiler_cache=cache_use.cache if cache_use is not None else None,
        compilers=find_compilers(request.platform, {**request.user_env, **request.source.env}),
        max_jobs=max_jobs,
        user_env=request.user_env,
    )


def assume_facts(work: Work, tree_facts: TreeFacts) -> BuildFacts:
    """Return the facts for planning a dry run, which reads a few files of the tree and assumes the rest.

    A whole ROCm is assumed, and the parts of the toolchain that builds provide.
    """
    request = work.request
    if request.is_for_this_platform:
        tree: PurePath = work.tree.path
        python: PurePath = request.target.executable
        site_packages: PurePath = request.target.purelib
        need = machine.find_machine_need(request.context, request.component)
        max_jobs = machine.max_jobs(need, request.requested_jobs)
        known_compilers = find_compilers(request.platform, {**request.user_env, **request.source.env})
    else:
        common = request.context.common
        checkout = _CHECKOUT_ELSEWHERE[request.platform.name]
        sources = common.sources.as_posix().replace(common.root.as_posix(), checkout.as_posix())
        tree = type(checkout)(sources) / key_name(request.context.ref.name) / request.component.name
        python, site_packages = _environment_elsewhere(request)
        max_jobs = None
        known_compilers = _USUAL_COMPILERS

    return BuildFacts(
        platform=request.platform,
        gpu_family=request.context.gpu_family,
        tree=tree,
        python=python,
        tree_facts=tree_facts,
        rocm=_assumed_sdk(work, site_packages),
        toolchain_parts=_assumed_toolchain_parts(request, tree_facts),
        torch_version=work.inputs.version_of("torch"),
        compiler_cache=request.compiler_cache,
        compilers=known_compilers,
        max_jobs=max_jobs,
        user_env={**request.user_env, "PATH": _USERS_PATH[request.platform.name]},
    )


def name_assumptions(work: Work, facts: BuildFacts) -> Iterator[str]:
    """Yield a sentence for everything that `assume_facts` took for granted."""
    request = work.request
    if not request.is_for_this_platform:
        checkout = _CHECKOUT_ELSEWHERE[request.platform.name]
        yield f"The checkout is {checkout}, and nothing of this machine's environment counts."
    if facts.rocm is not None:
        site_packages = facts.rocm.root.parent
        yield f"ROCm is complete below {site_packages}, and has every library that torch loads first."
    for dependency in work.inputs.dependencies:
        if dependency.digest is None:
            yield f"{dependency.requirement} is among the run's outputs, or built before."

    versions = versions_of_toolchain_parts(request)
    if versions:
        names = " and ".join(f"{name} {version}" for name, version in versions.items())
        yield f"The build provides {names} below .cache/toolchain, where they are not there yet."
    yield "Without SOURCE_DATE_EPOCH the commands get the commit's time."


def _environment_elsewhere(request: BuildRequest) -> tuple[PurePath, PurePath]:
    """Return the Python and site-packages that a build's environment has on another platform."""
    series = request.target.series
    checkout = _CHECKOUT_ELSEWHERE[request.platform.name]
    prefix = checkout / ".nox" / f"build_{request.component.name}-{series.replace('.', '-')}"
    if request.platform.windows:
        return prefix / "Scripts" / "python.exe", prefix / "Lib" / "site-packages"
    return prefix / "bin" / "python", prefix / "lib" / f"python{series}" / "site-packages"


def _assumed_sdk(work: Work, site_packages: PurePath) -> RocmSdk | None:
    """Return the facts of a ROCm SDK that is assumed to be complete; None for CPUs."""
    if work.inputs.rocm is None:
        return None

    platform = work.request.platform
    root = site_packages / "_rocm_sdk_devel"
    return RocmSdk(
        version=work.inputs.rocm.version,
        root=root,
        bin=root / "bin",
        cmake=root / "lib" / "cmake",
        targets=work.inputs.gpu_targets,
        libraries=frozenset(platform.preloads),
        has_sysdeps=not platform.windows,
    )


def versions_of_toolchain_parts(request: BuildRequest) -> Mapping[str, str]:
    """Return the pinned versions of libuv and OpenMP that a build has to provide itself, by name."""
    if request.component.required_toolchain_parts is None:
        return {}
    names = request.component.required_toolchain_parts(
        request.platform, {**request.user_env, **request.source.env}
    )
    pins = load_toolchain()
    versions = {"libuv": pins.libuv.version, "openmp": pins.openmp.version}
    return {name: versions[name] for name in names}


def _assumed_toolchain_parts(request: BuildRequest, tree_facts: TreeFacts) -> ToolchainParts:
    """Return where a Windows build's OpenMP, libuv and LLVM would be; nothing for Linux."""
    if not request.platform.windows:
        return ToolchainParts()

    checkout: PurePath = _CHECKOUT_ELSEWHERE["windows"]
    if request.is_for_this_platform:
        checkout = request.context.common.root
    pins = load_toolchain()
    openmp = checkout / pins.openmp.folder(PurePath(".cache"))
    libuv = checkout / pins.libuv.folder(PurePath(".cache"))
    llvm = request.platform.find_variable(request.user_env, "LLVM_SYSPATH")
    return ToolchainParts(
        openmp=openmp / pins.openmp.dll,
        libuv=libuv / pins.libuv.library,
        licenses={"llvm-openmp": openmp / LICENSE, "libuv": libuv / LICENSE},
        llvm=PureWindowsPath(llvm or f"C:/b/llvm-{tree_facts.llvm_hash[:8]}-windows-x64"),
    )
