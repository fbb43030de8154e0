"""Waiting until an index lists exactly what records promise, instead of trying to install again and again."""

from __future__ import annotations

import time
import urllib.error
from dataclasses import dataclass
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from core import console
from core.errors import MissingInputError
from core.http import open_url, without_secret

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from core.packages.offers import Offer

_FIRST_PAUSE, _LONGEST_PAUSE, _PAUSE_GROWTH = 1.0, 15.0, 1.5
_NAMED = 8  # a message that names more is not read


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an address answered.

    Attributes:
        text: The page; None where there is none.
        status: The status of HTTP; 0 where nobody answered.
        problem: Why there is no page, in a few words.
    """

    text: str | None = None
    status: int = 0
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Link:
    """A file that a page lists (PEP 503): its name, its SHA-256 ("" where the page gives none), and more."""

    name: str
    sha256: str = ""
    requires_python: str = ""
    yanked: bool = False


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, Link] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        href = said.get("href") if tag == "a" else None
        if href:
            parts = urlsplit(href)
            self.found[href.partition("#")[0]] = Link(
                name=PurePosixPath(unquote(parts.path)).name,
                sha256=parse_qs(parts.fragment).get("sha256", [""])[0],
                requires_python=said.get("data-requires-python") or "",
                yanked="data-yanked" in said,
            )


def links(page: str) -> Mapping[str, Link]:
    """Read the links of a page (PEP 503), by address."""
    parser = _Links()
    parser.feed(page)
    return parser.found


def unlisted(page: str | None, wanted: Sequence[Offer]) -> Sequence[str]:
    """Say what a page lacks of recorded files, one phrase each."""
    found = {one.name: one.sha256 for one in links(page).values()} if page is not None else {}
    absent = [one.name for one in wanted if one.name not in found]
    # a page without digests promises the name alone
    other = [one.name for one in wanted if found.get(one.name, "") not in {"", one.sha256}]
    return [*absent, *(f"{name} (listed with another digest)" for name in other)]


def fetch(url: str, *, cert: str = "") -> Answer:
    """Ask an address for a page; no answer is an answer, too."""
    # a page's cached copy is what is waited to be over
    asked = {"Cache-Control": "no-cache", "Accept": "text/html"}
    try:
        with open_url(url, cert=cert, **asked) as answer:
            return Answer(text=answer.read().decode("utf-8", "replace"), status=answer.status)
    except urllib.error.HTTPError as problem:
        with problem:
            return Answer(status=problem.code, problem=f"it answers {problem.code} {problem.reason}")
    except (OSError, ValueError, HTTPException) as problem:
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
        return f"{without_secret(url)}: {answer.problem}; it is to list {named}{more}."
    return f"{url} lacks {named}{more}."
