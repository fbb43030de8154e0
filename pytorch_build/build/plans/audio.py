"""torchaudio, pinned to the torch it is built against."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytorch_build.build.plans.common import (
    Steps,
    build_requires,
    close,
    common_env,
    needed_torch,
    setup_command,
    sysdeps_env,
    windows_env,
)

if TYPE_CHECKING:
    from pytorch_build.build.plans.common import Context
    from pytorch_build.build.plans.types import BuildPlan


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
