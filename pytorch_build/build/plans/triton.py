"""triton: ROCm's fork on Linux, triton-windows on Windows (which the refs leave off by default)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import MissingInputError, SourceError
from pytorch_build.build.plans.common import (
    build_command,
    build_requires,
    common_env,
    make_plan,
    setup_command,
)

if TYPE_CHECKING:
    from pytorch_build.build.build import Build
    from pytorch_build.build.plans.common import BuildPlan
    from pytorch_build.build.site import Site

_SUFFIX = "TRITON_WHEEL_VERSION_SUFFIX"
# upstream's builds of LLVM for triton, by the first digits of LLVM's commit
_LLVM = "https://oaitriton.blob.core.windows.net/public/llvm-builds/llvm-{commit:.8}-windows-x64.tar.gz"


def plan(build: Build, site: Site) -> BuildPlan:
    """Plan triton's wheel."""
    env = common_env(build, site) | dict(site.facts.build_env)
    env[_SUFFIX] = env.get(_SUFFIX, "") + _version_suffix(build, site)
    # ROCm's CMake folder is on CMAKE_PREFIX_PATH, and MLIR must not find ROCm's LLVM there.
    env["TRITON_APPEND_CMAKE_ARGS"] = "-DCMAKE_FIND_USE_CMAKE_ENVIRONMENT_PATH=FALSE"
    if build.platform.windows:
        env |= _windows_env(site)
        name = build.ref_env.get("TRITON_WHEEL_NAME", "triton")
        commands = (build_command(build, site),)
        return make_plan(
            build, site, distribution=name, env=env, commands=commands, requirements=("build", "wheel")
        )
    # Up to triton 3.3 setup.py lay in python/.
    folder = "python" if "python/setup.py" in site.facts.files else ""
    name = {"TRITON_WHEEL_NAME": "triton", **env, **build.ref_env}["TRITON_WHEEL_NAME"]
    return make_plan(
        build,
        site,
        distribution=name,
        env=env,
        commands=(setup_command(build, site, folder=folder),),
        folder=folder,
        uninstall=(name,),
        requirements_files=("python/requirements.txt",),
        requirements=("setuptools", "wheel", *build_requires(site)),
    )


def _version_suffix(build: Build, site: Site) -> str:
    """Return what setup.py must be told to add; the commit it adds by itself, in front."""
    version, git = build.tree.version, site.facts.git_suffix.lower()
    base, plus, local = version.partition("+")
    if not git:
        return plus + local
    rest = f"+{local}".removeprefix(git)
    if rest and not rest.startswith("."):
        raise SourceError(
            f"triton's setup.py adds its commit to the version, {base}{git}, and {version} is to be built.",
            hint="The source lock is older than the tree: run `nox -s resolve` again.",
        )
    return rest


def _windows_env(site: Site) -> dict[str, str]:
    llvm = site.provided.llvm
    if llvm is None:
        wanted = _LLVM.format(commit=site.facts.llvm_hash or "COMMIT")
        raise MissingInputError(
            "triton on Windows is built against an LLVM of its own, and none was given.",
            hint=f"Unpack {wanted} and name its folder in LLVM_SYSPATH.",
        )
    return {
        "LLVM_BUILD_DIR": str(llvm),
        "LLVM_INCLUDE_DIRS": str(llvm / "include"),
        "LLVM_LIBRARY_DIR": str(llvm / "lib"),
        "LLVM_SYSPATH": str(llvm),
        "TRITON_BUILD_PROTON": "OFF",
        "TRITON_WHEEL_NAME": "triton",
    }
