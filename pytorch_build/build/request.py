"""What a build asks for, as values: its environment's installer calls and its plan's request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.env.installer import Install
from core.env.locks import locked_call
from pytorch_build.build.plans.types import BuildOptions, BuildRequest

if TYPE_CHECKING:
    from pathlib import PurePath

    from pytorch_build.build.build import Build
    from pytorch_build.build.compiler_cache import CompilerCache
    from pytorch_build.build.plans.types import RocmPaths


def environment_calls(build: Build, rocm: Install | None) -> list[Install]:
    """Return the installer calls that make the target environment: lock, ROCm, triton and torch."""
    context = build.context
    source = context.ref.projects.get(build.project)
    wanted = source.build_requirements if source else ()
    calls = [locked_call(context.common, build.target, replaced=wanted)]
    calls += [Install(requirements=wanted)] if wanted else []
    calls += [rocm] if rocm else []
    # ours by their files alone, what they require of others by name
    calls += [
        Install(requirements=(one.requirement,), dependencies=not one.digest) for one in build.dependencies
    ]
    others = sorted({line for one in build.dependencies for line in one.others})
    return [*calls, *([Install(requirements=tuple(others))] if others else [])]


def build_request(
    build: Build,
    *,
    tree: PurePath,
    python: PurePath,
    rocm: RocmPaths | None,
    torch_version: str,
    cache: CompilerCache | None,
    max_jobs: int | None,
) -> BuildRequest:
    """Return the request for a build's plan."""
    source, triton = build.context.ref.projects.get(build.project), build.dependency("triton")
    return BuildRequest(
        project=build.project,
        version=build.tree.version,
        tree=tree,
        python=python,
        rocm=rocm,
        gpu_targets=build.gpu_targets,
        torch_version=torch_version,
        triton_version=triton.version if triton else "",
        ref_env=source.env if source else {},
        options=BuildOptions(
            compiler_cache=cache,
            flash_attention=build.choices.flash_attention,
            clean=build.choices.clean,
            max_jobs=max_jobs,
        ),
    )
