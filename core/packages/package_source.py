"""What every source of our packages does, whatever kind it is.

Only names of ours are taken from a source. An installer that is handed its address installs files by digest
and nothing else, so that no other package of those names can win.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from packaging.version import Version

from core import http
from core.env.installer import Sources, configured_sources
from core.errors import MissingInputError
from core.http import has_secret
from core.packages import candidates as package_candidates
from core.packages.pages import served_page
from core.stores import Store

if TYPE_CHECKING:
    from core.packages.candidates import Candidate


class PackageSource(Protocol):
    """A place that our packages come from."""

    @property
    def description(self) -> str:
        """The place in words, without passwords."""

    @property
    def option_prefix(self) -> str:
        """How the options begin that name it: ``--``, or ``--rocm-``."""
        return "--"

    @property
    def index_urls(self) -> tuple[str, ...]:
        """The addresses of indexes, for pip and uv."""
        return ()

    @property
    def find_links(self) -> tuple[str, ...]:
        """The flat pages and folders, for pip and uv."""
        return ()

    @property
    def stored(self) -> StoredSource | None:
        """The source of the candidates that have a key; None where none has."""
        return None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is strange about the pages that were read, a sentence each."""
        return ()

    @property
    def listed(self) -> tuple[Candidate, ...]:
        """All that it lists by itself; nothing of an index, which is asked for one distribution at a time."""

    def candidates(self, distribution: str) -> tuple[Candidate, ...]:
        """Return the files of a distribution by its normalised name; none where the source has none."""
        return tuple(candidate for candidate in self.listed if candidate.distribution == distribution)

    def versions(self, distribution: str, python_tag: str | None = None) -> tuple[str, ...]:
        """Return the versions of a distribution that are not yanked, for one Python or any; newest first."""
        versions = {
            Version(candidate.version)
            for candidate in self.candidates(distribution)
            if candidate.fits(python_tag) and not candidate.yanked
        }
        return tuple(map(str, sorted(versions, reverse=True)))

    def missing_error(self, subject: str) -> MissingInputError:
        """Return the error that the source, which answers, does not have something."""
        prefix = self.option_prefix
        ways = f"{prefix}find-links URL|DIR, {prefix}index-url URL, or a run ({prefix}run-id ID)"
        hint = " ".join((*self.warnings, f"Name another source: {ways}."))
        return MissingInputError(f"There is no {subject} at {self.description}.", hint=hint)

    def read_requirements(self, candidate: Candidate) -> tuple[str, ...]:
        """Return what a wheel requires; nothing for an sdist, which decides that where it is installed."""
        store = None if self.stored is None else self.stored.store
        return package_candidates.read_requirements(candidate, store)

    def fetch(self, candidate: Candidate, folder: Path) -> Path:
        """Bring a file whose digest is known into `folder`, or leave it in its own; return its path."""
        if candidate.key is not None and self.stored is not None:
            return self.stored.store.fetch(candidate.key, folder)
        url = candidate.require_url()
        if not candidate.is_remote:
            return Path(url)
        http.download(url, folder / candidate.name, sha256=candidate.require_digest())
        return folder / candidate.name

    @contextmanager
    def opened(self, candidates: Sequence[Candidate], *, wait: float | None = None) -> Iterator[Sources]:
        """Let installers reach some files without a password, as long as the context lives.

        `wait` is how many seconds a run's page has to list what its records promise; None if it need not be
        written yet.
        """
        stored_candidates = [candidate for candidate in candidates if candidate.key is not None]
        secret_candidates = [
            candidate for candidate in candidates if candidate.url is not None and has_secret(candidate.url)
        ]
        with ExitStack() as stack:
            pages: list[str] = []
            if self.stored is not None and stored_candidates:
                pages.append(stack.enter_context(self.stored.opened_page(stored_candidates, wait)))
            if secret_candidates:
                pages.append(stack.enter_context(served_page(secret_candidates)))
            yield self.installer_sources(pages)

    def installer_sources(self, pages: Sequence[str] = ()) -> Sources:
        """Return what an installer may be told: pages, and the addresses that have no password."""
        index_urls = [url for url in self.index_urls if not has_secret(url)]
        find_links = [link for link in self.find_links if not has_secret(link)]
        return Sources(
            index_url=index_urls[0] if index_urls else "",
            extra_index_urls=tuple(index_urls[1:]),
            find_links=(*pages, *find_links),
            no_index=not index_urls,
            cert=configured_sources().cert,
        )


class StoredSource(PackageSource, Protocol):
    """A source whose files lie in a store of ours."""

    store: Store

    @property
    def prefix(self) -> str:
        """Key prefix of the files."""

    @property
    def where(self) -> str:
        """The place, as messages show it."""
        return f"{self.store.url}/{self.prefix}"

    @property
    def page_key(self) -> str:
        """Key of the flat page that lists the files, for ``pip --find-links``."""
        return f"{self.prefix}/index.html"

    @property
    def page_url(self) -> str:
        """Address of the flat page."""
        return self.store.url_of(self.page_key)

    @property
    def stored(self) -> StoredSource:
        """The source itself."""
        return self

    def opened_page(self, candidates: Sequence[Candidate], wait: float | None) -> AbstractContextManager[str]:
        """Return the address of a page that lists files, as long as the context lives."""
