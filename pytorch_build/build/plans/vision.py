"""torchvision, pinned to the torch it is built against."""

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
