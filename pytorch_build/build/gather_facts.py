"""The facts that a build is planned from: observed where it runs, or assumed for a dry run.

Both ways stand side by side here, so that a fact that one has and the other lacks is seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING

from core.env import installed_version
from core.run import key_name
from pytorch_build.build import machine
from pytorch_build.build.compilers import Compiler, find_compilers
from pytorch_build.build.facts import BuildFacts, TreeFacts, read_tree_facts
from pytorch_build.build.toolchain import LICENSE, Provided, find_provided, load_toolchain
from pytorch_build.sdk import RocmSdk

if TYPE_CHECKING:
    from pytorch_build.build.build import Work
    from pytorch_build.build.cache_use import CacheUse
    from pytorch_build.build.request import BuildRequest

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
    """Return the facts of a build whose tree and environment are ready.

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
        torch_version = installed_version(request.target, "torch") or None

    return BuildFacts(
        platform=request.platform,
        gpu_family=request.context.gpu_family,
        tree=tree,
        python=request.target.executable,
        tree_facts=read_tree_facts(tree),
        rocm=rocm,
        provided=find_provided(
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
    """Return the facts of a build for which nothing has to be there but its tree's few files.

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
        rocm=_whole_sdk(work, site_packages),
        provided=_assumed_parts(request, tree_facts),
        torch_version=work.inputs.version_of("torch"),
        compiler_cache=request.options.compiler_cache,
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

    versions = needed_parts(request)
    if versions:
        names = " and ".join(f"{name} {version}" for name, version in versions.items())
        yield f"The build provides {names} below .cache/toolchain, where they are not there yet."
    yield "Without SOURCE_DATE_EPOCH the commands get the commit's time."


def _environment_elsewhere(request: BuildRequest) -> tuple[PurePath, PurePath]:
    """Return the Python and the site-packages of the session's environment on another platform."""
    series = request.target.series
    checkout = _CHECKOUT_ELSEWHERE[request.platform.name]
    prefix = checkout / ".nox" / f"build_{request.component.name}-{series.replace('.', '-')}"
    if request.platform.windows:
        return prefix / "Scripts" / "python.exe", prefix / "Lib" / "site-packages"
    return prefix / "bin" / "python", prefix / "lib" / f"python{series}" / "site-packages"


def _whole_sdk(work: Work, site_packages: PurePath) -> RocmSdk | None:
    """Return the facts of a ROCm that lacks nothing; None for CPUs."""
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
        sysdeps=not platform.windows,
    )


def needed_parts(request: BuildRequest) -> Mapping[str, str]:
    """Return the versions of the parts of the toolchain that a build provides, by name."""
    if request.component.parts_needed is None:
        return {}
    names = request.component.parts_needed(request.platform, {**request.user_env, **request.source.env})
    pins = load_toolchain()
    versions = {"libuv": pins.libuv.version, "openmp": pins.openmp.version}
    return {name: versions[name] for name in names}


def _assumed_parts(request: BuildRequest, tree_facts: TreeFacts) -> Provided:
    """Return what builds for Windows provide; those on Linux need nothing of it."""
    if not request.platform.windows:
        return Provided()

    checkout: PurePath = _CHECKOUT_ELSEWHERE["windows"]
    if request.is_for_this_platform:
        checkout = request.context.common.root
    pins = load_toolchain()
    openmp = checkout / pins.openmp.folder(PurePath(".cache"))
    libuv = checkout / pins.libuv.folder(PurePath(".cache"))
    llvm = request.platform.find_variable(request.user_env, "LLVM_SYSPATH")
    return Provided(
        openmp=openmp / pins.openmp.dll,
        uv=libuv / pins.libuv.library,
        licenses={"llvm-openmp": openmp / LICENSE, "libuv": libuv / LICENSE},
        llvm=PureWindowsPath(llvm or f"C:/b/llvm-{tree_facts.llvm_hash[:8]}-windows-x64"),
    )
