"""Wheels that are checked together: parts that are missing, files that two of them have, requirements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from core.archive.zips import read_archive
from core.errors import MissingInputError, WheelError
from core.wheel import read_metadata
from core.wheel.record import require_listing
from pytorch_build.check import Finding, device_code, requirements, some
from pytorch_build.check.allowed import find_allowed
from pytorch_build.check.contents import CHECK
from pytorch_build.check.site_packages import installed_path
from rocm_packaging.packages.layouts import device_target, is_rocm

if TYPE_CHECKING:
    from core.wheel.record import RecordRow
    from pytorch_build.check.policy import Policy

_CORE = "rocm-sdk-core"


def distribution_of(path: Path) -> str:
    """Return the normalized name of a wheel's distribution, by its file name."""
    return canonicalize_name(path.name.partition("-")[0])


def members_of_rocm(wheels: Iterable[Path]) -> Mapping[str, Sequence[str]] | None:
    """Return where ROCm's wheels have their files, by name; None where the core package is not among them."""
    members: defaultdict[str, list[str]] = defaultdict(list)
    has_core = False
    for path in wheels:
        distribution = distribution_of(path)
        if not is_rocm(distribution):
            continue
        has_core = has_core or distribution == _CORE
        with suppress(WheelError, MissingInputError):  # the wheel's own checks report it
            for member in read_archive(path).by_name:
                members[PurePosixPath(member).name].append(member)
    return members if has_core else None


def check(wheels: Sequence[Path], policy: Policy) -> Iterator[Finding]:
    """Judge whether wheels belong together."""
    yield from _find_missing_parts(wheels)
    yield from _find_shared_files(wheels, policy)
    yield from requirements.check(wheels)


def _find_missing_parts(wheels: Sequence[Path]) -> Iterator[Finding]:
    """Find hosts among the wheels whose device code is not all among them."""
    distributions = {distribution_of(path) for path in wheels}
    for path in wheels:
        parts = _device_packages_of(path)
        missing = sorted(parts - distributions)
        if missing:
            name = path.name.partition("-")[0]
            yield Finding(
                severity="error" if parts & distributions else "warning",
                check=device_code.CHECK,
                wheel=path.name,
                where="",
                message=f"Its device code is in {', '.join(missing)}, which is not among these wheels; "
                f"with an index that has them: pip install {name}[device-all].",
            )


def _device_packages_of(path: Path) -> set[str]:
    """Return the wheels of device code that a wheel's extras name."""
    packages: set[str] = set()
    try:
        for text in read_metadata(path).requires_dist:
            requirement = Requirement(text)
            name = canonicalize_name(requirement.name)
            is_of_extra = requirement.marker is not None and "extra" in str(requirement.marker)
            if is_of_extra and name.startswith("amd-") and device_target(name):
                packages.add(name)
    except (WheelError, MissingInputError, InvalidRequirement):
        return set()  # the wheel's own checks report it
    return packages


@dataclass(frozen=True, kw_only=True)
class _InstalledFile:
    """A file below site-packages: two with one digest are the same file."""

    wheel: str
    distribution: str
    digest: bytes


def _find_shared_files(wheels: Sequence[Path], policy: Policy) -> Iterator[Finding]:
    """Find files that the wheels of two distributions have in one place, with different contents.

    The wheel that is installed last wins, and whoever is removed takes the file along. Namespace packages may
    share the same __init__.py.
    """
    if len({distribution_of(path) for path in wheels}) == 1:
        return
    first_files: dict[str, _InstalledFile] = {}
    shared_paths: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for path in wheels:
        for place, file in _installed_files(path):
            first_file = first_files.setdefault(place, file)
            if first_file.digest == file.digest or first_file.distribution == file.distribution:
                continue
            # Nobody installs both where one is the other by another name.
            allowed = find_allowed(file.distribution, policy.allowed)
            if allowed is None or first_file.distribution not in allowed.replaces:
                shared_paths[first_file.wheel, file.wheel].append(place)

    for (first_wheel, wheel), paths in shared_paths.items():
        yield Finding(
            severity="error",
            check=CHECK,
            wheel=wheel,
            where=paths[0],
            message=f"{first_wheel} has another file in its place: {some(paths)}.",
        )


def _installed_files(path: Path) -> Iterator[tuple[str, _InstalledFile]]:
    """Yield the files that a wheel has below site-packages, each with its place there, as RECORD has them."""
    distribution = distribution_of(path)
    rows: Mapping[str, RecordRow | None] = {}
    with suppress(WheelError, MissingInputError):  # the wheel's own checks report it
        rows = require_listing(path).rows
    for member, row in rows.items():
        place = installed_path(member)
        if place is not None and row is not None and ".dist-info/" not in place:
            yield place, _InstalledFile(wheel=path.name, distribution=distribution, digest=row.digest)
