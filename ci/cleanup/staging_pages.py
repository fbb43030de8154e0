"""The pages of a staging folder, written as if what is about to go were gone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ci.promote import layout, release_pages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ci.publish.index import Indexed
    from core.stores import Store, Stored


@dataclass(frozen=True, kw_only=True)
class _Without:
    """A store whose listings leave something out; all else is the store's own."""

    store: Store
    going: frozenset[str]

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        found = self.store.list(prefix, recursive=recursive)
        return [one for one in found if one.key not in self.going]

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the store has
        return getattr(self.store, name)


def rewrite(store: Store, folder: str, going: frozenset[str]) -> Indexed:
    """Write a staging folder's pages without these keys; what stays is listed as it was."""
    seen = cast("Store", _Without(store=store, going=going))
    return release_pages.write(seen, layout.STAGING, folder.removeprefix(f"{layout.STAGING}/"), expected=())
