"""What the source lock and the run promise of each wheel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import MissingInputError
from core.wheel import distributions
from pytorch_build.check.view import Expectation
from pytorch_build.lock.stored import stored_lock
from pytorch_build.refs.torch_refs import DISTRIBUTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytorch_build.context import Context
    from pytorch_build.lock.source_lock import SourceLock


def run_lock(context: Context) -> SourceLock:
    """Read the run's lock, which a stage after the builds must find."""
    lock = stored_lock(context)
    if lock is None:
        raise MissingInputError(
            f"Run {context.common.run_id} has no source lock of {context.ref.name}.",
            hint=f"Resolve and build first: nox -s build_torch -- --torch-ref {context.ref.name}",
        )
    return lock


def expectation(context: Context, lock: SourceLock, project: str, *, with_triton: bool = True) -> Expectation:
    """State what one project's wheel must be."""
    requires = []
    if project == "torch" and context.gpu:
        requires.append(f"rocm[libraries]=={lock.rocm_version}")
        if with_triton and "triton" in lock.projects and "triton" in context.ref.components:
            requires.append(f"triton=={lock.version('triton', gpu=True)}")
    torch = lock.projects.get("torch")
    if project in {"audio", "vision"} and torch is not None and not torch.prebuilt:
        requires.append(f"torch=={lock.version('torch', gpu=context.gpu)}")
    return Expectation(
        distribution=DISTRIBUTIONS[project],
        version=lock.version(project, gpu=context.gpu),
        requires=tuple(requires),
        gpu_targets=context.gpu_targets,
        local_label=context.ref.local_label,
    )


def expectations(context: Context) -> Mapping[str, Expectation]:
    """State what every wheel of the run must be, by distribution name."""
    lock = run_lock(context)
    with_triton = _has_triton(context)
    return {
        DISTRIBUTIONS[project]: expectation(context, lock, project, with_triton=with_triton)
        for project, locked in lock.projects.items()
        if not locked.prebuilt and project in context.ref.components
    }


def _has_triton(context: Context) -> bool:
    store, outputs = context.common.open_for_reading(), context.common.outputs
    found = distributions.in_run(store, outputs, context.artifact_group)
    return any(one.name == DISTRIBUTIONS["triton"] for one in found)
