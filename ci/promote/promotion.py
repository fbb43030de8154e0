"""Carrying a decision out, so that whoever runs it again completes what an interruption left.

In this order: the intent (who promotes what, visible until the end), wheels, sidecars, what the
index is to list, the pages, the decision record, the intent's removal. Every write is whole, and
is the same when it is done again; the decision is written once, so that two promotions of one set
at the same moment end with one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ci.promote import documents
from ci.promote.documents import Decision, PromotedFile, ReleaseRecord
from core import files, parallel
from core.errors import ConflictError, MissingInputError, StoreError
from core.stores import PutResult, Store
from core.wheel.distributions import SIDECAR

if TYPE_CHECKING:
    from ci.promote.facts import Facts

    # puts a file into the release bucket, or with a suffix its sidecar
    Origin = Callable[[Store, PromotedFile, str], PutResult]


def promoted_files(facts: Facts) -> tuple[PromotedFile, ...]:
    """Return what becomes of staged files that are released as they are: the same names and bytes."""
    promoted: dict[str, PromotedFile] = {}
    for wheel in facts.wheels:
        staged_file = wheel.file
        promoted[staged_file.key] = PromotedFile(
            **staged_file.model_dump(exclude={"key", "source_key", "torch_ref", "python"}),
            family=wheel.artifact_group,
            key=f"{documents.folder(documents.RELEASE, wheel.artifact_group)}/{staged_file.name}",
            staged_key=staged_file.key,
            staged_sha256=staged_file.sha256,
        )
    return tuple(promoted[key] for key in sorted(promoted))


def identity_of(promoted: Sequence[PromotedFile]) -> str:
    """Digest what is promoted: target keys and the bytes that were tested; not who, when or why."""
    pairs = sorted((one.key, one.staged_sha256) for one in promoted)
    return files.digest_of(pairs)[:16]


def staged_in(store: Store) -> Origin:
    """Release files as they were staged: copied on the server."""

    def put(bucket: Store, one: PromotedFile, suffix: str) -> PutResult:
        sha256 = one.metadata_sha256 if suffix else one.sha256
        return bucket.copy(f"{one.key}{suffix}", store, f"{one.staged_key}{suffix}", sha256=sha256)

    return put


def rewritten_here(paths: Mapping[str, Path], sidecars: Mapping[str, bytes]) -> Origin:
    """Release files that were rewritten on this machine, by their keys."""

    def put(bucket: Store, one: PromotedFile, suffix: str) -> PutResult:
        if suffix:
            return bucket.put_bytes(f"{one.key}{suffix}", sidecars[one.key], replace=False)
        return bucket.put_file(one.key, paths[one.key], sha256=one.sha256, replace=False)

    return put


def carry_out(
    bucket: Store, decision: Decision, origin: Origin, *, now: Callable[[], str], jobs: int = parallel.JOBS
) -> tuple[Decision, int | None]:
    """Promote a set; return the decision that holds, and how many files were new: None if it held before."""
    before = _maybe(bucket, decision.key)
    if before is not None and not missing(bucket, before):
        # written only where somebody changed them
        _list(bucket, before)
        bucket.delete(decision.intent_key)
        return before, None
    # the same files stand in it, and the grounds that were good when it began
    claimed = before or _first(bucket, decision.intent_key, decision)
    results = parallel.map_in_threads(lambda one: origin(bucket, one, ""), decision.files, jobs=jobs)
    with_sidecar = [one for one in decision.files if one.metadata_sha256]
    parallel.map_in_threads(lambda one: origin(bucket, one, SIDECAR), with_sidecar, jobs=jobs)
    # whatever the copies said: nothing is listed that did not arrive
    if absent := missing(bucket, decision):
        raise StoreError(
            f"{len(absent)} objects are incomplete in {bucket.url}:\n" + "\n".join(absent),
            hint="Run the same command again: it continues.",
        )
    _list(bucket, decision)
    ended = {"files": decision.files, "status": "promoted", "completed": now()}
    held = before or _first(bucket, decision.key, claimed.model_copy(update=ended))
    bucket.delete(decision.intent_key)
    return held, sum(result.outcome != "unchanged" for result in results)


def require_same_targets(bucket: Store, decision: Decision) -> None:
    """Refuse files that were released, or begun, with the device code of other gfx targets.

    Their metadata names these. They may belong to another set, too: several versions of torch have one ROCm.
    """
    if not decision.to_version:
        return
    keys = {one.key for one in decision.files}
    decided = [documents.read(bucket, one.key, Decision) for one in bucket.list(documents.DECISIONS)]
    for before in (*decided, *unfinished(bucket)):
        same = keys & {file.key for file in before.files}
        other = set(before.gpu_targets) != set(decision.gpu_targets)
        if same and other and before.to_version == decision.to_version:
            named = ", ".join(before.gpu_targets) or "all targets"
            what = "was released" if before.status == "promoted" else "is being released"
            raise ConflictError(
                f"{before.set_name} {what} with device code for {named} by {before.by}, which has "
                f"{len(same)} files of {decision.set_name}.",
                hint="A version is released once: keep the same targets, or make another candidate.",
            )


def is_done(bucket: Store, decision: Decision) -> bool:
    """Return whether what this decision promotes was promoted before, and is still there."""
    before = _maybe(bucket, decision.key)
    return before is not None and not missing(bucket, before)


def missing(bucket: Store, decision: Decision) -> Sequence[str]:
    """List the keys of a decision's files that do not exist, or not in their size."""
    folders = [
        documents.folder(documents.RELEASE, artifact_group) for artifact_group in decision.artifact_groups
    ]
    listings = parallel.map_in_threads(lambda folder: bucket.list(folder, recursive=False), folders)
    sizes = {one.key: one.size for listing in listings for one in listing}
    absent = [one.key for one in decision.files if sizes.get(one.key) != one.size]
    sidecars = [f"{one.key}{SIDECAR}" for one in decision.files if one.metadata_sha256]
    return sorted([*absent, *(key for key in sidecars if key not in sizes)])


def unfinished(bucket: Store) -> Sequence[Decision]:
    """Read the promotions that are running, or were interrupted."""
    keys = [one.key for one in bucket.list(documents.INTENTS) if one.key.endswith(".json")]
    return [found for key in keys if (found := _maybe(bucket, key)) is not None]


def _maybe(bucket: Store, key: str) -> Decision | None:
    """Read a decision or intent, if it is there; another may remove it at any moment."""
    try:
        return documents.read(bucket, key, Decision)
    except MissingInputError:
        return None


def _first(bucket: Store, key: str, decision: Decision) -> Decision:
    """Write what nobody wrote before, and return what holds: the earlier attempt's, with its grounds."""
    with suppress(ConflictError):
        bucket.put_bytes(key, documents.serialized(decision), if_match="")
    # a server without conditional writes lets a later one win: what is there holds
    return _maybe(bucket, key) or decision


def _list(bucket: Store, decision: Decision) -> None:
    """Write what the index of each artifact group lists of the set, and the groups' pages."""

    def write_group(artifact_group: str) -> None:
        released = tuple(file for file in decision.files if file.family == artifact_group)
        record = ReleaseRecord(family=artifact_group, decision=decision.key, files=released)
        folder = documents.manifests(documents.RELEASE, artifact_group)
        key = f"{folder}/{decision.set_name}-{decision.identity}.json"
        bucket.put_bytes(key, documents.serialized(record))

        keys = {file.key for file in released}
        documents.write_pages(bucket, documents.RELEASE, artifact_group, expected=keys)

    parallel.map_in_threads(write_group, decision.artifact_groups)
