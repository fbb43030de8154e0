"""What goes and what stays, and why: a pure function of a listing, pages, policy and the day."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from ci.cleanup.policy import Policy
    from ci.cleanup.units import Unit

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


def plan(units: Sequence[Unit], *, policy: Policy, run_ids: str, now: datetime, held: Held) -> Plan:
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
