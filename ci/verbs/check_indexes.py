"""`check-indexes`: whether permanent pages list what is there: dependencies, staging and releases."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from ci.install.dependencies import mirror
from ci.promote import documents
from ci.publish.index import Indexed, write_index
from ci.verbs.mirror_deps import source_of
from core import console
from core.cli.options import common_from
from core.errors import MissingInputError, StoreError
from core.stores import Store
from core.stores.location import open_store


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "write these pages again, as after a yank or a removal"
    parser.add_argument("--write", action="store_true", help=what)
    parser.epilog = "Without --write nothing is written: pages that would change are named."


def run(arguments: argparse.Namespace) -> None:
    """Plan the pages of every such folder of the store, and refuse those that would change, or write them."""
    common = common_from(arguments)
    write = arguments.write and not common.dry_run
    store = open_store(common.store, root=common.root, dry_run=not write)
    found = {folder: planned() for folder, planned in folders(store).items()}
    if not found:
        raise MissingInputError(
            f"{store.url} has no index that stays: {'/, '.join((mirror().prefix, *documents.AREAS))}/.",
            hint="Name another place with --store.",
        )
    rows = [
        (folder, *map(str, (one.files, len(one.changed), len(one.held)))) for folder, one in found.items()
    ]
    console.table(("folder", "files", "stale pages", "not listed"), rows)
    stale = [f"{key} is not what it should be." for one in found.values() for key in one.changed]
    unlisted = [held for one in found.values() for held in one.held]
    held = [f"{one.stored.key} is not listed: {one.why}." for one in unlisted]
    if write:
        for line in held:
            console.warn(line)
        console.done(f"check_indexes: {len(stale)} pages of {len(found)} indexes written in {store.url}")
        return
    if stale or held:
        raise StoreError("\n".join([*stale, *held]), hint="Write these pages again with --write.")
    console.done(f"check_indexes: {len(found)} indexes of {store.url} list what is there")


def folders(store: Store) -> Mapping[str, Callable[[], Indexed]]:
    """List the folders whose pages stay, each with what plans its pages."""
    data = mirror()
    found: dict[str, Callable[[], Indexed]] = {}
    if store.list(data.prefix, recursive=False):
        found[data.prefix] = lambda: write_index(
            store, data.prefix, source_of(data, store), title="Dependencies"
        )
    for area in documents.AREAS:
        families = {one.key.split("/")[1] for one in store.list(f"{area}/")}
        for family in sorted(families):
            found[documents.folder(area, family)] = lambda area=area, family=family: documents.write_pages(  # type: ignore[misc]
                store, area, family, expected=()
            )
    return found
