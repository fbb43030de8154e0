"""`check-indexes`: whether pages that stay list what is there: dependencies, staging and releases.

It also yanks what is released, and removes a set that was: what names it, then pages, then files.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ci.install.dependencies import mirror
from ci.promote import documents, promotion
from ci.publish.index import YANKED, Indexed, write_index
from ci.verbs.mirror_deps import source_of
from core import console
from core.cli.options import common_from
from core.data import json_object
from core.errors import MissingInputError, StoreError, UsageError, nearest
from core.packages import offers_named
from core.stores import Store
from core.stores.location import open_store
from core.wheel.distributions import SIDECAR
from rocm_packaging.packages.layouts import is_rocm


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "write these pages again, as after a yank or a removal"
    parser.add_argument("--write", action="store_true", help=what)
    what = "a release to yank: NAME==VERSION, or a file name; with --reason and --write"
    parser.add_argument("--yank", default="", metavar="WHAT", help=what)
    parser.add_argument("--reason", default="", metavar="TEXT", help="why it is yanked, for who installs it")
    what = "a promoted set to take out of the release index, such as torch-VERSION; with --write"
    parser.add_argument("--remove", default="", metavar="SET", help=what)
    parser.epilog = "Without --write nothing is written: pages that would change are named."


def run(arguments: argparse.Namespace) -> None:
    """Plan the pages of every such folder of the store, and refuse those that would change, or write them."""
    common = common_from(arguments)
    write = arguments.write and not common.dry_run
    store = open_store(common.store, root=common.root, dry_run=not write)
    if bool(arguments.yank) != bool(arguments.reason):
        raise UsageError("A yank needs a reason.", hint="Give both: --yank NAME==VERSION --reason TEXT.")
    plans = folders(store)
    if not plans:
        raise MissingInputError(
            f"{store.url} has no index that stays: {'/, '.join((mirror().prefix, *documents.AREAS))}/.",
            hint="Name another place with --store.",
        )
    if arguments.yank:
        yank(store, arguments.yank, arguments.reason)
    gone = unname(store, arguments.remove) if arguments.remove else ()
    found = {folder: planned() for folder, planned in plans.items()}
    for key in gone:  # only now, as no page lists what is gone
        store.delete(key)
    unlisted = {folder: [it for it in one.held if it.stored.key not in gone] for folder, one in found.items()}
    counts = {folder: (one.files, len(one.changed), len(unlisted[folder])) for folder, one in found.items()}
    titles = ("folder", "files", "pages written" if write else "stale pages", "not listed")
    console.table(titles, [(folder, *map(str, row)) for folder, row in counts.items()])
    stale = [f"{key} is not what it should be." for one in found.values() for key in one.changed]
    held = [f"{one.stored.key} is not listed: {one.why}." for every in unlisted.values() for one in every]
    if write:
        for line in held:
            console.warn(line)
        done = [f"{arguments.yank} is yanked"] if arguments.yank else []
        removed = f"{arguments.remove} is removed, {console.counted(len(gone), 'file')}"
        done += [removed] if arguments.remove else []
        done.append(f"{console.counted(len(stale), 'page')} written in {store.url}")
        console.done(f"check_indexes: {'; '.join(done)}")
        return
    if arguments.yank or arguments.remove:
        console.done("check_indexes: nothing is changed yet: add --write")
        return
    if stale or held:
        raise StoreError("\n".join([*stale, *held]), hint="Write these pages again with --write.")
    console.done(f"check_indexes: the pages of {store.url} list what is there")


def yank(store: Store, what: str, reason: str) -> None:
    """Say of each release index that has it that something is yanked (PEP 592)."""
    there: dict[str, set[str]] = {}
    for key in (one.key for one in store.list(f"{documents.RELEASE}/")):
        folder, _, name = key.rpartition("/")
        for one in offers_named(name, url=key):
            there.setdefault(f"{folder}/{YANKED}", set()).update({name, f"{one.distribution}=={one.version}"})
    places = [key for key, names in there.items() if what in names]
    if not places:
        known = nearest(what, set().union(*there.values()))
        raise UsageError(f"{store.url} has released no {what}. {known}")
    for key in places:
        before = store.find(key)
        said = json_object(store.read(key).decode(), where=key) if before else {}
        data = json.dumps({**said, what: reason}, indent=2, sort_keys=True)
        store.put_bytes(key, f"{data}\n".encode(), if_match=before.etag if before else "")


def unname(store: Store, name: str) -> Sequence[str]:
    """Take away what names a promoted set, and its staging; return its files, sidecars first.

    What another set has, too, stays, and so do ROCm's packages that are staged with torch: other versions of
    it need them. Called again it goes on where it was interrupted.
    """
    every = [documents.read(store, one.key, documents.Decision) for one in store.list(documents.DECISIONS)]
    decided = [one for one in every if one.set_name == name]
    if not decided:
        known = {one.set_name for one in every}
        raise UsageError(f"{store.url} has promoted no set {name}. {nearest(name, known)}")
    going = promotion.unfinished(store)
    kept = {file.key for one in going if one.set_name != name for file in one.files}
    for key in [one.key for one in store.list(documents.manifests(documents.RELEASE))]:
        listed = documents.read(store, key, documents.ReleaseRecord)
        if listed.decision in {one.key for one in decided}:
            store.delete(key)
        else:
            kept |= {file.key for file in listed.files}
    gone = [file for one in decided for file in one.files if file.key not in kept]
    whole = name.startswith("rocm-")
    staged = {file.staged_key for file in gone if whole or not is_rocm(file.distribution)}
    for record, document in documents.staging_records(store):
        files = tuple(one for one in record.files if one.key not in staged)
        if not files:
            store.delete(document.key)
        elif files != record.files:
            store.put_bytes(document.key, documents.serialized(record.model_copy(update={"files": files})))
    there = {one.key for area in documents.AREAS for one in store.list(f"{area}/")}
    keys = sorted({file.key for file in gone} | staged)
    wanted = [f"{key}{suffix}" for suffix in (SIDECAR, "") for key in keys]
    return [key for key in wanted if key in there]


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
            pages = partial(documents.write_pages, store, area, family, expected=())
            found[documents.folder(area, family)] = pages
    return found
