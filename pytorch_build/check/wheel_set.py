"""Wheels that are checked together: missing parts, shared files, what they require of each other and of ROCm.

What cannot be read of a wheel is reported by its own checks, and left out here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from core.archive.zips import read_archive
from core.errors import MissingInputError, WheelError
from core.wheel import read_metadata
from core.wheel.distributions import is_ours
from core.wheel.record import require_listing
from pytorch_build.check import Finding, name_first_few
from pytorch_build.check.allowed import find_allowed
from pytorch_build.check.site_packages import installed_path
from rocm_packaging.packages.layouts import BOOTSTRAP, device_target, is_rocm

if TYPE_CHECKING:
    from packaging.version import Version

    from core.wheel.record import RecordRow
    from pytorch_build.check import Severity
    from pytorch_build.check.policy import Policy

_CORE = "rocm-sdk-core"


@dataclass(frozen=True, kw_only=True)
class _Wheel:
    """A wheel of the set that is checked together, with its requirements."""

    path: Path
    distribution: str
    version: Version
    requirements: Sequence[Requirement]

    @property
    def device_packages(self) -> set[str]:
        """The distributions of device code that the wheel's extras require."""
        names: set[str] = set()
        for requirement in self.requirements:
            name = canonicalize_name(requirement.name)
            is_of_extra = requirement.marker is not None and "extra" in str(requirement.marker)
            if is_of_extra and name.startswith("amd-") and device_target(name):
                names.add(name)
        return names

    @property
    def rocm_versions(self) -> set[str]:
        """The versions of ROCm that the wheel requires exactly."""
        versions: set[str] = set()
        for requirement in self.requirements:
            if _has_version_of_rocm(canonicalize_name(requirement.name)):
                versions.update(clause.version for clause in requirement.specifier if clause.operator == "==")
        return versions

    def requirement_error(self, message: str) -> Finding:
        """Return an error finding on what the wheel requires, with this message."""
        return Finding(
            severity="error",
            check="requirements",
            wheel=self.path.name,
            message=message,
        )


def _read_wheels(paths: Sequence[Path]) -> Iterator[_Wheel]:
    """Yield wheels with their requirements; those that cannot be read are left out."""
    for path in paths:
        with suppress(WheelError, MissingInputError, InvalidRequirement):
            metadata = read_metadata(path)
            yield _Wheel(
                path=path,
                distribution=canonicalize_name(metadata.name),
                version=metadata.version,
                requirements=list(map(Requirement, metadata.requires_dist)),
            )


def distribution_of(path: Path) -> str:
    """Return the normalized name of a wheel's distribution, by its file name."""
    return canonicalize_name(path.name.partition("-")[0])


def members_of_rocm(wheels: Iterable[Path]) -> Mapping[str, Sequence[str]] | None:
    """Return the paths of files in ROCm's wheels, by file name; None without ROCm's core package."""
    members: defaultdict[str, list[str]] = defaultdict(list)
    has_core = False
    for path in wheels:
        distribution = distribution_of(path)
        if not is_rocm(distribution):
            continue
        has_core = has_core or distribution == _CORE
        with suppress(WheelError, MissingInputError):
            for member in read_archive(path).by_name:
                members[PurePosixPath(member).name].append(member)
    return members if has_core else None


def check(paths: Sequence[Path], policy: Policy) -> Iterator[Finding]:
    """Yield findings on wheels as a set: missing device wheels, files in one place, contradictions."""
    wheels = list(_read_wheels(paths))
    yield from _find_missing_device_wheels(wheels, {distribution_of(path) for path in paths})
    yield from _find_conflicting_files(paths, policy)
    yield from _find_different_requirements(wheels)
    for wheel in wheels:
        for requirement in wheel.requirements:
            if is_ours(requirement.name):
                yield from _check_requirement(wheel, requirement, wheels)


def _find_missing_device_wheels(wheels: Sequence[_Wheel], distributions: set[str]) -> Iterator[Finding]:
    """Yield findings on host wheels whose device wheels are not all in the set."""
    for wheel in wheels:
        parts = wheel.device_packages
        missing = sorted(parts - distributions)
        if missing:
            filename = wheel.path.name
            message = (
                f"Its device code is in {', '.join(missing)}, which is not among these wheels; "
                f"with an index that has them: pip install {filename.partition('-')[0]}[device-all]."
            )
            severity: Severity = "error" if parts & distributions else "warning"
            yield Finding(
                severity=severity,
                check="device_code",
                wheel=filename,
                message=message,
            )


def _find_conflicting_files(paths: Sequence[Path], policy: Policy) -> Iterator[Finding]:
    """Yield errors where wheels of two distributions install different files at one path.

    The wheel that is installed last wins, and whoever is removed takes the file along. Namespace packages may
    share the same __init__.py.
    """
    if len({distribution_of(path) for path in paths}) == 1:
        return
    first_files: dict[str, tuple[Path, bytes]] = {}
    shared_files: defaultdict[tuple[Path, Path], list[str]] = defaultdict(list)
    for path in paths:
        for file, digest in _installed_files(path):
            first_path, first_digest = first_files.setdefault(file, (path, digest))
            if first_digest != digest and not _are_alternatives(path, first_path, policy):
                shared_files[first_path, path].append(file)

    for (first_path, path), files in shared_files.items():
        message = f"{first_path.name} has another file in its place: {name_first_few(files)}."
        yield Finding(
            severity="error",
            check="contents",
            wheel=path.name,
            where=files[0],
            message=message,
        )


def _are_alternatives(path: Path, first_path: Path, policy: Policy) -> bool:
    """Return whether two wheels are never installed together: of one name, or another name of it."""
    distribution = distribution_of(path)
    first_distribution = distribution_of(first_path)
    allowed = find_allowed(distribution, policy.allowed)
    is_other_name = allowed is not None and first_distribution in allowed.replaces
    return distribution == first_distribution or is_other_name


def _installed_files(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the paths of a wheel's files below site-packages, with their digests in RECORD."""
    rows: Mapping[str, RecordRow | None] = {}
    with suppress(WheelError, MissingInputError):
        rows = require_listing(path).rows
    for member, row in rows.items():
        file = installed_path(member)
        if file is not None and row is not None and ".dist-info/" not in file:
            yield file, row.digest


# What wheels require of each other


def _find_different_requirements(wheels: Sequence[_Wheel]) -> Iterator[Finding]:
    """Yield warnings for wheels of one version, in one folder, that require different things.

    uv reads one wheel of a version and takes what it requires for what all of them do.
    """
    first_wheels: dict[tuple[Path, str, Version], _Wheel] = {}
    for wheel in wheels:
        first_wheel = first_wheels.setdefault((wheel.path.parent, wheel.distribution, wheel.version), wheel)
        difference = set(map(str, wheel.requirements)) ^ set(map(str, first_wheel.requirements))
        if difference:
            message = (
                f"It and {first_wheel.path.name} do not both require {name_first_few(sorted(difference))}; "
                "installers take the requirements of one wheel for those of its version."
            )
            yield replace(wheel.requirement_error(message), severity="warning")


def _check_requirement(
    wheel: _Wheel,
    requirement: Requirement,
    wheels: Sequence[_Wheel],
) -> Iterator[Finding]:
    """Yield errors where wheels of the set have another version, or another ROCm, than is required."""
    candidates = _wheels_with_version_of(wheels, canonicalize_name(requirement.name))
    specifier = requirement.specifier
    matching_wheels = [wheel for wheel in candidates if specifier.contains(wheel.version, prereleases=True)]
    if matching_wheels:
        yield from _compare_rocm(wheel, matching_wheels)
    elif candidates:
        versions = ", ".join(sorted({str(candidate.version) for candidate in candidates}))
        yield wheel.requirement_error(f"It requires {requirement}; these wheels are of {versions}.")


def _wheels_with_version_of(wheels: Sequence[_Wheel], distribution: str) -> list[_Wheel]:
    """Return the wheels that have the version of a distribution; for ROCm's packages, the core package."""
    candidates = [wheel for wheel in wheels if wheel.distribution == distribution]
    if not candidates and _has_version_of_rocm(distribution):
        candidates = [wheel for wheel in wheels if wheel.distribution == _CORE]
    return candidates


def _has_version_of_rocm(distribution: str) -> bool:
    """Return whether a distribution is one of ROCm's that have its version."""
    return is_rocm(distribution) and distribution != BOOTSTRAP


def _compare_rocm(wheel: _Wheel, required_wheels: Sequence[_Wheel]) -> Iterator[Finding]:
    """Yield an error where a wheel requires another ROCm than the wheels that it requires."""
    versions = wheel.rocm_versions
    for required_wheel in required_wheels:
        required_versions = required_wheel.rocm_versions
        if not versions or not required_versions or versions & required_versions:
            return
    required_wheel = required_wheels[0]
    required_rocm = ", ".join(sorted(required_wheel.rocm_versions))
    yield wheel.requirement_error(
        f"It requires ROCm {', '.join(sorted(versions))}; "
        f"{required_wheel.path.name} requires {required_rocm}."
    )
