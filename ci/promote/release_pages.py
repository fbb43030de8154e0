"""The pages of a family's folder in the distribution bucket, from what its manifests name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.promote import layout
from ci.publish.index import Indexed, Records, write_index
from core.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Collection

    from core.stores import Store


def write(store: Store, area: str, family: str, *, expected: Collection[str]) -> Indexed:
    """Write the pages that changed.

    A file that no manifest names is not listed: it may be half of a promotion that goes on.
    """
    folder = layout.folder(area, family)
    # files go by retention while what names them stays
    source = Records(store=store, prefix=layout.manifests(area, family), refuses_absent=False)
    indexed = write_index(store, folder, source, title=folder, strict=False)
    unlisted = [f"{one.stored.key}: {one.why}" for one in indexed.held if one.stored.key in expected]
    if unlisted:
        raise StoreError(
            f"Not listed in {store.url}/{folder}:\n" + "\n".join(unlisted),
            hint="Find out who changed them; then run the same command again.",
        )
    return indexed
