"""Write the index of a folder of wheels and sdists, from listings and from what says what they are.

What another layout needs (a release's prefix, a Lambda behind events)::

    source = Records(store=store, prefix="9-linux/manifests/gfx110X-all")
    write_index(store, "9-linux/python/gfx110X-all", source, title="gfx110X-all (9-linux)")

`prefix` is where files and pages lie; `source` (`ci.publish.index.sources`) gives digests and metadata:
`Records` from a run's records, `Files` from the files themselves. A wheel is listed once something names
it and its metadata sidecar is there; until then it is held back, so that no page lists a wheel that is
half published. To take a file away: first what names it, then the index, then the file.

Pages are replaced by conditional writes. Projects' pages come before the pages that lead to them, and go
after; what the index remembers is written last, so that it never claims a page that does not exist. After a
conflict all is listed again; after a success, too, and the pages are written again where something
appeared meanwhile: that also repairs what a server lost that ignores conditions.

Standard library, packaging and the store's own needs only, so that a Lambda can import this.
"""

import hashlib
import json
import random
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from operator import itemgetter

from packaging.version import Version

from ci.publish.index import pages
from ci.publish.index.catalog import Catalog, Held, Snapshot, key_in, seen_of
from ci.publish.index.pages import FLAT, SIMPLE, normalised, page_format, read_name
from ci.publish.index.sources import Carried, Files, Records, Source, is_local
from ci.publish.index.state import Page, State, dump, load
from core import console
from core.errors import ConflictError, DataError, FatalError, MissingInputError, StoreError, WheelError
from core.parallel import JOBS, each
from core.stores import Content, Store, Stored, whole

__all__ = ["Carried", "Files", "Held", "Indexed", "Records", "is_page", "write_index"]

YANKED = "yanked.json"
STATE = f"{SIMPLE}/index-state.txt"

_ROOT = f"{SIMPLE}/"
_PAGE = re.compile(rf"(?:.*/)?(?:{FLAT}|{_ROOT}(?:[a-z0-9-]+/)?(?:index\.(?:html|json))?|{re.escape(STATE)})")
_MD5 = re.compile(r"[0-9a-f]{32}")
_TRIES = 100
_LONGEST_PAUSE = 4.0


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """What `write_index` did."""

    files: int
    written: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    held: tuple[Held, ...] = ()

    @property
    def changed(self) -> tuple[str, ...]:
        """The pages that were written, and those that went."""
        return (*self.written, *self.removed)


@dataclass(frozen=True, kw_only=True)
class _Changes:
    """What is to be written, in this order, pages made only then; and the pages that stay."""

    projects: dict[str, Callable[[], Content]]
    roots: dict[str, Callable[[], Content]]
    stale: Sequence[str]
    state: State | None
    pages: dict[str, Page]


def is_page(key: str) -> bool:
    """Whether a key is a page of some index, or what an index remembers: nothing to index."""
    return _PAGE.fullmatch(key) is not None


def write_index(store: Store, prefix: str, source: Source, *, title: str, strict: bool = True) -> Indexed:
    """Make the pages of a folder list what is there; nothing is written where they do."""
    writer = _Writer(store, prefix)
    for attempt in range(_TRIES):
        found = _snapshot(store, prefix, source)
        old = _remembered(store, prefix, found)
        try:
            yanked = _read_yanked(store, found.yanked)
            catalog = Catalog(
                store=store, prefix=prefix, source=source, old=old, found=found, yanked=yanked, strict=strict
            )
            new = catalog.listed(title)
        except FatalError:
            # perhaps of what was just being changed
            if found != _snapshot(store, prefix, source):
                _pause(attempt)
                continue
            raise
        folders = _ROOT in old.pages or store.keeps_folder_pages(prefix)
        todo = _changes(catalog, new, folders=folders)
        try:
            writer.write(todo, found.pages)
        except ConflictError:
            console.say("Another process wrote a page meanwhile; listing again.")
            _pause(attempt)
            continue
        # a folder's conditions hold; files that were read had their sidecars written
        if todo is None or catalog.sure or found == _snapshot(store, prefix, source):
            _warn_of_idle(new, f"{store.url}/{key_in(prefix, YANKED)}")
            return Indexed(
                files=sum(project.count for project in new.projects.values()),
                written=tuple(writer.written),
                removed=tuple(writer.removed),
                held=tuple(catalog.held),
            )
    raise StoreError(
        f"The pages of {store.url}/{prefix} were written by others {_TRIES} times.",
        hint="Run nox -s index again when the run's uploads have ended.",
    )


def _pause(attempt: int) -> None:
    # a random part of a growing time, so that many writers do not meet again
    longest = min(_LONGEST_PAUSE, 0.05 * 2 ** min(attempt, 8))
    time.sleep(random.uniform(0, longest))  # noqa: S311 - nothing is secret about it


def _snapshot(store: Store, prefix: str, source: Source) -> Snapshot:
    """List pages, documents and files, in this order.

    Pages first: who writes one after this has listed later, and its etag then stops us. Documents
    before files: what they name was there before them.
    """
    cut = len(key_in(prefix, ""))
    there = {stored.key[cut:]: stored for stored in store.list(key_in(prefix, SIMPLE))}
    if flat := store.find(key_in(prefix, FLAT)):
        there[FLAT] = flat
    documents = source.documents()
    listed = store.list(prefix, recursive=False)
    at = bisect_left(listed, key_in(prefix, YANKED), key=itemgetter(0))
    yanked = next((one for one in listed[at : at + 1] if one.key == key_in(prefix, YANKED)), None)
    return Snapshot(pages=there, documents=documents, files=seen_of(listed, prefix), yanked=yanked)


def _remembered(store: Store, prefix: str, found: Snapshot) -> State:
    """Read what the index remembers; nothing of another form, so that all is written anew."""
    if STATE not in found.pages:
        return State()
    try:
        state = load(store.read(key_in(prefix, STATE)))
    except MissingInputError:
        return State()  # it went meanwhile
    return state if state is not None and state.form == page_format() else State()


def _read_yanked(store: Store, stored: Stored | None) -> Mapping[str, str]:
    """Read why files are yanked (PEP 592): file name, or ``name==version``, to reason."""
    if stored is None:
        return {}
    try:
        reasons = json.loads(store.read(stored.key))
        # pages are UTF-8, which not every text of JSON is
        return {_yanked_key(one): " ".join(why.encode().decode().split()) for one, why in reasons.items()}
    except (ValueError, AttributeError, RecursionError, WheelError) as problem:
        raise DataError(
            f"{store.url}/{stored.key} does not say what is yanked: {problem}",
            hint='Write file names, or name==version, and why: {"torch==2.10.0": "broken on gfx90a"}.',
        ) from problem


def _yanked_key(text: str) -> str:
    name, equal, version = text.partition("==")
    if not equal:
        read_name(text)
        return text
    return f"{normalised(name.strip())}=={Version(version.strip())}"


def _warn_of_idle(state: State, where: str) -> None:
    """Name what is yanked and not listed: misspelt perhaps, or gone, to be yanked when it comes again."""
    projects = state.projects.values() if state.yanked else ()
    listed = {line.promise.key for project in projects for line in project.lines()}
    versions = {f"{one.name}=={one.release}" for one in map(read_name, listed)}
    for key in sorted(state.yanked.keys() - listed - versions):
        close = get_close_matches(key, versions if "==" in key else listed, n=1, cutoff=0.8)
        guess = f" Did you mean {close[0]!r}?" if close else ""
        console.warn(f"{where}: nothing is listed for {key!r}, which it yanks.{guess}")


def _changes(catalog: Catalog, new: State, *, folders: bool) -> _Changes | None:
    """Return which pages change; None where nothing does."""
    old, present = catalog.old, catalog.found.pages
    if not new.projects and not present:
        return None
    paths = {name: _paths(f"{_ROOT}{name}/", folders=folders) for name in new.projects}
    at_root = _paths(_ROOT, folders=folders)
    expected = {*at_root, FLAT, *(path for both in paths.values() for path in both)}
    broken = _broken(old.pages, present, expected)
    # how a project was listed may differ although the pages say the same
    other = {
        name
        for name, one in new.projects.items()
        if one is not (was := old.projects.get(name))
        and (was is None or one.rows != was.rows or one.facts != was.facts)
    }
    projects: dict[str, Callable[[], Content]] = {}
    for name, project in new.projects.items():
        if name in other or broken.intersection(paths[name]):
            entries = catalog.entries.pop(name, None) or catalog.remembered(project.lines())
            html = partial(pages.project_html, name, project.newest, project.rows)
            said = partial(pages.project_json, name, entries)
            projects |= zip(paths[name], (html, said, html), strict=False)
    renamed = new.projects.keys() != old.projects.keys()
    roots: dict[str, Callable[[], Content]] = {}
    if renamed or broken.intersection(at_root):
        html, names = (partial(page, new.projects) for page in (pages.root_html, pages.root_json))
        roots |= zip(at_root, (html, names, html), strict=False)
    if other or renamed or FLAT in broken or new.title != old.title:
        blocks = (pages.flat_block(name, one.newest, one.rows) for name, one in new.projects.items())
        files = sum(one.count for one in new.projects.values())
        roots[FLAT] = partial(pages.flat_page, new.title, files, blocks)
    stale = sorted(path for path in present if path not in expected and path != STATE and is_page(path))
    same = STATE in present and new == replace(old, pages={}, pending=list(old.pending))
    if same and not (projects or roots or stale):
        return None
    kept = {path: page for path, page in old.pages.items() if path in expected}
    state = None if same and not (projects or roots) else new
    return _Changes(projects=projects, roots=roots, stale=stale, state=state, pages=kept)


def _paths(folder: str, *, folders: bool) -> tuple[str, ...]:
    return (f"{folder}index.html", f"{folder}index.json", *([folder] if folders else []))


def _broken(known: Mapping[str, Page], present: Mapping[str, Stored], expected: set[str]) -> set[str]:
    """Name the pages that do not exist as they were written."""
    etags = {path: present[path].etag.strip('"') for path in expected if path in present}
    # an etag is the MD5 of what was put only in some stores
    comparable = any(etag == known[path].md5 for path, etag in etags.items() if path in known)
    return {
        path
        for path in expected
        if path not in known
        or path not in etags
        or present[path].size != known[path].size
        or (comparable and known[path].md5 and _MD5.fullmatch(etags[path]) and etags[path] != known[path].md5)
    }


@dataclass
class _Writer:
    """Writes pages by condition."""

    store: Store
    prefix: str
    written: dict[str, None] = field(default_factory=dict)
    removed: dict[str, None] = field(default_factory=dict)
    pages: dict[str, Page] = field(default_factory=dict)

    def write(self, todo: _Changes | None, present: Mapping[str, Stored]) -> None:
        """Write what changes."""
        if todo is None:
            return
        self.pages = dict(todo.pages)
        jobs = 1 if is_local(self.store) else JOBS
        each(lambda path: self._put(path, todo.projects.pop(path)(), present), list(todo.projects), jobs=jobs)
        for path in list(todo.roots):
            self._put(path, todo.roots.pop(path)(), present)
        for path in todo.stale:
            self.store.delete(key_in(self.prefix, path))
            self.removed[key_in(self.prefix, path)] = None
        if todo.state is not None and console.SCREEN.held is None:  # a look finds the same without it
            written = dict(sorted(self.pages.items()))
            self._put(STATE, dump(replace(todo.state, pages=written)), present)

    def _put(self, path: str, data: Content, present: Mapping[str, Stored]) -> None:
        key, etag = key_in(self.prefix, path), present[path].etag if path in present else ""
        # of the flat page, which is large, its size tells what was lost
        named = isinstance(data, bytes) and not is_local(self.store)
        md5 = hashlib.md5(whole(data), usedforsecurity=False).hexdigest() if named else ""
        self.pages[path] = Page(len(data) if isinstance(data, bytes) else sum(map(len, data)), md5)
        if self.store.put_bytes(key, data, if_match=etag) != "unchanged" and path != STATE:
            self.written[key] = None
