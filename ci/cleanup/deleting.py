"""Carry a plan out: pages first, then sidecars, then wheels, so that no page lists what is not there.

Each step may be the last one before the process is killed: run again, the rest of what goes is
as old as before, so the new plan ends what this one began.
"""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ci.cleanup.links import listed
from ci.cleanup.units import DISTRIBUTIONS, SIDECAR, is_page
from core import parallel
from core.console import transfer
from core.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ci.cleanup.plan import Plan
    from core.console import Transfer
    from core.stores import Store

    Rewrite = Callable[[Store, str, frozenset[str]], object]
    InUse = Callable[[], frozenset[str]]

_PATIENCE = 120.0
_PAUSE = 2.0


def carry_out(
    store: Store, planned: Plan, *, rewrite: Rewrite, in_use: InUse, patience: float = _PATIENCE
) -> int:
    """Delete what goes."""
    sizes = {one.key: one.size for decision in planned.goes for one in decision.unit.objects}
    keys, folders = list(sizes), _by_folder(planned)
    _require_unused(keys, in_use)
    with transfer(f"deletion in {store.url}", files=len(keys), size=planned.size) as shown:

        def delete(found: Iterable[str]) -> None:
            parallel.each(lambda key: _delete(store, key, sizes[key], shown), found)

        delete(key for key in keys if is_page(key))
        for folder, going in folders.items():
            rewrite(store, folder, going)
        _require_unused(keys, in_use)
        delete(key for key in keys if key.endswith(SIDECAR))
        for folder, going in folders.items():
            _await_unlisted(store, folder, going, patience)
        delete(key for key in keys if key.endswith(DISTRIBUTIONS))
        delete(key for key in keys if not (is_page(key) or key.endswith((SIDECAR, *DISTRIBUTIONS))))
    return len(keys)


def _delete(store: Store, key: str, size: int, shown: Transfer) -> None:
    store.delete(key)
    shown.advance(size)


def _require_unused(keys: Sequence[str], in_use: InUse) -> None:
    used = sorted(in_use().intersection(keys))
    if used:
        raise StoreError(
            f"A promotion that works with {used[0]} began meanwhile; neither it nor any wheel was deleted.",
            hint="Run this again when the promotion has ended.",
        )


def _by_folder(planned: Plan) -> Mapping[str, frozenset[str]]:
    going: dict[str, set[str]] = defaultdict(set)
    for decision in planned.goes:
        if decision.unit.folder:
            going[decision.unit.folder] |= {one.key for one in decision.unit.objects}
    return {folder: frozenset(keys) for folder, keys in going.items()}


def _await_unlisted(store: Store, folder: str, going: frozenset[str], patience: float) -> None:
    end = time.monotonic() + patience
    while still := _listed_of(store, folder, going):
        if time.monotonic() >= end:
            raise StoreError(
                f"{store.url}/{folder} has pages that go on listing {PurePosixPath(still[0]).name}, "
                f"so {len(going)} files were left where they are.",
                hint="Write the pages (nox -s index, or see why the server does not), then run this again.",
            )
        time.sleep(_PAUSE)


def _listed_of(store: Store, folder: str, going: frozenset[str]) -> Sequence[str]:
    pages = [
        one.key
        for one in store.list(folder)
        if one.key.startswith(f"{folder}/") and is_page(one.key) and one.key.endswith((".html", ".json"))
    ]
    found = parallel.each(lambda key: listed(key, store.read(key)) & going, pages)
    return sorted(key for keys in found for key in keys)
