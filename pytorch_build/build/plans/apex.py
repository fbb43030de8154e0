"""apex: fused kernels on top of torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytorch_build.build.plans.common import (
    Steps,
    build_command,
    build_requires,
    close,
    common_env,
    needed_torch,
    sysdeps_env,
)
from pytorch_build.build.plans.types import FileDrop

if TYPE_CHECKING:
    from pytorch_build.build.plans.common import Context
    from pytorch_build.build.plans.types import BuildPlan


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
