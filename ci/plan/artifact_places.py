"""Where a run's artifacts lie: in the store that is named, else in ours, else in the repository's bucket."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ci.plan import fetching
from ci.publish.buckets import buckets
from core.cli.options import DEFAULT_STORE
from core.errors import MissingInputError
from core.run.locations import location
from core.run.outputs import LOCAL_RUN
from core.stores.location import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ci.plan.fetching import Listed
    from core.cli.options import Common
    from core.stores import Store


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run's artifacts were found."""

    store: Store
    named: str
    external_repo: str
    prefix: str
    listed: tuple[Listed, ...]

    @property
    def where(self) -> str:
        """The place, for people."""
        return f"{self.store.url}/{self.prefix}"


def find_place(common: Common, source: str, repository: str, *, fork: bool) -> Place:
    """Find a run's artifacts."""
    outputs = common.outputs
    looked_at = []
    for named, external_repo in _stores(common, source, repository, fork=fork):
        store = open_store(named, root=common.root)
        for folder in dict.fromkeys((external_repo, "")):
            prefix = replace(outputs, external_repo=folder).prefix
            place = Place(
                store=store,
                named=named,
                external_repo=folder,
                prefix=prefix,
                listed=fetching.list_artifacts(store, prefix),
            )
            if place.listed:
                return place
            looked_at.append(place.where)
    raise MissingInputError(
        f"Run {outputs.run_id} has no artifacts in {' nor in '.join(looked_at)}.",
        hint="Name an artifact run (--artifact-run-id, or --commit, --latest), and its store "
        "with --artifact-store.",
    )


def _stores(common: Common, source: str, repository: str, *, fork: bool) -> Iterator[tuple[str, str]]:
    """Name the stores to look in, each with the folder that the repository has there."""
    if common.run_id == LOCAL_RUN:
        yield source or common.store, ""
        return
    place = location(buckets(), repository, fork=fork, release_type=common.release_type)
    yield source or common.store, place.external_repo
    if not source and common.store == DEFAULT_STORE:
        yield place.store, place.external_repo
