"""HTTP: the one way to request an address, read a page's links, download a file, and serve files."""

from __future__ import annotations

import base64
import hashlib
import io
import shutil
import ssl
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import parse_qs, unquote, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from core import console, files
from core.errors import FatalError, ServiceError
from core.parallel import transfer
from core.stores import Store, Stored, headers_for

if TYPE_CHECKING:
    from email.message import Message

_SECONDS = 60
_PARTIAL_CONTENT = 206
_AHEAD = 1 << 18  # the directory at a wheel's end and its METADATA beside it fit into one request
_MIRROR = "Try again, or name a mirror."


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an address answered: its page, or why there is none; status 0 if it did not answer at all."""

    text: str | None = None
    status: int = 0
    problem: str = ""


def has_secret(url: str) -> bool:
    """Return whether an address carries a user name or password, which no installer may be given."""
    return "@" in urlsplit(url).netloc


def without_secret(url: str) -> str:
    """Return an address as it may be shown."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class _Redirects(HTTPRedirectHandler):
    """Follows redirects of what has no body; a secret is not shown to another server."""

    def redirect_request(self, req: Request, *answer: Any) -> Request | None:  # noqa: ANN401 - the base class's
        found = None if req.data else super().redirect_request(req, *answer)
        was, new = urlsplit(req.full_url), urlsplit(answer[-1])
        if found and (new.netloc != was.netloc or new.scheme not in {was.scheme, "https"}):
            found.remove_header("Authorization")
        return found


def open_url(
    url: str, *, cert: str = "", data: bytes | None = None, seconds: float = _SECONDS, **headers: str
) -> HTTPResponse:
    """Request an HTTP address, with the user name and password that it may carry; with data, POST them.

    Raises:
        OSError: It cannot be reached, or answers with an error (`urllib.error.HTTPError`).
        ValueError: It is not an HTTP address.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"}:
        raise ValueError(f"{url} is not an HTTP address")
    if has_secret(url):
        pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    request = Request(without_secret(url), data, headers)  # noqa: S310 - HTTP, as seen above
    context = ssl.create_default_context(cafile=cert or None) if parts.scheme == "https" else None
    opener = build_opener(HTTPSHandler(context=context), _Redirects)
    answer: HTTPResponse = opener.open(request, timeout=seconds)
    return answer


def respond(url: str, **how: Any) -> tuple[int, Message, bytes]:  # noqa: ANN401 - as `open_url`
    """Request an address; return status, headers and body, also of a refusal."""
    try:
        with open_url(url, **how) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as problem:
        with problem:
            return problem.code, problem.headers, problem.read()


@contextmanager
def reachable(url: str, *, hint: str = "Try again.") -> Iterator[None]:
    """Turn what `open_url` and its answer raise within into a `ServiceError`."""
    try:
        yield
    except (OSError, ValueError, HTTPException) as problem:
        if isinstance(problem, urllib.error.HTTPError):
            problem.close()  # the error holds the answer, and its connection
        reason = getattr(problem, "reason", problem)
        raise ServiceError(f"{without_secret(url)} could not be read: {reason}.", hint=hint) from problem


def fetch(url: str, *, cert: str = "") -> Answer:
    """Request a page, not a cached copy of it; no answer is an answer, too."""
    try:
        fresh: Any = {"Cache-Control": "no-cache", "Accept": "text/html"}
        with open_url(url, cert=cert, **fresh) as answer:
            return Answer(text=answer.read().decode("utf-8", "replace"), status=answer.status)
    except urllib.error.HTTPError as problem:
        with problem:
            return Answer(status=problem.code, problem=f"it answers {problem.code} {problem.reason}")
    except (OSError, ValueError, HTTPException) as problem:
        return Answer(problem=f"it cannot be reached ({getattr(problem, 'reason', problem)})")


def digest_of(url: str, *, cert: str = "") -> str:
    """Return the hex SHA-256 of a file, which is read for it."""
    with reachable(url), open_url(url, cert=cert) as answer:
        return hashlib.file_digest(answer, "sha256").hexdigest()


def download(url: str, path: Path, *, sha256: str) -> None:
    """Download a file that has to have a digest; one that is there already is left alone."""
    if path.is_file() and files.sha256(path) == sha256:
        return
    with reachable(url, hint=_MIRROR):
        answer = open_url(url)
    size, found = int(answer.headers.get("Content-Length") or 0), hashlib.sha256()
    with answer, files.atomic(path) as out, transfer("fetch", size=size) as shown:
        # apart from errors of the disk
        while chunk := _chunk(answer, url):
            out.write(chunk)
            found.update(chunk)
            shown.advance(len(chunk))
        if found.hexdigest() != sha256:
            raise ServiceError(
                f"{url} has SHA-256 {found.hexdigest()}, and the data says {sha256}.",
                hint="Try again. If it persists, the file was replaced: do not use it.",
            )


def _chunk(answer: HTTPResponse, url: str) -> bytes:
    with reachable(url, hint=_MIRROR):
        return answer.read(files.CHUNK)


def remote_file(url: str, *, cert: str = "") -> BinaryIO:
    """Open a file that is read where it is wanted; whole, if its server does not support ranges."""
    with open_url(url, cert=cert, Range="bytes=0-0") as answer:
        if answer.status != _PARTIAL_CONTENT:
            return io.BytesIO(answer.read())
        said = str(answer.headers.get("Content-Range", "")).rpartition("/")[2]
    return io.BufferedReader(_RemoteFile(url, cert, int(said)), _AHEAD)


class _RemoteFile(io.RawIOBase):
    def __init__(self, url: str, cert: str, size: int) -> None:
        self._url, self._cert, self._size, self._at = url, cert, size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        with open_url(self._url, cert=self._cert, Range=f"bytes={self._at}-{end - 1}") as answer:
            data = bytes(answer.read())
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


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

    def __init__(self, *arguments: Any, store: Store | RemoteFiles, pages: Mapping[str, bytes]) -> None:  # noqa: ANN401 - the base class's
        self._store, self._pages = store, pages
        super().__init__(*arguments)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Print nothing: the installer shows what it fetches."""

    def do_GET(self) -> None:
        key = unquote(urlsplit(self.path).path).lstrip("/")
        key += "index.html" if key.endswith("/") else ""
        try:
            size = self._size(key)
            if size is None:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", headers_for(key)["ContentType"])
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if self.command == "GET":
                page = self._pages.get(key)
                with self._store.open(key) if page is None else io.BytesIO(page) as stream:
                    shutil.copyfileobj(stream, self.wfile)
        except FatalError as problem:
            # what was promised cannot be kept: the client sees that the answer broke off
            console.error(problem.message)
            self.close_connection = True
        except ConnectionError:
            self.close_connection = True

    do_HEAD = do_GET  # noqa: N815 - the base class's name

    def _size(self, key: str) -> int | None:
        if key in self._pages:
            return len(self._pages[key])
        with suppress(FatalError):  # an invalid key does not exist
            found = self._store.find(key)
            return found.size if found else None
        return None


@contextmanager
def served_store(store: Store | RemoteFiles, pages: Mapping[str, bytes] | None = None) -> Iterator[str]:
    """Serve a store's keys, with `pages` before its own, to this machine with this process's rights."""
    with answering(partial(_Handler, store=store, pages=pages or {})) as address:
        yield address


@contextmanager
def answering(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """Let a handler answer on a free port of the loopback interface, each request in a thread of its own."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
