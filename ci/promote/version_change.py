"""What becomes of each package of a set when its ROCm release candidate becomes the release.

Everything here is decided by names alone, before a file is read. ROCm's packages have ROCm's version; of
PyTorch's only the end of the local version is ROCm's: ``2.10.0+git0123abcd.rocm7.10.0rc2`` becomes
``2.10.0+git0123abcd.rocm7.10.0``. A keep-list names the gfx targets that the release has device code for.
Groups of targets (``gfx11``, ``gfx12-0``) are never named: their packages stay with any of their targets.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import model_validator

from ci.promote import documents
from ci.promote.documents import identity_of
from core.data import Model, data_file
from core.errors import MissingInputError, UsageError, WheelError, nearest
from core.families import families
from core.wheel import parse_name
from pytorch_build.components import COMPONENTS
from pytorch_build.lock.versions import version_suffix
from rocm_packaging.packages import versions
from rocm_packaging.packages.layouts import covers, device_target, host_distribution

if TYPE_CHECKING:
    from ci.promote.documents import Decision, PromotedFile
    from ci.promote.facts import SetFacts

# How a distribution carries ROCm's version: as its own, at the end of a local version, or not at all.
Kind = Literal["rocm", "pytorch", "constant"]

_EXTRA = re.compile(r"""extra *== *["']device-(gfx[0-9a-z_-]+)["']""")


# Where packages hold versions


class PlaceRule(Model):
    """Members that hold a version between quotes."""

    distributions: tuple[str, ...]
    members: str
    holds: Literal["own", "rocm"]
    required: bool = True
    targets: bool = False


class MentionRule(Model):
    """Members that may go on mentioning the old version."""

    distributions: tuple[str, ...]
    members: str
    reason: str


class RewritingRules(Model):
    """The contents of `rewriting.toml`; distributions are globs of normalized names."""

    distributions: dict[Kind, tuple[str, ...]]
    places: tuple[PlaceRule, ...]
    mentions: tuple[MentionRule, ...] = ()

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
            for place in component.version_places:
                table = {"distributions": [component.distribution], **asdict(place)}
                places.append(table)

        all_distributions = {**tables["distributions"], "pytorch": distributions}
        return {**tables, "distributions": all_distributions, "places": places}

    def kind_of(self, distribution: str) -> Kind | None:
        """Return how a distribution carries ROCm's version; None for those of others."""
        for kind, globs in self.distributions.items():
            if _matches_any(distribution, globs):
                return kind
        return None

    def places_of(self, distribution: str) -> tuple[PlaceRule, ...]:
        """Return the places where a distribution holds a version."""
        return tuple(place for place in self.places if _matches_any(distribution, place.distributions))

    def may_mention(self, distribution: str, member: str) -> bool:
        """Return whether a member may hold the old version afterwards."""
        for mention in self.mentions:
            if fnmatchcase(member, mention.members) and _matches_any(distribution, mention.distributions):
                return True
        return False


rules = data_file(Path(__file__).with_name("rewriting.toml"), RewritingRules)


def _matches_any(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


# Versions


@dataclass(frozen=True, kw_only=True)
class RocmChange:
    """A ROCm version and the one that replaces it; the gfx targets that are kept (none named: all)."""

    old: str
    new: str
    targets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse targets that do not exist."""
        if not self.targets:
            return
        known_targets = _known_targets()
        for target in self.targets:
            if target not in known_targets:
                raise UsageError(
                    f"--gpu-targets: {target} is not a gfx target. {nearest(target, known_targets)}",
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

    def is_of_candidate(self, torch_version: str) -> bool:
        """Return whether a torch version ends with the old ROCm version."""
        return torch_version.endswith(self.old_local)

    def mention(self) -> re.Pattern[bytes]:
        """Return a pattern that finds the old version in a text, in either spelling, and no longer one."""
        spellings = {self.old, self.old.replace("+", ".")}
        alternatives = b"|".join(re.escape(spelling).encode() for spelling in sorted(spellings))
        return re.compile(rb"(?<![0-9])(?<![0-9]\.)(?:" + alternatives + rb")(?![0-9])")

    def keeps_target(self, name: str) -> bool:
        """Return whether a target, with features or without, or a group of targets is kept."""
        return not self.targets or covers(name.partition(":")[0], self.targets)

    def keeps_package(self, distribution: str) -> bool:
        """Return whether a distribution is kept, by its normalized name: not device code of other targets."""
        target = device_target(distribution)
        return not target or self.keeps_target(target)

    def keeps_requirement(self, text: str) -> bool:
        """Return whether a requirement is kept: not on a package that is left out, nor of its extra."""
        if not self.keeps_package(canonicalize_name(Requirement(text).name)):
            return False
        extra = _EXTRA.search(text)
        return extra is None or self.keeps_target(extra[1])


def _known_targets() -> frozenset[str]:
    targets: set[str] = set()
    for family in families().values():
        targets.update(family.targets)
    return frozenset(targets)


def final_of(
    candidate: str,
    targets: Iterable[str] = (),
) -> RocmChange:
    """Return what a ROCm release candidate becomes: ``7.10.0rc2`` -> ``7.10.0``."""
    kind, base = versions.parse(candidate)
    if kind != "prerelease":
        raise UsageError(
            f"ROCm {candidate} is not a release candidate, so it cannot become a release.",
            hint="Give a version such as 7.10.0rc2.",
        )
    return RocmChange(
        old=candidate,
        new=base,
        targets=tuple(dict.fromkeys(targets)),
    )


def new_version(
    distribution: str,
    version: str | Version,
    change: RocmChange,
) -> str | None:
    """Return the version that a package gets; None where it does not carry the old one."""
    kind = rules().kind_of(canonicalize_name(distribution))
    old_version = version if isinstance(version, Version) else Version(version)
    if kind == "rocm" and old_version == Version(change.old):
        return str(Version(change.new))

    if kind == "pytorch" and old_version.local is not None:
        # A dot in front, so that only a whole part of the local version is replaced.
        before_rocm, separator, suffix = f".{old_version.local}".rpartition(f".{change.old_local}")
        if separator and not suffix:
            local = f"{before_rocm}.{change.new_local}".removeprefix(".")
            return str(Version(f"{old_version.public}+{local}"))
    return None


# Files


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """What becomes of one wheel or sdist: its new file name and version."""

    source: str
    target: str
    distribution: str
    kind: Kind
    old: str
    new: str


def plan_set(
    filenames: Iterable[str],
    change: RocmChange,
) -> tuple[FileChange, ...]:
    """Decide the new version and file name of every wheel and sdist of a set."""
    file_changes = tuple(_plan_file(filename, change) for filename in sorted(filenames))
    if not file_changes:
        raise MissingInputError(f"There are no packages of ROCm {change.old} to make {change.new} of.")

    sources: defaultdict[str, list[str]] = defaultdict(list)
    for file_change in file_changes:
        sources[file_change.target].append(file_change.source)
    for target, target_sources in sources.items():
        if len(target_sources) > 1:
            raise WheelError(f"{', '.join(target_sources)} would both become {target}.")
    return file_changes


def _plan_file(filename: str, change: RocmChange) -> FileChange:
    parsed_name = parse_name(filename)
    distribution = parsed_name.distribution
    kind = rules().kind_of(distribution)
    if kind is None:
        raise WheelError(
            f"{filename} is not a package that carries ROCm's version.",
            hint="Take it out of the set, or add its name to ci/promote/rewriting.toml.",
        )

    old = str(parsed_name.version)
    if kind == "constant":
        return FileChange(
            source=filename,
            target=filename,
            distribution=distribution,
            kind=kind,
            old=old,
            new=old,
        )

    new = new_version(distribution, parsed_name.version, change)
    if new is None:
        raise WheelError(
            f"{filename} does not carry ROCm {change.old}, so it does not belong to this set.",
            hint="A set is built against one ROCm version, and promoted as a whole.",
        )
    target = _with_version(filename, new)
    return FileChange(
        source=filename,
        target=target,
        distribution=distribution,
        kind=kind,
        old=old,
        new=new,
    )


def _with_version(filename: str, version: str) -> str:
    """Return the name of a wheel or sdist of another version."""
    if filename.endswith(".whl"):
        name, _old_version, *tags = filename.split("-")
        return "-".join([name, version, *tags])
    name = filename.removesuffix(".tar.gz").rpartition("-")[0]
    return f"{name}-{version}.tar.gz"


def change_file(
    file: PromotedFile,
    file_change: FileChange,
) -> PromotedFile:
    """Return a file under its new name; its size and digests are still the candidate's."""
    key = f"{documents.folder(documents.RELEASE, file.family)}/{file_change.target}"
    return file.model_copy(update={"name": file_change.target, "key": key, "version": file_change.new})


def group_files(candidates: Iterable[PromotedFile]) -> Mapping[str, Mapping[str, PromotedFile]]:
    """Return the files of each artifact group, by name."""
    groups: dict[str, dict[str, PromotedFile]] = {}
    for candidate in sorted(candidates, key=lambda file: file.family):
        groups.setdefault(candidate.family, {})[candidate.name] = candidate
    return groups


def rename_set(
    decision: Decision,
    distribution: str,
    version: str,
    change: RocmChange,
) -> Decision:
    """Return the decision on a candidate's set with the names of the release.

    The sizes and digests of its files are still the candidates'.
    """
    files: list[PromotedFile] = []
    for files_by_name in group_files(decision.files).values():
        for file_change in plan_set(files_by_name, change):
            candidate = files_by_name[file_change.source]
            files.append(change_file(candidate, file_change))

    release_version = new_version(distribution, version, change) or version
    return decision.model_copy(
        update={
            "set_name": f"{distribution}-{release_version}",
            "identity": identity_of(files),
            "from_version": change.old,
            "to_version": change.new,
            "gpu_targets": change.targets,
            "files": tuple(files),
        }
    )


# Targets


def keep_targets(facts: SetFacts, change: RocmChange) -> SetFacts:
    """Leave out the device packages of targets that are not kept; the facts name them."""
    if not change.targets:
        return facts
    _require_kept_targets(facts, change)

    kept_wheels = []
    left_out_keys: set[str] = set()
    for wheel in facts.wheels:
        if change.keeps_package(wheel.file.distribution):
            requires = tuple(filter(change.keeps_requirement, wheel.requires))
            kept_wheels.append(replace(wheel, requires=requires))
        else:
            left_out_keys.add(wheel.file.key)
    return replace(
        facts,
        wheels=tuple(kept_wheels),
        left_out=tuple(sorted(left_out_keys)),
    )


def _require_kept_targets(
    facts: SetFacts,
    change: RocmChange,
) -> None:
    """Refuse a list that the set does not have, of ROCm's device packages or of a host wheel's."""
    targets_by_group: defaultdict[str, set[str]] = defaultdict(set)
    targets_by_host: defaultdict[str, set[str]] = defaultdict(set)
    known_targets = _known_targets()
    for wheel in facts.wheels:
        targets = {device_target(wheel.file.distribution)} & known_targets
        targets_by_group[wheel.artifact_group] |= targets
        if targets:
            targets_by_host[host_distribution(wheel.file.distribution) or "ROCm"] |= targets

    for artifact_group, targets in sorted(targets_by_group.items()):
        if not any(map(change.keeps_target, targets)):
            raise MissingInputError(
                f"{facts.set_name}: no device code of {artifact_group} would be left; it has device packages "
                f"of {', '.join(sorted(targets)) or 'no target'}.",
                hint="Keep one of these with --gpu-targets, or leave the family out with --gpu-family.",
            )
    for host, targets in sorted(targets_by_host.items()):
        absent_targets = [target for target in change.targets if target not in targets]
        if absent_targets:
            target_names = ", ".join(sorted(targets))
            raise MissingInputError(
                f"{facts.set_name} has no device packages of {host} for {', '.join(absent_targets)}.",
                hint=f"It has those of {target_names}: keep some of these, or stage the others.",
            )
