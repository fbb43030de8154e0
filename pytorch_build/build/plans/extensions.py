"""torchaudio, pinned to the torch it is built against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytorch_build.build.plans.common import (
    FileDrop,
    Steps,
    build_command,
    build_requires,
    close,
    common_env,
    needed_torch,
    setup_command,
    sysdeps_env,
    windows_env,
)

if TYPE_CHECKING:
    from pytorch_build.build.plans.common import BuildPlan, Context


def audio_plan(context: Context) -> BuildPlan:
    """Plan torchaudio's wheel."""
    request = context.request
    env = common_env(context) | sysdeps_env(context) | windows_env(context)
    env |= {
        "BUILD_VERSION": request.version,
        "BUILD_NUMBER": "1",
        "PYTORCH_VERSION": needed_torch(context),
        "USE_ROCM": "1" if request.rocm else "0",
        "USE_CUDA": "0",
        "USE_FFMPEG": "1",
        "USE_OPENMP": "1",
        "BUILD_SOX": "0",
    }
    if request.options.max_jobs is not None:
        # Its CMake build knows nothing of MAX_JOBS.
        env["CMAKE_BUILD_PARALLEL_LEVEL"] = str(request.options.max_jobs)
    steps = Steps(
        distribution="torchaudio",
        env=env,
        commands=(setup_command(context, "bdist_wheel"),),
        import_code="import torchaudio; print(torchaudio.__version__)",
        requirements=("setuptools", "wheel", "cmake", "ninja", *build_requires(context)),
    )
    return close(context, steps)


def vision_plan(context: Context) -> BuildPlan:
    """Plan torchvision's wheel."""
    request = context.request
    env = common_env(context) | sysdeps_env(context) | windows_env(context)
    env |= {
        "BUILD_VERSION": request.version,
        "VERSION_NAME": request.version,
        "BUILD_NUMBER": "1",
        "PYTORCH_VERSION": needed_torch(context),
        # Means GPU sources: without it they are left out on a machine without a GPU.
        "FORCE_CUDA": "1" if request.rocm else "0",
        "TORCHVISION_USE_NVJPEG": "0",
        "TORCHVISION_USE_VIDEO_CODEC": "0",
    }
    steps = Steps(
        distribution="torchvision",
        env=env,
        commands=(setup_command(context, "bdist_wheel"),),
        import_code="import torchvision; print(torchvision.__version__)",
        requirements=("setuptools", "wheel", "ninja", *build_requires(context)),
    )
    return close(context, steps)


def apex_plan(context: Context) -> BuildPlan:
    """Plan apex's wheel."""
    request = context.request
    needed_torch(context)
    env = common_env(context) | sysdeps_env(context)
    env |= {"BUILD_VERSION": request.version, "BUILD_NUMBER": "1"}
    # --cuda_ext asks for GPU sources, HIP's too, and fails without a GPU compiler.
    options = ("--cpp_ext", "--cuda_ext") if request.rocm else ("--cpp_ext",)
    arguments = (f"-C--build-option={option}" for option in options)
    # Older setup.py files know version.txt alone.
    versioned = context.facts.tree.reads_build_version
    drops = () if versioned else (FileDrop(path="version.txt", content=f"{request.version}\n"),)
    steps = Steps(
        distribution="apex",
        env=env,
        commands=(build_command(context, "--no-isolation", *arguments),),
        import_code="import apex; from importlib.metadata import version; print(version('apex'))",
        requirements=(
            "build",
            "setuptools",
            "wheel",
            "packaging",
            "ninja",
            *build_requires(context),
        ),
        file_drops=drops,
    )
    return close(context, steps)
