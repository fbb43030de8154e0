"""Which projects of an index have to be looked at, and what their pages become.

Nothing is read or written here.

The command, an upload, and the function behind a bucket's events all decide by these functions alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ci.publish.index.files import PageFile, RecordedFile, StoredFile
from ci.publish.index.html_pages import (
    page_format,
    render_project_html,
    render_rows,
    render_section,
    requirement_of,
)
from ci.publish.index.json_pages import RootPage, digest_of, render_project_json
from ci.publish.index.listing import FLAT_PAGE, ROOT_FOLDER, ROOT_PAGE, Listing
from ci.publish.index.sources import best_recorded_file
from ci.publish.index.yanks import Yanks
from core.stores import etag_of


@dataclass(frozen=True, kw_only=True)
class PageSettings:
    """What the pages of a project follow from, besides its files.

    Attributes:
        title: The heading of the flat page.
        notices: What the flat page says above its files, as HTML.
        yanks: What is yanked.
        has_folder_pages: Whether a folder's page is also written under the folder's own name.
        extras: The extra that brings device code, by project.
        dependencies_address: Address of the index of what our packages require of others, relative to the
            page of a project; None where the store has none.
    """

    title: str
    notices: str
    yanks: Yanks
    has_folder_pages: bool
    extras: Mapping[str, str]
    dependencies_address: str | None

    def project_paths(self, project: str) -> Sequence[str]:
        """Return the paths of a project's pages, the JSON first, from which the others follow."""
        return self._folder_paths(f"{ROOT_FOLDER}{project}/", ("index.json", "index.html"))

    def front_paths(self) -> Sequence[str]:
        """Return the paths of the pages that lead to those of projects, as HTML."""
        return [*self._folder_paths(ROOT_FOLDER, ("index.html",)), FLAT_PAGE]

    def _folder_paths(
        self,
        folder: str,
        names: Iterable[str],
    ) -> Sequence[str]:
        paths = [f"{folder}{name}" for name in names]
        # Installers ask for the folder, and a bucket answers with the object of exactly that name.
        if self.has_folder_pages:
            paths.append(folder)
        return paths

    def project_fingerprint(
        self,
        project: str,
        stored_files: Iterable[StoredFile],
        page_etags: Iterable[str],
    ) -> str:
        """Return a text that changes with all that a project's pages follow from, and with the pages.

        Their ETags show a page that was lost, cut short, or overwritten.
        """
        lines = [page_format(), self.dependencies_address or "", self.extras.get(project, "")]
        lines.append(self.yanks.text_of_project(project))
        for filename, size, modified, etag, sidecar_etag in stored_files:
            lines.append(f"{filename} {size} {modified} {etag} {sidecar_etag}")
        return _digest([*lines, *page_etags])

    def front_fingerprint(self, page_etags: Iterable[str]) -> str:
        """Return a text that changes with what the flat page and the list of projects follow from."""
        return _digest([page_format(), self.title, self.notices, *page_etags])


def find_changed_projects(
    root: RootPage,
    listing: Listing,
    settings: PageSettings,
) -> set[str]:
    """Return the projects whose pages may have to change: all of them, where the front is broken."""
    projects = listing.projects.keys() | root.fingerprints.keys()
    if not is_front_intact(root, listing, settings) or has_lost_record(root, listing):
        return projects

    changed_projects: set[str] = set()
    for project in projects:
        page_etags = _page_etags(settings.project_paths(project), listing)
        stored_files = listing.projects.get(project, ())
        fingerprint = settings.project_fingerprint(project, stored_files, page_etags)
        if fingerprint != root.fingerprints.get(project):
            changed_projects.add(project)

    return changed_projects


def is_front_intact(
    root: RootPage,
    listing: Listing,
    settings: PageSettings,
) -> bool:
    """Return whether the flat page and the list of projects exist as they were last written."""
    page_etags = _page_etags(settings.front_paths(), listing)
    return root.front_fingerprint == settings.front_fingerprint(page_etags)


def has_lost_record(root: RootPage, listing: Listing) -> bool:
    """Return whether a record that named listed files is gone or says something else."""
    return not root.record_etags.items() <= listing.record_etags.items()


def has_lost_file(previous_files: Iterable[PageFile], stored_files: Iterable[StoredFile]) -> bool:
    """Return whether a file that a page lists is gone, or is not the same any more."""
    return not {previous_file.stored_file for previous_file in previous_files} <= set(stored_files)


def keep_file(
    stored_file: StoredFile,
    previous_file: PageFile | None,
    recorded_files: Sequence[RecordedFile],
    *,
    must_be_recorded: bool,
) -> PageFile | None:
    """Return a file that is the same as before, with what is recorded of it; None if it has to be looked at.

    Args:
        stored_file: The file as it was just listed.
        previous_file: The file of that name that the page lists, if there is one.
        recorded_files: What the records that were read say of it.
        must_be_recorded: Whether all records were read, so that one of them has to name it.
    """
    if previous_file is None or previous_file.stored_file != stored_file:
        return None

    recorded_file = previous_file.recorded_file
    # The bytes are known without a look at them, so that only what is said of them can differ.
    if not must_be_recorded:
        recorded_files = [recorded_file, *recorded_files]
    best = best_recorded_file(
        recorded_files,
        size=recorded_file.size,
        sha256=recorded_file.sha256,
    )
    return None if best is None else previous_file._replace(recorded_file=best)


def make_project_pages(
    project: str,
    page_files: Sequence[PageFile],
    settings: PageSettings,
) -> tuple[Mapping[str, bytes], bytes]:
    """Return the pages of a project, by path, and its section of the flat page, from its files in order."""
    requirement = requirement_of(project, settings.extras.get(project, ""), page_files)
    rows = render_rows(page_files)
    html = render_project_html(requirement, project, rows, settings.dependencies_address)
    pages: dict[str, bytes] = {}
    for path in settings.project_paths(project):
        pages[path] = render_project_json(project, page_files) if path.endswith(".json") else html
    return pages, render_section(requirement, project, rows)


def find_stale_paths(
    listing: Listing,
    settings: PageSettings,
    projects: Iterable[str],
) -> Sequence[str]:
    """Return the pages that the index no longer has, such as those of a project whose files are gone."""
    expected_paths = {ROOT_PAGE, *settings.front_paths()}
    for project in projects:
        expected_paths.update(settings.project_paths(project))
    return sorted(listing.pages.keys() - expected_paths)


def _page_etags(paths: Iterable[str], listing: Listing) -> Sequence[str]:
    return [etag_of(listing.pages.get(path)) for path in paths]


def _digest(lines: Iterable[str]) -> str:
    return digest_of(["\n".join(lines).encode()])
