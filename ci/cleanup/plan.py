"""What goes and what stays, and why: a pure function of a listing, pages, policy and the day."""

from __future__ import annotations

import functools
import re
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self, cast

from pydantic import Field, field_validator, model_validator

from ci.cleanup import units
from ci.cleanup.units import DISTRIBUTIONS, SIDECAR, is_page, listed
from ci.promote import documents
from ci.promote.documents import StagingRecord
from ci.promote.promotion import unfinished
from core import parallel
from core.cli import progress
from core.data import Model, load_toml
from core.errors import StoreError, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from ci.cleanup.units import Unit
    from ci.publish.indexing import Indexed
    from core.stores import Store, Stored


_DAY = 86_400
_ALL = 100


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What happens to a unit."""

    unit: Unit
    why: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What goes, and what stays."""

    goes: tuple[Decision, ...]
    stays: tuple[Decision, ...]

    @property
    def size(self) -> int:
        """Bytes that go."""
        return sum(one.unit.size for one in self.goes)


@dataclass(frozen=True, kw_only=True)
class Held:
    """What may not go, whatever its age."""

    listed: frozenset[str] = frozenset()
    in_use: frozenset[str] = frozenset()
    staged_runs: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()


def plan_of(units: Sequence[Unit], *, policy: Policy, run_ids: str, now: datetime, held: Held) -> Plan:
    """Decide about every unit."""
    ahead = [unit for unit in units if unit.modified > now.timestamp() + _DAY]
    if ahead:
        raise StoreError(
            f"{ahead[0].name} was written after {now:%Y-%m-%d %H:%M} UTC: this machine's clock is wrong.",
            hint="Set the clock (or --today) right; nothing was deleted.",
        )
    goes, stays = [], []
    seen: dict[str, int] = defaultdict(int)
    for unit in units:
        rank = seen[unit.series]
        seen[unit.series] += 1
        why = _kept_because(unit, rank, policy, now, held)
        if not why and unit.run_id and not re.fullmatch(run_ids, unit.run_id):
            why = "a person named it"
        if why:
            stays.append(Decision(unit=unit, why=why))
        else:
            goes.append(Decision(unit=unit, why=f"{_age(unit, now)} days old, kept for {policy.days}"))
    return Plan(goes=tuple(goes), stays=tuple(stays))


def require_modest(planned: Plan, *, percent: int) -> None:
    """Refuse a plan that takes a larger part of what is there than anybody expects."""
    number, total = len(planned.goes), len(planned.goes) + len(planned.stays)
    if number * _ALL > percent * total:
        needed = -(-number * _ALL // total)
        raise StoreError(
            f"{number} of {total} runs and versions would go, which is more than {percent} %.",
            hint=f"Look at the plan (--dry-run); if it is right, give --at-most {needed}.",
        )


def _kept_because(unit: Unit, rank: int, policy: Policy, now: datetime, held: Held) -> str:
    if why := _held_because(unit, held):
        return why
    if policy.days is None:
        return "kept for ever"
    if _age(unit, now) < policy.days:
        return f"not {policy.days} days old"
    if rank < policy.newest:
        return f"among the newest {policy.newest}"
    return "a version that stays requires it" if unit.name in held.required else ""


def _held_because(unit: Unit, held: Held) -> str:
    if any(one.key in held.listed for one in unit.objects):
        return "a release index lists it"
    if any(one.key in held.in_use for one in unit.objects):
        return "a promotion uses it"
    staged = unit.run_id and unit.name in held.staged_runs
    return "something in staging came from it" if staged else ""


def _age(unit: Unit, now: datetime) -> int:
    return int((now.timestamp() - unit.modified) // _DAY)


RETENTION_FILE = Path(__file__).parent.parent / "retention.toml"


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
    """What `retention.toml` says."""

    run_ids: str
    at_most_percent: int = Field(ge=1, le=100)
    abort_uploads_days: int = Field(ge=1)
    policies: dict[str, Policy]

    @field_validator("run_ids")
    @classmethod
    def _is_an_expression(cls, value: str) -> str:
        try:
            re.compile(value)
        except re.error as problem:
            raise ValueError(f"{value!r} is no regular expression: {problem}.") from problem
        return value

    def policy(self, name: str) -> Policy:
        """Look a policy up."""
        if name not in self.policies:
            raise UsageError(f"There is no retention policy {name!r}. {nearest(name, self.policies)}")
        return self.policies[name]


@functools.cache
def retention() -> Retention:
    """Read the data file."""
    return load_toml(RETENTION_FILE, Retention)


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
    held = Held(
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


def _plan(found: Sequence[Unit], rules: Rules, held: Held) -> Plan:
    return plan_of(found, policy=rules.policy, run_ids=rules.run_ids, now=rules.now, held=held)


def _listed(store: Store, objects: Sequence[Stored], rules: Rules) -> frozenset[str]:
    bucket = store.url.removeprefix(_BUCKET_SCHEME) if store.url.startswith(_BUCKET_SCHEME) else ""
    own = _of_pages(store, objects, bucket)
    folder = units.RELEASE_INDEX.rstrip("/")
    others = [_of_pages(other, other.list(folder), bucket, own=False) for other in rules.distribution_stores]
    return own.union(*others)


def _of_pages(store: Store, objects: Iterable[Stored], bucket: str, *, own: bool = True) -> frozenset[str]:
    pages = [one.key for one in objects if one.key.startswith(units.RELEASE_INDEX) and _lists(one.key)]
    read = parallel.each(lambda key: units.listed(key, store.read(key), bucket=bucket, own=own), pages)
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
    there = {one.key for one in bucket.list(documents.STAGING)}
    keys = [
        one.key for one in bucket.list(documents.manifests(documents.STAGING)) if one.key.endswith(".json")
    ]
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
    return units.required(staying, [one.unit for one in decided.goes], metadata)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    # REMOVED-IMPORT
    from core.cli.progress import Transfer
    from core.stores import Store

    Rewrite = Callable[[Store, str, frozenset[str]], object]
    InUse = Callable[[], frozenset[str]]

_PATIENCE = 120.0
_PAUSE = 2.0


def carry_out(
    store: Store, planned: Plan, *, rewrite: Rewrite, in_use: InUse, patience: float = _PATIENCE
) -> int:
    """Delete what goes."""
    sizes = {one.key: one.size for decision in planned.goes for one in decision.unit.objects}
    keys, folders = list(sizes), _by_folder(planned)
    _require_unused(keys, in_use)
    with progress.transfer(f"deletion in {store.url}", files=len(keys), size=planned.size) as shown:

        def delete(found: Iterable[str]) -> None:
            parallel.each(lambda key: _delete(store, key, sizes[key], shown), found)

        delete(key for key in keys if is_page(key))
        for folder, going in folders.items():
            rewrite(store, folder, going)
        _require_unused(keys, in_use)
        delete(key for key in keys if key.endswith(SIDECAR))
        for folder, going in folders.items():
            _await_unlisted(store, folder, going, patience)
        delete(key for key in keys if key.endswith(DISTRIBUTIONS))
        delete(key for key in keys if not (is_page(key) or key.endswith((SIDECAR, *DISTRIBUTIONS))))
    return len(keys)


def _delete(store: Store, key: str, size: int, shown: Transfer) -> None:
    store.delete(key)
    shown.advance(size)


def _require_unused(keys: Sequence[str], in_use: InUse) -> None:
    used = sorted(in_use().intersection(keys))
    if used:
        raise StoreError(
            f"A promotion that works with {used[0]} began meanwhile; neither it nor any wheel was deleted.",
            hint="Run this again when the promotion has ended.",
        )


def _by_folder(planned: Plan) -> Mapping[str, frozenset[str]]:
    going: dict[str, set[str]] = defaultdict(set)
    for decision in planned.goes:
        if decision.unit.folder:
            going[decision.unit.folder] |= {one.key for one in decision.unit.objects}
    return {folder: frozenset(keys) for folder, keys in going.items()}


def _await_unlisted(store: Store, folder: str, going: frozenset[str], patience: float) -> None:
    end = time.monotonic() + patience
    while still := _listed_of(store, folder, going):
        if time.monotonic() >= end:
            raise StoreError(
                f"{store.url}/{folder} has pages that go on listing {PurePosixPath(still[0]).name}, "
                f"so {len(going)} files were left where they are.",
                hint="Write the pages (nox -s index, or see why the server does not), then run this again.",
            )
        time.sleep(_PAUSE)


def _listed_of(store: Store, folder: str, going: frozenset[str]) -> Sequence[str]:
    pages = [
        one.key
        for one in store.list(folder)
        if one.key.startswith(f"{folder}/") and is_page(one.key) and one.key.endswith((".html", ".json"))
    ]
    found = parallel.each(lambda key: listed(key, store.read(key)) & going, pages)
    return sorted(key for keys in found for key in keys)


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


def rewrite(store: Store, folder: str, going: frozenset[str]) -> Indexed:
    """Write a staging folder's pages without these keys; what stays is listed as it was."""
    seen = cast("Store", _Without(store=store, going=going))
    return documents.write_pages(
        seen, documents.STAGING, folder.removeprefix(f"{documents.STAGING}/"), expected=()
    )
