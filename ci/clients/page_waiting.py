"""Waiting until an index lists exactly what records promise, instead of trying to install again and again."""

from __future__ import annotations

import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from core import console
from core.errors import MissingInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ci.clients.run_wheels import Offer

_FIRST_PAUSE, _LONGEST_PAUSE, _PAUSE_GROWTH = 1.0, 15.0, 1.5
_PAGE_TIMEOUT = 30.0
_NAMED = 8  # a message that names more is not read


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an address answered.

    Attributes:
        text: The page; None where there is none.
        problem: Why there is none, in a few words.
    """

    text: str | None = None
    problem: str = ""


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, tuple[str, str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href") if tag == "a" else None
        if href:
            parts = urlsplit(href)
            name = PurePosixPath(unquote(parts.path)).name
            digest = parse_qs(parts.fragment).get("sha256", [""])[0]
            self.found[href.partition("#")[0]] = (name, digest)


def links(page: str) -> Mapping[str, tuple[str, str]]:
    """Read the links of a page (PEP 503): address to file name and SHA-256, "" where it gives none."""
    parser = _Links()
    parser.feed(page)
    return parser.found


def unlisted(page: str | None, wanted: Sequence[Offer]) -> Sequence[str]:
    """Say what a page lacks of recorded files, one phrase each."""
    found = dict(links(page).values()) if page is not None else {}
    absent = [one.name for one in wanted if one.name not in found]
    # a page without digests promises the name alone
    other = [one.name for one in wanted if found.get(one.name, "") not in {"", one.sha256}]
    return [*absent, *(f"{name} (listed with another digest)" for name in other)]


def fetch(url: str, *, cert: str = "") -> Answer:
    """Ask an address for a page; no answer is an answer, too.

    Args:
        url: The address.
        cert: A CA bundle; "" for the machine's own.
    """
    # a page's cached copy is what is waited to be over
    request = urllib.request.Request(url, headers={"Cache-Control": "no-cache", "Accept": "text/html"})  # noqa: S310 - our own addresses
    context = ssl.create_default_context(cafile=cert or None) if url.startswith("https:") else None
    try:
        with urllib.request.urlopen(request, timeout=_PAGE_TIMEOUT, context=context) as answer:  # noqa: S310 - the same
            return Answer(text=answer.read().decode("utf-8", "replace"))
    except urllib.error.HTTPError as problem:
        with problem:
            return Answer(problem=f"it answers {problem.code} {problem.reason}")
    except (OSError, ValueError) as problem:
        return Answer(problem=f"it cannot be reached ({getattr(problem, 'reason', problem)})")


def wait_for(
    pages: Mapping[str, Sequence[Offer]],
    *,
    seconds: float,
    read: Callable[[str], Answer],
    named: Callable[[str], str] = str,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Ask pages again, at growing intervals, until each lists its files with their digests.

    Args:
        pages: Address to the files that it must list.
        seconds: How long to wait.
        read: Asks an address.
        named: Names an address for people.
        sleep: Waits.
        clock: Tells the time in seconds.

    Raises:
        MissingInputError: Time is up; the message names what is still missing.
    """
    started, pause, said = clock(), _FIRST_PAUSE, ""
    open_pages = dict(pages)
    while True:
        missing: dict[str, str] = {}
        for url, wanted in open_pages.items():
            answer = read(url)
            absent = unlisted(answer.text, wanted)
            if absent:
                missing[url] = _sentence(named(url), absent, answer)
        open_pages = {url: open_pages[url] for url in missing}
        if not missing:
            return
        left = seconds - (clock() - started)
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
        sleep(min(pause, left))
        pause = min(pause * _PAUSE_GROWTH, _LONGEST_PAUSE)


def _sentence(url: str, absent: Sequence[str], answer: Answer) -> str:
    more = f" and {len(absent) - _NAMED} more" if len(absent) > _NAMED else ""
    named = ", ".join(absent[:_NAMED])
    if answer.text is None:
        return f"{url}: {answer.problem}; it is to list {named}{more}."
    return f"{url} lacks {named}{more}."
