"""Plans of builds: pure functions from a project, a ROCm SDK and options to what has to run.

Source: the build contract of ROCm/TheRock's PyTorch packaging, less its defects: nothing
changes this process's environment, a person's compiler flags are kept, and no choice is
left to the order of files on a disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import UsageError, nearest
from pytorch_build.build.plans import extensions, torch, triton
from pytorch_build.build.plans.common import Context

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pytorch_build.build.plans.common import BuildFacts, BuildPlan, BuildRequest
    from pytorch_build.platforms import Platform

_PLANNERS: Mapping[str, Callable[[Context], BuildPlan]] = {
    "triton": triton.plan,
    "torch": torch.plan,
    "audio": extensions.audio_plan,
    "vision": extensions.vision_plan,
    "apex": extensions.apex_plan,
}


def plan_build(
    request: BuildRequest, facts: BuildFacts, *, platform: Platform, base_env: Mapping[str, str]
) -> BuildPlan:
    """Plan the build of one wheel."""
    if request.project not in _PLANNERS:
        raise UsageError(f"{request.project!r} is no component.", hint=nearest(request.project, _PLANNERS))
    context = Context(request=request, facts=facts, platform=platform, base_env=base_env)
    return _PLANNERS[request.project](context)


def environment(plan: BuildPlan, *, platform: Platform, base_env: Mapping[str, str]) -> dict[str, str]:
    """Give the whole environment of a plan's commands: the base, less `unset`, with `env` on top."""
    return platform.merge(base_env, plan.env, unset=plan.unset)
