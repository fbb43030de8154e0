"""Where packages come from: a run, indexes, flat pages, folders; what they offer, how installers reach it.

Only names of ours are taken from a source. An installer that is handed its address installs files by digest
and nothing else, so that no other package of those names can win.
"""

from __future__ import annotations

import functools
import hashlib
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from email import message_from_bytes
from html import escape
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin, urlsplit

from packaging.version import Version

from core import files, http
from core.env.installer import Sources, configured
from core.errors import MissingInputError, ServiceError, WheelError
from core.http import has_secret, open_url, without_secret
from core.packages.offers import Offer, fits, offered, required_by
from core.packages.pages import fetch, links, unlisted, wait_for
from core.packages.server import RemoteFiles, served_store
from core.run.outputs import LOCAL_RUN
from core.wheel import distributions, wheels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from core.packages.offers import RunGroup
    from core.packages.pages import Answer, Link
    from core.stores import Store

_REFUSED = frozenset({401, 403, 404, 410})  # how servers say that there is nothing for whoever asks
_FAILED = 500


@dataclass(frozen=True, kw_only=True)
class PackageSource:
    """Where packages come from.

    Attributes:
        group: A run's artifact group; None for none.
        index_urls: Indexes.
        find_links: Folders and flat pages.
        installed: The interpreter that has them installed already; None for none.
        prefix: How the options begin that name it: ``--``, or ``--rocm-``.
    """

    group: RunGroup | None = None
    index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    installed: Path | None = None
    prefix: str = "--"

    @property
    def words(self) -> str:
        """The source in words, without anybody's password."""
        run = (f"run {self.group.outputs.run_id} ({self.group.where})",) if self.group else ()
        if self.installed:
            return f"what {self.installed} has installed"
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
        """What the run, the flat pages and the folders offer of our names.

        Raises:
            MissingInputError: One of them is not there, or may not be read.
            ServiceError: A page does not answer.
        """
        own = offered(self.group) if self.group else ()
        return (*own, *(one for link in self.find_links for one in self._linked(link)))

    @functools.cached_property
    def _indexed(self) -> dict[str, tuple[Offer, ...]]:
        return {}

    def offers(self, name: str) -> tuple[Offer, ...]:
        """List the files of a distribution by its normalised name; none where the source has none.

        Raises:
            MissingInputError: A place is not there, or may not be read.
            ServiceError: An address does not answer.
        """
        if name not in self._indexed:
            found = (one for url in self.index_urls for one in self._in_index(url, name))
            self._indexed[name] = (*(one for one in self.listed if one.distribution == name), *found)
        return self._indexed[name]

    def versions(self, name: str, python_tag: str = "") -> tuple[str, ...]:
        """List the versions of a distribution, for one Python or any; newest first."""
        fitting = [one for one in self.offers(name) if not python_tag or fits(one, python_tag)]
        held = {Version(one.version) for one in fitting if not one.yanked}
        return tuple(str(one) for one in sorted(held, reverse=True))

    def lacks(self, what: str) -> MissingInputError:
        """Return the error that the source, which answers, has something not."""
        return MissingInputError(
            f"There is no {what} at {self.words}.", hint=f"Name another source: {self._ways}."
        )

    def requires(self, one: Offer) -> tuple[str, ...]:
        """Read what a wheel requires; an sdist decides that where it is installed."""
        if self.group and one.key:
            return required_by(self.group.store, one)
        if not one.name.endswith(".whl"):
            return ()
        if "://" in one.url:
            raw = http.read_metadata(one.url, cert=configured().cert)
        else:
            raw = wheels.read_metadata(Path(one.url)).raw
        return tuple(str(line) for line in message_from_bytes(raw).get_all("Requires-Dist", ()))

    def sealed(self, one: Offer) -> Offer:
        """Return a file with its digest, which is computed where no page says it."""
        if one.sha256:
            return one
        if "://" not in one.url:
            return replace(one, sha256=files.sha256(Path(one.url)))
        found = hashlib.sha256()
        try:
            with open_url(one.url, cert=configured().cert) as answer:
                while chunk := answer.read(files.CHUNK):
                    found.update(chunk)
        except (OSError, HTTPException) as problem:
            raise ServiceError(
                f"{without_secret(one.url)} could not be read: {problem}.", hint="Try again."
            ) from problem
        return replace(one, sha256=found.hexdigest())

    @contextmanager
    def opened(self, wanted: Sequence[Offer], *, wait: float | None = None) -> Iterator[Sources]:
        """Let installers reach chosen files without a password, as long as the context lives.

        Pages of a run are read over HTTP where everybody may read its files, else through the store with
        this process's rights. The local run's page is made of its records.

        Args:
            wanted: The files.
            wait: Seconds to wait until the run's page lists what its records promise; None where the page
                need not be written yet.

        Raises:
            MissingInputError: The page does not list them in time.
        """
        own = [one for one in wanted if one.key]
        secret = [one for one in wanted if has_secret(one.url)]
        with ExitStack() as stack:
            pages = [stack.enter_context(_run_page(self.group, own, wait))] if self.group and own else []
            if secret:
                remote = RemoteFiles({one.name: one.url for one in secret}, cert=configured().cert)
                page = flat_page(secret)
                pages.append(f"{stack.enter_context(served_store(remote, {'index.html': page}))}/index.html")
            direct = self.direct
            yield replace(direct, find_links=(*pages, *direct.find_links))

    @property
    def _ways(self) -> str:
        run = "--run-id ID" if self.prefix == "--" else f"{self.prefix}run-id ID"
        return f"{self.prefix}find-links URL|DIR, {self.prefix}index-url URL, or a run ({run})"

    def _linked(self, link: str) -> Iterator[Offer]:
        if link.startswith(("http://", "https://")):
            answer = fetch(link, cert=configured().cert)
            if answer.text is None:
                raise self._unread(link, answer, "find-links")
            yield from _parsed(answer.text, link)
            return
        folder = Path(link.removeprefix("file://"))
        if not folder.is_dir():
            raise MissingInputError(f"{folder} is no folder.", hint=f"See {self.prefix}find-links.")
        for path in sorted(folder.iterdir()):
            yield from _offer(path.name, url=str(path))

    def _in_index(self, url: str, name: str) -> Iterator[Offer]:
        base, cert = url.rstrip("/"), configured().cert
        page = f"{base}/{name}/"
        answer = fetch(page, cert=cert)
        if answer.text is not None:
            yield from (one for one in _parsed(answer.text, page) if one.distribution == name)
        elif answer.status not in _REFUSED:
            raise self._unread(page, answer, "index-url")
        else:
            # buckets answer for what is not there as for what is forbidden
            root = fetch(f"{base}/", cert=cert)
            if root.text is None:
                raise self._unread(f"{base}/", root, "index-url")

    def _unread(self, url: str, answer: Answer, setting: str) -> MissingInputError | ServiceError:
        said = f"{without_secret(url)}: {answer.problem}."
        if not answer.status or answer.status >= _FAILED:
            return ServiceError(said, hint=f"Try again, or correct {self.prefix}{setting}.")
        return MissingInputError(
            said,
            hint=f"Correct {self.prefix}{setting}. A run in a bucket that is not for everybody is named by "
            "its id and store (--run-id, --store), and read with this machine's credentials.",
        )


def _parsed(text: str, page: str) -> Iterator[Offer]:
    for href, link in links(text).items():
        url = urljoin(page, href)
        here, there = urlsplit(page), urlsplit(url)
        if has_secret(page) and there.netloc == here.netloc.rpartition("@")[2]:
            url = there._replace(netloc=here.netloc).geturl()
        yield from _offer(link.name, url=url, link=link)


def _offer(name: str, *, url: str, link: Link | None = None) -> Iterator[Offer]:
    """Read what a file's name says, if it is one of ours; other files may lie beside them."""
    if not distributions.is_distribution(name):
        return
    try:
        parsed = wheels.parse_wheel_name(name) if name.endswith(".whl") else wheels.parse_sdist_name(name)
    except WheelError:
        return
    if distributions.is_ours(parsed.distribution):
        yield Offer(
            name=name,
            distribution=parsed.distribution,
            version=str(parsed.version),
            url=url,
            sha256=link.sha256 if link else "",
            requires_python=link.requires_python if link else "",
            yanked=bool(link and link.yanked),
        )


def flat_page(offers: Sequence[Offer]) -> bytes:
    """Write a flat page of files that lie beside it."""
    lines = [
        f'<a href="{quote(one.name)}#sha256={one.sha256}"'
        + (f' data-requires-python="{escape(one.requires_python)}"' if one.requires_python else "")
        + f">{escape(one.name)}</a><br>"
        for one in offers
    ]
    return ("<!DOCTYPE html>\n" + "\n".join(lines) + "\n").encode()


@contextmanager
def store_address(store: Store, key: str, pages: Mapping[str, bytes]) -> Iterator[str]:
    """Give the address of a store's keys: its own if all may read `key`, else one of this machine."""
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
