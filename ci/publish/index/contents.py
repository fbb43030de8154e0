"""What the pages of changed projects list: each page, record and file is read only once."""

import os
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ci.publish.index.changes import (
    PageSettings,
    find_changed_projects,
    has_lost_file,
    has_lost_record,
    keep_file,
)
from ci.publish.index.files import (
    PageFile,
    RecordedFile,
    StoredFile,
    sort_files,
)
from ci.publish.index.json_pages import RootPage, read_project_page
from ci.publish.index.listing import ROOT_FOLDER, Listing
from ci.publish.index.names import guess_project, read_name, require_names
from ci.publish.index.sources import HeldBackError, Source, is_local, join_key
from core.errors import MissingInputError, StoreError, WheelError
from core.parallel import JOBS, judge_in_threads, map_in_threads
from core.stores import Store
from core.stores.directory import DirectoryStore

# Threads hash large files at once. For small ones they would only wait for each other.
_LARGE_FILE = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What changed projects list now.

    Attributes:
        projects: The files of each project that was looked at, in order; none where its pages go.
        held_back_files: Why files of these projects that exist are not listed, by key.
        record_etags: The records whose files are all listed, by key.
    """

    projects: Mapping[str, Sequence[PageFile]]
    held_back_files: Mapping[str, str]
    record_etags: Mapping[str, str]


@dataclass(kw_only=True)
class Collector:
    """Reads and looks at what changed in a folder since its pages were written.

    Attributes:
        is_strict: Whether a bad file is an error: one that is recorded and does not exist, that differs
            from its record, or whose name is not valid. Otherwise it is held back.
    """

    store: Store
    prefix: str
    source: Source
    listing: Listing
    root: RootPage
    settings: PageSettings
    is_strict: bool
    previous_files: dict[str, Mapping[str, PageFile]] = field(default_factory=dict)

    def collect(self) -> Contents:
        """Return what the changed projects list now. Only sidecars of a bare folder are written."""
        projects = find_changed_projects(self.root, self.listing, self.settings)
        changed_projects = frozenset(projects)
        pages_are_whole = self._read_pages(projects)
        records = self._read_records(projects, pages_are_whole=pages_are_whole)
        files_must_be_recorded = self.source.needs_records and len(records) == len(self.listing.record_etags)

        recorded_files_by_name = _group_by_filename(records)
        if self.is_strict:
            self._require_files(recorded_files_by_name.keys())

        named_projects = {guess_project(filename) for filename in recorded_files_by_name}
        added_projects = (named_projects & self.listing.projects.keys()) - projects
        self._read_pages(added_projects)
        projects |= added_projects

        # Everything that is read is here now; what is left to look at are files that changed.
        files_to_list, held_back_files = self._look_at_files(
            projects, recorded_files_by_name, files_must_be_recorded=files_must_be_recorded
        )
        files_by_project = self._sort_by_project(projects, files_to_list)
        return Contents(
            projects={
                project: files
                for project, files in files_by_project.items()
                if project in changed_projects or not self._lists_the_same(project, files)
            },
            held_back_files=held_back_files,
            record_etags=self._complete_records(records, files_to_list),
        )

    def _read_records(
        self,
        projects: Iterable[str],
        *,
        pages_are_whole: bool,
    ) -> Mapping[str, Sequence[RecordedFile]]:
        """Return what records say, by key: those that are not remembered, or all where these may not do."""
        all_keys = list(self.listing.record_etags)
        # A file that is gone or was replaced may be named by any record, also by one that was read long ago.
        if not pages_are_whole or has_lost_record(self.root, self.listing):
            return self.source.read_records(all_keys, self.prefix)

        unread_keys = [
            key for key, etag in self.listing.record_etags.items() if self.root.record_etags.get(key) != etag
        ]
        records = self.source.read_records(unread_keys, self.prefix)
        # So may a file that no page lists: where a server ignores conditions, a writer with an older listing
        # replaces a page whose records are remembered already.
        if len(unread_keys) < len(all_keys) and self._has_unnamed_file(projects, records):
            return self.source.read_records(all_keys, self.prefix)
        return records

    def _has_unnamed_file(
        self,
        projects: Iterable[str],
        records: Mapping[str, Sequence[RecordedFile]],
    ) -> bool:
        """Return whether a file of these projects is on no page, and none of the records names it."""
        named_files = _group_by_filename(records).keys()
        for project in projects:
            listed_files = self.previous_files.get(project, {}).keys()
            for stored_file in self.listing.projects.get(project, ()):
                if stored_file.filename not in listed_files and stored_file.filename not in named_files:
                    return True
        return False

    def _read_pages(self, projects: Iterable[str]) -> bool:
        """Read the pages of projects; return whether each is whole, and its files are the same as before."""
        names = sorted(projects)
        jobs = 1 if is_local(self.store) else JOBS
        are_whole = True
        for project, previous_files in zip(
            names, map_in_threads(self._read_page, names, jobs=jobs), strict=True
        ):
            if previous_files is None:
                are_whole = are_whole and project not in self.root.fingerprints
                continue
            self.previous_files[project] = {file.stored_file.filename: file for file in previous_files}
            if has_lost_file(previous_files, self.listing.projects.get(project, ())):
                are_whole = False

        return are_whole

    def _read_page(self, project: str) -> Sequence[PageFile] | None:
        path = f"{ROOT_FOLDER}{project}/index.json"
        if path not in self.listing.pages:
            return None
        try:
            return read_project_page(self.store.read(join_key(self.prefix, path)))
        except MissingInputError:
            return None  # It was deleted after the listing.

    def _require_files(self, recorded_filenames: AbstractSet[str]) -> None:
        """Refuse records that name a file which does not exist."""
        missing_filenames = sorted(recorded_filenames - self.listing.filenames())
        if not missing_filenames:
            return

        # A name that no index could list is the worse mistake.
        require_names(missing_filenames)
        other_files = ""
        if len(missing_filenames) > 1:
            other_files = f" (and {len(missing_filenames) - 1} more)"
        key = join_key(self.prefix, missing_filenames[0])
        raise StoreError(
            f"{key} is recorded but not in {self.store.url}{other_files}.",
            hint="Run the stage that made it again.",
        )

    def _look_at_files(
        self,
        projects: Iterable[str],
        recorded_files_by_name: Mapping[str, Sequence[RecordedFile]],
        *,
        files_must_be_recorded: bool,
    ) -> tuple[Sequence[PageFile], Mapping[str, str]]:
        """Return the files that are complete; and why others are held back, by key."""
        files_to_list: list[PageFile] = []
        changed_files: list[StoredFile] = []
        for project in projects:
            previous_files = self.previous_files.get(project, {})
            for stored_file in self.listing.projects.get(project, ()):
                kept_file = keep_file(
                    stored_file,
                    previous_files.get(stored_file.filename),
                    recorded_files_by_name.get(stored_file.filename, ()),
                    must_be_recorded=files_must_be_recorded,
                )
                if kept_file is None:
                    changed_files.append(stored_file)
                else:
                    yank_reason = self.settings.yanks.reason(stored_file.filename, kept_file.name)
                    files_to_list.append(kept_file._replace(yank_reason=yank_reason))

        def describe(stored_file: StoredFile) -> PageFile | str:
            return self._describe(stored_file, recorded_files_by_name.get(stored_file.filename, ()))

        held_back_files: dict[str, str] = {}
        descriptions = judge_in_threads(describe, changed_files, jobs=self._jobs_for(changed_files))
        for stored_file, description in zip(changed_files, descriptions, strict=True):
            if isinstance(description, str):
                held_back_files[join_key(self.prefix, stored_file.filename)] = description
            else:
                files_to_list.append(description)

        if isinstance(self.store, DirectoryStore):
            # The digests that it remembers are not needed again, and of many files they are much.
            self.store.forget()
        return files_to_list, held_back_files

    def _jobs_for(self, changed_files: Iterable[StoredFile]) -> int:
        """Return how many files to look at side by side."""
        if not is_local(self.store):
            return JOBS
        has_large_files = any(stored_file.size >= _LARGE_FILE for stored_file in changed_files)
        return (os.cpu_count() or 1) if has_large_files else 1

    def _describe(
        self,
        stored_file: StoredFile,
        recorded_files: Sequence[RecordedFile],
    ) -> PageFile | str:
        """Return a file as its page lists it, or why it is held back."""
        try:
            name = read_name(stored_file.filename)
            recorded_file, stored_file = self.source.describe_file(stored_file, self.prefix, recorded_files)
        except HeldBackError as reason:
            return str(reason)
        except (StoreError, WheelError) as problem:
            if self.is_strict:
                raise
            return problem.message
        yank_reason = self.settings.yanks.reason(stored_file.filename, name)
        return PageFile(recorded_file, stored_file, name, yank_reason)

    def _lists_the_same(
        self,
        project: str,
        files_to_list: Iterable[PageFile],
    ) -> bool:
        """Return whether the project's page lists these files already."""
        return set(files_to_list) == set(self.previous_files.get(project, {}).values())

    def _sort_by_project(
        self,
        projects: Iterable[str],
        files_to_list: Iterable[PageFile],
    ) -> Mapping[str, Sequence[PageFile]]:
        files_by_project: dict[str, list[PageFile]] = {}
        for project in sorted(projects):
            files_by_project[project] = []

        for page_file in files_to_list:
            files_by_project[page_file.name.project].append(page_file)
        return {project: sort_files(files) for project, files in files_by_project.items()}

    def _complete_records(
        self,
        records: Mapping[str, Sequence[RecordedFile]],
        files_to_list: Iterable[PageFile],
    ) -> Mapping[str, str]:
        """Return the records that need not be read again: every file that they name is listed.

        A record that names a file which is not complete is not remembered, so that the next call reads it
        again: that is all there is to files which are announced and do not exist yet.
        """
        remembered_keys = self.root.record_etags.keys() & self.listing.record_etags.keys()
        etags = {key: self.root.record_etags[key] for key in remembered_keys - records.keys()}
        sha256s: dict[str, str] = {}
        if records:
            sha256s = {file.stored_file.filename: file.recorded_file.sha256 for file in files_to_list}

        for key, recorded_files in records.items():
            is_complete = all(
                sha256s.get(recorded_file.filename) == recorded_file.sha256
                for recorded_file in recorded_files
            )
            if recorded_files and is_complete:
                etags[key] = self.listing.record_etags[key]

        return etags


def _group_by_filename(
    records: Mapping[str, Sequence[RecordedFile]],
) -> Mapping[str, Sequence[RecordedFile]]:
    # Tuples, of which most have one file, take half the memory of lists.
    recorded_files_by_name: dict[str, tuple[RecordedFile, ...]] = {}
    for recorded_files in records.values():
        for recorded_file in recorded_files:
            recorded_files_by_name[recorded_file.filename] = (
                *recorded_files_by_name.get(recorded_file.filename, ()),
                recorded_file,
            )

    return recorded_files_by_name
