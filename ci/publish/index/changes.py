"""Which pages of an index change, and in which order they are written.

Projects' pages come before the pages that lead to them, and go after; what the index remembers is
written last, so that it never claims a page that is not there.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ci.publish.index.catalog import entries_of, key_in
from ci.publish.index.pages import FLAT, SIMPLE, flat_block, flat_page, project_pages, root_pages
from ci.publish.index.sources import is_local
from ci.publish.index.state import Page, State, dump
from core.errors import ConflictError
from core.parallel import JOBS, each

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ci.publish.index.state import Project
    from core.stores import Store, Stored

STATE = f"{SIMPLE}/index-state.txt"

_PAGE = re.compile(
    rf"(?:.*/)?(?:{FLAT}|{SIMPLE}/(?:[a-z0-9-]+/)?(?:index\.(?:html|json))?|{re.escape(STATE)})"
)
_ROOT = f"{SIMPLE}/"
_MD5 = re.compile(r"[0-9a-f]{32}")


def is_page(key: str) -> bool:
    """Say whether a key is a page of some index, or what an index remembers: nothing to index."""
    return _PAGE.fullmatch(key) is not None


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What is to be written, in this order."""

    projects: Mapping[str, bytes]
    roots: Mapping[str, bytes]
    flat: bytes | None
    stale: Sequence[str]
    state: State | None

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.projects or self.roots or self.flat is not None or self.stale or self.state)


def changes(
    old: State, new: State, present: Mapping[str, Stored], *, folders: bool = False, md5: bool = True
) -> Changes:
    """Say which pages change."""
    if not new.projects and not present:
        return Changes(projects={}, roots={}, flat=None, stale=(), state=None)
    paths = {name: _paths(f"{_ROOT}{name}/", folders=folders) for name in new.projects}
    at_root = _paths(_ROOT, folders=folders)
    expected = {*at_root, FLAT, *(path for both in paths.values() for path in both)}
    broken = _broken(old.pages, present, expected)
    other = {name for name, project in new.projects.items() if _differ(project, old.projects.get(name))}
    projects: dict[str, bytes] = {}
    for name in new.projects:
        if name in other or broken.intersection(paths[name]):
            project = new.projects[name]
            pages = project_pages(name, entries_of(name, project, new.yanked), project.html())
            projects |= _encoded(pages, folders=folders)
    renamed = new.projects.keys() != old.projects.keys()
    roots = _encoded(root_pages(list(new.projects)), folders=folders)
    roots = roots if renamed or broken.intersection(at_root) else {}
    flat = _flat(new) if other or renamed or FLAT in broken or new.title != old.title else None
    stale = sorted(path for path in present if path not in expected and path != STATE and is_page(path))
    written = {**projects, **roots, **({FLAT: flat} if flat is not None else {})}
    remembered = State(
        form=new.form,
        title=new.title,
        yanked=new.yanked,
        pages={
            path: _page(written[path], md5=md5 and path != FLAT) if path in written else old.pages[path]
            for path in sorted(expected)
        },
        documents=new.documents,
        projects=new.projects,
        pending=new.pending,
    )
    same = not written and STATE in present and _without_pages(remembered) == _without_pages(old)
    return Changes(projects=projects, roots=roots, flat=flat, stale=stale, state=None if same else remembered)


def _paths(folder: str, *, folders: bool) -> tuple[str, ...]:
    return (f"{folder}index.html", f"{folder}index.json", *([folder] if folders else []))


def _encoded(pages: Mapping[str, str], *, folders: bool) -> dict[str, bytes]:
    found = {path: page.encode() for path, page in pages.items()}
    if folders:
        name = "index.html"
        found |= {path.removesuffix(name): page for path, page in found.items() if path.endswith(name)}
    return found


def _differ(project: Project, old: Project | None) -> bool:
    # how it was listed may differ although the pages say the same
    return project is not old and (old is None or project.rows != old.rows or project.facts != old.facts)


def _without_pages(state: State) -> tuple[object, ...]:
    seen = {name: project.seen for name, project in state.projects.items()}
    return state.form, state.title, state.yanked, state.documents, state.pending, seen


def _flat(state: State) -> bytes:
    blocks = [flat_block(name, one.newest, one.rows) for name, one in state.projects.items()]
    return flat_page(state.title, sum(one.count for one in state.projects.values()), blocks)


def _page(data: bytes, *, md5: bool) -> Page:
    # of the flat page, which is large, its size tells what was lost
    return Page(len(data), hashlib.md5(data, usedforsecurity=False).hexdigest() if md5 else "")


def _broken(known: Mapping[str, Page], present: Mapping[str, Stored], expected: set[str]) -> set[str]:
    """Name the pages that are not there as they were written."""
    etags = {path: present[path].etag.strip('"') for path in expected if path in present}
    # an etag is the MD5 of what was put only in some stores
    told = any(etag == known[path].md5 for path, etag in etags.items() if path in known)
    return {
        path
        for path in expected
        if path not in known
        or path not in etags
        or present[path].size != known[path].size
        or (told and known[path].md5 and _MD5.fullmatch(etags[path]) and etags[path] != known[path].md5)
    }


@dataclass
class Writer:
    """Writes pages by condition, and remembers conditions that held and were refused all the same."""

    store: Store
    prefix: str
    written: dict[str, None] = field(default_factory=dict)
    removed: dict[str, None] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)

    def write(self, todo: Changes, present: Mapping[str, Stored]) -> None:
        """Write what changes."""
        jobs = 1 if is_local(self.store) else JOBS
        each(lambda path: self._put(path, todo.projects[path], present), todo.projects, jobs=jobs)
        for path, page in todo.roots.items():
            self._put(path, page, present)
        if todo.flat is not None:
            self._put(FLAT, todo.flat, present)
        for path in todo.stale:
            self.store.delete(key_in(self.prefix, path))
            self.removed[key_in(self.prefix, path)] = None
        if todo.state is not None:
            self._put(STATE, dump(todo.state), present)

    def _put(self, path: str, data: bytes, present: Mapping[str, Stored]) -> None:
        key, etag = key_in(self.prefix, path), present[path].etag if path in present else ""
        # some servers refuse an If-Match that holds; then the listing afterwards has to do
        condition = None if self._refused.get(path) == etag else etag
        try:
            outcome = self.store.put_bytes(key, data, if_match=condition)
        except ConflictError:
            self._refused[path] = etag
            raise
        if outcome != "unchanged" and path != STATE:
            self.written[key] = None
