"""What goes from a store and what stays, and why; and its deletion.

The plan is a pure function of a listing, pages, policy and the day. Deletion takes pages first, then
sidecars, then wheels, so that no page lists what does not exist. The process may be killed after any
step: run again, the rest is as old as before, so the new plan completes what this one began.
"""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any, Self, cast

from pydantic import Field, model_validator

from ci import cleanup
from ci.cleanup import Unit, listed
from ci.promote import documents
from ci.promote.promotion import unfinished
from ci.publish.index import is_page
from ci.publish.index.names import DISTRIBUTION_SUFFIXES, SIDECAR_SUFFIX
from core import parallel
from core.data import Model, data_file
from core.errors import StoreError, UsageError, nearest
from core.stores import Store, Stored

_DAY = 86_400
_ALL = 100
_PATIENCE, _PAUSE = 120.0, 2.0


class Policy(Model):
    """How long what a release type leaves is kept."""

    days: int | None = Field(default=None, ge=1)
    newest: int = Field(default=1, ge=1)
    forever: bool = False
    expire_days: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.forever == (self.days is not None):
            raise ValueError("give either days or forever = true.")
        if self.expire_days is not None and (self.days is None or self.expire_days < self.days):
            raise ValueError("expire_days must not be before days.")
        return self


class Retention(Model):
    """The contents of `retention.toml`."""

    run_ids: re.Pattern[str]
    at_most_percent: int = Field(ge=1, le=100)
    abort_uploads_days: int = Field(ge=1)
    policies: dict[str, Policy]

    def policy(self, name: str) -> Policy:
        """Look a policy up."""
        if name not in self.policies:
            raise UsageError(f"There is no retention policy {name!r}. {nearest(name, self.policies)}")
        return self.policies[name]


retention = data_file(Path(__file__).parents[1] / "retention.toml", Retention)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What a plan follows from, besides the store."""

    policy: Policy
    run_ids: re.Pattern[str]
    now: datetime
    distribution_stores: tuple[Store, ...] = ()

    def age(self, unit: Unit) -> int:
        """Return a unit's age in days."""
        return int((self.now.timestamp() - unit.modified) // _DAY)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What goes, and what stays."""

    goes: tuple[Unit, ...]
    stays: tuple[Unit, ...]

    @property
    def size(self) -> int:
        """Bytes that go."""
        return sum(one.size for one in self.goes)


@dataclass(frozen=True, kw_only=True)
class Held:
    """What must not go, whatever its age."""

    listed: frozenset[str] = frozenset()
    in_use: frozenset[str] = frozenset()
    staged_runs: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()


def planned(store: Store, rules: Rules) -> Plan:
    """Look through a store and decide what goes."""
    objects = store.list("")
    found = cleanup.units(objects)
    others = rules.distribution_stores
    held = Held(
        listed=_listed(store, objects, rules),
        in_use=in_promotion(store),
        staged_runs=frozenset().union(*(_staged_runs(one, store.url) for one in (store, *others))),
    )
    decided, followed = plan_of(found, rules, held), Plan(goes=(), stays=())
    # what stays may require what would go, which then stays and may require more
    while required := _required(store, decided, followed):
        held = replace(held, required=held.required | required)
        decided, followed = plan_of(found, rules, held), decided
    return decided


def plan_of(found: Sequence[Unit], rules: Rules, held: Held) -> Plan:
    """Decide about every unit."""
    ahead = [unit for unit in found if unit.modified > rules.now.timestamp() + _DAY]
    if ahead:
        raise StoreError(
            f"{ahead[0].name} was written after {rules.now:%Y-%m-%d %H:%M} UTC: the clock is wrong.",
            hint="Correct the clock (or --today); nothing was deleted.",
        )
    goes: list[Unit] = []
    stays: list[Unit] = []
    seen: Counter[str] = Counter()
    for unit in found:
        why = _kept_because(unit, seen[unit.series], rules, held)
        gone = f"{rules.age(unit)} days old, kept for {rules.policy.days}"
        (stays if why else goes).append(replace(unit, why=why or gone))
        seen[unit.series] += 1
    return Plan(goes=tuple(goes), stays=tuple(stays))


def _kept_because(unit: Unit, rank: int, rules: Rules, held: Held) -> str:
    keys, policy = {one.key for one in unit.objects}, rules.policy
    reasons = {
        "a release index lists it": keys & held.listed,
        "a promotion uses it": keys & held.in_use,
        "something in staging came from it": unit.run_id and unit.name in held.staged_runs,
        "kept forever": policy.days is None,
        f"not {policy.days} days old": rules.age(unit) < (policy.days or 0),
        f"among the newest {policy.newest}": rank < policy.newest,
        "a version that stays requires it": unit.name in held.required,
        "a user named it": unit.run_id and not rules.run_ids.fullmatch(unit.run_id),
    }
    return next((why for why, holds in reasons.items() if holds), "")


def require_modest(plan: Plan, *, percent: int) -> None:
    """Refuse a plan that takes a larger part of what is there than expected."""
    number, total = len(plan.goes), len(plan.goes) + len(plan.stays)
    if number * _ALL > percent * total:
        needed = -(-number * _ALL // total)
        raise StoreError(
            f"{number} of {total} runs and versions would be deleted, which is more than {percent} %.",
            hint=f"Look at the plan (--dry-run); if it is right, give --at-most {needed}.",
        )


def _listed(store: Store, objects: Sequence[Stored], rules: Rules) -> frozenset[str]:
    bucket = store.url.removeprefix("s3://") if store.url.startswith("s3://") else ""
    others = [
        _of_pages(other, other.list(documents.RELEASE), documents.RELEASE, bucket=bucket, own=False)
        for other in rules.distribution_stores
    ]
    return _of_pages(store, objects, documents.RELEASE, bucket=bucket).union(*others)


def _of_pages(
    store: Store, objects: Iterable[Stored], folder: str, *, bucket: str = "", own: bool = True
) -> frozenset[str]:
    """Return the keys that a folder's pages among objects list."""
    below = (one.key for one in objects if one.key.startswith(f"{folder}/"))
    pages = [key for key in below if is_page(key) and key.endswith((".html", ".json"))]
    read = parallel.map_in_threads(lambda key: listed(key, store.read(key), bucket=bucket, own=own), pages)
    return frozenset().union(*read)


def in_promotion(store: Store) -> frozenset[str]:
    """Return the staged keys that promotions which have begun and not ended work with."""
    staged = [one.staged_key for decision in unfinished(store) for one in decision.files]
    return frozenset({*staged, *(f"{key}{SIDECAR_SUFFIX}" for key in staged)})


def _staged_runs(bucket: Store, url: str) -> frozenset[str]:
    """Name the runs of the store at `url` that something in a bucket's staging came from.

    Its promotion reads the run's reports, so the run stays until staging lets go of it.
    """
    there = {one.key for one in bucket.list(documents.STAGING)}
    return frozenset(
        record.prefix
        for record, _ in documents.staging_records(bucket)
        if record.store == url and any(file.key in there for file in record.files)
    )


def _required(store: Store, decided: Plan, followed: Plan) -> frozenset[str]:
    folders = {one.folder for one in decided.goes if one.folder}
    known = {one.name for one in followed.stays}
    staying = [one for one in decided.stays if one.folder in folders and one.name not in known]
    keys = [one.key for unit in staying for one in unit.objects if one.key.endswith(SIDECAR_SUFFIX)]
    metadata = dict(zip(keys, parallel.map_in_threads(store.read, keys), strict=True))
    return cleanup.required(staying, decided.goes, metadata)


@dataclass(frozen=True, kw_only=True)
class _Without:
    """A store whose listings leave something out; all else is the store's own."""

    store: Store
    going: frozenset[str]

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        found = self.store.list(prefix, recursive=recursive)
        return [one for one in found if one.key not in self.going]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self.store, name)


def _rewrite(store: Store, folder: str, going: frozenset[str]) -> None:
    """Write a staging folder's pages as if these keys were gone; what stays is listed as it was."""
    seen = cast("Store", _Without(store=store, going=going))
    documents.write_pages(seen, documents.STAGING, folder.removeprefix(cleanup.STAGING), expected=())


def carry_out(store: Store, plan: Plan) -> int:
    """Delete what goes."""
    sizes = {one.key: one.size for unit in plan.goes for one in unit.objects}
    keys, folders = list(sizes), defaultdict[str, frozenset[str]](frozenset)
    for unit in (one for one in plan.goes if one.folder):
        folders[unit.folder] |= {one.key for one in unit.objects}
    _require_unused(store, keys)
    with parallel.transfer(f"deletion in {store.url}", size=plan.size) as shown:

        def delete(key: str) -> None:
            store.delete(key)
            shown.advance(sizes[key])

        parallel.map_in_threads(delete, [key for key in keys if is_page(key)])
        for folder, going in folders.items():
            _rewrite(store, folder, going)
        _require_unused(store, keys)
        parallel.map_in_threads(delete, [key for key in keys if key.endswith(SIDECAR_SUFFIX)])
        for folder, going in folders.items():
            _await_unlisted(store, folder, going)
        parallel.map_in_threads(delete, [key for key in keys if key.endswith(DISTRIBUTION_SUFFIXES)])
        others = (SIDECAR_SUFFIX, *DISTRIBUTION_SUFFIXES)
        parallel.map_in_threads(delete, [key for key in keys if not (is_page(key) or key.endswith(others))])
    return len(keys)


def _require_unused(store: Store, keys: Sequence[str]) -> None:
    used = sorted(in_promotion(store).intersection(keys))
    if used:
        raise StoreError(
            f"A promotion that works with {used[0]} began meanwhile; neither it nor any wheel was deleted.",
            hint="Run this again when the promotion has ended.",
        )


def _await_unlisted(store: Store, folder: str, going: frozenset[str]) -> None:
    end = time.monotonic() + _PATIENCE
    while still := sorted(_of_pages(store, store.list(folder), folder) & going):
        if time.monotonic() >= end:
            raise StoreError(
                f"{store.url}/{folder} has pages that go on listing {PurePosixPath(still[0]).name}, "
                f"so {len(going)} files were left where they are.",
                hint="Write the pages (nox -s index, or see why the server does not), then run this again.",
            )
        time.sleep(_PAUSE)
