"""Names of wheels and sdists, read by the one rule that uploads and pages share.

The rule is what `packaging.utils` takes, less letters beyond ASCII and less what would have to be escaped in
a page or an address. A browser's copy (``torch-2.0 (1).whl``) is therefore refused by uploads, and here.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

from packaging.version import InvalidVersion, Version

from core.errors import WheelError

DEPENDENCIES_FOLDER = "python-deps"
"""The folder of a store whose index has what our packages require of others, and none of our names."""
DISTRIBUTION_SUFFIXES = (".whl", ".tar.gz")
SIDECAR_SUFFIX = ".metadata"

_PROJECT = r"(?P<project>[A-Za-z0-9](?:[A-Za-z0-9._]*[A-Za-z0-9])?)"
_SDIST_PROJECT = r"(?P<project>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
_VERSION = r"(?P<version>[A-Za-z0-9][A-Za-z0-9._!+]*)"
_BUILD_TAG = r"(?:-[0-9][A-Za-z0-9_.]*)?"
_PYTHON_TAG = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_TAG = r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*"
_WHEEL = re.compile(rf"{_PROJECT}-{_VERSION}{_BUILD_TAG}-{_PYTHON_TAG}-{_TAG}-{_TAG}\.whl")
_SDIST = re.compile(rf"{_SDIST_PROJECT}-{_VERSION}\.tar\.gz")
_PLAIN_ADDRESS = re.compile(r"[A-Za-z0-9._+-]+")


class DistributionName(NamedTuple):
    """What the name of a wheel or sdist says: project (PEP 503), version (PEP 440) and its spelling."""

    project: str
    version: Version
    version_text: str


def read_name(filename: str) -> DistributionName:
    """Return what the name of a wheel or an sdist says; anything else is a `WheelError`."""
    pattern = _WHEEL if filename.endswith(".whl") else _SDIST
    match = pattern.fullmatch(filename)
    # PEP 427 keeps "__" apart, and `packaging` refuses it.
    if match is None or "__" in match["project"]:
        raise WheelError(
            f"{filename!r} is not the name of a wheel or an sdist.",
            hint="Wheels are named NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl, sdists NAME-VERSION.tar.gz. "
            "Rename the file. If it is in a store already, delete it there, with its .metadata and record.",
        )

    try:
        version, version_text = read_version(match["version"])
    except InvalidVersion:
        raise WheelError(
            f"{filename!r}: {match['version']!r} is not a version.",
            hint="Versions are written as PEP 440 says.",
        ) from None

    return DistributionName(normalise(match["project"]), version, version_text)


def require_names(filenames: Iterable[str]) -> None:
    """Refuse files that no page could list, before one of them is uploaded."""
    for filename in filenames:
        read_name(filename)


def guess_project(filename: str) -> str:
    """Return the project of a file without reading the rest of its name, which takes five times as long."""
    if filename.endswith(".whl"):
        return normalise(filename.partition("-")[0])
    return normalise(filename.rpartition("-")[0])


@lru_cache(maxsize=1 << 12)
def normalise(project: str) -> str:
    """Return a project's name as PEP 503 writes it; `packaging.utils` does the same, and imports slowly."""
    return re.sub(r"[-_.]+", "-", project).lower()


@lru_cache(maxsize=1 << 14)
def read_version(text: str) -> tuple[Version, str]:
    """Return a version, and as PEP 440 spells it; many files share one."""
    version = Version(text)
    return version, str(version)


def relative_address(filename: str) -> str:
    """Return a file's name as a relative address; a plus sign means a space to some servers."""
    if _PLAIN_ADDRESS.fullmatch(filename):
        return filename.replace("+", "%2B")
    return quote(filename, safe="")
