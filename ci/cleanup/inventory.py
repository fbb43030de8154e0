"""What a store holds, and what of it may not go: the listing, its release pages, and promotions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ci.cleanup import links, plan, units
from ci.promote import documents, layout
from ci.promote.documents import StagingRecord
from ci.promote.execution import unfinished
from core import parallel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from ci.cleanup.plan import Plan
    from ci.cleanup.policy import Policy
    from ci.cleanup.units import Unit
    from core.stores import Store, Stored

_BUCKET_SCHEME = "s3://"


@dataclass(frozen=True, kw_only=True)
class Rules:
    """By what a store is looked through."""

    policy: Policy
    run_ids: str
    now: datetime
    distribution_stores: tuple[Store, ...] = ()


def planned(store: Store, rules: Rules) -> Plan:
    """Look through a store and decide what goes."""
    objects = store.list("")
    found = units.units(objects)
    held = plan.Held(
        listed=_listed(store, objects, rules),
        in_use=in_promotion(store),
        staged_runs=frozenset().union(
            *(_staged_runs(one, store.url) for one in (store, *rules.distribution_stores))
        ),
    )
    while True:
        # what stays may require what would go, which then stays and may require more
        decided = _plan(found, rules, held)
        required = _required(store, decided)
        if required <= held.required:
            return decided
        held = replace(held, required=held.required | required)


def _plan(found: Sequence[Unit], rules: Rules, held: plan.Held) -> Plan:
    return plan.plan(found, policy=rules.policy, run_ids=rules.run_ids, now=rules.now, held=held)


def _listed(store: Store, objects: Sequence[Stored], rules: Rules) -> frozenset[str]:
    bucket = store.url.removeprefix(_BUCKET_SCHEME) if store.url.startswith(_BUCKET_SCHEME) else ""
    own = _of_pages(store, objects, bucket)
    folder = units.RELEASE_INDEX.rstrip("/")
    others = [_of_pages(other, other.list(folder), bucket, own=False) for other in rules.distribution_stores]
    return own.union(*others)


def _of_pages(store: Store, objects: Iterable[Stored], bucket: str, *, own: bool = True) -> frozenset[str]:
    pages = [one.key for one in objects if one.key.startswith(units.RELEASE_INDEX) and _lists(one.key)]
    read = parallel.each(lambda key: links.listed(key, store.read(key), bucket=bucket, own=own), pages)
    return frozenset().union(*read)


def _lists(key: str) -> bool:
    return units.is_page(key) and key.endswith((".html", ".json"))


def in_promotion(store: Store) -> frozenset[str]:
    """Give the staged keys that promotions which have begun and not ended work with."""
    staged = [one.staged_key for decision in unfinished(store) for one in decision.files]
    return frozenset({*staged, *(f"{key}{units.SIDECAR}" for key in staged)})


def _staged_runs(bucket: Store, url: str) -> frozenset[str]:
    """Name the runs of the store at `url` that something in a bucket's staging came from.

    Its promotion reads the run's reports, so the run stays until staging lets go of it.
    """
    there = {one.key for one in bucket.list(layout.STAGING)}
    keys = [one.key for one in bucket.list(layout.manifests(layout.STAGING)) if one.key.endswith(".json")]
    records = parallel.each(lambda key: documents.read(bucket, key, StagingRecord)[0], keys)
    return frozenset(
        record.prefix
        for record in records
        if record.store == url and any(file.key in there for file in record.files)
    )


def _required(store: Store, decided: Plan) -> frozenset[str]:
    folders = {one.unit.folder for one in decided.goes if one.unit.folder}
    staying = [one.unit for one in decided.stays if one.unit.folder in folders]
    keys = [one.key for unit in staying for one in unit.objects if one.key.endswith(units.SIDECAR)]
    metadata = dict(zip(keys, parallel.each(store.read, keys), strict=True))
    return links.required(staying, [one.unit for one in decided.goes], metadata)
