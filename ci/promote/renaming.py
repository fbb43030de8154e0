"""Which version each package of a set gets when its ROCm release candidate becomes the release.

Everything here is decided by names alone, before a file is read. ROCm's packages have ROCm's
version; of PyTorch's only the end of the local version is ROCm's, and all before it stays:
``2.10.0+git0123abcd.rocm7.10.0rc2`` becomes ``2.10.0+git0123abcd.rocm7.10.0``.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from ci.promote.rewriting_rules import rules
from core.errors import MissingInputError, UsageError, WheelError
from core.wheel import parse_sdist_name, parse_wheel_name
from pytorch_build.lock.versions import version_suffix
from rocm_packaging.packages import versions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ci.promote.rewriting_rules import Kind


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
