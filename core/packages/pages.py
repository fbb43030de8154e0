"""Pages for installers: of files in a store, and when they list what records promise."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from urllib.parse import quote

from core import console
from core.env.installer import configured_sources
from core.errors import MissingInputError
from core.http import Answer, fetch, without_secret
from core.links import links
from core.packages.candidates import Candidate
from core.stores import Store

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 15.0
_PAUSE_GROWTH = 1.5
_MOST_NAMES = 8  # nobody reads a longer list


def fetch_page(url: str) -> Answer:
    """Return what an address answers, with the certificates that the user has configured."""
    return fetch(url, cert=configured_sources().cert)


def flat_page(candidates: Sequence[Candidate]) -> bytes:
    """Return a flat page of files that lie beside it."""
    lines = ["<!DOCTYPE html>"]
    lines += map(_link_to, candidates)
    lines.append("")
    return "\n".join(lines).encode()


def _link_to(candidate: Candidate) -> str:
    """Return the line of a page that links to a file beside it."""
    address = quote(candidate.name)
    attributes = f'href="{address}#sha256={candidate.sha256}"'
    if candidate.requires_python is not None:
        specifier = escape(candidate.requires_python)
        attributes += f' data-requires-python="{specifier}"'
    text = escape(candidate.name)
    return f"<a {attributes}>{text}</a><br>"


@contextmanager
def store_address(store: Store, key: str, pages: Mapping[str, bytes]) -> Iterator[str]:
    """Yield the address of a store's keys: its own if everybody may read `key`, else one of this machine."""
    from core.http_server import served_store

    # Of one store over another, that of the one which has the key.
    address = store.url_of(key)
    if address.startswith("http"):
        response = fetch_page(address)
        if response.text is not None:
            yield address.removesuffix(f"/{quote(key)}")
            return

    with served_store(store, pages) as base:
        yield base


@contextmanager
def served_page(candidates: Sequence[Candidate]) -> Iterator[str]:
    """Yield the address of a page of this machine that passes files on, without the passwords they need."""
    from core.http_server import RemoteFiles, served_store

    urls: dict[str, str] = {}
    for candidate in candidates:
        urls[candidate.name] = candidate.require_url()
    remote_files = RemoteFiles(urls, cert=configured_sources().cert)
    with served_store(remote_files, {"index.html": flat_page(candidates)}) as base:
        yield f"{base}/index.html"


# --- Waiting for pages -----------------------------------------------------------------------


def missing_from_page(page: str | None, candidates: Sequence[Candidate]) -> Sequence[str]:
    """Return what a page lacks of recorded files, one phrase each; None is a page that is not there."""
    links_of_page = links(page or "")
    digests = {link.name: link.sha256 for link in links_of_page.values()}
    absent: list[str] = []
    changed: list[str] = []
    for candidate in candidates:
        if candidate.name not in digests:
            absent.append(candidate.name)
        # A page without digests promises the name alone.
        elif digests[candidate.name] not in {"", candidate.sha256}:
            changed.append(f"{candidate.name} (listed with another digest)")
    return [*absent, *changed]


def wait_for_pages(
    pages: Mapping[str, Sequence[Candidate]],
    *,
    seconds: float,
    read: Callable[[str], Answer],
    name_of: Callable[[str], str] = str,
) -> None:
    """Read pages again, at growing intervals, until each lists its files with their digests.

    Args:
        pages: The files of each page, by the page's address.
        seconds: How long to wait.
        read: Returns what an address answers.
        name_of: Returns what messages call an address.
    """
    started = time.monotonic()
    pause = _FIRST_PAUSE
    last_text = ""
    while True:
        sentences: dict[str, str] = {}
        for url, candidates in pages.items():
            response = read(url)
            missing_files = missing_from_page(response.text, candidates)
            if missing_files:
                sentences[url] = _describe_missing(name_of(url), missing_files, response)
        if not sentences:
            return

        pages = {url: pages[url] for url in sentences}
        remaining = seconds - (time.monotonic() - started)
        text = "\n".join(sentences.values())
        if remaining <= 0:
            raise MissingInputError(
                f"After {seconds:.0f} s the index does not list what the run's records promise:\n{text}",
                hint="Write the pages (nox -s index, with the same --run-id and --store) or see why the "
                "server does not, or wait longer: --wait SECONDS.",
            )
        if text != last_text:
            console.say(f"Waiting, {remaining:.0f} s at most (--wait):\n{text}")
            last_text = text
        time.sleep(min(pause, remaining))
        pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE)


def _describe_missing(url: str, missing_files: Sequence[str], response: Answer) -> str:
    names = ", ".join(missing_files[:_MOST_NAMES])
    further_files = missing_files[_MOST_NAMES:]
    if further_files:
        names += f" and {len(further_files)} more"
    if response.text is not None:
        return f"{url} lacks {names}."
    shown_url = without_secret(url)
    return f"{shown_url}: {response.problem}; it should list {names}."
