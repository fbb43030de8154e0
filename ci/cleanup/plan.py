"""What goes from a store and what stays, and why: a pure function of a listing, pages, policy and the day."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from ci.cleanup.pages import listed_keys
from ci.cleanup.units import DeletionUnit, find_units, pinned_units
from ci.promote import documents
from ci.promote.documents import unfinished
from ci.publish.index.names import SIDECAR_SUFFIX
from core import parallel
from core.data import Model, data_file
from core.errors import StoreError, UsageError, nearest
from core.stores import Store

_DAY = 86_400


class RetentionPolicy(Model):
    """How long what a release type leaves is kept."""

    days: int | None = Field(
        default=None,
        ge=1,
    )
    newest: int = Field(
        default=1,
        ge=1,
    )
    forever: bool = False
    expire_days: int | None = Field(
        default=None,
        ge=1,
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.forever == (self.days is not None):
            raise ValueError("give either days or forever = true.")
        if self.expire_days is not None and (self.days is None or self.expire_days < self.days):
            raise ValueError("expire_days must not be before days.")
        return self


class Retention(Model):
    """The contents of `retention.toml`."""

    run_ids: re.Pattern[str]
    at_most_percent: int = Field(
        ge=1,
        le=100,
    )
    abort_uploads_days: int = Field(ge=1)
    policies: dict[str, RetentionPolicy]

    def policy(self, name: str) -> RetentionPolicy:
        """Look a policy up."""
        if name not in self.policies:
            raise UsageError(f"There is no retention policy {name!r}. {nearest(name, self.policies)}")
        return self.policies[name]


retention = data_file(Path(__file__).parents[1] / "retention.toml", Retention)


@dataclass(frozen=True, kw_only=True)
class RetentionRules:
    """What a plan follows from, besides the store.

    Attributes:
        run_ids: How runs are named that may go; a user named every other one.
        distribution_stores: Where releases come to from this store: what they need stays.
    """

    policy: RetentionPolicy
    run_ids: re.Pattern[str]
    now: datetime
    distribution_stores: tuple[Store, ...] = ()

    def age(self, unit: DeletionUnit) -> int:
        """Return a unit's age in days."""
        return int((self.now.timestamp() - unit.modified) // _DAY)


@dataclass(frozen=True, kw_only=True)
class DeletionPlan:
    """What goes, and what stays."""

    going: tuple[DeletionUnit, ...]
    staying: tuple[DeletionUnit, ...]

    @property
    def size(self) -> int:
        """Bytes that go."""
        return sum(unit.size for unit in self.going)


@dataclass(frozen=True, kw_only=True)
class ProtectedObjects:
    """What must not go, whatever its age.

    Attributes:
        listed_in_releases: The keys that release indexes list.
        in_promotion: The keys that a promotion works with.
        staged_runs: The names of runs that something in staging came from.
        pinned: The names of versions that one which stays requires.
    """

    listed_in_releases: frozenset[str] = frozenset()
    in_promotion: frozenset[str] = frozenset()
    staged_runs: frozenset[str] = frozenset()
    pinned: frozenset[str] = frozenset()


def plan_deletion(
    store: Store,
    rules: RetentionRules,
) -> DeletionPlan:
    """Look through a store and decide what goes."""
    stored_objects = store.list("")
    units = find_units(stored_objects)
    keys = [stored_object.key for stored_object in stored_objects]
    staged_runs: set[str] = set()
    for bucket in (store, *rules.distribution_stores):
        staged_runs |= _staged_runs(bucket, store.url)
    protected = ProtectedObjects(
        listed_in_releases=_keys_in_releases(store, keys, rules),
        in_promotion=keys_in_promotion(store),
        staged_runs=frozenset(staged_runs),
    )

    # What stays may require what would go, which then stays and may require more.
    plan = decide(units, rules, protected)
    known_units: frozenset[str] = frozenset()
    while True:
        pinned = _pinned_units(store, plan, known_units)
        if not pinned:
            return plan
        known_units = frozenset(unit.name for unit in plan.staying)
        protected = replace(protected, pinned=protected.pinned | pinned)
        plan = decide(units, rules, protected)


def decide(
    units: Sequence[DeletionUnit],
    rules: RetentionRules,
    protected: ProtectedObjects,
) -> DeletionPlan:
    """Decide about every unit."""
    going: list[DeletionUnit] = []
    staying: list[DeletionUnit] = []
    series_counts: Counter[str] = Counter()
    for unit in units:
        if unit.modified > rules.now.timestamp() + _DAY:
            raise StoreError(
                f"{unit.name} was written after {rules.now:%Y-%m-%d %H:%M} UTC: the clock is wrong.",
                hint="Correct the clock (or --today); nothing was deleted.",
            )
        rank = series_counts[unit.series]
        series_counts[unit.series] += 1

        reason = next(_reasons_to_stay(unit, rank, rules, protected), None)
        if reason is not None:
            staying.append(replace(unit, reason=reason))
        else:
            reason = f"{rules.age(unit)} days old, kept for {rules.policy.days}"
            going.append(replace(unit, reason=reason))
    return DeletionPlan(
        going=tuple(going),
        staying=tuple(staying),
    )


def _reasons_to_stay(
    unit: DeletionUnit,
    rank: int,
    rules: RetentionRules,
    protected: ProtectedObjects,
) -> Iterator[str]:
    """Yield why a unit stays; `rank` counts the newer ones of its series."""
    policy = rules.policy
    if not protected.listed_in_releases.isdisjoint(unit.keys):
        yield "a release index lists it"
    if not protected.in_promotion.isdisjoint(unit.keys):
        yield "a promotion uses it"
    if unit.run_id is not None and unit.name in protected.staged_runs:
        yield "something in staging came from it"
    if policy.days is None:
        yield "kept forever"
    elif rules.age(unit) < policy.days:
        yield f"not {policy.days} days old"
    if rank < policy.newest:
        yield f"among the newest {policy.newest}"
    if unit.name in protected.pinned:
        yield "a version that stays requires it"
    if unit.run_id is not None and not rules.run_ids.fullmatch(unit.run_id):
        yield "a user named it"


def require_modest(plan: DeletionPlan, *, percent: int) -> None:
    """Refuse a plan that takes a larger part of what is there than expected."""
    going_count = len(plan.going)
    total = going_count + len(plan.staying)
    if going_count * 100 > percent * total:
        # Rounded up: what is given must be enough.
        needed_percent = -(-going_count * 100 // total)
        raise StoreError(
            f"{going_count} of {total} runs and versions would be deleted, which is more than {percent} %.",
            hint=f"Look at the plan (--dry-run); if it is right, give --at-most {needed_percent}.",
        )


# What must not go


def _keys_in_releases(
    store: Store,
    keys: Sequence[str],
    rules: RetentionRules,
) -> frozenset[str]:
    """Return the keys of a store that its own release indexes list, and those of other stores."""
    bucket = ""
    if store.url.startswith("s3://"):
        bucket = store.url.removeprefix("s3://")

    release_keys = set(listed_keys(store, keys, documents.RELEASE, bucket=bucket))
    for distribution_store in rules.distribution_stores:
        release_keys |= listed_keys(
            distribution_store,
            documents.list_keys(distribution_store, documents.RELEASE),
            documents.RELEASE,
            bucket=bucket,
            is_own=False,
        )
    return frozenset(release_keys)


def keys_in_promotion(store: Store) -> frozenset[str]:
    """Return the staged keys that promotions which have begun and not ended work with."""
    keys: set[str] = set()
    for intent in unfinished(store):
        for file in intent.files:
            keys |= {file.staged_key, f"{file.staged_key}{SIDECAR_SUFFIX}"}
    return frozenset(keys)


def _staged_runs(
    bucket: Store,
    run_store_url: str,
) -> frozenset[str]:
    """Name the runs of a store that something in a bucket's staging came from.

    Its promotion reads the run's reports, so the run stays until staging lets go of it.
    """
    staged_keys = frozenset(documents.list_keys(bucket, documents.STAGING))
    prefixes: set[str] = set()
    for record, _digest in documents.staging_records(bucket):
        if record.store == run_store_url and not staged_keys.isdisjoint(documents.keys_of(record.files)):
            prefixes.add(record.prefix)
    return frozenset(prefixes)


def _pinned_units(
    store: Store,
    plan: DeletionPlan,
    known_units: frozenset[str],
) -> frozenset[str]:
    """Name the units that would go and that another, not a known one, requires which stays."""
    folders = {unit.folder for unit in plan.going if unit.folder is not None}
    staying: list[DeletionUnit] = []
    keys: list[str] = []
    for unit in plan.staying:
        if unit.folder in folders and unit.name not in known_units:
            staying.append(unit)
            keys += [key for key in unit.keys if key.endswith(SIDECAR_SUFFIX)]

    contents = parallel.map_in_threads(store.read, keys)
    metadata = dict(zip(keys, contents, strict=True))
    return pinned_units(staying, plan.going, metadata)
