"""What a listing shows of a folder that is indexed: its pages, its records, and its files by project."""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from sys import intern

from ci.publish.index.files import StoredFile
from ci.publish.index.names import DISTRIBUTION_SUFFIXES, SIDECAR_SUFFIX, guess_project
from ci.publish.index.sources import Source, join_key
from ci.publish.index.yanks import YANKS_FILE
from core.stores import Store, Stored

FLAT_PAGE = "index.html"
ROOT_FOLDER = "simple/"
ROOT_PAGE = f"{ROOT_FOLDER}index.json"
# Versions of this program before the pages were their own state had it in a file.
_FORMER_STATE = f"{ROOT_FOLDER}index-state.txt"

_PAGE_KEY = re.compile(
    rf"""
    (?:.*/)?                                # the folder that is indexed
    (?:
        {FLAT_PAGE}
        |
        {ROOT_FOLDER}
        (?:[a-z0-9-]+/)?                    # a project's folder: its normalised name (PEP 503)
        (?:index\.(?:html|json))?           # absent from a page under the name of its folder
        |
        {re.escape(_FORMER_STATE)}
    )
    """,
    re.VERBOSE,
)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a folder holds.

    Attributes:
        pages: The pages of its index, by their paths in it.
        record_etags: The records that name its files, by key.
        projects: The wheels and sdists by project, sorted by name.
        yanks_file: The file that says what is yanked.
    """

    pages: Mapping[str, Stored]
    record_etags: Mapping[str, str]
    projects: Mapping[str, Sequence[StoredFile]]
    yanks_file: Stored | None

    @property
    def file_count(self) -> int:
        """How many wheels and sdists there are."""
        return sum(len(stored_files) for stored_files in self.projects.values())

    def filenames(self) -> set[str]:
        """Return the names of the wheels and sdists."""
        filenames: set[str] = set()
        for stored_files in self.projects.values():
            filenames.update(stored_file.filename for stored_file in stored_files)
        return filenames

    def has_same_files(self, other: "Listing") -> bool:
        """Return whether another listing shows the same, apart from pages."""
        return (
            self.record_etags == other.record_etags
            and self.projects == other.projects
            and self.yanks_file == other.yanks_file
        )


def is_page(key: str) -> bool:
    """Return whether a key is that of a page of some index: no file to list."""
    return _PAGE_KEY.fullmatch(key) is not None


def list_folder(
    store: Store,
    prefix: str,
    source: Source,
) -> Listing:
    """Return what a folder holds, listed in an order in which no change goes unnoticed.

    Pages are listed first. A page that another process writes after that has an ETag that we do not know, so
    our own write of it fails, and everything is listed again.

    Records are listed before files. A record is uploaded after the files that it names, so the listing of
    files has them all.
    """
    pages = _list_pages(store, prefix)
    record_etags = source.list_records()
    stored_objects = store.list(prefix, recursive=False)
    return Listing(
        pages=pages,
        record_etags=record_etags,
        projects=_group_files(stored_objects, prefix),
        yanks_file=_find_key(stored_objects, join_key(prefix, YANKS_FILE)),
    )


def _list_pages(store: Store, prefix: str) -> Mapping[str, Stored]:
    pages: dict[str, Stored] = {}
    for stored_object in store.list(join_key(prefix, ROOT_FOLDER.rstrip("/"))):
        path = stored_object.key.removeprefix(join_key(prefix, ""))
        if is_page(path):
            pages[path] = stored_object

    flat_page = store.find(join_key(prefix, FLAT_PAGE))
    if flat_page is not None:
        pages[FLAT_PAGE] = flat_page
    return pages


def _group_files(stored_objects: Sequence[Stored], prefix: str) -> Mapping[str, Sequence[StoredFile]]:
    """Return wheels and sdists by project, each with the ETag of its sidecar."""
    prefix_length = len(join_key(prefix, ""))
    sidecar_etags: dict[str, str] = {}
    for stored_object in stored_objects:
        if stored_object.key.endswith(SIDECAR_SUFFIX):
            sidecar_etags[stored_object.key] = stored_object.etag

    projects: dict[str, list[StoredFile]] = defaultdict(list)
    for key, size, etag, modified, _sha256 in stored_objects:
        if not key.endswith(DISTRIBUTION_SUFFIXES):
            continue
        filename = intern(key[prefix_length:])
        sidecar_etag = sidecar_etags.get(f"{key}{SIDECAR_SUFFIX}")
        projects[guess_project(filename)].append(
            StoredFile(filename, size, int(modified), etag, sidecar_etag)
        )

    return dict(projects)


def _find_key(stored_objects: Sequence[Stored], key: str) -> Stored | None:
    # Listings are sorted by key, and some have a hundred thousand files.
    position = bisect_left(stored_objects, key, key=attrgetter("key"))
    if position < len(stored_objects) and stored_objects[position].key == key:
        return stored_objects[position]
    return None
