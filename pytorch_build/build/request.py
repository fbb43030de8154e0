"""A build that was asked for: the run, the torch ref, the component, and what the user chose."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import RocmError, UsageError
from core.run import this_platform
from pytorch_build.lock.stored import ensure_source_lock
from pytorch_build.platforms import PLATFORMS, Platform

if TYPE_CHECKING:
    from core.env import Interpreter
    from pytorch_build.build.cache import CompilerCache
    from pytorch_build.check.policy import Policy
    from pytorch_build.components import Component
    from pytorch_build.context import Context
    from pytorch_build.lock.source_lock import SourceLock
    from pytorch_build.refs.torch_refs import ProjectSource
    from pytorch_build.sdk import RocmOptions

_GPU_TARGET = re.compile(r"gfx[0-9a-f]{3,4}(?::[a-z]+[+-])*", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class BuildRequest:
    """A build as it was asked for: run, component, Python and options. Nothing is looked up yet.

    Attributes:
        context: The run, the torch ref and the GPU family.
        target: The Python of the environment that the wheel is built in.
        component: What is built.
        user_env: The user's variables; none of them for another platform, of which they say nothing.
        rocm: Where ROCm comes from, and how it is installed.
        own_trees: The developer's own trees, by component.
        requested_targets: The targets of device code; "" for those of PYTORCH_ROCM_ARCH, else of the family.
        flash_attention: Whether it was asked for; None where that is left to the recipe.
        may_split: Whether device code may go into wheels of its own.
        compiler_cache: What compilers are started through.
        max_jobs: How many compilers run at a time; "" for MAX_JOBS, else what the machine allows.
        clean: Whether the build folder is deleted first.
        ignore_needs: Whether a shortage of disk or memory is only a warning.
        update: Whether the torch ref is resolved anew.
        depth: How many commits are fetched; 0 for all.
        output_dir: Where the wheel is also put.
        policy: The user's own limits of checks.
        mirrors: Git mirrors, by the start of the addresses that they stand for.
    """

    context: Context
    target: Interpreter
    component: Component
    user_env: Mapping[str, str]
    rocm: RocmOptions
    own_trees: Mapping[str, Path]
    requested_targets: str = ""
    flash_attention: bool | None = None
    may_split: bool = True
    compiler_cache: CompilerCache | None = None
    max_jobs: str = ""
    clean: bool = False
    ignore_needs: bool = False
    update: bool = False
    depth: int = 1
    output_dir: Path | None = None
    policy: Policy | None = None
    mirrors: Mapping[str, str]

    @property
    def platform(self) -> Platform:
        """The platform that the wheel is for."""
        return PLATFORMS[self.context.common.outputs.platform]

    @property
    def is_for_this_platform(self) -> bool:
        """Whether the wheel could be built on this machine."""
        return self.platform.name == this_platform()

    @property
    def source(self) -> ProjectSource:
        """Where the torch ref takes the component from: its repository, and a branch, pin or requirement."""
        return self.context.ref.projects[self.component.name]

    @property
    def own_tree(self) -> Path | None:
        """The developer's own source tree to build; None for the managed one."""
        return self.own_trees.get(self.component.name)

    @functools.cached_property
    def lock(self) -> SourceLock:
        """The run's source lock, resolved when it is first read."""
        return ensure_source_lock(
            self.context,
            self.rocm,
            update=self.update,
            mirrors=self.mirrors,
        )

    @property
    def gpu_targets(self) -> tuple[str, ...]:
        """The gfx targets of device code; none for family ``cpu``."""
        if not self.context.gpu:
            return ()
        return choose_gpu_targets(
            option=self.requested_targets,
            variable=self.user_env.get("PYTORCH_ROCM_ARCH", ""),
            family_targets=self.context.gpu_targets,
        )

    @property
    def left_out_targets(self) -> tuple[str, ...]:
        """The family's gfx targets that the wheel gets no device code for, as fewer were requested."""
        if not self.component.has_split_device_code:
            return ()
        processors = {target.partition(":")[0] for target in self.gpu_targets}
        return tuple(target for target in self.context.gpu_targets if target not in processors)

    @property
    def requested_jobs(self) -> str:
        """How many compilers the user wants to run at a time; "" to leave that to the machine."""
        return self.max_jobs or self.user_env.get("MAX_JOBS", "")


def choose_gpu_targets(
    *,
    option: str,
    variable: str,
    family_targets: Iterable[str],
) -> tuple[str, ...]:
    """Return the GPU targets: those of the command line, else of PYTORCH_ROCM_ARCH, else the family's."""
    for origin, text in (("--pytorch-rocm-arch", option), ("PYTORCH_ROCM_ARCH", variable)):
        targets = tuple(dict.fromkeys(re.findall(r"[^,;\s]+", text)))
        for target in targets:
            if not _GPU_TARGET.fullmatch(target):
                raise UsageError(f"{target!r} in {origin} is not a GPU target.", hint="Write it like gfx942.")
        if targets:
            return targets

    targets = tuple(dict.fromkeys(family_targets))
    if not targets:
        raise RocmError("The ROCm SDK names no GPU targets.", hint="Give them: --pytorch-rocm-arch gfx942.")
    return targets
