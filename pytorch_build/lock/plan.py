"""A plan is completed by source locks: each of its jobs gets the versions of the wheels that it builds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from core.families import CPU
from core.run import PLATFORMS, Platform
from pytorch_build.lock.collisions import built_components, refuse_collisions_of_jobs

if TYPE_CHECKING:
    from core.run.plan import Plan, PlannedJob
    from pytorch_build.lock.source_lock import SourceLock

    # by torch ref
    Locks = Mapping[Platform, Mapping[str, SourceLock]]
    # of a torch ref on a platform, for one of its GPU families
    ResolveLock = Callable[[Platform, str, str], SourceLock]
    # what one job builds, and others test: the platform, the artifact group, the Python and the torch ref
    WheelSet = tuple[Platform, str, str | None, str | None]


def complete_plan(plan: Plan, resolve_lock: ResolveLock) -> tuple[Plan, Locks]:
    """Return a plan with the versions of its jobs' wheels, and the source locks that these come from.

    Every torch ref is resolved once a platform.

    Raises:
        SourceError: Jobs would make different wheels with the same name.
    """
    locks: dict[Platform, Mapping[str, SourceLock]] = {}
    digests: dict[Platform, dict[str, str]] = {}
    versions: dict[WheelSet, dict[str, str]] = {}
    for platform in PLATFORMS:
        build_jobs = plan.matrix(platform, "build_pytorch")
        platform_locks: dict[str, SourceLock] = {}
        for torch_ref, gpu_family in _families_of_refs(build_jobs).items():
            platform_locks[torch_ref] = resolve_lock(platform, torch_ref, gpu_family)
        for job in build_jobs:
            versions[_wheel_set(job)] = _versions_of_wheels(job, platform_locks)

        refuse_collisions_of_jobs(build_jobs, platform_locks)
        locks[platform] = platform_locks
        digests[platform] = {torch_ref: lock.digest() for torch_ref, lock in platform_locks.items()}

    jobs: list[PlannedJob] = []
    for job in plan.jobs:
        if job.stage.endswith("rocm"):
            jobs.append(job)
            continue
        jobs.append(job.model_copy(update={"versions": versions[_wheel_set(job)]}))

    changes = {"jobs": tuple(jobs), "locks": digests}
    return plan.model_copy(update=changes), locks


def _families_of_refs(jobs: Sequence[PlannedJob]) -> Mapping[str, str]:
    """Return one GPU family for each torch ref of jobs; ``cpu`` where there is no other."""
    families: dict[str, str] = {}
    for job in jobs:
        torch_ref = job.torch_ref
        if torch_ref is None:
            continue
        if families.get(torch_ref, CPU) == CPU:
            families[torch_ref] = job.gpu_family
    return families


def _wheel_set(job: PlannedJob) -> WheelSet:
    """Return platform, artifact group, Python and torch ref, by which jobs share the same wheels."""
    return job.platform, job.artifact_group, job.python, job.torch_ref


def _versions_of_wheels(job: PlannedJob, locks: Mapping[str, SourceLock]) -> dict[str, str]:
    """Return the versions of the wheels that a job builds, by distribution."""
    if job.torch_ref is None:
        return {}
    lock = locks[job.torch_ref]
    is_for_gpus = job.gpu_family != CPU
    versions: dict[str, str] = {}
    for component in built_components(job):
        versions[component.distribution] = lock.version(component.name, gpu=is_for_gpus)
    return versions
