"""Where packages come from: a run, staging, indexes, flat pages, folders; the options that say so.

Only names of ours are taken from a source. An installer that is handed its address installs files by digest
and nothing else, so that no other package of those names can win.
"""

import argparse
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlsplit
from urllib.request import url2pathname

from packaging.utils import canonicalize_name
from packaging.version import Version

from core import console, files, http
from core.env.installer import Sources, configured
from core.errors import MissingInputError, ServiceError, UsageError
from core.http import Answer, RemoteFiles, fetch, has_secret, links, served_store, without_secret
from core.packages import (
    Offer,
    RunGroup,
    StagedGroup,
    fits,
    offered,
    offers_named,
    offers_of_page,
    remote_metadata,
    required_by,
    requirements_in,
)
from core.run import LOCAL_RUN
from core.stores import Store
from core.wheel import distributions, read_metadata

_REFUSED = frozenset({401, 403, 404, 410})  # how servers say that they have nothing for this client
_FAILED = 500
_FIRST_PAUSE, _LONGEST_PAUSE, _PAUSE_GROWTH = 1.0, 15.0, 1.5
_NAMED = 8  # nobody reads a longer list
_ROCM = "rocm-"
_INDEX, _LINKS, _VERSION, _NO_INSTALL = (
    f"ROCM_PACKAGE_{name}" for name in ("INDEX_URL", "FIND_LINKS_URL", "VERSION", "NO_INSTALL")
)


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """Where packages come from, as a command line says it; options begin with `prefix`: ``--``, ``--rocm-``.

    With `staged` they are those of the run that `distribution_store` has up for testing ("" for the release
    type's store).
    With `no_install` they are installed already, in the Python that the environment is made from.
    """

    version: str = ""
    staged: bool = False
    distribution_store: str = ""
    run_id: str = ""
    store: str = ""
    artifact_group: str = ""
    index_name: str = ""
    index_urls: tuple[str, ...] = ()
    index_subdir: str = ""
    find_links: tuple[str, ...] = ()
    no_install: bool = False
    prefix: str = "--"

    @property
    def named(self) -> bool:
        """Whether a source is named at all, beside the stage's own run."""
        places = self.run_id, self.store, self.index_name, self.index_urls, self.index_subdir, self.find_links
        return any(places)


def add_package_source(
    parser: argparse.ArgumentParser, title: str, *prefixes: str
) -> argparse._ArgumentGroup:
    """Declare the options of a source, the same words for every stage.

    Each option is spelled with each of `prefixes` (``""``, ``rocm-``); the first one names it.
    """
    group, first, rocm = parser.add_argument_group(title), prefixes[0], _ROCM in prefixes

    def add(name: str, metavar: str, about: str, *more: str, many: bool = False) -> None:
        settings: Any = {"action": "append", "default": []} if many else {"default": ""}
        settings |= {"dest": f"{first}{name}".replace("-", "_"), "metavar": metavar, "help": about}
        group.add_argument(*(more or [f"--{prefix}{name}" for prefix in prefixes]), **settings)

    add("find-links", "URL|DIR", "a folder or flat page; repeatable", many=True)
    add("index-url", "URL", "an index; repeatable", many=True)
    names = [f"--{prefix}index-name" for prefix in prefixes]
    add("index-name", "NAME", "a release index by name: nightly, dev, …", *names, *(["--rocm-index"] * rocm))
    about = "folder below each index, such as gfx110X-all (without --index-url: of the release index)"
    add("index-subdir", "DIR", about)
    if rocm:
        names = ["--rocm-version", *([] if first else ["--version"])]
        add("version", "V", "exact version of the rocm packages", *names)
    if first == _ROCM:
        group.add_argument(
            "--rocm-no-install",
            action="store_true",
            help="take the ROCm that is already installed for the base Python, as in an image",
        )
        add("run-id", "ID", "another run that has it", "--rocm-run-id")
        add("store", "STORE", "where that run lives", "--rocm-store")
        add("artifact-group", "GROUP", "that run's group (default: the GPU family)", "--rocm-artifact-group")
    return group


def add_staged_source(group: argparse._ArgumentGroup) -> None:
    """Declare ``--staged``, by which a test takes what users will get from where it is up for testing."""
    about = "the run's wheels as `stage` has put them up for testing"
    group.add_argument("--staged", action="store_true", help=about)
    about = "where --staged takes them from: a folder or s3://bucket (default: the release type's bucket)"
    group.add_argument("--distribution-store", default="", metavar="STORE", help=about)


def options_of_tested_source(arguments: argparse.Namespace) -> SourceOptions:
    """Turn the parsed arguments of a test into the source of what is tested."""
    options = source_options(arguments)
    if not arguments.staged and arguments.distribution_store:
        raise UsageError(
            "--distribution-store says where staged wheels lie, and this test takes others.",
            hint="Give --staged, too, or leave it out.",
        )
    if not arguments.staged:
        return options

    if options.named or arguments.no_install:
        raise UsageError(
            "--staged takes the run's staged wheels, and another option names other packages.",
            hint="Leave --staged out, or --no-install and what names a source (--find-links, --index-url).",
        )
    return replace(options, staged=True, distribution_store=arguments.distribution_store)


def source_options(
    arguments: argparse.Namespace, prefix: str = "", env: Mapping[str, str] = MappingProxyType({})
) -> SourceOptions:
    """Turn parsed arguments into the value that stages get.

    `env` is where a workflow's inputs say it for several sessions at once, unless options do.
    """
    key = prefix.replace("-", "_")

    def given(name: str) -> str:
        return str(getattr(arguments, f"{key}{name}", "") or "")

    # without a prefix these are the stage's own run
    other_run = bool(prefix)
    found = SourceOptions(
        version=given("version") or env.get(_VERSION, ""),
        run_id=given("run_id") if other_run else "",
        store=given("store") if other_run else "",
        artifact_group=given("artifact_group") if other_run else "",
        index_name=given("index_name"),
        index_urls=tuple(filter(None, getattr(arguments, f"{key}index_url"))),
        index_subdir=given("index_subdir").strip("/"),
        find_links=absolute(getattr(arguments, f"{key}find_links")),
        no_install=prefix == _ROCM and arguments.rocm_no_install,
        prefix=f"--{prefix}",
    )
    if found.named or found.no_install:
        return found
    if prefix == _ROCM and env.get(_NO_INSTALL):
        return replace(found, no_install=True)
    urls, links = (tuple(filter(None, [env.get(name)])) for name in (_INDEX, _LINKS))
    return replace(found, index_urls=urls, find_links=absolute(links))


def absolute(links: Sequence[str]) -> tuple[str, ...]:
    """Make paths among find-links absolute: a stage runs in the checkout's root, and an installer may not."""
    places = (local(link) for link in links if link)
    return tuple(place if "://" in place else str(Path(place).resolve()) for place in places)


def local(address: str) -> str:
    """Return the path that a ``file://`` address means; any other one, as it is."""
    return url2pathname(urlsplit(address).path) if address.startswith("file://") else address


def below(url: str, folder: str) -> str:
    """Return the address of a folder below an index; without a folder the index's own, as it was given."""
    inner = folder.strip("/")
    return f"{url.rstrip('/')}/{inner}/" if inner else url


@dataclass(frozen=True, kw_only=True)
class PackageSource:
    """Where packages come from: a run's group or a staged one, indexes, folders, pages, or an interpreter.

    `prefix` is how the options begin that name it: ``--``, or ``--rocm-``.
    """

    group: RunGroup | None = None
    staged: StagedGroup | None = None
    index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    installed: Path | None = None
    prefix: str = "--"
    _indexed: dict[str, tuple[Offer, ...]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )
    _strange: dict[str, str] = field(default_factory=dict, init=False, compare=False, repr=False)

    @property
    def words(self) -> str:
        """The source in words, without passwords."""
        run = (f"run {self.group.outputs.run_id} ({self.group.where})",) if self.group else ()
        if self.installed:
            return f"what {self.installed} has installed"
        if self.staged:
            return f"staging ({self.staged.where})"
        return ", ".join((*run, *map(without_secret, (*self.index_urls, *self.find_links))))

    @property
    def direct(self) -> Sources:
        """The installer's sources of what needs no server of ours: no run, and no password."""
        urls, found = (
            tuple(one for one in given if not has_secret(one)) for given in (self.index_urls, self.find_links)
        )
        return Sources(
            index_url=urls[0] if urls else "",
            extra_index_urls=urls[1:],
            find_links=found,
            no_index=not urls,
            cert=configured().cert,
        )

    @functools.cached_property
    def listed(self) -> tuple[Offer, ...]:
        """What the run, the flat pages and the folders offer of our names."""
        own: tuple[Offer, ...] = ()
        if self.group:
            own = offered(self.group)
        elif self.staged:
            own = self.staged.offers()
        return (*own, *(one for link in self.find_links for one in self._linked(link)))

    def offers(self, name: str) -> tuple[Offer, ...]:
        """List the files of a distribution by its normalised name; none where the source has none."""
        if name not in self._indexed:
            found = (one for url in self.index_urls for one in self._in_index(url, name))
            self._indexed[name] = (*(one for one in self.listed if one.distribution == name), *found)
        return self._indexed[name]

    def versions(self, name: str, python_tag: str = "") -> tuple[str, ...]:
        """List the versions of a distribution, for one Python or any; newest first."""
        held = {Version(one.version) for one in self.offers(name) if fits(one, python_tag) and not one.yanked}
        return tuple(str(one) for one in sorted(held, reverse=True))

    def lacks(self, what: str) -> MissingInputError:
        """Return the error that the source, which answers, lacks something."""
        if self.staged:
            hint = "Stage it first: nox -s stage (same --run-id, --store and --release-type)."
            return MissingInputError(f"There is no {what} in {self.words}.", hint=hint)
        of = self.prefix
        ways = f"{of}find-links URL|DIR, {of}index-url URL, or a run ({of}run-id ID)"
        first = {why: page for page, why in sorted(self._strange.items(), reverse=True)}
        doubts = [f"{page} answers with {why}: is it an index?" for why, page in first.items()]
        hint = " ".join((*doubts, f"Name another source: {ways}."))
        return MissingInputError(f"There is no {what} at {self.words}.", hint=hint)

    def requires(self, one: Offer) -> tuple[str, ...]:
        """Read what a wheel requires; an sdist decides that where it is installed."""
        if self._store and one.key:
            return required_by(self._store, one)
        if not one.name.endswith(".whl"):
            return ()
        remote = "://" in one.url
        return requirements_in(
            remote_metadata(one.url, cert=configured().cert) if remote else read_metadata(Path(one.url)).raw
        )

    def sealed(self, one: Offer) -> Offer:
        """Return a file with its digest, which is computed where no page says it."""
        if one.sha256:
            return one
        if "://" in one.url:
            return replace(one, sha256=http.digest_of(one.url, cert=configured().cert))
        return replace(one, sha256=files.sha256(Path(one.url)))

    def fetch(self, one: Offer, folder: Path) -> Path:
        """Bring a sealed file here: one of a folder where it lies, any other one into `folder`."""
        if self._store and one.key:
            return self._store.fetch(one.key, folder)
        if "://" not in one.url:
            return Path(one.url)
        http.download(one.url, folder / one.name, sha256=one.sha256)
        return folder / one.name

    @contextmanager
    def opened(self, wanted: Sequence[Offer], *, wait: float | None = None) -> Iterator[Sources]:
        """Let installers reach chosen files without a password, as long as the context lives.

        Pages of a run are read over HTTP where everybody may read its files, else through the store with
        this process's rights. The local run's page is made of its records. `wait` is how many seconds the
        run's page has to list what its records promise; None if it need not be written yet. The page of
        staging is the one that users will read.
        """
        own = [one for one in wanted if one.key]
        secret = [one for one in wanted if has_secret(one.url)]
        with ExitStack() as stack:
            pages: list[str] = []
            if self.group and own:
                pages.append(stack.enter_context(_run_page(self.group, own, wait)))
            elif self.staged and own:
                pages.append(stack.enter_context(_staged_page(self.staged)))
            if secret:
                remote = RemoteFiles({one.name: one.url for one in secret}, cert=configured().cert)
                page = flat_page(secret)
                pages.append(f"{stack.enter_context(served_store(remote, {'index.html': page}))}/index.html")
            direct = self.direct
            yield replace(direct, find_links=(*pages, *direct.find_links))

    @property
    def _store(self) -> Store | None:
        """The store that has the files with keys."""
        if self.staged:
            return self.staged.store
        return self.group.store if self.group else None

    def _linked(self, link: str) -> Iterator[Offer]:
        if link.startswith(("http://", "https://")):
            answer = fetch(link, cert=configured().cert)
            if answer.text is None:
                raise self._unread(link, answer, "find-links")
            yield from self._listed_on(link, answer.text)
            return
        place = Path(link)
        if place.is_file():
            listed = self._listed_on(place.as_uri(), place.read_text(encoding="utf-8", errors="replace"))
            yield from (replace(one, url=local(one.url)) for one in listed)
            return
        if not place.is_dir():
            what = f"{place} is neither a folder nor a page."
            raise MissingInputError(what, hint=f"Correct {self.prefix}find-links.")
        for path in sorted(place.iterdir()):
            yield from offers_named(path.name, url=str(path))

    def _in_index(self, url: str, name: str) -> Iterator[Offer]:
        base, cert = url.rstrip("/"), configured().cert
        if not base.startswith(("http://", "https://")):
            what = f"{self.prefix}index-url {url} is not an HTTP address."
            raise UsageError(what, hint=f"A folder, or a page in one, goes to {self.prefix}find-links.")
        page = f"{base}/{name}/"
        answer = fetch(page, cert=cert)
        if answer.text is not None:
            yield from (one for one in self._listed_on(page, answer.text) if one.distribution == name)
        elif answer.status not in _REFUSED:
            raise self._unread(page, answer, "index-url")
        else:
            # buckets answer for what does not exist as for what is forbidden
            root = fetch(f"{base}/", cert=cert)
            if root.text is None:
                raise self._unread(f"{base}/", root, "index-url")
            if not any(
                distributions.is_ours(canonicalize_name(one.name)) for one in links(root.text).values()
            ):
                self._strange[f"{without_secret(base)}/"] = "a page that names no project of ours"

    def _listed_on(self, page: str, text: str) -> Sequence[Offer]:
        """List the files of a page; what has none may be anything: a login, say, that answers everywhere."""
        found = tuple(offers_of_page(text, page))
        if not found and not any(distributions.is_distribution(one.name) for one in links(text).values()):
            self._strange[without_secret(page)] = "a page that links to no wheel or sdist"
        return found

    def _unread(self, url: str, answer: Answer, setting: str) -> MissingInputError | ServiceError:
        said = f"{without_secret(url)}: {answer.problem}."
        if not answer.status or answer.status >= _FAILED:
            return ServiceError(said, hint=f"Try again, or correct {self.prefix}{setting}.")
        return MissingInputError(
            said,
            hint=f"Correct {self.prefix}{setting}. A run in a private bucket is named by its id and store "
            f"({self.prefix}run-id, {self.prefix}store), and read with this machine's credentials.",
        )


@contextmanager
def store_address(store: Store, key: str, pages: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the address of a store's keys: its own if all may read `key`, else one of this machine."""
    # of one store over another, the one that has the key
    address = store.url_of(key)
    if address.startswith("http") and fetch(address, cert=configured().cert).text is not None:
        yield address.removesuffix(f"/{quote(key)}")
        return
    with served_store(store, pages) as base:
        yield base


@contextmanager
def _run_page(group: RunGroup, offers: Sequence[Offer], wait: float | None) -> Iterator[str]:
    page, cert = f"{group.prefix}/index.html", configured().cert
    made = {page: flat_page(offers)} if wait is None or group.outputs.run_id == LOCAL_RUN else {}
    # a small object that is there for certain: whether everybody may read it
    small = min(offers, key=lambda one: (not one.metadata_sha256, one.size))
    key = f"{small.key}{distributions.SIDECAR}" if small.metadata_sha256 else small.key
    with ExitStack() as stack:
        base = stack.enter_context(store_address(group.store, key, made))
        url = f"{base}/{quote(page)}"
        if wait is None and unlisted(fetch(url, cert=cert).text, offers):
            base = stack.enter_context(served_store(group.store, made))
            url = f"{base}/{quote(page)}"
        wait_for(
            {url: offers},
            seconds=wait or 0,
            read=lambda one: fetch(one, cert=cert),
            # an address on this machine means nothing once it is gone
            named=lambda one: one.replace(base, group.store.url),
        )
        yield url


@contextmanager
def _staged_page(staged: StagedGroup) -> Iterator[str]:
    """Yield the address of the flat page as it is staged, which users' installers read."""
    with store_address(staged.store, staged.page_key, {}) as base:
        yield f"{base}/{quote(staged.page_key)}"


def flat_page(offers: Sequence[Offer]) -> bytes:
    """Write a flat page of files that lie beside it."""
    lines = [
        f'<a href="{quote(one.name)}#sha256={one.sha256}"'
        + (f' data-requires-python="{escape(one.requires_python)}"' if one.requires_python else "")
        + f">{escape(one.name)}</a><br>"
        for one in offers
    ]
    return ("<!DOCTYPE html>\n" + "\n".join(lines) + "\n").encode()


def unlisted(page: str | None, wanted: Sequence[Offer]) -> Sequence[str]:
    """Return what a page lacks of recorded files, one phrase each."""
    found = {one.name: one.sha256 for one in links(page or "").values()}
    absent = [one.name for one in wanted if one.name not in found]
    # a page without digests promises the name alone
    other = [one.name for one in wanted if found.get(one.name, "") not in {"", one.sha256}]
    return [*absent, *(f"{name} (listed with another digest)" for name in other)]


def wait_for(
    pages: Mapping[str, Sequence[Offer]],
    *,
    seconds: float,
    read: Callable[[str], Answer],
    named: Callable[[str], str] = str,
) -> None:
    """Read pages again, at growing intervals, until each lists its files (by address) with their digests."""
    started, pause, said = time.monotonic(), _FIRST_PAUSE, ""
    while True:
        missing: dict[str, str] = {}
        for url, wanted in pages.items():
            answer = read(url)
            if absent := unlisted(answer.text, wanted):
                missing[url] = _sentence(named(url), absent, answer)
        pages = {url: pages[url] for url in missing}
        if not missing:
            return
        left = seconds - (time.monotonic() - started)
        text = "\n".join(missing.values())
        if left <= 0:
            raise MissingInputError(
                f"After {seconds:.0f} s the index does not list what the run's records promise:\n{text}",
                hint="Write the pages (nox -s index, with the same --run-id and --store) or see why the "
                "server does not, or wait longer: --wait SECONDS.",
            )
        if text != said:
            console.say(f"Waiting, {left:.0f} s at most (--wait):\n{text}")
            said = text
        time.sleep(min(pause, left))
        pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE)


def _sentence(url: str, absent: Sequence[str], answer: Answer) -> str:
    more = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
    named = ", ".join(absent[:_NAMED])
    if answer.text is None:
        return f"{without_secret(url)}: {answer.problem}; it should list {named}{more}."
    return f"{url} lacks {named}{more}."
