"""Which GPU families a run is about, on which platform, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.data import load_toml
from core.errors import UsageError, nearest
from core.families import families as all_families
from core.families import family
from core.run.plan import PLATFORMS, LeftOut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ci.plan.data import Families, FamilyOn, Tier
    from core.run.outputs import Platform

ALL, NONE = "all", "none"
_TIERS: tuple[Tier, ...] = ("presubmit", "postsubmit", "nightly", "request")
# what a label may carry behind the family's own name
_SUFFIXES = ("linux", "windows", "dcgpu", "dgpu", "igpu", "all")


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One family on one platform."""

    name: str
    platform: Platform
    on: FamilyOn
    reason: str
    asked: bool = False


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a run wants of the families."""

    tier: Tier | None
    reason: str
    named: Mapping[str, str]
    lists: Mapping[Platform, Sequence[str]]


def reaches(tier: Tier | None, needed: Tier) -> bool:
    """Say whether a run of a tier does what is done from another one on."""
    return tier is not None and needed != "request" and _TIERS.index(needed) <= _TIERS.index(tier)


def of_tier(tier: Tier) -> dict[Platform, tuple[str, ...]]:
    """Give the families whose PyTorch is built from a tier on, by platform."""
    from ci.plan.data import FAMILIES_FILE, Families

    data = load_toml(FAMILIES_FILE, Families)
    return {
        platform: tuple(
            name
            for name, platforms in data.families.items()
            if (on := platforms.get(platform)) and reaches(tier, on.tier) and reaches(tier, on.pytorch)
        )
        for platform in PLATFORMS
    }


def choose(wanted: Wanted, data: Families) -> tuple[Sequence[Chosen], Sequence[LeftOut]]:
    """Choose the families, and say which are not."""
    chosen: list[Chosen] = []
    left_out: list[LeftOut] = []
    for platform in PLATFORMS:
        listed = wanted.lists.get(platform)
        if listed is not None:
            chosen += _listed(platform, listed, data)
            continue
        for name, platforms in data.families.items():
            on = platforms.get(platform)
            label = wanted.named.get(name, "")
            what = f"{name} on {platform}"
            if on is None:
                left_out += [LeftOut(what=what, reason="not built there")] if label else []
            elif label or reaches(wanted.tier, on.tier):
                reason = f"label {label}" if label else wanted.reason
                chosen.append(Chosen(name=name, platform=platform, on=on, reason=reason, asked=bool(label)))
            elif on.tier != "request":
                left_out.append(LeftOut(what=what, reason=f"built from {on.tier} on, or by label"))
    return chosen, left_out


def _listed(platform: Platform, words: Sequence[str], data: Families) -> Sequence[Chosen]:
    there = {name: on for name, platforms in data.families.items() if (on := platforms.get(platform))}
    if [word.lower() for word in words] == [ALL]:
        return [
            Chosen(name=name, platform=platform, on=on, reason="all families are asked for", asked=True)
            for name, on in there.items()
            if on.tier != "request"
        ]
    chosen = {}
    for word in words:
        name = named_family(word, data, what="GPU family")
        if name not in there:
            raise UsageError(f"{name} is not built on {platform}. {nearest(name, there)}")
        chosen[name] = Chosen(
            name=name, platform=platform, on=there[name], reason=f"asked for as {word}", asked=True
        )
    return list(chosen.values())


def named_family(word: str, data: Families, *, what: str) -> str:
    """Find the family that a person means: by its name, the name's first part, or a gfx target of it."""
    asked = word.lower()
    names = {name.lower(): name for name in data.families}
    if asked in names:
        return names[asked]
    first, dash, suffix = asked.partition("-")
    shorts = {name.partition("-")[0]: full for name, full in names.items()}
    if not dash or suffix in _SUFFIXES:
        if first in shorts:
            return shorts[first]
        for name in data.families:
            if first in family(name).targets:
                return name
    if asked in {name.lower() for name in all_families()}:
        raise UsageError(f"CI does not build the {what} {word!r}. {nearest(word, data.families)}")
    known = {*names.values(), *shorts}
    raise UsageError(f"The {what} {word!r} is not known. {nearest(word, known)}")
