"""A name stands for one wheel in a run: it is refused where wheels would be made of different sources.

The same name and the same sources are the same wheel: the first that is built stands for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from core.errors import SourceError
from core.families import CPU
from pytorch_build.components import COMPONENTS, Component, components_built_before

if TYPE_CHECKING:
    from core.run.plan import PlannedJob
    from pytorch_build.lock.source_lock import SourceLock


def refuse_collisions_of_jobs(jobs: Sequence[PlannedJob], locks: Mapping[str, SourceLock]) -> None:
    """Fail where jobs of a plan would build wheels of one name from different sources.

    Args:
        jobs: Those that build wheels on one platform.
        locks: The source locks by torch ref.
    """
    jobs_of_wheels: dict[str, dict[str, list[str]]] = {}
    for job in jobs:
        if job.torch_ref is None:
            continue
        lock = locks[job.torch_ref]
        is_for_gpus = job.gpu_family != CPU
        for component in built_components(job):
            version = lock.version(component.name, gpu=is_for_gpus)
            name_and_version = f"{component.distribution} {version}"
            wheel_label = f"{name_and_version} for Python {job.python} in {job.artifact_group}"
            sources = _describe_sources(component, lock, gpu=is_for_gpus)
            jobs_by_sources = jobs_of_wheels.setdefault(wheel_label, {})
            jobs_by_sources.setdefault(sources, []).append(job.name)

    collisions: list[str] = []
    for wheel_label, jobs_by_sources in jobs_of_wheels.items():
        if len(jobs_by_sources) > 1:
            collisions.append(_describe_collision(wheel_label, jobs_by_sources))
    if collisions:
        listing = "\n".join(collisions)
        raise SourceError(
            f"Jobs of this run would make different wheels with the same name.\n{listing}",
            hint="Plan them in runs of their own; or let the version name the torch that it is for, with "
            "torch_in_version = true in the ref's project table; or, where the commits of the projects "
            "themselves differ, name these: --release-type dev.",
        )


def refuse_collisions_of_locks(
    lock: SourceLock,
    other_locks: Sequence[SourceLock],
    *,
    run_id: str,
) -> None:
    """Fail where a lock's wheels have the names of another torch ref's and come of other sources.

    Which families and Pythons are built is not known of a lock: any may be.
    """
    torch_ref = lock.torch_ref
    for other_lock in other_locks:
        collisions = list(_collisions(lock, other_lock, gpu=True))
        if not collisions:
            collisions = list(_collisions(lock, other_lock, gpu=False))
        if collisions:
            listing = "\n".join(collisions)
            raise SourceError(
                f"Torch refs {other_lock.torch_ref} and {torch_ref} would make different wheels "
                f"with the same name in run {run_id}.\n{listing}",
                hint=f"Build {torch_ref} in a run of its own: --run-id NAME. Or let the version name the "
                "torch that it is for, with torch_in_version = true in the ref's project table.",
            )


def _collisions(
    lock: SourceLock,
    other_lock: SourceLock,
    *,
    gpu: bool,
) -> Iterator[str]:
    """Yield a text on each wheel that two locks would build under one name from different sources."""
    versions = lock.wheel_versions(lock.projects, gpu=gpu)
    other_versions = other_lock.wheel_versions(other_lock.projects, gpu=gpu)
    for name in lock.projects:
        component = COMPONENTS[name]
        distribution = component.distribution
        version = versions.get(distribution)
        if version is None or other_versions.get(distribution) != version:
            continue
        sources = _describe_sources(component, lock, gpu=gpu)
        other_sources = _describe_sources(component, other_lock, gpu=gpu)
        if sources == other_sources:
            continue

        makers_by_sources = {
            other_sources: [other_lock.torch_ref],
            sources: [lock.torch_ref],
        }
        yield _describe_collision(f"{distribution} {version}", makers_by_sources)


def _describe_collision(wheel_label: str, makers_by_sources: Mapping[str, Sequence[str]]) -> str:
    """Return lines that name a wheel, and who makes it from which sources."""
    lines = [f"{wheel_label}:"]
    for sources, makers in makers_by_sources.items():
        names = " and ".join(makers)
        lines.append(f"  {names}: {sources}")
    return "\n".join(lines)


def _describe_sources(
    component: Component,
    lock: SourceLock,
    *,
    gpu: bool,
) -> str:
    """Return the commits and the ROCm that a wheel is made of, as text to compare and to show."""
    sources: list[str] = []
    for name in (component.name, *components_built_before(component.name, gpu=gpu)):
        locked = lock.projects.get(name)
        if locked is None:
            continue
        source = locked.prebuilt
        if not source:
            short_commit = locked.commit[:12]
            source = f"{short_commit} of {locked.origin}"
        sources.append(f"{name} {source}")
    if gpu and lock.rocm_version:
        sources.append(f"ROCm {lock.rocm_version}")
    return ", ".join(sources)


def built_components(job: PlannedJob) -> Sequence[Component]:
    """Return the components that a job builds."""
    components: list[Component] = []
    for name, component in COMPONENTS.items():
        if f"build_{name}" in job.sessions:
            components.append(component)
    return components
