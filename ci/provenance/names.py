"""What provenance calls things: URIs from a data file, keys in a run, package URLs."""

from __future__ import annotations

import functools
from collections.abc import Mapping  # noqa: TC003 - pydantic reads it
from pathlib import Path
from urllib.parse import quote, urlsplit, urlunsplit

from core.data import Model, load_toml

NAMES_FILE = Path(__file__).with_name("provenance.toml")
PROVENANCE = "provenance"
STATEMENT = ".intoto.json"
SBOM = "sbom.cdx.json"


class Builders(Model):
    """Builders that are no workflows."""

    local: str


class Sources(Model):
    """Repositories that records name by a commit alone."""

    rocm: str


class Names(Model):
    """What `provenance.toml` says."""

    build_types: Mapping[str, str]
    builders: Builders
    sources: Sources


@functools.cache
def names() -> Names:
    """Read the data file."""
    return load_toml(NAMES_FILE, Names)


def statement_path(group: str, filename: str) -> str:
    """Path of a file's statement below its run's prefix."""
    return f"{PROVENANCE}/{group}/{filename}{STATEMENT}"


def package_url(distribution: str, version: str, filename: str = "") -> str:
    """Name a Python distribution as a package URL (purl-spec, type ``pypi``)."""
    qualifier = f"?file_name={quote(filename, safe='')}" if filename else ""
    at = f"@{quote(version, safe='')}" if version else ""
    return f"pkg:pypi/{quote(distribution, safe='')}{at}{qualifier}"


def commit_uri(origin: str, commit: str) -> str:
    """Name a commit of a repository: ``git+https://…@{commit}`` (SPDX's form of a download location).

    An origin that is a path becomes a ``file`` address; the sample's own scheme stays as it is. Names and
    passwords in an address are left out.
    """
    if "://" in origin:
        parts = urlsplit(origin)
        bare = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        return f"git+{bare}@{commit}"
    if origin.startswith("/"):
        return f"git+{Path(origin).as_uri()}@{commit}"
    return f"{quote(origin, safe=':/@')}@{commit}"
