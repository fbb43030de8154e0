"""Pages of wheels over HTTP: their links, a wait until they list what records promise, a server for them."""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from html import escape
from html.parser import HTMLParser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import PurePosixPath
from threading import Thread
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast
from urllib.parse import parse_qs, quote, unquote, urlsplit

from core import console
from core.errors import FatalError, MissingInputError
from core.http import open_url, reachable, without_secret
from core.stores import Stored, headers_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from http.client import HTTPResponse

    from core.http import Answer
    from core.packages.offers import Offer

_FIRST_PAUSE, _LONGEST_PAUSE, _PAUSE_GROWTH = 1.0, 15.0, 1.5
_NAMED = 8  # nobody reads a longer list


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
    parser.close()
    return parser.found


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
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Read pages again, at growing intervals, until each lists its files with their digests.

    Args:
        pages: Address to the files that it must list.
        seconds: How long to wait.
        read: Requests an address.
        named: Returns an address as messages show it.
        sleep: Waits.
        clock: Returns the time in seconds.

    Raises:
        MissingInputError: Time is up; the message names what is still missing.
    """
    started, pause, said = clock(), _FIRST_PAUSE, ""
    while True:
        missing: dict[str, str] = {}
        for url, wanted in pages.items():
            answer = read(url)
            if absent := unlisted(answer.text, wanted):
                missing[url] = _sentence(named(url), absent, answer)
        pages = {url: pages[url] for url in missing}
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
        return f"{without_secret(url)}: {answer.problem}; it should list {named}{more}."
    return f"{url} lacks {named}{more}."


class _Readable(Protocol):
    def find(self, key: str) -> Stored | None: ...

    def open(self, key: str) -> BinaryIO: ...


class RemoteFiles:
    """Files by name behind addresses with a password, which this process keeps to itself."""

    def __init__(self, urls: Mapping[str, str], *, cert: str) -> None:
        """Request nothing yet."""
        self._urls, self._cert = urls, cert

    def find(self, key: str) -> Stored | None:
        """Look a file up."""
        if key not in self._urls:
            return None
        with self._opened(key) as answer:
            return Stored(key=key, size=int(answer.headers["Content-Length"]), etag="", modified=0)

    def open(self, key: str) -> BinaryIO:
        """Open a file."""
        return cast("BinaryIO", self._opened(key))

    def _opened(self, key: str) -> HTTPResponse:
        with reachable(self._urls[key]):
            return open_url(self._urls[key], cert=self._cert)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any, store: _Readable, pages: Mapping[str, bytes]) -> None:  # noqa: ANN401 - the base class's
        self._store, self._pages = store, pages
        super().__init__(*arguments)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Print nothing: the installer shows what it fetches."""

    def _answer(self, *, with_body: bool) -> None:
        key = unquote(urlsplit(self.path).path).lstrip("/")
        key += "index.html" if key.endswith("/") else ""
        try:
            size = self._size(key)
            if size is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", headers_for(key).content_type)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if with_body:
                page = self._pages.get(key)
                with self._store.open(key) if page is None else BytesIO(page) as stream:
                    shutil.copyfileobj(stream, self.wfile)
        except FatalError as problem:
            # what was promised cannot be kept: the client sees that the answer broke off
            console.error(problem.message)
            self.close_connection = True
        except ConnectionError:
            self.close_connection = True

    def _size(self, key: str) -> int | None:
        if key in self._pages:
            return len(self._pages[key])
        with suppress(FatalError):  # an invalid key is not there
            found = self._store.find(key)
            return found.size if found else None
        return None


@contextmanager
def served_store(store: _Readable, pages: Mapping[str, bytes] | None = None) -> Iterator[str]:
    """Serve a store's keys, with `pages` before its own, to this machine with this process's rights."""
    with answering(partial(_Handler, store=store, pages=pages or {})) as address:
        yield address


@contextmanager
def answering(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Let a handler answer on a free port of the loopback interface, each request in a thread of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
