"""Where our packages come from, if not from a store: indexes, flat pages, folders, and several at once."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.utils import canonicalize_name

from core.errors import MissingInputError, ServiceError, UsageError
from core.http import Answer, without_secret
from core.links import links
from core.packages.candidates import Candidate, candidate_named, candidates_on_page
from core.packages.package_source import PackageSource, StoredSource
from core.packages.pages import fetch_page
from core.wheel import distributions

_REFUSED = frozenset({401, 403, 404, 410})  # how servers say that they have nothing for this client
_FAILED = 500


@dataclass(frozen=True, kw_only=True)
class PackageIndex(PackageSource):
    """An index, with a page for each distribution (PEP 503)."""

    url: str
    option_prefix: str = "--"
    _candidates: dict[str, tuple[Candidate, ...]] = field(
        default_factory=dict,
        init=False,
        compare=False,
        repr=False,
    )
    _doubtful_pages: dict[str, str] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def description(self) -> str:
        """The address."""
        return without_secret(self.url)

    @property
    def index_urls(self) -> tuple[str, ...]:
        """The address."""
        return (self.url,)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is strange about its pages; it may be a login, say, which answers everywhere."""
        return _describe_warnings(self._doubtful_pages)

    @property
    def listed(self) -> tuple[Candidate, ...]:
        """Nothing: it is asked for a distribution."""
        return ()

    def candidates(self, distribution: str) -> tuple[Candidate, ...]:
        """Return the files of a distribution; none where the index, which answers, does not have it."""
        if distribution not in self._candidates:
            self._candidates[distribution] = self._read(distribution)
        return self._candidates[distribution]

    def _read(self, distribution: str) -> tuple[Candidate, ...]:
        base = self.url.rstrip("/")
        if not base.startswith(("http://", "https://")):
            raise UsageError(
                f"{self.option_prefix}index-url {self.url} is not an HTTP address.",
                hint=f"A folder, or a page in one, goes to {self.option_prefix}find-links.",
            )
        page = f"{base}/{distribution}/"
        response = fetch_page(page)
        if response.text is None:
            if response.status not in _REFUSED:
                raise _unread_page_error(page, response, f"{self.option_prefix}index-url", self.option_prefix)
            self._require_index(f"{base}/")
            return ()

        if not _links_to_distributions(response.text):
            self._doubtful_pages[without_secret(page)] = "a page that links to no wheel or sdist"
        return tuple(
            candidate
            for candidate in candidates_on_page(response.text, response.redirected_to or page)
            if candidate.distribution == distribution
        )

    def _require_index(self, root: str) -> None:
        """Require a first page: buckets response for what does not exist as for what is forbidden."""
        response = fetch_page(root)
        if response.text is None:
            raise _unread_page_error(root, response, f"{self.option_prefix}index-url", self.option_prefix)
        names = [canonicalize_name(link.name) for link in links(response.text).values()]
        if not any(map(distributions.is_ours, names)):
            self._doubtful_pages[without_secret(root)] = "a page that names no project of ours"


@dataclass(frozen=True, kw_only=True)
class FlatPage(PackageSource):
    """A page that links to files: at an address, or a file of this machine."""

    location: str
    option_prefix: str = "--"

    @property
    def description(self) -> str:
        """The address."""
        return without_secret(self.location)

    @property
    def find_links(self) -> tuple[str, ...]:
        """The address."""
        return (self.location,)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Whether it links to no file; it may be a login, say."""
        if _links_to_distributions(self._text):
            return ()
        return _describe_warnings({self.description: "a page that links to no wheel or sdist"})

    @functools.cached_property
    def listed(self) -> tuple[Candidate, ...]:
        """The files of ours that it links to."""
        if _is_http(self.location):
            page_location = self._answer.redirected_to or self.location
            return tuple(candidates_on_page(self._text, page_location))
        candidates = candidates_on_page(self._text, Path(self.location).as_uri())
        return tuple(
            replace(candidate, url=path_of(candidate.url))
            for candidate in candidates
            if candidate.url is not None
        )

    @functools.cached_property
    def _text(self) -> str:
        if not _is_http(self.location):
            return Path(self.location).read_text(encoding="utf-8", errors="replace")
        response = self._answer
        if response.text is None:
            setting = f"{self.option_prefix}find-links"
            raise _unread_page_error(self.location, response, setting, self.option_prefix)
        return response.text

    @functools.cached_property
    def _answer(self) -> Answer:
        return fetch_page(self.location)


@dataclass(frozen=True, kw_only=True)
class PackageFolder(PackageSource):
    """A folder of files."""

    path: Path
    option_prefix: str = "--"

    @property
    def description(self) -> str:
        """The path."""
        return str(self.path)

    @property
    def find_links(self) -> tuple[str, ...]:
        """The path."""
        return (str(self.path),)

    @functools.cached_property
    def listed(self) -> tuple[Candidate, ...]:
        """The files of ours in it."""
        if not self.path.is_dir():
            raise MissingInputError(
                f"{self.path} is neither a folder nor a page.",
                hint=f"Correct {self.option_prefix}find-links.",
            )
        candidates: list[Candidate] = []
        for path in sorted(self.path.iterdir()):
            candidate = candidate_named(path.name, url=str(path))
            if candidate is not None:
                candidates.append(candidate)
        return tuple(candidates)


@dataclass(frozen=True, kw_only=True)
class InstalledPackages(PackageSource):
    """What an interpreter has installed, which offers no files."""

    python: Path
    option_prefix: str = "--"

    @property
    def description(self) -> str:
        """The interpreter."""
        return f"what {self.python} has installed"

    @property
    def listed(self) -> tuple[Candidate, ...]:
        """Nothing."""
        return ()


@dataclass(frozen=True, kw_only=True)
class CombinedSource(PackageSource):
    """Several sources, of which the first one counts where two have the same version."""

    parts: tuple[PackageSource, ...]
    option_prefix: str = "--"

    @property
    def description(self) -> str:
        """The parts."""
        return ", ".join(part.description for part in self.parts)

    @property
    def index_urls(self) -> tuple[str, ...]:
        """Those of the parts."""
        return tuple(chain.from_iterable(part.index_urls for part in self.parts))

    @property
    def find_links(self) -> tuple[str, ...]:
        """Those of the parts."""
        return tuple(chain.from_iterable(part.find_links for part in self.parts))

    @property
    def stored(self) -> StoredSource | None:
        """The part whose files lie in a store; there is one at most."""
        for part in self.parts:
            if part.stored is not None:
                return part.stored
        return None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of the parts."""
        return tuple(chain.from_iterable(part.warnings for part in self.parts))

    @property
    def listed(self) -> tuple[Candidate, ...]:
        """What the parts list."""
        return tuple(chain.from_iterable(part.listed for part in self.parts))

    def candidates(self, distribution: str) -> tuple[Candidate, ...]:
        """Return what the parts have of a distribution."""
        return tuple(chain.from_iterable(part.candidates(distribution) for part in self.parts))


def combine_sources(parts: Sequence[PackageSource], *, option_prefix: str = "--") -> PackageSource:
    """Return the only source of some, or all of them as one."""
    if len(parts) == 1:
        return parts[0]
    return CombinedSource(parts=tuple(parts), option_prefix=option_prefix)


def linked_source(link: str, *, option_prefix: str = "--") -> PackageSource:
    """Return the source that a ``--find-links`` names: a page, or a folder."""
    if _is_http(link) or Path(link).is_file():
        return FlatPage(location=link, option_prefix=option_prefix)
    return PackageFolder(path=Path(link), option_prefix=option_prefix)


def path_of(address: str) -> str:
    """Return the path that a ``file://`` address means; any other one, as it is."""
    return url2pathname(urlsplit(address).path) if address.startswith("file://") else address


def _is_http(location: str) -> bool:
    return location.startswith(("http://", "https://"))


def _links_to_distributions(page: str) -> bool:
    """Return whether a page links to a wheel or an sdist, of whatever name."""
    return any(distributions.is_distribution(link.name) for link in links(page).values())


def _describe_warnings(doubtful_pages: dict[str, str]) -> tuple[str, ...]:
    """Return a sentence for each kind of strange page, with the first page of the kind."""
    first_pages: dict[str, str] = {}
    for page, problem in sorted(doubtful_pages.items()):
        first_pages.setdefault(problem, page)
    return tuple(f"{page} answers with {problem}: is it an index?" for problem, page in first_pages.items())


def _unread_page_error(
    url: str,
    response: Answer,
    setting: str,
    option_prefix: str,
) -> MissingInputError | ServiceError:
    """Return the error for a page that was not answered: the server's, or that of who wrote the address."""
    message = f"{without_secret(url)}: {response.problem}."
    if not response.status or response.status >= _FAILED:
        return ServiceError(message, hint=f"Try again, or name another place with {setting}.")
    return MissingInputError(
        message,
        hint=f"Correct {setting}. A run in a private bucket is named by its id and store "
        f"({option_prefix}run-id, {option_prefix}store), and read with this machine's credentials.",
    )
