"""Whether pages that stay list what is there: dependencies, staging and releases.

It also yanks what is released, and removes a set that was: what names it, then pages, then files.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from ci.install.dependencies import mirror, source_of
from ci.promote import documents
from ci.promote.documents import Decision, ReleaseRecord
from ci.publish.index import YANKS_FILE, IndexUpdate, write_index
from core import console
from core.data import json_object
from core.errors import MissingInputError, StoreError, UsageError, nearest
from core.packages.candidates import candidate_named
from core.stores import Store, etag_of
from core.wheel.distributions import SIDECAR
from rocm_packaging.packages.layouts import is_rocm


def check_indexes(
    store: Store,
    *,
    write: bool,
    yanked: str | None,
    reason: str | None,
    removed_set: str | None,
) -> None:
    """Compare the pages of every permanent folder of a store with its files, or write them.

    Args:
        store: The store; nothing changes where it is a dry run.
        write: Whether pages are written.
        yanked: A release to yank, `NAME==VERSION` or a file's name; None for none.
        reason: Why it is yanked.
        removed_set: A promoted set to take out; None for none.

    Raises:
        StoreError: A page is not what it should be, and nothing is written.
    """
    folders = permanent_folders(store)
    if not folders:
        known_folders = "/, ".join((mirror().prefix, *documents.AREAS))
        raise MissingInputError(
            f"{store.url} has no index that stays: {known_folders}/.", hint="Name another place with --store."
        )

    changes: list[str] = []
    removed_keys: Sequence[str] = ()
    if yanked is not None:
        yank(store, yanked, reason or "")
        changes.append(f"{yanked} is yanked")
    if removed_set is not None:
        removed_keys = unname_set(store, removed_set)
        changes.append(f"{removed_set} is removed, {console.counted(len(removed_keys), 'file')}")

    indexes = {folder: write_pages() for folder, write_pages in folders.items()}

    # Files go when no page lists them any more.
    for key in removed_keys:
        store.delete(key)

    _report(store, indexes, changes, removed_keys, write=write)


def permanent_folders(store: Store) -> Mapping[str, Callable[[], IndexUpdate]]:
    """List the folders whose pages stay, each with what writes its pages."""
    folders: dict[str, Callable[[], IndexUpdate]] = {}
    prefix = mirror().prefix
    if store.list(prefix, recursive=False):
        source = source_of(mirror(), store)
        folders[prefix] = partial(write_index, store, prefix, source, title="Dependencies")

    for area in documents.AREAS:
        keys = documents.list_keys(store, f"{area}/")
        artifact_groups = {key.split("/")[1] for key in keys}
        for artifact_group in sorted(artifact_groups):
            write_pages = partial(documents.write_pages, store, area, artifact_group, expected=())
            folders[documents.folder(area, artifact_group)] = write_pages
    return folders


def _report(
    store: Store,
    indexes: Mapping[str, IndexUpdate],
    changes: Sequence[str],
    removed_keys: Sequence[str],
    *,
    write: bool,
) -> None:
    """Print what was compared and written; a `StoreError` where pages are wrong and stay so."""
    rows = []
    stale_pages: list[str] = []
    unlisted_files: list[str] = []
    for folder, index in indexes.items():
        held_back_keys = [key for key in index.held_back_files if key not in removed_keys]
        counts = (index.file_count, len(index.changed_pages), len(held_back_keys))
        rows.append((folder, *map(str, counts)))
        stale_pages += index.changed_pages
        unlisted_files += [f"{key} is not listed: {index.held_back_files[key]}." for key in held_back_keys]
    pages_column = "pages written" if write else "stale pages"
    console.table(("folder", "files", pages_column, "not listed"), rows)

    if write:
        for line in unlisted_files:
            console.warn(line)
        page_count = console.counted(len(stale_pages), "page")
        console.done(f"index: {'; '.join([*changes, f'{page_count} written in {store.url}'])}")
        return

    if changes:
        console.done("index: nothing is changed yet: add --write")
        return
    if stale_pages or unlisted_files:
        problems = [f"{key} is not what it should be." for key in stale_pages]
        hint = "Write these pages again with --write."
        raise StoreError("\n".join([*problems, *unlisted_files]), hint=hint)
    console.done(f"index: the pages of {store.url} list what is there")


def _hint_of_name(name: str, known_names: Collection[str]) -> str:
    """Return what to name in the place of what was not released."""
    if known_names:
        return nearest(name, known_names)
    return "Nothing is released there. Name another place with --store, or promote a set first."


# Yanking


def yank(
    store: Store,
    release: str,
    reason: str,
) -> None:
    """Say of each release index that has a release or a file that it is yanked (PEP 592)."""
    names_by_folder = _released_names(store)
    folders = [folder for folder, names in names_by_folder.items() if release in names]
    if not folders:
        known_names = set().union(*names_by_folder.values())
        raise UsageError(f"{store.url} has released no {release}.", hint=_hint_of_name(release, known_names))

    for folder in folders:
        key = f"{folder}/{YANKS_FILE}"
        stored_object = store.find(key)
        yanks = {}
        if stored_object is not None:
            yanks = json_object(store.read(key).decode(errors="replace"), where=key)
        content = json.dumps(
            {**yanks, release: reason},
            indent=2,
            sort_keys=True,
        )
        store.put_bytes(key, f"{content}\n".encode(), if_match=etag_of(stored_object))


def _released_names(store: Store) -> Mapping[str, Collection[str]]:
    """Return what can be yanked in each release index: ``NAME==VERSION``, and names of files."""
    names: defaultdict[str, set[str]] = defaultdict(set)
    for key in documents.list_keys(store, f"{documents.RELEASE}/"):
        folder, _, filename = key.rpartition("/")
        candidate = candidate_named(filename, url=key)
        if candidate is not None:
            names[folder] |= {filename, f"{candidate.distribution}=={candidate.version}"}
    return names


# Removing


def unname_set(store: Store, set_name: str) -> Sequence[str]:
    """Take away what names a promoted set, and its staging; return its files, sidecars first.

    What another set has, too, stays, and so do ROCm's packages that are staged with torch: other versions of
    it need them. Called again it goes on where it was interrupted.
    """
    all_decisions = documents.decisions(store)
    set_decisions = [decision for decision in all_decisions if decision.set_name == set_name]
    if not set_decisions:
        known_sets = {decision.set_name for decision in all_decisions}
        raise UsageError(
            f"{store.url} has promoted no set {set_name}.", hint=_hint_of_name(set_name, known_sets)
        )

    kept_keys = _keys_of_other_sets(store, set_name, set_decisions)
    removed_keys: set[str] = set()
    staged_keys: set[str] = set()
    for decision in set_decisions:
        for file in decision.files:
            if file.key in kept_keys:
                continue
            removed_keys.add(file.key)
            if set_name.startswith("rocm-") or not is_rocm(file.distribution):
                staged_keys.add(file.staged_key)
    _unname_staged(store, staged_keys)

    keys = sorted(removed_keys | staged_keys)
    sidecar_keys = [f"{key}{SIDECAR}" for key in keys]
    present_keys = frozenset(documents.released_and_staged_keys(store))
    return [key for key in (*sidecar_keys, *keys) if key in present_keys]


def _keys_of_other_sets(
    store: Store,
    set_name: str,
    set_decisions: Sequence[Decision],
) -> set[str]:
    """Delete what the release indexes list of a set; return the keys that stay for others."""
    kept_keys: set[str] = set()
    for intent in documents.unfinished(store):
        if intent.set_name != set_name:
            kept_keys |= documents.keys_of(intent.files)

    decision_keys = {decision.key for decision in set_decisions}
    for key in documents.list_keys(store, documents.manifests(documents.RELEASE)):
        record = documents.read(store, key, ReleaseRecord)
        if record.decision in decision_keys:
            store.delete(key)
        else:
            kept_keys |= documents.keys_of(record.files)
    return kept_keys


def _unname_staged(store: Store, keys: Collection[str]) -> None:
    """Take files out of the staging records that name them."""
    for record, document in documents.staging_records(store):
        files = tuple(file for file in record.files if file.key not in keys)
        if not files:
            store.delete(document.key)
        elif files != record.files:
            remaining = record.model_copy(update={"files": files})
            store.put_bytes(document.key, documents.serialized(remaining))
