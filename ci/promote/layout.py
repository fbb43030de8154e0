"""Where a distribution bucket keeps what: staged wheels, released wheels, and who decided on them.

Layout (`docs/publishing.md`)::

    v2-staging/{family}/                        wheels, sidecars and pages, up for testing
    v2/{family}/                                the release index
    manifests/v2-staging/{family}/{run}.json    what was staged of a run: what the pages there list
    manifests/v2/{family}/{set}-{id}.json       what the release index lists of a set
    manifests/promoting/{set}/{id}.json         a promotion that goes on, or was interrupted
    manifests/decisions/{set}/{id}.json         one that is complete: what, by which rule, when, by whom
"""

from __future__ import annotations

from core.run.outputs import key_name

STAGING = "v2-staging"
RELEASE = "v2"
MANIFESTS = "manifests"
DECISIONS = f"{MANIFESTS}/decisions"
INTENTS = f"{MANIFESTS}/promoting"


def folder(area: str, family: str) -> str:
    """Key prefix of a family's wheels, in `STAGING` or `RELEASE`."""
    return f"{area}/{family}"


def manifests(area: str, family: str = "") -> str:
    """Key prefix of what says which files an area's pages list: of all families, or of one."""
    return f"{MANIFESTS}/{area}/{family}".rstrip("/")


def staging_record(family: str, run_prefix: str) -> str:
    """Key of the record of what was staged of the run with this prefix."""
    return f"{manifests(STAGING, family)}/{key_name(run_prefix)}.json"


def release_record(family: str, set_name: str, identity: str) -> str:
    """Key of the document of what the release index of a family lists of a promoted set."""
    return f"{manifests(RELEASE, family)}/{set_name}-{identity}.json"


def decision(set_name: str, identity: str) -> str:
    """Key of a decision record, which is written once."""
    return f"{DECISIONS}/{set_name}/{identity}.json"


def intent(set_name: str, identity: str) -> str:
    """Key of what a promotion leaves before it begins, and takes away in the end."""
    return f"{INTENTS}/{set_name}/{identity}.json"
