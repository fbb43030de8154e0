"""torchaudio, torchvision and apex: built against one torch, which they are pinned to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytorch_build.build.plans.common import (
    Overlay,
    build_command,
    build_requires,
    common_env,
    make_plan,
    needed_torch,
    setup_command,
    sysdeps_env,
    windows_env,
)

if TYPE_CHECKING:
    from pytorch_build.build.build import Build
    from pytorch_build.build.plans.common import BuildPlan
    from pytorch_build.build.site import Site


def _env(build: Build, site: Site, **own: str) -> dict[str, str]:
    versions = {"BUILD_VERSION": build.tree.version, "BUILD_NUMBER": "1"}
    return common_env(build, site) | sysdeps_env(build, site) | versions | own


def audio_plan(build: Build, site: Site) -> BuildPlan:
    """Plan torchaudio's wheel."""
    env = windows_env(build) | _env(
        build,
        site,
        PYTORCH_VERSION=needed_torch(build, site),
        USE_ROCM="1" if site.rocm else "0",
        USE_CUDA="0",
        USE_FFMPEG="1",
        USE_OPENMP="1",
        BUILD_SOX="0",
    )
    if site.max_jobs is not None:
        # Its CMake build knows nothing of MAX_JOBS.
        env["CMAKE_BUILD_PARALLEL_LEVEL"] = str(site.max_jobs)
    return make_plan(
        build,
        site,
        distribution="torchaudio",
        env=env,
        commands=(setup_command(build, site),),
        requirements=("setuptools", "wheel", "cmake", "ninja", *build_requires(site)),
    )


def vision_plan(build: Build, site: Site) -> BuildPlan:
    """Plan torchvision's wheel."""
    env = windows_env(build) | _env(
        build,
        site,
        VERSION_NAME=build.tree.version,
        PYTORCH_VERSION=needed_torch(build, site),
        # Means GPU sources: without it they are left out on a machine without a GPU.
        FORCE_CUDA="1" if site.rocm else "0",
        TORCHVISION_USE_NVJPEG="0",
        TORCHVISION_USE_VIDEO_CODEC="0",
    )
    return make_plan(
        build,
        site,
        distribution="torchvision",
        env=env,
        commands=(setup_command(build, site),),
        requirements=("setuptools", "wheel", "ninja", *build_requires(site)),
    )


def apex_plan(build: Build, site: Site) -> BuildPlan:
    """Plan apex's wheel."""
    needed_torch(build, site)
    # --cuda_ext asks for GPU sources, HIP's too, and fails without a GPU compiler.
    options = ("--cpp_ext", "--cuda_ext") if site.rocm else ("--cpp_ext",)
    arguments = (f"-C--build-option={option}" for option in options)
    # Older setup.py files know version.txt alone.
    versioned = Overlay(path="version.txt", content=f"{build.tree.version}\n")
    return make_plan(
        build,
        site,
        distribution="apex",
        env=_env(build, site),
        commands=(build_command(build, site, "--no-isolation", *arguments),),
        requirements=("build", "setuptools", "wheel", "packaging", "ninja", *build_requires(site)),
        overlays=() if site.facts.reads_build_version else (versioned,),
    )
