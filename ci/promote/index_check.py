"""Whether pages that stay list what is there: dependencies, staging and releases.

It also yanks what is released, and removes a set that was: what names it, then pages, then files.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ci.install.dependencies import mirror, source_of
from ci.promote import documents, promotion
from ci.publish.index import YANKS_FILE, IndexUpdate, write_index
from core import console
from core.data import json_object
from core.errors import MissingInputError, StoreError, UsageError, nearest
from core.packages.candidates import candidate_named
from core.stores import Store
from core.wheel.distributions import SIDECAR
from rocm_packaging.packages.layouts import is_rocm


@dataclass(frozen=True, kw_only=True)
class Change:
    """What is asked of permanent indexes; nothing changes where they are only compared.

    Attributes:
        write: Whether pages are written.
        yanked: A release to yank, `NAME==VERSION` or a file's name; None for none.
        reason: Why it is yanked.
        removed_set: A promoted set to take out; None for none.
    """

    write: bool
    yanked: str | None
    reason: str | None
    removed_set: str | None


def check_indexes(store: Store, change: Change) -> None:
    """Compare the pages of every permanent folder of a store with its files, or write them.

    Raises:
        StoreError: A page is not what it should be, and nothing is written.
    """
    folders = permanent_folders(store)
    if not folders:
        known_folders = "/, ".join((mirror().prefix, *documents.AREAS))
        raise MissingInputError(
            f"{store.url} has no index that stays: {known_folders}/.",
            hint="Name another place with --store.",
        )

    if change.yanked is not None:
        yank(store, change.yanked, change.reason or "")
    removed_keys: Sequence[str] = ()
    if change.removed_set is not None:
        removed_keys = unname(store, change.removed_set)

    indexes = {folder: write_pages() for folder, write_pages in folders.items()}

    # Files go when no page lists them any more.
    for key in removed_keys:
        store.delete(key)

    _report(store, change, indexes, removed_keys)


def _report(
    store: Store, change: Change, indexes: Mapping[str, IndexUpdate], removed_keys: Sequence[str]
) -> None:
    """Print what was compared and written; a `StoreError` where pages are wrong and stay so."""
    rows = []
    stale_pages: list[str] = []
    unlisted_files: list[str] = []
    for folder, index in indexes.items():
        held_files = [held for held in index.held_files if held.key not in removed_keys]
        counts = (index.file_count, len(index.changed_pages), len(held_files))
        rows.append((folder, *map(str, counts)))
        stale_pages += index.changed_pages
        unlisted_files += [f"{held.key} is not listed: {held.reason}." for held in held_files]
    pages_column = "pages written" if change.write else "stale pages"
    console.table(("folder", "files", pages_column, "not listed"), rows)

    if change.write:
        for line in unlisted_files:
            console.warn(line)
        results = []
        if change.yanked is not None:
            results.append(f"{change.yanked} is yanked")
        if change.removed_set is not None:
            results.append(f"{change.removed_set} is removed, {console.counted(len(removed_keys), 'file')}")
        results.append(f"{console.counted(len(stale_pages), 'page')} written in {store.url}")
        console.done(f"index: {'; '.join(results)}")
        return

    if change.yanked is not None or change.removed_set is not None:
        console.done("index: nothing is changed yet: add --write")
        return
    if stale_pages or unlisted_files:
        problems = [f"{key} is not what it should be." for key in stale_pages]
        hint = "Write these pages again with --write."
        raise StoreError("\n".join([*problems, *unlisted_files]), hint=hint)
    console.done(f"index: the pages of {store.url} list what is there")


def yank(store: Store, what: str, reason: str) -> None:
    """Say of each release index that has it that something is yanked (PEP 592)."""
    there: dict[str, set[str]] = {}
    for key in (one.key for one in store.list(f"{documents.RELEASE}/")):
        folder, _, name = key.rpartition("/")
        candidate = candidate_named(name, url=key)
        if candidate is not None:
            pin = f"{candidate.distribution}=={candidate.version}"
            there.setdefault(f"{folder}/{YANKS_FILE}", set()).update({name, pin})
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


def permanent_folders(store: Store) -> Mapping[str, Callable[[], IndexUpdate]]:
    """List the folders whose pages stay, each with what plans its pages."""
    data = mirror()
    found: dict[str, Callable[[], IndexUpdate]] = {}
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
