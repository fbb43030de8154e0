"""One build as a value: everything that it follows from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytorch_build.build.plans.common import gpu_targets
from pytorch_build.platforms import platform_named

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.env import Interpreter
    from pytorch_build.build.dependencies import Dependency
    from pytorch_build.build.options import BuildChoices
    from pytorch_build.context import Context
    from pytorch_build.platforms import Platform
    from pytorch_build.sources.trees import Tree
    from rocm_packaging.rocm_sources import RocmSource

# The others have no fat binaries: apex ships sources that are compiled when they are first used.
SPLIT_PROJECTS = ("torch", "vision")


@dataclass(frozen=True, kw_only=True)
class Build:
    """Everything that one build follows from."""

    context: Context
    choices: BuildChoices
    target: Interpreter
    project: str
    tree: Tree
    rocm: RocmSource | None
    dependencies: Sequence[Dependency]
    base_env: Mapping[str, str]

    @property
    def platform(self) -> Platform:
        """The platform that the wheel is for."""
        return platform_named(self.context.common.outputs.platform)

    @property
    def gpu_targets(self) -> tuple[str, ...]:
        """The gfx targets of device code; empty for family cpu."""
        if not self.context.gpu:
            return ()
        inherited = self.base_env.get("PYTORCH_ROCM_ARCH", "")
        return gpu_targets(asked=self.choices.gpu_targets, inherited=inherited, sdk=self.context.gpu_targets)

    @property
    def splits(self) -> bool:
        """Whether the wheel's device code goes into wheels of its own, as ROCm's does."""
        split = self.rocm is not None and self.rocm.layout == "split"
        return split and self.choices.split and self.project in SPLIT_PROJECTS

    def dependency(self, project: str) -> Dependency | None:
        """Find one of the dependencies."""
        return next((one for one in self.dependencies if one.project == project), None)
