"""Our packages in stores: those of a run's artifact group, and those that are up for testing."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import quote

from core.errors import MissingInputError, UsageError
from core.families import CPU, group_families
from core.packages.candidates import Candidate, candidate_of_record, candidates_on_page
from core.packages.package_source import StoredSource
from core.packages.pages import fetch_page, flat_page, missing_from_page, store_address, wait_for_pages
from core.run import LOCAL_RUN, RunOutputs, artifact_groups, records
from core.run.locations import STAGING
from core.stores import Store
from core.stores.location import open_store
from core.wheel.distributions import SIDECAR

if TYPE_CHECKING:
    from core.cli.options import Common


@dataclass(frozen=True, kw_only=True)
class RunGroup(StoredSource):
    """One artifact group of a run, in the store where it was found."""

    store: Store
    outputs: RunOutputs
    name: str

    @property
    def prefix(self) -> str:
        """Key prefix of the group's wheels."""
        return self.outputs.python_prefix(self.name)

    @property
    def description(self) -> str:
        """The run and the place."""
        return f"run {self.outputs.run_id} ({self.where})"

    @property
    def family(self) -> str:
        """The GPU families that the group is for, joined by ``;``; "" for none."""
        families = group_families(self.name)
        return "" if families == CPU else families

    @functools.cached_property
    def listed(self) -> tuple[Candidate, ...]:
        """What its records promise."""
        return recorded_candidates(self)

    @contextmanager
    def opened_page(self, candidates: Sequence[Candidate], wait: float | None) -> Iterator[str]:
        """Yield the address of a page that lists recorded files.

        It is read over HTTP where everybody may read the group's files, else through the store with this
        process's rights. The local run's page, and one that need not be written yet, is made of the records.
        """
        pages: dict[str, bytes] = {}
        if wait is None or self.outputs.run_id == LOCAL_RUN:
            pages[self.page_key] = flat_page(candidates)
        with ExitStack() as stack:
            probe = _smallest_key(candidates)
            base = stack.enter_context(store_address(self.store, probe, pages))
            url = f"{base}/{quote(self.page_key)}"
            if wait is None and missing_from_page(fetch_page(url).text, candidates):
                from core.http_server import served_store

                base = stack.enter_context(served_store(self.store, pages))
                url = f"{base}/{quote(self.page_key)}"

            wait_for_pages(
                {url: candidates},
                seconds=wait or 0,
                read=fetch_page,
                # An address on this machine means nothing once it is gone.
                name_of=lambda address: address.replace(base, self.store.url),
            )
            yield url


def _smallest_key(candidates: Sequence[Candidate]) -> str:
    """Return the key of a small object that is there for certain, which says whether everybody may read."""
    smallest = min(candidates, key=lambda candidate: candidate.size or 0)
    with_metadata = [candidate for candidate in candidates if candidate.metadata_sha256 is not None]
    if with_metadata:
        smallest = min(with_metadata, key=lambda candidate: candidate.size or 0)
        return f"{smallest.key}{SIDECAR}"
    return str(smallest.key)


@dataclass(frozen=True, kw_only=True)
class StagedGroup(StoredSource):
    """The wheels of an artifact group that a distribution store has up for testing."""

    store: Store
    name: str

    @property
    def prefix(self) -> str:
        """Key prefix of the wheels."""
        return f"{STAGING}/{self.name}"

    @property
    def description(self) -> str:
        """The place, and that it is staging's."""
        return f"staging ({self.where})"

    @functools.cached_property
    def listed(self) -> tuple[Candidate, ...]:
        """What the flat page links to; no page is an error."""
        if self.store.find(self.page_key) is None:
            raise MissingInputError(
                f"Nothing is staged in {self.where}.",
                hint="Stage the run first: nox -s stage (same --run-id, --store and --release-type).",
            )
        page = self.store.read(self.page_key).decode()
        return tuple(
            replace(candidate, key=f"{self.prefix}/{candidate.name}", url=None)
            for candidate in candidates_on_page(page, self.page_key)
        )

    def missing_error(self, subject: str) -> MissingInputError:
        """Return the error that something is not staged."""
        return MissingInputError(
            f"There is no {subject} in {self.description}.",
            hint="Stage it first: nox -s stage (same --run-id, --store and --release-type).",
        )

    @contextmanager
    def opened_page(self, candidates: Sequence[Candidate], wait: float | None) -> Iterator[str]:  # noqa: ARG002 - of any source
        """Yield the address of the flat page as it is staged, which users' installers read."""
        with store_address(self.store, self.page_key, {}) as base:
            yield f"{base}/{quote(self.page_key)}"


def find_group(common: Common, group: str | None) -> RunGroup:
    """Return a group of a run, None for the only one: of the named store, else of the bucket of CI's runs."""
    places: list[str] = []
    hint = "Name another run, --artifact-group or --store."
    for store, outputs in _places_of_run(common):
        try:
            names = artifact_groups(store, outputs, group or "")
        except MissingInputError as missing:
            places.append(f"{store.url}/{outputs.prefix}")
            hint = missing.hint or hint
            continue
        if len(names) > 1:
            raise UsageError(
                f"Run {outputs.run_id} has the groups {', '.join(names)}.",
                hint="Choose one with --artifact-group.",
            )
        return RunGroup(store=store, outputs=outputs, name=names[0])

    subject = f"group {group} of run {common.run_id}" if group else f"run {common.run_id}"
    raise MissingInputError(
        f"There are no wheels of {subject} in {' nor in '.join(dict.fromkeys(places))}.", hint=hint
    )


def _places_of_run(common: Common) -> Iterator[tuple[Store, RunOutputs]]:
    """Yield the places where a run may be: of the named store, then of the bucket of CI's runs."""
    for location in (common.store, common.read_store):
        if not location:
            continue
        store = open_store(location, root=common.root)
        for external_repo in dict.fromkeys((common.external_repo, "")):
            yield store, replace(common.outputs, external_repo=external_repo)


def recorded_candidates(group: RunGroup) -> tuple[Candidate, ...]:
    """Return what successful stages recorded for a group, by file name; nothing recorded is an error."""
    files_by_key: dict[str, dict[str, records.FileRecord]] = {}
    for record in records.read_all(group.store, group.outputs, group.name):
        if record.status != "ok":
            continue
        for file in record.files:
            if file.distribution:
                files_by_key.setdefault(file.key, {})[file.sha256] = file

    candidates: list[Candidate] = []
    for key, files_by_digest in files_by_key.items():
        digest = next(iter(files_by_digest))
        if len(files_by_digest) > 1:
            # A file of the local run may have been made twice: the last one lies there.
            digest = group.store.digest(key)
        if digest in files_by_digest:
            candidates.append(candidate_of_record(files_by_digest[digest]))

    if not candidates:
        raise MissingInputError(
            f"No record of group {group.name} names a wheel in {group.store.url}/{group.outputs.prefix}.",
            hint="Put the wheels there with nox -s upload, which records them.",
        )
    return tuple(sorted(candidates, key=lambda candidate: candidate.name))
