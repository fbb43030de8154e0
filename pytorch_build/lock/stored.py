"""The source locks of a run: read where they lie, resolved where they are missing; a plan completed by them.

A name stands for one wheel in a run: cells of a plan that promise the same name from other inputs are refused
here, before anything builds.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from core import console
from core.cli.options import Common, environment
from core.data import parse_json
from core.errors import MissingInputError, SourceError, StoreError, UsageError
from core.families import CPU
from core.run import PLATFORMS, Platform, records
from core.run.plan import Plan, PlannedJob
from core.stores import Store
from pytorch_build.components import COMPONENTS, Component, needed_first
from pytorch_build.lock.resolve import resolve
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from pytorch_build.refs.torch_refs import SAMPLE_SCHEME, TorchRef
from pytorch_build.sdk import RocmOptions, find_version
from pytorch_build.sources.git import Origins, require_safe

if TYPE_CHECKING:
    from pytorch_build.context import Context

    Locks = Mapping[Platform, Mapping[str, SourceLock]]
    # of a torch ref on a platform, for one of its GPU families
    # the platform, artifact group, Python and torch ref of wheels
    _Build = tuple[Platform, str, str | None, str | None]
    LockOf = Callable[[Platform, str, str], SourceLock]

PASSED = "SOURCE_LOCK"


def origins(common: Common, ref: TorchRef, mirrors: Mapping[str, str]) -> Origins:
    """Return how a ref's origins are reached; the sample's repositories are made where they are missing."""
    if not any(source.origin.startswith(SAMPLE_SCHEME) for source in ref.projects.values()):
        return Origins(mirrors=mirrors)
    from pytorch_build.sample import ensure_repositories

    return Origins(repositories=ensure_repositories(common.cache / "sample" / "repos"), mirrors=mirrors)


def stored_lock(context: Context, *, renewed: bool = False) -> SourceLock | None:
    """Read the run's lock: the one passed in ``SOURCE_LOCK``, else the one among its outputs.

    Others wrote it: its origins are those of the refs data, or such as git reaches encrypted. One that will
    be `renewed` may have others where the refs data has changed.
    """
    passed = environment().get(PASSED)
    if passed:
        lock = SourceLock.from_compact(passed)
        if lock.torch_ref != context.ref.name:
            raise UsageError(f"{PASSED} is for torch ref {lock.torch_ref}, not {context.ref.name}.")
        key = PASSED
    else:
        store = context.common.open_for_reading()
        key = context.common.outputs.source_lock_key(context.ref.name)
        stored = _read_lock(store, key)
        if stored is None:
            return None
        lock = stored
    for name, locked in lock.projects.items():
        source = context.ref.projects.get(name)
        named = source is not None and locked.origin == source.origin
        if locked.origin and not named and not (renewed and not _same_source(lock, context.ref, name)):
            require_safe(locked.origin, f"{key}: projects.{name}.origin")
    return lock


def serving_lock(context: Context, options: RocmOptions) -> SourceLock | None:
    """Return the run's lock where it is all that a build needs; None where it is missing, or out of date."""
    lock = stored_lock(context, renewed=True)
    if lock is None or not _serves(lock, context, options):
        return None
    return lock


def source_lock(
    context: Context,
    options: RocmOptions,
    *,
    update: bool = False,
    explicit: Mapping[str, str] | None = None,
    require_related_commit: bool = False,
    mirrors: Mapping[str, str] | None = None,
) -> SourceLock:
    """Return the run's lock; resolve it where it is missing, and complete it where it lacks versions.

    A stored lock keeps its commits until `update` is given. A ROCm version that it lacks is
    added; one that it contradicts replaces it in the local run only.
    """
    common = context.common
    ref = context.ref
    explicit_refs = explicit or {}
    stored = None if update else stored_lock(context, renewed=True)
    if stored is not None and not require_related_commit:
        if not explicit_refs and _serves(stored, context, options):
            return stored
        if common.outputs.immutable:
            raise MissingInputError(
                f"The source lock of run {common.run_id} does not serve {ref.name} on "
                f"{context.gpu_family} with ROCm {options.version or ref.rocm_version or 'of its own'}.",
                hint="A run's lock is resolved once: use a run id of its own.",
            )

    rocm_version = find_version(context, options)
    kept_projects: Mapping[str, LockedProject] = {}
    if stored is not None:
        rocm_version = rocm_version or stored.rocm_version
        kept_projects = _kept_projects(stored, ref, explicit_refs, read_pins=require_related_commit)
    lock = resolve(
        _at_kept_commits(ref, kept_projects),
        rocm_version=rocm_version,
        release_type=common.release_type,
        cache=common.cache / "refs",
        origins=origins(common, ref, mirrors or {}),
        explicit=explicit_refs,
        require_related_commit=require_related_commit,
    )
    return publish_lock(common, _with_names(lock, kept_projects, explicit_refs))


def publish_lock(common: Common, lock: SourceLock) -> SourceLock:
    """Put a lock that was just resolved among the run's outputs; return the one that is there now.

    A lock with the same digest stays as it is, with the time at which it was resolved first.

    Raises:
        StoreError: The run may not change, and another job has written a lock that says something else.
    """
    store = common.open_store()
    key = common.outputs.source_lock_key(lock.torch_ref)
    name = f"source lock of {lock.torch_ref}"
    address = f"{lock.digest()[:12]} in {store.url}/{key}"

    stored_lock = _read_lock(store, key)
    if stored_lock is not None and stored_lock.digest() == lock.digest():
        console.done(f"{name}: unchanged, {address}")
        return stored_lock

    dated_lock = lock.model_copy(update={"resolved": records.now()})
    content = f"{dated_lock.model_dump_json(indent=2)}\n".encode()
    try:
        store.put_bytes(key, content, replace=not common.outputs.immutable)
    except StoreError:
        # Another job of the run may have resolved the same commits at another second.
        stored_lock = _read_lock(store, key)
        if stored_lock is None or stored_lock.digest() != lock.digest():
            raise
        dated_lock = stored_lock
    console.done(f"{name}: resolved, {address}")
    return dated_lock


def _read_lock(store: Store, key: str) -> SourceLock | None:
    """Return the lock at a key; None where there is none."""
    if store.find(key) is None:
        return None
    return parse_json(store.read(key).decode(), SourceLock, where=key)


def with_components(context: Context, *components: str) -> Context:
    """Widen a context's ref by components that a stage was asked for by name."""
    return replace(context, ref=context.ref.only({*context.ref.components, *components}))


def _serves(lock: SourceLock, context: Context, options: RocmOptions) -> bool:
    wanted = options.version or context.ref.rocm_version
    return (
        lock.release_type == context.common.release_type
        and set(context.ref.components) <= set(lock.projects)
        and (not context.gpu or (bool(lock.rocm_version) and wanted in {"", lock.rocm_version}))
        and all(_same_source(lock, context.ref, name) for name in lock.projects)
    )


def _same_source(lock: SourceLock, ref: TorchRef, name: str) -> bool:
    """Return whether a locked project still is what the refs data names; a pin's commit is torch's to say."""
    source, locked = ref.projects.get(name), lock.projects[name]
    if source is None:
        return False
    if source.prebuilt or locked.prebuilt:
        return source.prebuilt == locked.prebuilt
    if source.pin == "related_commits" and not source.own_origin and not locked.chosen:
        # its origin, too, is torch's to say
        return True
    return source.origin == locked.origin and (locked.chosen or bool(source.pin) or source.ref == locked.ref)


def _kept_projects(
    stored: SourceLock, ref: TorchRef, explicit_refs: Container[str], *, read_pins: bool
) -> Mapping[str, LockedProject]:
    """Return the projects whose commits stay; those that a pin names only beside the torch that has it."""
    same_projects = {
        name: project
        for name, project in stored.projects.items()
        if project.commit and name not in explicit_refs and _same_source(stored, ref, name)
    }
    if "torch" in same_projects and not read_pins:
        return same_projects
    return {
        name: project
        for name, project in same_projects.items()
        if project.chosen or not ref.projects[name].pin
    }


def _at_kept_commits(ref: TorchRef, kept_projects: Mapping[str, LockedProject]) -> TorchRef:
    """Return a ref that names commits that are kept: where they were found, which a pin may have said."""
    sources = dict(ref.projects)
    for name, project in kept_projects.items():
        sources[name] = replace(sources[name], origin=project.origin, ref=project.commit, pin="")
    # What was asked for by name once stays locked, too.
    return replace(ref, projects=sources).only({*ref.components, *kept_projects})


def _with_names(
    lock: SourceLock, kept_projects: Mapping[str, LockedProject], explicit_refs: Container[str]
) -> SourceLock:
    """Return a lock with the names that kept commits were resolved from, and marks for chosen ones."""
    projects: dict[str, LockedProject] = {}
    for name, project in lock.projects.items():
        kept_project = kept_projects.get(name)
        if kept_project is None:
            changes: dict[str, object] = {"chosen": name in explicit_refs}
        else:
            changes = {"ref": kept_project.ref, "chosen": kept_project.chosen}
        projects[name] = project.model_copy(update=changes)
    return lock.model_copy(update={"projects": projects})


def complete(plan: Plan, lock_of: LockOf) -> tuple[Plan, Locks]:
    """Resolve every torch ref of a plan once a platform, and write versions into its jobs."""
    locks: dict[Platform, dict[str, SourceLock]] = {}
    versions: dict[_Build, dict[str, str]] = {}
    for platform in PLATFORMS:
        builds = plan.matrix(platform, "build_pytorch")
        locks[platform] = {
            torch_ref: lock_of(platform, torch_ref, gpu_family)
            for torch_ref, gpu_family in _families_of_refs(builds).items()
        }
        for job in builds:
            versions[_build_of(job)] = _versions(job, locks[platform])
        refuse_collisions(builds, locks[platform])

    jobs: list[PlannedJob] = []
    for job in plan.cells:
        if job.stage.endswith("rocm"):
            jobs.append(job)
        else:
            jobs.append(job.model_copy(update={"versions": versions[_build_of(job)]}))
    digests = {
        platform: {torch_ref: lock.digest() for torch_ref, lock in locks_of_refs.items()}
        for platform, locks_of_refs in locks.items()
    }
    return plan.model_copy(update={"cells": tuple(jobs), "locks": digests}), locks


def _families_of_refs(builds: Sequence[PlannedJob]) -> Mapping[str, str]:
    """Return a GPU family of each torch ref: its first one, and ``cpu`` only where there is no other."""
    families: dict[str, str] = {}
    for job in builds:
        if job.torch_ref is not None and families.get(job.torch_ref, CPU) == CPU:
            families[job.torch_ref] = job.gpu_family
    return families


def refuse_collisions(builds: Sequence[PlannedJob], locks: Mapping[str, SourceLock]) -> None:
    """Refuse wheels of one name, in one folder, that would be made from different inputs.

    The same name from the same inputs is the same wheel: the first that is uploaded stands for all.
    """
    promised: dict[tuple[str, str, str, str | None], dict[str, list[str]]] = {}
    for job in builds:
        if job.torch_ref is None:
            continue
        lock = locks[job.torch_ref]
        is_for_gpus = job.gpu_family != CPU
        for component in _built_components(job):
            version = lock.version(component.name, gpu=is_for_gpus)
            wheel = (job.artifact_group, component.distribution, version, job.python)
            made_from = _made_from(component, lock, gpu=is_for_gpus)
            names = promised.setdefault(wheel, {}).setdefault(made_from, [])
            names.append(job.name)
    collisions = [
        f"{distribution} {version} for Python {python} in {group}:"
        + "".join(f"\n  {' and '.join(names)}: {made_from}" for made_from, names in makers.items())
        for (group, distribution, version, python), makers in promised.items()
        if len(makers) > 1
    ]
    if collisions:
        raise SourceError(
            "Jobs of this run would make different wheels with the same name.\n" + "\n".join(collisions),
            hint="Plan them in runs of their own; or let the version name the torch that it is for, with "
            "torch_in_version = true in the ref's project table; or, where the commits of the projects "
            "themselves differ, name these: --release-type dev.",
        )


def _made_from(component: Component, lock: SourceLock, *, gpu: bool) -> str:
    """Return what a wheel depends on besides its Python and its targets, for people and to compare."""
    sources: list[str] = []
    for name in (component.name, *needed_first(component.name, gpu=gpu)):
        locked = lock.projects.get(name)
        if locked is not None:
            source = locked.prebuilt or f"{locked.commit[:12]} of {locked.origin}"
            sources.append(f"{name} {source}")
    if lock.rocm_version:
        sources.append(f"ROCm {lock.rocm_version}")
    return ", ".join(sources)


def _build_of(job: PlannedJob) -> _Build:
    """Return which build a job does, or tests: its platform, artifact group, Python and torch ref."""
    return job.platform, job.artifact_group, job.python, job.torch_ref


def _versions(job: PlannedJob, locks: Mapping[str, SourceLock]) -> dict[str, str]:
    """Return the versions of the wheels that a job builds, by distribution."""
    if job.torch_ref is None:
        return {}
    lock = locks[job.torch_ref]
    return {
        component.distribution: lock.version(component.name, gpu=job.gpu_family != CPU)
        for component in _built_components(job)
    }


def _built_components(job: PlannedJob) -> Sequence[Component]:
    """Return the components that a job builds."""
    return [component for name, component in COMPONENTS.items() if f"build_{name}" in job.sessions]
