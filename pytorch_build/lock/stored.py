"""The source locks of a run: found, completed where they lack something, and written."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from core import console
from core.cli.options import Common, environment
from core.data import parse_json
from core.errors import MissingInputError, StoreError, UsageError
from core.run import records
from core.stores import Store
from pytorch_build.lock.collisions import refuse_collisions_of_locks
from pytorch_build.lock.resolve import resolve
from pytorch_build.lock.source_lock import LockedProject, SourceLock
from pytorch_build.refs.torch_refs import SAMPLE_SCHEME, TorchRef
from pytorch_build.sdk import RocmOptions, find_rocm_version
from pytorch_build.sources.git import Origins, require_safe_origin

if TYPE_CHECKING:
    from pytorch_build.context import Context

PASSED = "SOURCE_LOCK"


def prepare_origins(common: Common, ref: TorchRef, mirrors: Mapping[str, str]) -> Origins:
    """Return how git reaches a ref's repositories; the sample's are made where they are missing."""
    origins_of_projects = [source.origin for source in ref.projects.values()]
    if not any(origin.startswith(SAMPLE_SCHEME) for origin in origins_of_projects):
        return Origins(mirrors=mirrors)

    from pytorch_build.sample import ensure_repositories

    repositories = ensure_repositories(common.cache / "sample" / "repos")
    return Origins(
        repositories=repositories,
        mirrors=mirrors,
    )


# --- Reading ----------------------------------------------------------------------------------


def stored_lock(context: Context, *, will_be_resolved_anew: bool = False) -> SourceLock | None:
    """Return the run's lock: the one passed in ``SOURCE_LOCK``, else the one among its outputs.

    Others wrote it: its origins are those of the refs data, or such as git reaches encrypted. A lock
    that will be resolved anew may have others where the refs data has changed.
    """
    ref = context.ref
    passed_line = environment().get(PASSED)
    if passed_line:
        where = PASSED
        lock: SourceLock | None = SourceLock.from_compact(passed_line)
    else:
        where = context.common.outputs.source_lock_key(ref.name)
        lock = _read_lock(context.common.open_for_reading(), where)
    if lock is not None:
        if lock.torch_ref != ref.name:
            raise UsageError(f"{where} is for torch ref {lock.torch_ref}, not {ref.name}.")
        for name, locked in lock.projects.items():
            source = ref.projects.get(name)
            is_of_refs_data = source is not None and source.origin == locked.origin
            is_replaced = will_be_resolved_anew and not _is_same_source(locked, ref)
            if not locked.prebuilt and not is_of_refs_data and not is_replaced:
                require_safe_origin(locked.origin, f"{where}: projects.{name}.origin")
    return lock


def _read_lock(store: Store, key: str) -> SourceLock | None:
    """Return the lock at a key; None where there is none."""
    if store.find(key) is None:
        return None
    return parse_json(store.read(key).decode(), SourceLock, where=key)


def usable_lock(context: Context, options: RocmOptions) -> SourceLock | None:
    """Return the run's stored lock if builds can use it as it is; None where it is missing or out of date."""
    lock = stored_lock(context, will_be_resolved_anew=True)
    if lock is None or not _is_usable(lock, context, options):
        return None
    return lock


def _is_usable(lock: SourceLock, context: Context, options: RocmOptions) -> bool:
    """Return whether a lock has all that the options ask for: components, release type, ROCm."""
    if lock.release_type != context.common.release_type:
        return False
    if not lock.projects.keys() >= set(context.ref.components):
        return False
    if context.gpu:
        requested_version = options.version or context.ref.rocm_version
        if not lock.rocm_version:
            return False
        if requested_version not in {"", lock.rocm_version}:
            return False
    projects = lock.projects.values()
    return all(_is_same_source(locked, context.ref) for locked in projects)


def _is_same_source(locked: LockedProject, ref: TorchRef) -> bool:
    """Return whether a locked project comes from where the refs data says; a pin's commit may differ."""
    source = ref.projects.get(locked.project)
    if source is None:
        return False
    if source.prebuilt or locked.prebuilt:
        return source.prebuilt == locked.prebuilt

    may_name_origin = source.pin == "related_commits" and not source.has_own_origin
    if may_name_origin and not locked.chosen:
        # Where it comes from, too, is torch's to say.
        return True
    if source.origin != locked.origin:
        return False
    if locked.chosen or source.pin:
        return True
    return source.ref == locked.ref


# --- Resolving --------------------------------------------------------------------------------


def ensure_source_lock(
    context: Context,
    options: RocmOptions,
    *,
    update: bool = False,
    explicit_refs: Mapping[str, str] | None = None,
    require_related_commit: bool = False,
    mirrors: Mapping[str, str] | None = None,
    planned_refs: Collection[str] = (),
) -> SourceLock:
    """Return the run's source lock; resolve and store it where it is missing or lacks something.

    A stored lock keeps its commits until `update` is requested. A ROCm version that it lacks is
    added; one that it contradicts replaces it in the local run only.

    Args:
        context: The run and the torch ref.
        options: Which ROCm there is.
        update: Whether upstream's newest commits are taken.
        explicit_refs: Refs that the user named, by project.
        require_related_commit: Whether torch has to pin every project that it may pin.
        mirrors: Where origins are reached instead.
        planned_refs: The torch refs of the plan that the lock completes, which compares their wheels itself.

    Raises:
        SourceError: It would make other wheels than another torch ref of the run, under the same names.
    """
    common = context.common
    ref = context.ref
    explicit_refs = explicit_refs or {}
    previous_lock = None if update else stored_lock(context, will_be_resolved_anew=True)
    if previous_lock is not None and not require_related_commit:
        if not explicit_refs and _is_usable(previous_lock, context, options):
            return previous_lock
        if common.outputs.immutable:
            requested_version = options.version or ref.rocm_version or "of its own"
            raise MissingInputError(
                f"The source lock of run {common.run_id} does not serve {ref.name} on "
                f"{context.gpu_family} with ROCm {requested_version}.",
                hint="A run's lock is resolved once: use a run id of its own.",
            )

    rocm_version = find_rocm_version(context, options)
    unchanged_projects: Mapping[str, LockedProject] = {}
    if previous_lock is not None:
        rocm_version = rocm_version or previous_lock.rocm_version
        unchanged_projects = _unchanged_projects(
            previous_lock,
            ref,
            explicit_refs,
            read_pins=require_related_commit,
        )
    resolved_lock = resolve(
        _at_locked_commits(ref, unchanged_projects),
        rocm_version=rocm_version,
        release_type=common.release_type,
        cache=common.cache / "refs",
        origins=prepare_origins(common, ref, mirrors or {}),
        explicit_refs=explicit_refs,
        require_related_commit=require_related_commit,
    )
    lock = _restore_ref_names(resolved_lock, unchanged_projects, explicit_refs)
    other_locks = _locks_of_other_refs(common, {ref.name, *planned_refs})
    refuse_collisions_of_locks(lock, other_locks, run_id=common.run_id)
    return publish_lock(common, lock)


def with_components(context: Context, *components: str) -> Context:
    """Return the context with a torch ref that also builds the components that were named."""
    return replace(context, ref=context.ref.with_only_components({*context.ref.components, *components}))


def _unchanged_projects(
    previous_lock: SourceLock,
    ref: TorchRef,
    explicit_refs: Container[str],
    *,
    read_pins: bool,
) -> Mapping[str, LockedProject]:
    """Return the projects of an earlier lock whose commits stay as they are."""
    same_projects: dict[str, LockedProject] = {}
    for name, locked in previous_lock.projects.items():
        if not locked.commit or name in explicit_refs:
            continue
        if _is_same_source(locked, ref):
            same_projects[name] = locked
    if "torch" in same_projects and not read_pins:
        return same_projects

    return {
        name: locked for name, locked in same_projects.items() if locked.chosen or not ref.projects[name].pin
    }


def _at_locked_commits(ref: TorchRef, unchanged_projects: Mapping[str, LockedProject]) -> TorchRef:
    """Return a torch ref that takes these projects from the commits that they were locked at."""
    sources = dict(ref.projects)
    for name, locked in unchanged_projects.items():
        sources[name] = replace(
            sources[name],
            origin=locked.origin,
            ref=locked.commit,
            pin="",
        )
    # What was asked for by name once stays locked, too.
    return replace(ref, projects=sources).with_only_components({*ref.components, *unchanged_projects})


def _restore_ref_names(
    lock: SourceLock,
    unchanged_projects: Mapping[str, LockedProject],
    explicit_refs: Container[str],
) -> SourceLock:
    """Return a lock whose unchanged projects name the branch or tag of their commits again."""
    projects: dict[str, LockedProject] = {}
    for name, locked in lock.projects.items():
        changes: dict[str, object] = {"chosen": name in explicit_refs}
        unchanged_project = unchanged_projects.get(name)
        if unchanged_project is not None:
            changes["ref"] = unchanged_project.ref
            changes["chosen"] = unchanged_project.chosen
        projects[name] = locked.model_copy(update=changes)
    return lock.model_copy(update={"projects": projects})


# --- Writing ----------------------------------------------------------------------------------


def _locks_of_other_refs(common: Common, refs: Collection[str]) -> Sequence[SourceLock]:
    """Return the source locks of the run's torch refs but these."""
    outputs = common.outputs
    store = common.open_for_reading()
    keys_of_refs = {outputs.source_lock_key(ref) for ref in refs}
    locks: list[SourceLock] = []
    for stored_file in store.list(outputs.source_locks_prefix, recursive=False):
        key = stored_file.key
        if not outputs.is_source_lock(key) or key in keys_of_refs:
            continue
        lock = parse_json(store.read(key).decode(), SourceLock, where=key)
        locks.append(lock)
    return locks


def publish_lock(common: Common, lock: SourceLock) -> SourceLock:
    """Store a resolved lock among the run's outputs, and return the one that is stored now.

    A lock with the same digest stays as it is, with the time at which it was resolved first.

    Raises:
        StoreError: The run may not change, and another job has written a lock that says something else.
    """
    store = common.open_store()
    key = common.outputs.source_lock_key(lock.torch_ref)
    digest = lock.digest()
    short_digest = digest[:12]
    name = f"source lock of {lock.torch_ref}"
    address = f"{short_digest} in {store.url}/{key}"

    previous_lock = _read_lock(store, key)
    if previous_lock is not None and previous_lock.digest() == digest:
        console.done(f"{name}: unchanged, {address}")
        return previous_lock

    dated_lock = lock.model_copy(update={"resolved": records.now()})
    document = dated_lock.model_dump_json(indent=2)
    may_replace = not common.outputs.immutable
    try:
        store.put_bytes(key, f"{document}\n".encode(), replace=may_replace)
    except StoreError:
        # Another job of the run may have resolved the same commits at another second.
        lock_of_other_job = _read_lock(store, key)
        if lock_of_other_job is None or lock_of_other_job.digest() != digest:
            raise
        dated_lock = lock_of_other_job
    console.done(f"{name}: resolved, {address}")
    return dated_lock
