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
from ci.promote.documents import Decision, PromotedFile, Refusal, ReleaseRecord
from core import files, parallel
from core.errors import ConflictError, StoreError
from core.stores import Store
from core.wheel.distributions import SIDECAR

if TYPE_CHECKING:
    from ci.promote.facts import SetFacts


# What is promoted


def promoted_files(facts: SetFacts) -> tuple[PromotedFile, ...]:
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
    tested_bytes = [(file.key, file.staged_sha256) for file in promoted]
    return files.digest_of(sorted(tested_bytes))[:16]


# Promotion


def carry_out(
    bucket: Store,
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
    previous_decision = documents.find(bucket, decision.key, Decision)
    if previous_decision is not None and not missing_keys(bucket, previous_decision):
        # Pages are written only where somebody changed them.
        _list_files(bucket, previous_decision)
        bucket.delete(decision.intent_key)
        return previous_decision, None

    # The same files stand in an earlier attempt's intent, and the grounds that were good when it began.
    claimed_decision = previous_decision
    if claimed_decision is None:
        claimed_decision = _write_first(bucket, decision.intent_key, decision)

    # Rewritten files lie where the release has them.
    is_rewritten = decision.from_version != ""
    source_keys = {file: file.key if is_rewritten else file.staged_key for file in decision.files}
    new_count = documents.copy_files(bucket, source, source_keys, jobs=jobs)

    # Whatever the copies say: nothing is listed that did not arrive.
    absent_keys = missing_keys(bucket, decision)
    if absent_keys:
        raise StoreError(
            f"{len(absent_keys)} objects are incomplete in {bucket.url}:\n" + "\n".join(absent_keys),
            hint="Run the same command again: it continues.",
        )

    _list_files(bucket, decision)
    if previous_decision is None:
        outcome = {"files": decision.files, "status": "promoted", "completed": clock()}
        completed_decision = claimed_decision.model_copy(update=outcome)
        previous_decision = _write_first(bucket, decision.key, completed_decision)
    bucket.delete(decision.intent_key)
    return previous_decision, new_count


def _list_files(bucket: Store, decision: Decision) -> None:
    """Write what the index of each artifact group lists of the set, and the groups' pages."""

    def write_group(artifact_group: str) -> None:
        group_files = [file for file in decision.files if file.family == artifact_group]
        record = ReleaseRecord(family=artifact_group, decision=decision.key, files=tuple(group_files))
        prefix = documents.manifests(documents.RELEASE, artifact_group)
        key = f"{prefix}/{decision.set_name}-{decision.identity}.json"
        bucket.put_bytes(key, documents.serialized(record))

        keys = documents.keys_of(group_files)
        documents.write_pages(bucket, documents.RELEASE, artifact_group, expected=keys)

    parallel.map_in_threads(write_group, decision.artifact_groups)


def _write_first(
    bucket: Store,
    key: str,
    decision: Decision,
) -> Decision:
    """Write what nobody wrote before, and return what holds: the earlier attempt's, with its grounds."""
    with suppress(ConflictError):
        bucket.put_bytes(key, documents.serialized(decision), if_match="")

    # A server without conditional writes lets a later one win: what is there holds.
    stored_decision = documents.find(bucket, key, Decision)
    return decision if stored_decision is None else stored_decision


# What was promoted before


def is_done(bucket: Store, decision: Decision) -> bool:
    """Return whether what this decision promotes was promoted before, and is still there."""
    previous_decision = documents.find(bucket, decision.key, Decision)
    return previous_decision is not None and not missing_keys(bucket, previous_decision)


def missing_keys(bucket: Store, decision: Decision) -> Sequence[str]:
    """List the keys of a decision's files that do not exist, or not in their size."""
    sizes: dict[str, int] = {}
    for artifact_group in decision.artifact_groups:
        prefix = documents.folder(documents.RELEASE, artifact_group)
        for stored_object in bucket.list(prefix, recursive=False):
            sizes[stored_object.key] = stored_object.size

    absent_keys: list[str] = []
    for file in decision.files:
        if sizes.get(file.key) != file.size:
            absent_keys.append(file.key)
        sidecar_key = f"{file.key}{SIDECAR}"
        if file.metadata_sha256 and sidecar_key not in sizes:
            absent_keys.append(sidecar_key)
    return sorted(absent_keys)


def decisions(bucket: Store) -> Sequence[Decision]:
    """Read the promotions that were completed."""
    keys = documents.list_keys(bucket, documents.DECISIONS)
    return [documents.read(bucket, key, Decision) for key in keys]


def unfinished(bucket: Store) -> Sequence[Decision]:
    """Read the promotions that are running, or were interrupted."""
    intents: list[Decision] = []
    for key in documents.list_keys(bucket, documents.INTENTS):
        if key.endswith(".json"):
            intent = documents.find(bucket, key, Decision)
            if intent is not None:
                intents.append(intent)
    return intents


def require_same_targets(bucket: Store, decision: Decision) -> None:
    """Refuse files that were released, or begun, with the device code of other gfx targets.

    Their metadata names these. They may belong to another set, too: several versions of torch have one ROCm.
    """
    if not decision.to_version:
        return

    keys = documents.keys_of(decision.files)
    for previous_decision in (*decisions(bucket), *unfinished(bucket)):
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
    bucket: Store,
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
        if documents.is_unreleased(bucket, refusal):
            bucket.put_bytes(refusal.key, documents.serialized(refusal))

    update_refusals(bucket, {place.artifact_group or "" for place in places})


def update_refusals(
    bucket: Store,
    artifact_groups: Iterable[str],
) -> None:
    """Let the pages of staging say what holds now: a refused set may have been released since."""
    for artifact_group in sorted(artifact_groups):
        refusals = documents.refusals(bucket, artifact_group)
        for refusal in refusals:
            if not documents.is_unreleased(bucket, refusal):
                bucket.delete(refusal.key)
        if refusals:
            documents.write_pages(bucket, documents.STAGING, artifact_group, expected=())
