"""What may go, by the policy of its release type, and how it goes."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from ci.promote import documents
from ci.publish.index import is_page
from ci.publish.index.names import SIDECAR_SUFFIX
from core.errors import DataError, WheelError
from core.links import links
from core.packages.candidates import requirements_in
from core.run import KEY_SEGMENT
from core.stores import Stored
from core.wheel import parse_name

STAGING, RELEASE_INDEX = f"{documents.STAGING}/", f"{documents.RELEASE}/"
# whatever the data says
_NEVER = (RELEASE_INDEX, "python-deps/")
_RUN = re.compile(rf"(?P<id>{KEY_SEGMENT.pattern})-(?P<platform>linux|windows)")
_HERE, _ELSEWHERE = "store.invalid", "other.invalid"


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Objects that go together or not at all; `why`: what was decided about them."""

    name: str
    series: str
    objects: tuple[Stored, ...] = ()
    modified: float = 0.0
    run_id: str = ""
    folder: str = ""
    project: str = ""
    version: Version | None = None
    why: str = ""

    @property
    def size(self) -> int:
        """Bytes of all its objects."""
        return sum(one.size for one in self.objects)


def units(objects: Sequence[Stored]) -> Sequence[Unit]:
    """Put a bucket's objects together; what is neither a run's nor a staged version's is left out."""
    files: dict[Unit, list[Stored]] = defaultdict(list)
    for one in objects:
        if unit := _staged(one.key) if one.key.startswith(STAGING) else _run_of(one.key):
            files[unit].append(one)
    found = []
    for unit, mine in files.items():
        # pages may be written again at any time: that makes a run no younger
        dated = [one.modified for one in mine if not is_page(one.key)] or [one.modified for one in mine]
        found.append(replace(unit, objects=tuple(mine), modified=max(dated)))
    # of a series the newest first
    return sorted(found, key=lambda one: (one.series, one.version or one.modified, one.name), reverse=True)


def _run_of(key: str) -> Unit | None:
    """Return the run that a key is of, below its repository's folder or not; still without objects."""
    first, _, rest = key.partition("/")
    second, slash, _ = rest.partition("/")
    # a repository may be named as a run is (owner-linux): then runs lie below it
    for external_repo, folder in ((f"{first}/", second if slash else ""), ("", first if rest else "")):
        if (run := _RUN.fullmatch(folder)) and not key.startswith(_NEVER):
            series = f"{external_repo}*-{run['platform']}"
            return Unit(name=f"{external_repo}{folder}", series=series, run_id=run["id"])
    return None


def _staged(key: str) -> Unit | None:
    folder, _, filename = key.rpartition("/")
    if folder.count("/") != 1 or is_page(key):
        return None
    try:
        parsed = parse_name(filename.removesuffix(SIDECAR_SUFFIX))
    except WheelError:
        return None
    series = f"{folder}/{parsed.distribution}"
    unit = Unit(name=f"{series} {parsed.version}", series=series, folder=folder)
    return replace(unit, project=parsed.distribution, version=parsed.version)


def listed(page_key: str, page: bytes, *, bucket: str = "", own: bool = True) -> frozenset[str]:
    """Return the keys that a page links to."""
    try:
        if page_key.endswith(".json"):
            # the page of all projects lists no file
            said = json.loads(page.decode())
            found = [] if "projects" in said else [str(one["url"]) for one in said["files"]]
        else:
            found = list(links(page.decode()))
    except (UnicodeDecodeError, ValueError, TypeError, KeyError) as problem:
        raise DataError(
            f"{page_key} is not a page of an index: {problem}.",
            hint="Write the pages again with nox -s index, then run retention again.",
        ) from problem
    base = f"https://{_HERE if own else _ELSEWHERE}/{quote(page_key)}"
    keys = (_key(urlsplit(urljoin(base, link)), bucket) for link in found)
    return frozenset(key for key in keys if key)


def _key(address: SplitResult, bucket: str) -> str:
    host, path = address.hostname or "", unquote(address.path).lstrip("/")
    amazon = bucket and host.endswith(".amazonaws.com")
    if host == _HERE or (amazon and host.startswith(f"{bucket}.s3")):
        return path
    in_bucket = amazon and host.startswith("s3") and path.startswith(f"{bucket}/")
    return path.removeprefix(f"{bucket}/") if in_bucket else ""


def required(staying: Iterable[Unit], going: Iterable[Unit], metadata: Mapping[str, bytes]) -> frozenset[str]:
    """Name the units that ones which stay pin by their wheels' metadata."""
    pins: dict[tuple[str, str], list[Requirement]] = defaultdict(list)
    for unit in staying:
        for pin in (pin for one in unit.objects for pin in _pins(metadata.get(one.key, b""))):
            pins[unit.folder, canonicalize_name(pin.name)].append(pin)
    return frozenset(
        unit.name
        for unit in going
        if unit.version is not None
        for pin in pins.get((unit.folder, unit.project), ())
        if pin.specifier.contains(unit.version, prereleases=True)
    )


def _pins(metadata: bytes) -> Iterator[Requirement]:
    for text in requirements_in(metadata):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if any(one.operator in {"==", "==="} for one in requirement.specifier):
            yield requirement
