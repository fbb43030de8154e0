"""Carrying a decision out, so that whoever runs it again completes what an interruption left.

A promotion writes in this order: the intent (who promotes what, visible until the end), wheels, sidecars,
what the index is to list, the pages, the decision record, the intent's removal. Every write is whole, and
is the same when it is done again; the decision is written once, so that two promotions of one set at the
same moment end with one.

A refusal is written down, too: the pages of staging say which set was not released, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ci.promote import documents
from ci.promote.documents import Decision, Refusal, ReleaseRecord
from core import parallel
from core.errors import ConflictError, StoreError
from core.stores import Store
from core.wheel.distributions import SIDECAR

if TYPE_CHECKING:
    from ci.promote.facts import SetFacts


# Promotion


def carry_out(
    store: Store,
    decision: Decision,
    source: Store,
    *,
    clock: Callable[[], str],
    jobs: int = parallel.JOBS,
) -> tuple[Decision, int | None]:
    """Promote a set from the store that has its files: those that were staged, or were rewritten.

    Returns:
        The decision that holds, and how many files were new: None if it held before.
    """
    previous_decision = documents.find(store, decision.key, Decision)
    if previous_decision is not None and not missing_keys(store, previous_decision):
        # Pages are written only where somebody changed them.
        _list_files(store, previous_decision)
        store.delete(decision.intent_key)
        return previous_decision, None

    # The same files stand in an earlier attempt's intent, and the grounds that were good when it began.
    claimed_decision = previous_decision
    if claimed_decision is None:
        claimed_decision = _write_first(store, decision.intent_key, decision)

    # Rewritten files lie where the release has them.
    is_rewritten = decision.from_version != ""
    source_keys = {file: file.key if is_rewritten else file.staged_key for file in decision.files}
    new_count = documents.copy_files(source_keys, source=source, target=store, jobs=jobs)

    # Whatever the copies say: nothing is listed that did not arrive.
    absent_keys = missing_keys(store, decision)
    if absent_keys:
        raise StoreError(
            f"{len(absent_keys)} objects are incomplete in {store.url}:\n" + "\n".join(absent_keys),
            hint="Run the same command again: it continues.",
        )

    _list_files(store, decision)
    if previous_decision is None:
        outcome = {"files": decision.files, "status": "promoted", "completed": clock()}
        completed_decision = claimed_decision.model_copy(update=outcome)
        previous_decision = _write_first(store, decision.key, completed_decision)
    store.delete(decision.intent_key)
    return previous_decision, new_count


def _list_files(store: Store, decision: Decision) -> None:
    """Write what the index of each artifact group lists of the set, and the groups' pages."""

    def write_group(artifact_group: str) -> None:
        group_files = [file for file in decision.files if file.family == artifact_group]
        record = ReleaseRecord(family=artifact_group, decision=decision.key, files=tuple(group_files))
        prefix = documents.manifests(documents.RELEASE, artifact_group)
        key = f"{prefix}/{decision.set_name}-{decision.identity}.json"
        store.put_bytes(key, documents.serialized(record))

        keys = documents.keys_of(group_files)
        documents.write_pages(store, documents.RELEASE, artifact_group, expected=keys)

    parallel.map_in_threads(write_group, decision.artifact_groups)


def _write_first(
    store: Store,
    key: str,
    decision: Decision,
) -> Decision:
    """Write what nobody wrote before, and return what holds: the earlier attempt's, with its grounds."""
    with suppress(ConflictError):
        store.put_bytes(key, documents.serialized(decision), if_match="")

    # A server without conditional writes lets a later one win: what is there holds.
    stored_decision = documents.find(store, key, Decision)
    return decision if stored_decision is None else stored_decision


# What was promoted before


def is_done(store: Store, decision: Decision) -> bool:
    """Return whether what this decision promotes was promoted before, and is still there."""
    previous_decision = documents.find(store, decision.key, Decision)
    return previous_decision is not None and not missing_keys(store, previous_decision)


def missing_keys(store: Store, decision: Decision) -> Sequence[str]:
    """List the keys of a decision's files that do not exist, or not in their size."""
    sizes: dict[str, int] = {}
    for artifact_group in decision.artifact_groups:
        prefix = documents.folder(documents.RELEASE, artifact_group)
        for stored_object in store.list(prefix, recursive=False):
            sizes[stored_object.key] = stored_object.size

    absent_keys: list[str] = []
    for file in decision.files:
        if sizes.get(file.key) != file.size:
            absent_keys.append(file.key)
        sidecar_key = f"{file.key}{SIDECAR}"
        if file.metadata_sha256 and sidecar_key not in sizes:
            absent_keys.append(sidecar_key)
    return sorted(absent_keys)


def require_same_targets(store: Store, decision: Decision) -> None:
    """Refuse files that were released, or begun, with the device code of other gfx targets.

    Their metadata names these. They may belong to another set, too: several versions of torch have one ROCm.
    """
    if not decision.to_version:
        return

    keys = documents.keys_of(decision.files)
    for previous_decision in (*documents.decisions(store), *documents.unfinished(store)):
        shared_keys = keys & documents.keys_of(previous_decision.files)
        has_other_targets = set(previous_decision.gpu_targets) != set(decision.gpu_targets)
        is_of_version = previous_decision.to_version == decision.to_version
        if shared_keys and has_other_targets and is_of_version:
            targets = ", ".join(previous_decision.gpu_targets) or "all targets"
            is_promoted = previous_decision.status == "promoted"
            verb = "was released" if is_promoted else "is being released"
            raise ConflictError(
                f"{previous_decision.set_name} {verb} with device code for {targets} by "
                f"{previous_decision.by}, which has {len(shared_keys)} files of {decision.set_name}.",
                hint="A version is released once: keep the same targets, or make another candidate.",
            )


# Refusals


def record_refusal(
    store: Store,
    facts: SetFacts,
    decision: Decision,
) -> None:
    """Write down why a set is not released, and let the pages of its staging say so.

    A set that was released before stays as it is: what is refused is only to release it once more.
    """
    places = sorted({wheel.cell.place for wheel in facts.wheels})
    for place in places:
        refusal = Refusal.model_validate(
            {
                "set_name": facts.set_name,
                "family": place.artifact_group,
                "platform": place.platform,
                "refused": decision.decided,
                "by": decision.by,
                "reasons": tuple(map(str, decision.reasons)),
                "staged_keys": sorted(
                    {wheel.file.key for wheel in facts.wheels if wheel.cell.place == place}
                ),
            }
        )
        if documents.is_unreleased(store, refusal):
            store.put_bytes(refusal.key, documents.serialized(refusal))

    update_refusals(store, {place.artifact_group or "" for place in places})


def update_refusals(
    store: Store,
    artifact_groups: Iterable[str],
) -> None:
    """Let the pages of staging say what holds now: a refused set may have been released since."""
    for artifact_group in sorted(artifact_groups):
        refusals = documents.refusals(store, artifact_group)
        for refusal in refusals:
            if not documents.is_unreleased(store, refusal):
                store.delete(refusal.key)
        if refusals:
            documents.write_pages(store, documents.STAGING, artifact_group, expected=())
