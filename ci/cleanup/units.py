"""What goes or stays together: a run's outputs, or a version in a family's staging."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import parse_sdist_filename, parse_wheel_filename

from ci.promote import layout
from ci.publish.index.pages import FILES as DISTRIBUTIONS
from ci.publish.index.pages import SIDECAR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packaging.version import Version

    from core.stores import Stored

STAGING, RELEASE_INDEX = f"{layout.STAGING}/", f"{layout.RELEASE}/"
DEPENDENCIES = "python-deps/"
__all__ = ["DISTRIBUTIONS", "NEVER", "RELEASE_INDEX", "SIDECAR", "STAGING", "Unit", "is_page", "units"]

# whatever the data says
NEVER = (RELEASE_INDEX, DEPENDENCIES)

_RUN = re.compile(r"(?P<id>[A-Za-z0-9][A-Za-z0-9._-]*)-(?P<platform>linux|windows)")
_PAGE = re.compile(r"(?:^|/)(?:index\.html|simple/.*)$")


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Objects that go together or not at all."""

    name: str
    series: str
    objects: tuple[Stored, ...]
    modified: float
    run_id: str = ""
    folder: str = ""
    project: str = ""
    version: Version | None = None

    @property
    def size(self) -> int:
        """Bytes of all its objects."""
        return sum(one.size for one in self.objects)


def is_page(key: str) -> bool:
    """Say whether a key is a page (of an index, or of a run's folder), or what an index notes beside them."""
    return _PAGE.search(key) is not None


def units(objects: Sequence[Stored]) -> Sequence[Unit]:
    """Put a bucket's objects together; what is neither a run's nor a staged version's is left out."""
    runs: dict[tuple[str, str], list[Stored]] = defaultdict(list)
    versions: dict[tuple[str, str, Version], list[Stored]] = defaultdict(list)
    for one in objects:
        if one.key.startswith(NEVER):
            continue
        if one.key.startswith(STAGING):
            staged = _staged(one.key)
            if staged is not None:
                versions[staged].append(one)
        elif (run := _run_of(one.key)) is not None:
            runs[run].append(one)
    found = [*(_run_unit(*run, files) for run, files in runs.items()), *_version_units(versions)]
    return sorted(found, key=lambda unit: (unit.series, _newness(unit)), reverse=True)


def _newness(unit: Unit) -> tuple[Version | float, str]:
    return (unit.modified if unit.version is None else unit.version, unit.name)


def _run_of(key: str) -> tuple[str, str] | None:
    """Give the repository's folder ("" or ``owner-name/``) and the run's."""
    first, _, rest = key.partition("/")
    second, slash, _ = rest.partition("/")
    # a repository may be named as a run is (owner-linux): then runs lie below it
    if slash and _RUN.fullmatch(second):
        return f"{first}/", second
    return ("", first) if rest and _RUN.fullmatch(first) else None


def _run_unit(external_repo: str, folder: str, files: Sequence[Stored]) -> Unit:
    match = _RUN.fullmatch(folder)
    platform, run_id = (match["platform"], match["id"]) if match else ("", "")
    # pages may be written again at any time: that makes no run younger
    dated = [one.modified for one in files if not is_page(one.key)] or [one.modified for one in files]
    return Unit(
        name=f"{external_repo}{folder}",
        series=f"{external_repo}*-{platform}",
        objects=tuple(files),
        modified=max(dated),
        run_id=run_id,
    )


def _staged(key: str) -> tuple[str, str, Version] | None:
    folder, _, filename = key.rpartition("/")
    if folder.count("/") != 1 or is_page(key):
        return None
    filename = filename.removesuffix(SIDECAR)
    try:
        if filename.endswith(".whl"):
            name, version, *_ = parse_wheel_filename(filename)
        else:
            name, version = parse_sdist_filename(filename)
    except ValueError:  # what packaging raises for names and versions
        return None
    return folder, name, version


def _version_units(versions: Mapping[tuple[str, str, Version], Sequence[Stored]]) -> Sequence[Unit]:
    return [
        Unit(
            name=f"{folder}/{project} {version}",
            series=f"{folder}/{project}",
            objects=tuple(files),
            modified=max(one.modified for one in files),
            folder=folder,
            project=project,
            version=version,
        )
        for (folder, project, version), files in versions.items()
    ]
