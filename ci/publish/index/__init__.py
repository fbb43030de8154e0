"""Write the index of a folder of wheels and sdists, from listings and from what says what they are.

What another layout needs (a release's prefix, a Lambda behind events)::

    source = Records(store=store, prefix="9-linux/manifests/gfx110X-all")
    write_index(store, "9-linux/python/gfx110X-all", source, title="gfx110X-all (9-linux)")

`prefix` is where files and pages lie; `source` (`ci.publish.index.sources`) gives digests and metadata:
`Records` from JSON documents of any form (`parse`), `Files` from the files themselves. A wheel is
listed once something names it and its metadata sidecar is there; until then it is held back, so
that no page lists a wheel that is half published. To take a file away: first what names it, then
the index, then the file.

Pages are replaced by conditional writes, projects' pages first, what remembers them last. After a
conflict all is listed again; after a success, too, and the pages are written again where something
appeared meanwhile: that also mends what a server lost that ignores conditions.

Standard library, packaging and the store's own needs only, so that a Lambda can import this.
"""

from __future__ import annotations

import json
import random
import time
from bisect import bisect_left
from dataclasses import dataclass
from operator import attrgetter, eq
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from ci.publish.index.catalog import Asked, Held, key_in, merge, seen_of
from ci.publish.index.changes import STATE, Writer, changes, is_page
from ci.publish.index.pages import FLAT, SIMPLE, page_format, read_name
from ci.publish.index.sources import Files, Promise, Records, Source, digest_in, is_local
from ci.publish.index.state import State, load
from core import console
from core.errors import ConflictError, DataError, FatalError, MissingInputError, StoreError, WheelError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ci.publish.index.catalog import Listed
    from core.stores import Store, Stored

__all__ = ["Files", "Held", "Indexed", "Promise", "Records", "Source", "is_page", "write_index"]

YANKED = "yanked.json"

_KEY, _ETAG = attrgetter("key"), attrgetter("etag")
_TRIES = 100
_LONGEST_PAUSE = 4.0


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """What `write_index` did."""

    files: int
    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    held: tuple[Held, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Snapshot:
    """What there is: pages by path, what names files, what else lies directly in the folder."""

    pages: Mapping[str, Stored]
    documents: Mapping[str, str]
    found: Sequence[Stored]

    def same(self, other: _Snapshot) -> bool:
        """Say whether an index of the one is an index of the other."""
        return (
            self.documents == other.documents
            and len(self.found) == len(other.found)
            # by etags alone: no file's bytes are another's, as a wheel holds its name
            and all(map(eq, map(_ETAG, self.found), map(_ETAG, other.found)))
        )

    def has(self, key: str) -> bool:
        """Say whether an object lies directly in the folder."""
        return _place(self.found, key) is not None


def write_index(store: Store, prefix: str, source: Source, *, title: str, strict: bool = True) -> Indexed:
    """Make the pages of a folder list what is there; nothing is written where they do."""
    writer = Writer(store, prefix)
    for attempt in range(_TRIES):
        found = _snapshot(store, prefix, source)
        old = _remembered(store, prefix, found)
        try:
            listed, yanked = _listed(store, prefix, found, old, source, strict=strict)
        except FatalError:
            # perhaps of what somebody was just changing
            if not found.same(_snapshot(store, prefix, source)):
                _pause(attempt)
                continue
            raise
        new = State(
            form=page_format(),
            title=title,
            yanked=yanked,
            documents=listed.documents,
            projects=listed.projects,
            pending=listed.pending,
        )
        folders = f"{SIMPLE}/" in old.pages or store.keeps_folder_pages(prefix)
        todo = changes(old, new, found.pages, folders=folders, md5=not is_local(store))
        try:
            writer.write(todo, found.pages)
        except ConflictError:
            console.say("Somebody else wrote a page meanwhile; listing again.")
            _pause(attempt)
            continue
        # a folder's conditions hold; files that were read had their sidecars written
        settled = not todo or (is_local(store) and source.names_files)
        if settled or found.same(_snapshot(store, prefix, source)):
            return Indexed(
                files=sum(project.count for project in listed.projects.values()),
                written=tuple(writer.written),
                removed=tuple(writer.removed),
                held=tuple(listed.held),
            )
    raise StoreError(
        f"The pages of {store.url}/{prefix} were written by others {_TRIES} times.",
        hint="Run nox -s index again when the run's uploads have ended.",
    )


def _pause(attempt: int) -> None:
    # a random part of a growing time, so that many writers do not meet again
    longest = min(_LONGEST_PAUSE, 0.05 * 2 ** min(attempt, 8))
    time.sleep(random.uniform(0, longest))  # noqa: S311 - nothing is secret about it


def _place(listing: Sequence[Stored], key: str) -> int | None:
    """Find a key in a listing, which is sorted by them."""
    place = bisect_left(listing, key, key=_KEY)
    return place if place < len(listing) and listing[place].key == key else None


def _snapshot(store: Store, prefix: str, source: Source) -> _Snapshot:
    """List pages, documents and files, in this order.

    Pages first: who writes one after this has listed later, and its etag then stops us. Documents
    before files: what they name was there before them.
    """
    cut = len(prefix) + 1 if prefix else 0
    flat_key = key_in(prefix, FLAT)
    pages = {stored.key[cut:]: stored for stored in store.list(key_in(prefix, SIMPLE))}
    flat = store.find(flat_key)
    if flat is not None:
        pages[FLAT] = flat
    documents = source.documents()
    found = list(store.list(prefix, recursive=False))
    place = _place(found, flat_key)
    if place is not None:
        del found[place]
    return _Snapshot(pages=pages, documents=documents, found=found)


def _listed(
    store: Store, prefix: str, found: _Snapshot, old: State, source: Source, *, strict: bool
) -> tuple[Listed, Mapping[str, str]]:
    reasons = key_in(prefix, YANKED)
    yanked = _read_yanked(store, reasons) if found.has(reasons) else {}
    asked = Asked(
        prefix=prefix,
        url=store.url,
        old=old,
        documents=found.documents,
        files=seen_of(found.found, prefix),
        yanked=yanked,
        strict=strict,
        digest=digest_in(store),
        always_hashed=is_local(store),
    )
    return merge(asked, source), yanked


def _remembered(store: Store, prefix: str, found: _Snapshot) -> State:
    """Read what the index remembers; nothing of another form, so that all is written anew."""
    if STATE not in found.pages:
        return State()
    try:
        state = load(store.read(key_in(prefix, STATE)))
    except MissingInputError:
        return State()  # it went meanwhile
    return state if state is not None and state.form == page_format() else State()


def _read_yanked(store: Store, key: str) -> Mapping[str, str]:
    """Read why files are yanked (PEP 592): file name, or ``name==version``, to reason."""
    try:
        said = json.loads(store.read(key))
        return {_yanked_key(one): " ".join(why.split()) for one, why in said.items()}
    except (ValueError, AttributeError, WheelError) as problem:
        raise DataError(
            f"{store.url}/{key} does not say what is yanked: {problem}",
            hint='Write file names, or name==version, and why: {"torch==2.10.0": "broken on gfx90a"}.',
        ) from problem


def _yanked_key(text: str) -> str:
    name, equal, version = text.partition("==")
    if not equal:
        read_name(text)
        return text
    return f"{canonicalize_name(name.strip())}=={Version(version.strip())}"
