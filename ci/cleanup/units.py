"""Objects of a store that go together or not at all: a run, or a staged version of a distribution."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ci.promote import documents
from ci.publish.index import is_page
from ci.publish.index.names import SIDECAR_SUFFIX
from core.errors import WheelError
from core.packages.candidates import requirements_in
from core.run import KEY_SEGMENT
from core.stores import Stored
from core.wheel import parse_name

STAGING_FOLDER = f"{documents.STAGING}/"

# Whatever the data says, these are no runs.
_NEVER = (f"{documents.RELEASE}/", "python-deps/")
_RUN = re.compile(rf"(?P<id>{KEY_SEGMENT.pattern})-(?P<platform>linux|windows)")


@dataclass(frozen=True, kw_only=True)
class DeletionUnit:
    """Objects that go together or not at all.

    Attributes:
        series: What it is one of: a repository's runs on a platform, or a distribution's versions.
        run_id: Of a run; None for a staged version.
        folder: Of a staged version, with its project and version; None for a run.
        reason: Why it goes or stays, once that is decided.
    """

    name: str
    series: str
    objects: tuple[Stored, ...] = ()
    modified: float = 0.0
    run_id: str | None = None
    folder: str | None = None
    project: str | None = None
    version: Version | None = None
    reason: str = ""

    @property
    def size(self) -> int:
        """Bytes of all its objects."""
        return sum(stored_object.size for stored_object in self.objects)

    @property
    def keys(self) -> Sequence[str]:
        """The keys of its objects."""
        return [stored_object.key for stored_object in self.objects]


def find_units(stored_objects: Sequence[Stored]) -> Sequence[DeletionUnit]:
    """Put a bucket's objects together; what is neither a run's nor a staged version's is left out.

    Units of a series follow each other, the newest first.
    """
    objects_of_units: defaultdict[DeletionUnit, list[Stored]] = defaultdict(list)
    for stored_object in stored_objects:
        unit = _unit_of(stored_object.key)
        if unit is not None:
            objects_of_units[unit].append(stored_object)

    units: list[DeletionUnit] = []
    for unit, unit_objects in objects_of_units.items():
        modified = _last_change(unit_objects)
        units.append(
            replace(
                unit,
                objects=tuple(unit_objects),
                modified=modified,
            )
        )
    return sorted(
        units,
        key=lambda unit: (unit.series, unit.version or unit.modified, unit.name),
        reverse=True,
    )


def _last_change(stored_objects: Sequence[Stored]) -> float:
    """Return when objects changed last; pages may be written again at any time, and make a run no younger."""
    times: list[float] = []
    times_of_pages: list[float] = []
    for stored_object in stored_objects:
        if is_page(stored_object.key):
            times_of_pages.append(stored_object.modified)
        else:
            times.append(stored_object.modified)
    return max(times or times_of_pages)


def _unit_of(key: str) -> DeletionUnit | None:
    """Return the unit that a key belongs to, still without objects."""
    if key.startswith(STAGING_FOLDER):
        return _staged_version(key)
    return _run(key)


def _run(key: str) -> DeletionUnit | None:
    """Return the run that a key is of, below its repository's folder or not."""
    if key.startswith(_NEVER):
        return None

    first_folder, _, path = key.partition("/")
    second_folder, slash, _ = path.partition("/")
    # A repository may be named as a run is (owner-linux): then runs lie below it.
    candidates: list[tuple[str, str]] = []
    if slash:
        candidates.append((f"{first_folder}/", second_folder))
    if path:
        candidates.append(("", first_folder))

    for repository_folder, folder in candidates:
        run = _RUN.fullmatch(folder)
        if run is not None:
            return DeletionUnit(
                name=f"{repository_folder}{folder}",
                series=f"{repository_folder}*-{run['platform']}",
                run_id=run["id"],
            )
    return None


def _staged_version(key: str) -> DeletionUnit | None:
    folder, _, filename = key.rpartition("/")
    if folder.count("/") != 1 or is_page(key):
        return None
    try:
        parsed_name = parse_name(filename.removesuffix(SIDECAR_SUFFIX))
    except WheelError:
        return None

    series = f"{folder}/{parsed_name.distribution}"
    return DeletionUnit(
        name=f"{series} {parsed_name.version}",
        series=series,
        folder=folder,
        project=parsed_name.distribution,
        version=parsed_name.version,
    )


def pinned_units(
    staying: Iterable[DeletionUnit],
    going: Iterable[DeletionUnit],
    metadata: Mapping[str, bytes],
) -> frozenset[str]:
    """Name the units that others which stay pin by their wheels' metadata."""
    pins: defaultdict[tuple[str | None, str | None], list[Requirement]] = defaultdict(list)
    for unit in staying:
        for key in unit.keys:
            for pin in _pins(metadata.get(key, b"")):
                pins[unit.folder, canonicalize_name(pin.name)].append(pin)

    names: set[str] = set()
    for unit in going:
        if unit.version is None:
            continue
        for pin in pins.get((unit.folder, unit.project), ()):
            if pin.specifier.contains(unit.version, prereleases=True):
                names.add(unit.name)
    return frozenset(names)


def _pins(metadata: bytes) -> Iterator[Requirement]:
    """Yield the requirements of a wheel that name one version."""
    for text in requirements_in(metadata):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if any(specifier.operator in {"==", "==="} for specifier in requirement.specifier):
            yield requirement
