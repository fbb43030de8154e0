"""Carrying a decision out, so that whoever runs it again ends what an interruption left.

In this order: the intent (who promotes what, visible until the end), wheels, sidecars, what the
index is to list, the pages, the decision record, the intent's removal. Every write is whole, and
is the same when it is done again; the decision is written once, so that two promotions of one set
at the same moment end with one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from ci.promote import documents
from ci.promote.documents import Decision, PromotedFile, ReleaseRecord
from core import files, parallel
from core.errors import ConflictError, MissingInputError, StoreError
from core.wheel.distributions import SIDECAR

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ci.promote.facts import Facts
    from ci.promote.policy import Verdict
    from core.stores import Outcome, Store


@dataclass(frozen=True, kw_only=True)
class Copy:
    """One object of the plan."""

    source_key: str
    key: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is put where, in the order of its fields."""

    wheels: tuple[Copy, ...]
    sidecars: tuple[Copy, ...]
    families: tuple[str, ...]
    size: int


def plan(decision: Decision) -> Plan:
    """Plan the copies of a set whose files stay as they were staged."""
    return Plan(
        wheels=tuple(
            Copy(source_key=one.staged_key, key=one.key, sha256=one.sha256) for one in decision.files
        ),
        sidecars=tuple(
            Copy(
                source_key=f"{one.staged_key}{SIDECAR}",
                key=f"{one.key}{SIDECAR}",
                sha256=one.metadata_sha256,
            )
            for one in decision.files
            if one.metadata_sha256
        ),
        families=tuple(sorted({one.family for one in decision.files})),
        size=sum(one.size for one in decision.files),
    )


class Origin(Protocol):
    """Where the files of a release come from."""

    def put_wheel(self, bucket: Store, one: Copy) -> Outcome:
        """Put a wheel or sdist into the release bucket."""
        ...

    def put_sidecar(self, bucket: Store, one: Copy) -> Outcome:
        """Put a sidecar into the release bucket."""
        ...


@dataclass(frozen=True, kw_only=True)
class Staged:
    """Files that are released as they were staged: copied on the server."""

    store: Store

    def put_wheel(self, bucket: Store, one: Copy) -> Outcome:
        """Copy a wheel."""
        return bucket.copy(one.key, self.store, one.source_key, sha256=one.sha256, replace=False)

    def put_sidecar(self, bucket: Store, one: Copy) -> Outcome:
        """Copy a sidecar."""
        return bucket.copy(one.key, self.store, one.source_key, sha256=one.sha256, replace=False)


@dataclass(frozen=True, kw_only=True)
class Local:
    """Files that were made on this machine."""

    paths: dict[str, Path]
    sidecars: dict[str, bytes]

    def put_wheel(self, bucket: Store, one: Copy) -> Outcome:
        """Upload a wheel."""
        return bucket.put_file(one.key, self.paths[one.key], sha256=one.sha256, replace=False)

    def put_sidecar(self, bucket: Store, one: Copy) -> Outcome:
        """Upload a sidecar."""
        return bucket.put_bytes(one.key, self.sidecars[one.key], replace=False)


@dataclass(frozen=True, kw_only=True)
class Done:
    """How a promotion ended."""

    decision: Decision
    outcome: Literal["promoted", "already"]
    copied: int = 0


def carry_out(
    bucket: Store, decision: Decision, origin: Origin, *, now: Callable[[], str], jobs: int = parallel.JOBS
) -> Done:
    """Promote a set."""
    before = decided(bucket, decision)
    if before is not None and not missing(bucket, before):
        # written only where somebody changed them
        parallel.each(lambda family: _list(bucket, before, family), plan(before).families)
        _withdraw_intent(bucket, decision)
        return Done(decision=before, outcome="already")
    # the same files stand in it, and the grounds that were good when it began
    claimed = before or _claimed(bucket, decision)
    planned = plan(decision)
    outcomes = parallel.each(lambda one: origin.put_wheel(bucket, one), planned.wheels, jobs=jobs)
    parallel.each(lambda one: origin.put_sidecar(bucket, one), planned.sidecars, jobs=jobs)
    _require_there(bucket, decision)
    parallel.each(lambda family: _list(bucket, decision, family), planned.families)
    ended = {"files": decision.files, "status": "promoted", "completed": now()}
    held = before or _written(bucket, claimed.model_copy(update=ended))
    _withdraw_intent(bucket, decision)
    return Done(decision=held, outcome="promoted", copied=sum(outcome != "unchanged" for outcome in outcomes))


def require_same_targets(bucket: Store, decision: Decision) -> None:
    """Refuse files that were released with the device code of other gfx targets: their metadata names these.

    They may have gone out with another set: several versions of torch have one ROCm.
    """
    keys = {one.key for one in decision.files}
    for one in bucket.list(documents.DECISIONS) if decision.to_version else ():
        before = documents.read(bucket, one.key, Decision)[0]
        same = keys & {file.key for file in before.files}
        other = set(before.gpu_targets) != set(decision.gpu_targets)
        if same and other and before.to_version == decision.to_version:
            named = ", ".join(before.gpu_targets) or "all targets"
            raise ConflictError(
                f"{before.set_name} was released with device code for {named} by {before.by}, which has "
                f"{len(same)} files of {decision.set_name}.",
                hint="A version is released once: keep the same targets, or make another candidate.",
            )


def is_done(bucket: Store, decision: Decision) -> bool:
    """Say whether what this decision promotes was promoted before, and is still there."""
    before = decided(bucket, decision)
    return before is not None and not missing(bucket, before)


def missing(bucket: Store, decision: Decision) -> Sequence[str]:
    """List the keys of a decision's files that are not there, or not in their size."""
    folders = [documents.folder(documents.RELEASE, family) for family in plan(decision).families]
    listings = parallel.each(lambda folder: bucket.list(folder, recursive=False), folders)
    sizes = {one.key: one.size for listing in listings for one in listing}
    absent = [one.key for one in decision.files if sizes.get(one.key) != one.size]
    sidecars = [f"{one.key}{SIDECAR}" for one in decision.files if one.metadata_sha256]
    return sorted([*absent, *(key for key in sidecars if key not in sizes)])


def unfinished(bucket: Store) -> Sequence[Decision]:
    """Read the promotions that go on, or were interrupted."""
    keys = [one.key for one in bucket.list(documents.INTENTS) if one.key.endswith(".json")]
    return [found for key in keys if (found := _maybe(bucket, key)) is not None]


def decided(bucket: Store, decision: Decision) -> Decision | None:
    """Find the decision record of what this decision promotes, if it was promoted before."""
    return _maybe(bucket, documents.decision(decision.set_name, decision.identity))


def _maybe(bucket: Store, key: str) -> Decision | None:
    """Read a decision or intent, if it is there; another may take it away at any moment."""
    try:
        return documents.read(bucket, key, Decision)[0]
    except MissingInputError:
        return None


def _claimed(bucket: Store, decision: Decision) -> Decision:
    """Leave the intent; where an earlier attempt left one, that one holds, with its grounds."""
    return _first(bucket, documents.intent(decision.set_name, decision.identity), decision)


def _written(bucket: Store, decision: Decision) -> Decision:
    """Write the decision, once; who comes second takes the first one's."""
    return _first(bucket, documents.decision(decision.set_name, decision.identity), decision)


def _first(bucket: Store, key: str, decision: Decision) -> Decision:
    """Write what nobody wrote before, and give what holds."""
    with suppress(ConflictError):
        bucket.put_bytes(key, documents.serialized(decision), if_match="")
    # a server without conditional writes lets a later one win: what is there holds
    return _maybe(bucket, key) or decision


def _withdraw_intent(bucket: Store, decision: Decision) -> None:
    key = documents.intent(decision.set_name, decision.identity)
    if bucket.find(key) is not None:
        bucket.delete(key)


def _require_there(bucket: Store, decision: Decision) -> None:
    """Refuse to list what did not arrive, whatever the copies said."""
    absent = missing(bucket, decision)
    if absent:
        raise StoreError(
            f"{len(absent)} objects are not whole in {bucket.url}:\n" + "\n".join(absent),
            hint="Run the same command again: it goes on.",
        )


def _record(decision: Decision, family: str) -> tuple[str, ReleaseRecord]:
    key = documents.release_record(family, decision.set_name, decision.identity)
    files = tuple(one for one in decision.files if one.family == family)
    return key, ReleaseRecord(
        family=family, decision=documents.decision(decision.set_name, decision.identity), files=files
    )


def _list(bucket: Store, decision: Decision, family: str) -> None:
    """Say what the index of a family lists of the set, and write its pages."""
    key, record = _record(decision, family)
    bucket.put_bytes(key, documents.serialized(record))
    keys = {one.key for one in record.files}
    documents.write_pages(bucket, documents.RELEASE, family, expected=keys)


_IDENTITY_DIGITS = 16


def promoted_files(facts: Facts) -> tuple[PromotedFile, ...]:
    """Say what becomes of staged files that are released as they are: the same names and bytes."""
    found = {}
    for wheel in facts.wheels:
        one, family = wheel.file, wheel.cell.family
        found[one.key] = PromotedFile(
            family=family,
            name=one.name,
            key=f"{documents.folder(documents.RELEASE, family)}/{one.name}",
            size=one.size,
            sha256=one.sha256,
            distribution=one.distribution,
            version=one.version,
            requires_python=one.requires_python,
            metadata_sha256=one.metadata_sha256,
            staged_key=one.key,
            staged_sha256=one.sha256,
        )
    return tuple(found[key] for key in sorted(found))


def identity_of(promoted: Sequence[PromotedFile]) -> str:
    """Digest what is promoted: target keys and the bytes that were tested; not who, when or why."""
    pairs = sorted((one.key, one.staged_sha256) for one in promoted)
    return files.digest_of(pairs)[:_IDENTITY_DIGITS]


@dataclass(frozen=True, kw_only=True)
class Circumstances:
    """Who promotes what to where, and when."""

    set_name: str
    release_type: str
    by: str
    decided: str
    from_version: str = ""
    to_version: str = ""
    gpu_targets: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def decision_of(
    facts: Facts, verdict: Verdict, promoted: Sequence[PromotedFile], told: Circumstances
) -> Decision:
    """Write the decision down."""
    return Decision(
        set_name=told.set_name,
        identity=identity_of(promoted),
        status="promoting",
        release_type=told.release_type,
        from_version=told.from_version,
        to_version=told.to_version,
        gpu_targets=told.gpu_targets,
        left_out=told.left_out,
        decided=told.decided,
        by=told.by,
        staging=facts.staging,
        rulings=verdict.rulings,
        override=verdict.override,
        files=tuple(promoted),
    )
