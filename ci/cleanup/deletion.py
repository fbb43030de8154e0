"""Deletion takes pages first, then sidecars, then wheels, so that no page lists what does not exist.

The process may be killed after any step: run again, the rest is as old as before, so the new plan completes
what this one began.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, cast

from ci.cleanup.pages import listed_keys
from ci.cleanup.plan import DeletionPlan, keys_in_promotion
from ci.cleanup.units import STAGING_FOLDER
from ci.promote import documents
from ci.publish.index import is_page
from ci.publish.index.names import DISTRIBUTION_SUFFIXES, SIDECAR_SUFFIX
from core import parallel
from core.errors import StoreError
from core.stores import Store, Stored

# How long a server may take to show pages that were written, and how often it is asked, in seconds.
_PATIENCE = 120.0
_PAUSE = 2.0


def carry_out(store: Store, plan: DeletionPlan) -> int:
    """Delete what goes; return how many objects that were."""
    sizes: dict[str, int] = {}
    keys_by_folder: defaultdict[str, set[str]] = defaultdict(set)
    for unit in plan.going:
        for stored_object in unit.objects:
            sizes[stored_object.key] = stored_object.size
        if unit.folder is not None:
            keys_by_folder[unit.folder].update(unit.keys)
    keys_by_kind: defaultdict[str, list[str]] = defaultdict(list)
    for key in sizes:
        keys_by_kind[_kind_of(key)].append(key)

    _require_unused(store, sizes)
    with parallel.transfer(f"deletion in {store.url}", size=plan.size) as progress:

        def delete(key: str) -> None:
            store.delete(key)
            progress.advance(sizes[key])

        parallel.map_in_threads(delete, keys_by_kind["page"])
        for folder, folder_keys in keys_by_folder.items():
            _write_pages_without(store, folder, folder_keys)

        _require_unused(store, sizes)
        parallel.map_in_threads(delete, keys_by_kind["sidecar"])
        for folder, folder_keys in keys_by_folder.items():
            _await_pages(store, folder, folder_keys)
        parallel.map_in_threads(delete, keys_by_kind["distribution"])
        parallel.map_in_threads(delete, keys_by_kind["other"])
    return len(sizes)


def _kind_of(key: str) -> str:
    """Return the kind of an object: kinds are deleted one after another."""
    if is_page(key):
        return "page"
    if key.endswith(SIDECAR_SUFFIX):
        return "sidecar"
    if key.endswith(DISTRIBUTION_SUFFIXES):
        return "distribution"
    return "other"


def _require_unused(store: Store, keys: Iterable[str]) -> None:
    """Refuse to delete what a promotion works with that began after the plan was made."""
    used_keys = sorted(keys_in_promotion(store).intersection(keys))
    if used_keys:
        raise StoreError(
            f"A promotion that works with {used_keys[0]} began meanwhile; neither it nor any wheel was "
            "deleted.",
            hint="Run this again when the promotion has ended.",
        )


@dataclass(frozen=True, kw_only=True)
class _StoreWithout:
    """A store whose listings leave keys out; all else is the store's own."""

    store: Store
    hidden_keys: AbstractSet[str]

    def list(
        self,
        prefix: str,
        *,
        recursive: bool = True,
    ) -> Sequence[Stored]:
        stored_objects = self.store.list(prefix, recursive=recursive)
        return [
            stored_object for stored_object in stored_objects if stored_object.key not in self.hidden_keys
        ]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self.store, name)


def _write_pages_without(
    store: Store,
    folder: str,
    keys: AbstractSet[str],
) -> None:
    """Write a staging folder's pages as if these keys were gone; what stays is listed as it was."""
    remaining_store = cast(
        "Store",
        _StoreWithout(
            store=store,
            hidden_keys=keys,
        ),
    )
    artifact_group = folder.removeprefix(STAGING_FOLDER)
    documents.write_pages(remaining_store, documents.STAGING, artifact_group, expected=())


def _await_pages(
    store: Store,
    folder: str,
    keys: AbstractSet[str],
) -> None:
    """Wait until no page of a folder lists these keys; a server may write them at its own pace."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        keys_on_pages = listed_keys(store, documents.list_keys(store, folder), folder)
        remaining_keys = sorted(keys_on_pages & keys)
        if not remaining_keys:
            return
        if time.monotonic() >= deadline:
            raise StoreError(
                f"{store.url}/{folder} has pages that go on listing {PurePosixPath(remaining_keys[0]).name}, "
                f"so {len(keys)} files were left where they are.",
                hint="Write the pages (nox -s index, or see why the server does not), then run this again.",
            )
        time.sleep(_PAUSE)
