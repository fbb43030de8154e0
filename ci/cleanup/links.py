"""Which keys pages list, and which versions a wheel's metadata requires exactly."""

from __future__ import annotations

import json
from email import message_from_bytes
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urljoin, urlsplit

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from core.errors import DataError
from core.http import links

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from urllib.parse import SplitResult

    from ci.cleanup.units import Unit

_HERE, _ELSEWHERE = "store.invalid", "other.invalid"


def listed(page_key: str, page: bytes, *, bucket: str = "", own: bool = True) -> frozenset[str]:
    """Give the keys that a page links to."""
    try:
        text = page.decode()
        found = _of_json(text) if page_key.endswith(".json") else list(links(text))
    except (UnicodeDecodeError, ValueError, TypeError, KeyError) as problem:
        raise DataError(
            f"{page_key} is no page of an index: {problem}.",
            hint="Write the pages again with nox -s index, then run retention again.",
        ) from problem
    base = f"https://{_HERE if own else _ELSEWHERE}/{quote(page_key)}"
    keys = (_key(urlsplit(urljoin(base, link)), bucket) for link in found)
    return frozenset(key for key in keys if key)


def _of_json(text: str) -> Sequence[str]:
    page = json.loads(text)
    # the page of all projects lists no file
    return [] if "projects" in page else [str(one["url"]) for one in page["files"]]


def _key(address: SplitResult, bucket: str) -> str:
    host, path = address.hostname or "", unquote(address.path).lstrip("/")
    if host == _HERE:
        return path
    if bucket and host.endswith(".amazonaws.com"):
        if host.startswith(f"{bucket}.s3"):
            return path
        if host.startswith("s3") and path.startswith(f"{bucket}/"):
            return path.removeprefix(f"{bucket}/")
    return ""


def required(staying: Iterable[Unit], going: Iterable[Unit], metadata: Mapping[str, bytes]) -> frozenset[str]:
    """Name the units that ones which stay pin."""
    pins: dict[tuple[str, str], list[Requirement]] = {}
    for unit in staying:
        for one in unit.objects:
            for pin in _pins(metadata.get(one.key, b"")):
                pins.setdefault((unit.folder, canonicalize_name(pin.name)), []).append(pin)
    return frozenset(
        unit.name
        for unit in going
        if unit.version is not None
        and any(
            pin.specifier.contains(unit.version, prereleases=True)
            for pin in pins.get((unit.folder, unit.project), ())
        )
    )


def _pins(metadata: bytes) -> Sequence[Requirement]:
    found = []
    for text in message_from_bytes(metadata).get_all("Requires-Dist", []):
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if any(one.operator in {"==", "==="} for one in requirement.specifier):
            found.append(requirement)
    return found
