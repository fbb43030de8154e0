"""Plans of builds: pure functions from a build and its site to what has to run.

Source: the build contract of ROCm/TheRock's PyTorch packaging, less its defects: this process's environment
stays as it is, the user's compiler flags are kept, and no choice depends on the order of files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytorch_build.build.plans import extensions, torch, triton

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytorch_build.build.build import Build
    from pytorch_build.build.plans.common import BuildPlan
    from pytorch_build.build.site import Site

_PLANNERS: dict[str, Callable[[Build, Site], BuildPlan]] = {
    "triton": triton.plan,
    "torch": torch.plan,
    "audio": extensions.audio_plan,
    "vision": extensions.vision_plan,
    "apex": extensions.apex_plan,
}


def plan_build(build: Build, site: Site) -> BuildPlan:
    """Plan the build of one wheel."""
    return _PLANNERS[build.project](build, site)
