"""Plans of every project; torch has a module of its own.

torchaudio, torchvision and apex are built against one torch, which they are pinned to.
triton is ROCm's fork on Linux, and triton-windows on Windows, which the refs leave off by default.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import MissingInputError, SourceError
from pytorch_build.build.plans import common, torch

if TYPE_CHECKING:
    from pytorch_build.build.build import Build
    from pytorch_build.build.site import Site

_SUFFIX = "TRITON_WHEEL_VERSION_SUFFIX"
# upstream's builds of LLVM for triton, by the first digits of LLVM's commit
_LLVM = "https://oaitriton.blob.core.windows.net/public/llvm-builds/llvm-{commit:.8}-windows-x64.tar.gz"


def plan_build(build: Build, site: Site) -> common.BuildPlan:
    """Plan the build of one wheel."""
    planners = {"triton": _triton, "torch": torch.plan, "audio": _audio, "vision": _vision, "apex": _apex}
    return common.completed(build, site, planners[build.project](build, site))


def _triton(build: Build, site: Site) -> common.BuildPlan:
    env = common.common_env(build, site) | dict(site.facts.build_env)
    env[_SUFFIX] = env.get(_SUFFIX, "") + _version_suffix(build, site)
    # ROCm's CMake folder is on CMAKE_PREFIX_PATH, and MLIR must not find ROCm's LLVM there.
    env["TRITON_APPEND_CMAKE_ARGS"] = "-DCMAKE_FIND_USE_CMAKE_ENVIRONMENT_PATH=FALSE"
    if build.platform.windows:
        env |= _windows_env(site)
        name = build.source.env.get("TRITON_WHEEL_NAME", "triton")
        commands = (common.build_command(build, site),)
        return common.BuildPlan(
            distribution=name, env=env, commands=commands, requirements=("build", "wheel")
        )
    # Up to triton 3.3 setup.py lay in python/.
    folder = "python" if "python/setup.py" in site.facts.files else ""
    name = {"TRITON_WHEEL_NAME": "triton", **env, **build.source.env}["TRITON_WHEEL_NAME"]
    return common.BuildPlan(
        distribution=name,
        env=env,
        commands=(common.setup_command(build, site, folder=folder),),
        uninstall=(name,),
        requirements_files=("python/requirements.txt",),
        requirements=("setuptools", "wheel", *common.build_requires(site)),
    )


def _version_suffix(build: Build, site: Site) -> str:
    """Return the suffix that setup.py gets; the commit it adds by itself, in front."""
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


def _env(build: Build, site: Site, **own: str) -> dict[str, str]:
    versions = {"BUILD_VERSION": build.tree.version, "BUILD_NUMBER": "1"}
    return common.common_env(build, site) | common.sysdeps_env(build, site) | versions | own


def _extension(build: Build, site: Site, distribution: str, *tools: str, **own: str) -> common.BuildPlan:
    """Plan a wheel of extensions of torch, which its setup.py builds with variables of its own."""
    version = common.needed_torch(build, site)
    return common.BuildPlan(
        distribution=distribution,
        env=common.windows_env(build) | _env(build, site, PYTORCH_VERSION=version, **own),
        commands=(common.setup_command(build, site),),
        requirements=("setuptools", "wheel", *tools, *common.build_requires(site)),
    )


def _audio(build: Build, site: Site) -> common.BuildPlan:
    own = {"USE_ROCM": "1" if site.rocm else "0", "USE_CUDA": "0"}
    own |= {"USE_FFMPEG": "1", "USE_OPENMP": "1", "BUILD_SOX": "0"}
    # Its CMake build knows nothing of MAX_JOBS.
    own |= {} if site.max_jobs is None else {"CMAKE_BUILD_PARALLEL_LEVEL": str(site.max_jobs)}
    return _extension(build, site, "torchaudio", "cmake", "ninja", **own)


def _vision(build: Build, site: Site) -> common.BuildPlan:
    # FORCE_CUDA means GPU sources: without it they are left out on a machine without a GPU.
    own = {"VERSION_NAME": build.tree.version, "FORCE_CUDA": "1" if site.rocm else "0"}
    own |= {"TORCHVISION_USE_NVJPEG": "0", "TORCHVISION_USE_VIDEO_CODEC": "0"}
    return _extension(build, site, "torchvision", "ninja", **own)


def _apex(build: Build, site: Site) -> common.BuildPlan:
    common.needed_torch(build, site)
    # --cuda_ext asks for GPU sources, HIP's too, and fails without a GPU compiler.
    options = ("--cpp_ext", "--cuda_ext") if site.rocm else ("--cpp_ext",)
    arguments = (f"-C--build-option={option}" for option in options)
    # Older setup.py files know version.txt alone.
    versioned = common.Overlay(path="version.txt", content=f"{build.tree.version}\n")
    return common.BuildPlan(
        distribution="apex",
        env=_env(build, site),
        commands=(common.build_command(build, site, "--no-isolation", *arguments),),
        requirements=("build", "setuptools", "wheel", "packaging", "ninja", *common.build_requires(site)),
        overlays=() if site.facts.reads_build_version else (versioned,),
    )
