"""The source lock of a run: read where it lies, resolved where it is missing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from core import console
from core.cli.options import environment
from core.data import parse_json
from core.errors import MissingInputError, UsageError
from pytorch_build.lock.resolve import resolve
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.refs.torch_refs import SAMPLE_SCHEME
from pytorch_build.sdk import RocmOptions, find_version
from pytorch_build.sources.git import Origins, require_safe

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from core.cli.options import Common
    from pytorch_build.context import Context
    from pytorch_build.lock.source_lock import LockedProject
    from pytorch_build.refs.torch_refs import TorchRef

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
        if store.find(key) is None:
            return None
        lock = parse_json(store.read(key).decode(), SourceLock, where=key)
    for name, locked in lock.projects.items():
        source = context.ref.projects.get(name)
        named = source is not None and locked.origin == source.origin
        if locked.origin and not named and not (renewed and not _same_source(lock, context.ref, name)):
            require_safe(locked.origin, f"{key}: projects.{name}.origin")
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
    common, ref, chosen = context.common, context.ref, explicit or {}
    stored = None if update else stored_lock(context, renewed=True)
    if stored is not None and not chosen and _serves(stored, context, options) and not require_related_commit:
        return stored
    if stored is not None and common.outputs.immutable and not require_related_commit:
        raise MissingInputError(
            f"The source lock of run {common.run_id} does not serve {ref.name} on "
            f"{context.gpu_family} with ROCm {options.version or ref.rocm_version or 'of its own'}.",
            hint="A run's lock is resolved once: use a run id of its own.",
        )
    version = find_version(context, options) or (stored.rocm_version if stored else "")
    kept = _kept(stored, ref, given=chosen, read_pins=require_related_commit) if stored else {}
    lock = resolve(
        _at_kept(ref, kept),
        rocm_version=version,
        release_type=common.release_type,
        cache=common.cache / "refs",
        origins=origins(common, ref, mirrors or {}),
        explicit=chosen,
        require_related_commit=require_related_commit,
    )
    lock = _named(lock, kept, chosen)
    key = common.outputs.source_lock_key(ref.name)
    text = lock.model_dump_json(indent=2) + "\n"
    outcome = common.open_store().put_bytes(key, text.encode(), replace=not common.outputs.immutable)
    said = "unchanged" if outcome == "unchanged" else "resolved"
    console.done(f"source lock of {ref.name}: {said}, {lock.digest()[:12]} in {key}")
    return lock


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


def _kept(
    stored: SourceLock, ref: TorchRef, *, given: Container[str], read_pins: bool
) -> dict[str, LockedProject]:
    """Choose the projects whose commits stay; those that a pin names only beside the torch that has it."""
    kept = {
        name: locked
        for name, locked in stored.projects.items()
        if locked.commit and name not in given and _same_source(stored, ref, name)
    }
    if "torch" in kept and not read_pins:
        return kept
    return {name: locked for name, locked in kept.items() if locked.chosen or not ref.projects[name].pin}


def _at_kept(ref: TorchRef, kept: Mapping[str, LockedProject]) -> TorchRef:
    """Let a ref name commits that are kept: where they were found, which a pin may have said."""
    projects = {
        name: replace(source, origin=kept[name].origin, ref=kept[name].commit, pin="")
        if name in kept
        else source
        for name, source in ref.projects.items()
    }
    # what was asked for by name once stays locked, too
    return replace(ref, projects=projects).only({*ref.components, *kept})


def _named(lock: SourceLock, kept: Mapping[str, LockedProject], chosen: Container[str]) -> SourceLock:
    """Keep the names that kept commits were once resolved from, and mark those that the user chose."""
    said = {name: {"ref": one.ref, "chosen": one.chosen} for name, one in kept.items()}
    projects = {
        name: locked.model_copy(update=said.get(name, {"chosen": name in chosen}))
        for name, locked in lock.projects.items()
    }
    return lock.model_copy(update={"projects": projects})
