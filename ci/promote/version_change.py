"""Where packages carry a version: `rewriting.toml`, checked."""

from __future__ import annotations

import functools
import re
from collections import Counter
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.utils import canonicalize_name
from packaging.version import Version

from core.data import Model, load_toml
from core.errors import MissingInputError, UsageError, WheelError
from core.wheel.wheels import parse_sdist_name, parse_wheel_name
from pytorch_build.lock.versions import version_suffix
from rocm_packaging.packages import versions

if TYPE_CHECKING:
    from collections.abc import Iterable


RULES_FILE = Path(__file__).with_name("rewriting.toml")
Kind = Literal["rocm", "pytorch", "constant"]


class Distributions(Model):
    """Which distributions take part, as globs of normalised names."""

    rocm: tuple[str, ...]
    pytorch: tuple[str, ...]
    constant: tuple[str, ...] = ()


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
    """What `rewriting.toml` says."""

    distributions: Distributions
    places: tuple[Place, ...]
    mentions: tuple[Mention, ...] = ()

    def kind_of(self, distribution: str) -> Kind | None:
        """Say how a distribution carries ROCm's version, by its normalised name; None for others."""
        if _any(distribution, self.distributions.rocm):
            return "rocm"
        if _any(distribution, self.distributions.pytorch):
            return "pytorch"
        return "constant" if _any(distribution, self.distributions.constant) else None

    def places_of(self, distribution: str) -> tuple[Place, ...]:
        """Give the places of a distribution, by its normalised name."""
        return tuple(place for place in self.places if _any(distribution, place.distributions))

    def may_mention(self, distribution: str, member: str) -> bool:
        """Whether a member may hold the old version afterwards."""
        return any(
            _any(distribution, one.distributions) and fnmatchcase(member, one.members)
            for one in self.mentions
        )


@functools.cache
def rules() -> Rules:
    """Read the data file."""
    return load_toml(RULES_FILE, Rules)


def _any(name: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


@dataclass(frozen=True, kw_only=True)
class RocmChange:
    """A ROCm version, and the one that takes its place in every package of a set.

    `final_of` makes the one that promotion wants.
    """

    old: str
    new: str

    def __post_init__(self) -> None:
        if versions.parse(self.old).is_sample and not versions.parse(self.new).is_sample:
            raise UsageError(f"ROCm {self.old} is the sample, which is never published.")
        if Version(self.old) == Version(self.new):
            raise UsageError(f"The packages have version {self.old} already.")

    @property
    def old_local(self) -> str:
        """How PyTorch's local versions end with the old version: ``rocm7.10.0rc2``."""
        return version_suffix(self.old)[1:]

    @property
    def new_local(self) -> str:
        """How they are to end: ``rocm7.10.0``."""
        return version_suffix(self.new)[1:]

    def mention(self) -> re.Pattern[bytes]:
        """Give a pattern that finds the old version in a text, in either spelling, and no longer one."""
        spelled = {self.old, self.old.replace("+", ".")}
        either = b"|".join(sorted(re.escape(text).encode() for text in spelled))
        return re.compile(rb"(?<![0-9])(?<![0-9]\.)(?:" + either + rb")(?![0-9])")


@dataclass(frozen=True, kw_only=True)
class Renamed:
    """What becomes of one wheel or sdist."""

    source: str
    target: str
    distribution: str
    kind: Kind
    old: str
    new: str


def final_of(candidate: str) -> RocmChange:
    """Say what a ROCm release candidate becomes: ``7.10.0rc2`` -> ``7.10.0``."""
    parsed = versions.parse(candidate)
    if parsed.kind != "prerelease":
        raise UsageError(
            f"ROCm {candidate} is no release candidate, so no release can be made of it.",
            hint="Give a version such as 7.10.0rc2.",
        )
    return RocmChange(old=candidate, new=parsed.base)


def new_version(distribution: str, version: str | Version, change: RocmChange) -> str | None:
    """Give the version that a package gets."""
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
    is_wheel = filename.endswith(".whl")
    parsed = parse_wheel_name(filename) if is_wheel else parse_sdist_name(filename)
    kind = rules().kind_of(parsed.distribution)
    if kind is None:
        raise WheelError(
            f"{filename} is no package that carries ROCm's version.",
            hint="Take it out of the set, or add its name to ci/promote/rewriting.toml.",
        )
    constant = kind == "constant"
    new = str(parsed.version) if constant else new_version(parsed.distribution, parsed.version, change)
    if new is None:
        raise WheelError(
            f"{filename} does not carry ROCm {change.old}, so it is not of this set.",
            hint="A set is built against one ROCm version, and promoted as a whole.",
        )
    if constant:
        target = filename
    elif is_wheel:
        name, _, *rest = filename.split("-")
        target = "-".join([name, new, *rest])
    else:
        target = f"{filename.removesuffix('.tar.gz').rpartition('-')[0]}-{new}.tar.gz"
    return Renamed(
        source=filename,
        target=target,
        distribution=parsed.distribution,
        kind=kind,
        old=str(parsed.version),
        new=new,
    )
