"""What wheels of ours that are checked together require of each other, and of ROCm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from core.errors import MissingInputError, WheelError
from core.wheel import read_metadata
from core.wheel.distributions import is_ours
from pytorch_build.check import Finding, some
from rocm_packaging.packages.layouts import BOOTSTRAP, is_rocm

if TYPE_CHECKING:
    from pathlib import Path

    from packaging.version import Version

CHECK = "requirements"
_CORE = "rocm-sdk-core"


@dataclass(frozen=True, kw_only=True)
class _Wheel:
    """A wheel, with what it requires of our distributions.

    `dependencies` are all lines by which installers choose what comes with it, in one spelling each.
    """

    folder: Path
    filename: str
    distribution: str
    version: Version
    requirements: Sequence[Requirement]
    dependencies: frozenset[str]

    @property
    def rocm_versions(self) -> set[str]:
        """The versions of ROCm that it requires exactly."""
        versions: set[str] = set()
        for requirement in self.requirements:
            if _has_version_of_rocm(canonicalize_name(requirement.name)):
                pins = [clause.version for clause in requirement.specifier if clause.operator == "=="]
                versions.update(pins)
        return versions

    def finding(self, message: str) -> Finding:
        """Return an error of this wheel."""
        return Finding(
            severity="error",
            check=CHECK,
            wheel=self.filename,
            where="",
            message=message,
        )


def check(paths: Sequence[Path]) -> Iterator[Finding]:
    """Find wheels that require other versions than the set has, or another ROCm than what they require."""
    wheels = list(_read_wheels(paths))
    yield from _find_differences(wheels)
    for wheel in wheels:
        for requirement in wheel.requirements:
            candidates = _candidates(wheels, canonicalize_name(requirement.name))
            matching_wheels = [
                candidate
                for candidate in candidates
                if requirement.specifier.contains(candidate.version, prereleases=True)
            ]
            if matching_wheels:
                yield from _compare_rocm(wheel, matching_wheels)
            elif candidates:
                versions = ", ".join(sorted({str(candidate.version) for candidate in candidates}))
                yield wheel.finding(f"It requires {requirement}; these wheels are of {versions}.")


def _find_differences(wheels: Sequence[_Wheel]) -> Iterator[Finding]:
    """Find wheels of one version, in one folder, that require different things.

    uv reads one wheel of a version and takes what it requires for what all of them do.
    """
    first_wheels: dict[tuple[Path, str, Version], _Wheel] = {}
    for wheel in wheels:
        first_wheel = first_wheels.setdefault((wheel.folder, wheel.distribution, wheel.version), wheel)
        difference = sorted(wheel.dependencies ^ first_wheel.dependencies)
        if difference:
            yield Finding(
                severity="warning",
                check=CHECK,
                wheel=wheel.filename,
                where="",
                message=f"It and {first_wheel.filename} do not both require {some(difference)}; "
                "installers take the requirements of one wheel for those of its version.",
            )


def _read_wheels(paths: Sequence[Path]) -> Iterator[_Wheel]:
    for path in paths:
        # What cannot be read is reported by the wheel's own checks.
        with suppress(WheelError, MissingInputError, InvalidRequirement):
            metadata = read_metadata(path)
            requirements = [Requirement(text) for text in metadata.requires_dist]
            yield _Wheel(
                folder=path.parent,
                filename=path.name,
                distribution=canonicalize_name(metadata.name),
                version=metadata.version,
                requirements=[requirement for requirement in requirements if is_ours(requirement.name)],
                dependencies=frozenset(map(str, requirements)),
            )


def _candidates(wheels: Sequence[_Wheel], distribution: str) -> list[_Wheel]:
    """Return the wheels that tell the version of a distribution; ROCm's packages have that of its core."""
    candidates = [wheel for wheel in wheels if wheel.distribution == distribution]
    if not candidates and _has_version_of_rocm(distribution):
        candidates = [wheel for wheel in wheels if wheel.distribution == _CORE]
    return candidates


def _has_version_of_rocm(distribution: str) -> bool:
    return is_rocm(distribution) and distribution != BOOTSTRAP


def _compare_rocm(wheel: _Wheel, required_wheels: Sequence[_Wheel]) -> Iterator[Finding]:
    """Compare the ROCm that a wheel requires with that of the wheels that it requires."""
    versions = wheel.rocm_versions
    for required_wheel in required_wheels:
        required_versions = required_wheel.rocm_versions
        if not versions or not required_versions or versions & required_versions:
            return
    required_wheel = required_wheels[0]
    required_rocm = ", ".join(sorted(required_wheel.rocm_versions))
    yield wheel.finding(
        f"It requires ROCm {', '.join(sorted(versions))}; {required_wheel.filename} requires {required_rocm}."
    )
