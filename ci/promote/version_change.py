"""What becomes of each package of a set when its ROCm release candidate becomes the release.

Everything here is decided by names alone, before a file is read. ROCm's packages have ROCm's version; of
PyTorch's only the end of the local version is ROCm's: ``2.10.0+git0123abcd.rocm7.10.0rc2`` becomes
``2.10.0+git0123abcd.rocm7.10.0``. A keep-list names the gfx targets that the release has device code for.
Groups of targets (``gfx11``, ``gfx12-0``) are never named: their packages stay with any of their targets.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import model_validator

from core.data import Model, data_file
from core.errors import MissingInputError, UsageError, WheelError, nearest
from core.families import families
from core.wheel import parse_name
from pytorch_build.components import COMPONENTS
from pytorch_build.lock.versions import version_suffix
from rocm_packaging.packages import versions
from rocm_packaging.packages.layouts import covers, device_target, host_distribution

if TYPE_CHECKING:
    from ci.promote.facts import Facts

Kind = Literal["rocm", "pytorch", "constant"]
_EXTRA = re.compile(r"""extra *== *["']device-(gfx[0-9a-z_-]+)["']""")


class Place(Model):
    """A member that holds a version between quotes."""

    distributions: tuple[str, ...]
    members: str
    holds: Literal["own", "rocm"]
    required: bool = True
    targets: bool = False


class Mention(Model):
    """Members that may go on mentioning the old version."""

    distributions: tuple[str, ...]
    members: str
    reason: str


class Rules(Model):
    """The contents of `rewriting.toml`; distributions are globs of normalized names."""

    distributions: dict[Kind, tuple[str, ...]]
    places: tuple[Place, ...]
    mentions: tuple[Mention, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _add_components(cls, tables: Any) -> Any:  # noqa: ANN401 - what a TOML file holds
        """Add the distributions of components, and where they hold versions."""
        distributions = list(tables["distributions"].get("pytorch", ()))
        places = list(tables["places"])
        for component in COMPONENTS.values():
            distributions.append(component.distribution)
            if component.has_split_device_code:
                distributions.append(f"{component.device_prefix}*")
            distribution = [component.distribution]
            places += [{"distributions": distribution, **asdict(place)} for place in component.version_places]
        all_distributions = {**tables["distributions"], "pytorch": distributions}
        return {**tables, "distributions": all_distributions, "places": places}

    def kind_of(self, distribution: str) -> Kind | None:
        """Return how a distribution carries ROCm's version; None for others."""
        return next((kind for kind, globs in self.distributions.items() if _any(distribution, globs)), None)

    def places_of(self, distribution: str) -> tuple[Place, ...]:
        """Return the places where a distribution holds a version."""
        return tuple(place for place in self.places if _any(distribution, place.distributions))

    def may_mention(self, distribution: str, member: str) -> bool:
        """Return whether a member may hold the old version afterwards."""
        of_member = (one for one in self.mentions if fnmatchcase(member, one.members))
        return any(_any(distribution, one.distributions) for one in of_member)


rules = data_file(Path(__file__).with_name("rewriting.toml"), Rules)


def _any(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _targets() -> frozenset[str]:
    return frozenset(target for one in families().values() for target in one.targets)


@dataclass(frozen=True, kw_only=True)
class RocmChange:
    """A ROCm version and the one that replaces it; the gfx targets that are kept (none named: all)."""

    old: str
    new: str
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        known = _targets() if self.targets else ()
        for one in self.targets:
            if one not in known:
                raise UsageError(
                    f"--gpu-targets: {one} is not a gfx target. {nearest(one, known)}",
                    hint="Name targets alone: packages of their groups, like gfx12-0, are kept with them.",
                )

    @property
    def old_local(self) -> str:
        """How PyTorch's local versions end with the old version: ``rocm7.10.0rc2``."""
        return version_suffix(self.old)[1:]

    @property
    def new_local(self) -> str:
        """How they end with the new one: ``rocm7.10.0``."""
        return version_suffix(self.new)[1:]

    def mention(self) -> re.Pattern[bytes]:
        """Return a pattern that finds the old version in a text, in either spelling, and no longer one."""
        spelled = {self.old, self.old.replace("+", ".")}
        either = b"|".join(sorted(re.escape(text).encode() for text in spelled))
        return re.compile(rb"(?<![0-9])(?<![0-9]\.)(?:" + either + rb")(?![0-9])")

    def keeps_target(self, name: str) -> bool:
        """Return whether a target, with features or without, or a group of targets is kept."""
        return not self.targets or covers(name.partition(":")[0], self.targets)

    def keeps_package(self, distribution: str) -> bool:
        """Return whether a distribution is kept, by its normalized name: not device code of other targets."""
        gpu = device_target(distribution)
        return not gpu or self.keeps_target(gpu)

    def keeps_requirement(self, text: str) -> bool:
        """Return whether a requirement is kept: not on a package that is left out, nor of its extra."""
        name, extra = canonicalize_name(Requirement(text).name), _EXTRA.search(text)
        return self.keeps_package(name) and (not extra or self.keeps_target(extra[1]))


@dataclass(frozen=True, kw_only=True)
class Renamed:
    """What becomes of one wheel or sdist."""

    source: str
    target: str
    distribution: str
    kind: Kind
    old: str
    new: str


def final_of(candidate: str, targets: Iterable[str] = ()) -> RocmChange:
    """Return what a ROCm release candidate becomes: ``7.10.0rc2`` -> ``7.10.0``."""
    kind, base = versions.parse(candidate)
    if kind != "prerelease":
        raise UsageError(
            f"ROCm {candidate} is not a release candidate, so it cannot become a release.",
            hint="Give a version such as 7.10.0rc2.",
        )
    return RocmChange(old=candidate, new=base, targets=tuple(dict.fromkeys(targets)))


def new_version(distribution: str, version: str | Version, change: RocmChange) -> str | None:
    """Return the version that a package gets; None where it does not carry the old one."""
    kind = rules().kind_of(canonicalize_name(distribution))
    parsed = version if isinstance(version, Version) else Version(version)
    if kind == "rocm" and parsed == Version(change.old):
        return str(Version(change.new))
    if kind == "pytorch" and parsed.local is not None:
        before, found, after = f".{parsed.local}".rpartition(f".{change.old_local}")
        if found and not after:
            return str(Version(f"{parsed.public}+{f'{before}.{change.new_local}'[1:]}"))
    return None


def plan_set(filenames: Iterable[str], change: RocmChange) -> tuple[Renamed, ...]:
    """Decide the new version and file name of every wheel and sdist of a set."""
    found = tuple(_renamed(filename, change) for filename in sorted(filenames))
    if not found:
        raise MissingInputError(f"There are no packages of ROCm {change.old} to make {change.new} of.")
    for target, count in Counter(one.target for one in found).items():
        if count > 1:
            sources = ", ".join(one.source for one in found if one.target == target)
            raise WheelError(f"{sources} would both become {target}.")
    return found


def _renamed(filename: str, change: RocmChange) -> Renamed:
    parsed = parse_name(filename)
    kind = rules().kind_of(parsed.distribution)
    if kind is None:
        raise WheelError(
            f"{filename} is not a package that carries ROCm's version.",
            hint="Take it out of the set, or add its name to ci/promote/rewriting.toml.",
        )
    old = new = str(parsed.version)
    target = filename
    if kind != "constant":
        new = new_version(parsed.distribution, parsed.version, change) or ""
        if not new:
            raise WheelError(
                f"{filename} does not carry ROCm {change.old}, so it does not belong to this set.",
                hint="A set is built against one ROCm version, and promoted as a whole.",
            )
        name, _, *rest = filename.split("-")
        target = f"{filename.removesuffix('.tar.gz').rpartition('-')[0]}-{new}.tar.gz"
        target = "-".join([name, new, *rest]) if filename.endswith(".whl") else target
    return Renamed(
        source=filename, target=target, distribution=parsed.distribution, kind=kind, old=old, new=new
    )


def kept_facts(facts: Facts, change: RocmChange) -> tuple[Facts, tuple[str, ...]]:
    """Leave out the device packages of targets that are not kept; return also their keys."""
    _require_kept(facts, change)
    stay = [
        replace(one, requires=tuple(filter(change.keeps_requirement, one.requires)))
        for one in facts.wheels
        if change.keeps_package(one.file.distribution)
    ]
    left = {one.file.key for one in facts.wheels} - {one.file.key for one in stay}
    return replace(facts, wheels=tuple(stay)), tuple(sorted(left))


def _require_kept(facts: Facts, change: RocmChange) -> None:
    """Refuse a list that the set does not have, of ROCm's device packages or of a host wheel's."""
    by_family, by_host = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    known = _targets()
    for one in facts.wheels:
        found = {device_target(one.file.distribution)} & known
        by_family[one.artifact_group] |= found
        if found:
            by_host[host_distribution(one.file.distribution) or "ROCm"] |= found
    for family, there in sorted(by_family.items()):
        if not any(map(change.keeps_target, there)):
            raise MissingInputError(
                f"{facts.set_name}: no device code of {family} would be left; it has device packages of "
                f"{', '.join(sorted(there)) or 'no target'}.",
                hint="Keep one of these with --gpu-targets, or leave the family out with --gpu-family.",
            )
    for host, there in sorted(by_host.items()):
        if absent := [one for one in change.targets if one not in there]:
            raise MissingInputError(
                f"{facts.set_name} has no device packages of {host} for {', '.join(absent)}.",
                hint=f"It has those of {', '.join(sorted(there))}: keep some of these, or stage the others.",
            )
