"""Where a distribution bucket keeps what: staged wheels, released wheels, and who decided on them.

Layout (`docs/publishing.md`)::

    v2-staging/{family}/                      wheels, sidecars and pages, up for testing
    v2/{family}/                              the release index
    manifests/v2-staging/{family}/{run}.json  what was staged of a run
    manifests/v2/{set}/{id}.json              what was promoted, and why
"""

from __future__ import annotations

from core.outputs import key_name

STAGING = "v2-staging"
RELEASE = "v2"
MANIFESTS = "manifests"


def folder(area: str, family: str) -> str:
    """Key prefix of a family's wheels, in `STAGING` or `RELEASE`."""
    return f"{area}/{family}"


def staging_records(family: str = "") -> str:
    """Key prefix of the staging records: all, or one family's."""
    return f"{MANIFESTS}/{STAGING}/{family}".rstrip("/")


def staging_record_of(family: str, prefix: str) -> str:
    """Key of the record of what was staged of the run with this prefix."""
    return f"{staging_records(family)}/{key_name(prefix)}.json"


def decisions(set_name: str = "") -> str:
    """Key prefix of the decision records: all, or one set's."""
    return f"{MANIFESTS}/{RELEASE}/{set_name}".rstrip("/")


def decision(set_name: str, identity: str) -> str:
    """Key of one decision record."""
    return f"{decisions(set_name)}/{identity}.json"
