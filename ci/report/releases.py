"""What was decided on a run's wheels, read from the store that they were staged in.

Whoever promotes may not write into runs, so the decisions lie with what is released, and the page of the run
reads them there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from ci.promote import documents
from ci.promote.documents import Decision, Refusal, StagingRecord
from ci.publish.buckets import buckets
from ci.report.model import ReleaseRow, ReportedProblem
from core.errors import FatalError
from core.run.locations import distribution_store
from core.run.plan import Plan
from core.stores.location import open_store

if TYPE_CHECKING:
    from ci.report.facts import RunFacts
    from core.cli.options import Common
    from core.stores import Store

# What names a set: torch's wheels, or ROCm's packages alone.
_NAMING_DISTRIBUTIONS = ("torch", "rocm")


def add_releases(facts: RunFacts, common: Common, named_store: str) -> RunFacts:
    """Return a run with what was decided on its wheels; what cannot be read is a problem of its page.

    `named_store` is the store that they are staged in; "" for the one of the run's release type.
    """
    try:
        address = named_store or _distribution_address(facts, common)
        if address is None:
            return facts
        return replace(facts, releases=tuple(_read_releases(address, facts, common)))
    except FatalError as error:
        problem = ReportedProblem(where="decisions on its wheels", what=error.message, hint=error.hint)
        return replace(facts, problems=(*facts.problems, problem))


def _distribution_address(facts: RunFacts, common: Common) -> str | None:
    """Return where the run's wheels are staged; None where nothing says that they are."""
    release_types = {lock.release_type for lock in facts.locks.values()}
    release_type = min(release_types, default=common.release_type)
    if release_type not in buckets().distributions:
        return None

    address = distribution_store(buckets(), release_type)
    if not address.startswith("s3://"):
        return address

    # Most runs are of no release: their pages need no request, and none of this machine's a network.
    plan = documents.find(common.open_for_reading(), common.outputs.plan_key, Plan)
    return address if plan is not None and plan.promote.value else None


def _read_releases(address: str, facts: RunFacts, common: Common) -> Iterator[ReleaseRow]:
    """Yield what was decided on the sets of a run, by artifact group."""
    # Nothing is written there, and a folder is not made.
    store = open_store(address, root=common.root, dry_run=True)
    for group in facts.groups:
        key = documents.staging_record_key(group.name, common.outputs.prefix)
        staging = documents.find(store, key, StagingRecord)
        if staging is not None:
            yield from _releases_of_group(store, staging)


def _releases_of_group(store: Store, staging: StagingRecord) -> Iterator[ReleaseRow]:
    """Yield what was decided on the sets of an artifact group; a set of torch that waits is staged."""
    for distribution in _NAMING_DISTRIBUTIONS:
        versions = {file.version for file in staging.files if file.distribution == distribution}
        for version in sorted(versions):
            set_name = f"{distribution}-{version}"
            decided_rows = list(_decisions_on_set(store, staging, set_name))
            yield from decided_rows
            # ROCm's packages are released with torch, or as a set of their own.
            if distribution == "torch" and not decided_rows:
                yield ReleaseRow(
                    group=staging.artifact_group, set_name=set_name, state="staged", decided=staging.staged
                )


def _decisions_on_set(store: Store, staging: StagingRecord, set_name: str) -> Iterator[ReleaseRow]:
    """Yield the decisions on a set that are on files of this run."""
    staged_keys = documents.keys_of(staging.files)
    for decision in (*documents.unfinished(store, set_name), *documents.decisions(store, set_name)):
        if not staged_keys.isdisjoint(file.staged_key for file in decision.files):
            yield _row_of_decision(decision, staging)

    refusal_key = documents.refusal_key(set_name, staging.artifact_group, staging.platform)
    refusal = documents.find(store, refusal_key, Refusal)
    if refusal is not None and not staged_keys.isdisjoint(refusal.staged_keys):
        yield ReleaseRow(
            group=staging.artifact_group,
            set_name=set_name,
            state="refused",
            decided=refusal.refused,
            by=refusal.by,
            reasons=refusal.reasons,
        )


def _row_of_decision(decision: Decision, staging: StagingRecord) -> ReleaseRow:
    """Return a decision as it is on the cells of one artifact group."""
    rules: set[str] = set()
    reasons: list[str] = []
    for ruling in decision.rulings:
        if ruling.family == staging.artifact_group and ruling.platform == staging.platform:
            rules.add(ruling.rule)
            reasons += ruling.overridden
    if reasons and decision.override is not None:
        reasons.append(f"{decision.override.by}: {decision.override.reason}")
    return ReleaseRow(
        group=staging.artifact_group,
        set_name=decision.set_name,
        state=decision.status,
        decided=decision.decided,
        by=decision.by,
        rules=tuple(sorted(rules)),
        reasons=tuple(dict.fromkeys(reasons)),
        decision=decision.key if decision.status == "promoted" else decision.intent_key,
    )
