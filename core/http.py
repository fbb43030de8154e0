"""HTTP: the one way to request an address, read a page's links, download a file, and serve files.

Requests go through urllib3: it repeats what failed for a moment and reads compressed pages. Proxies are those
of the environment (HTTPS_PROXY, NO_PROXY); what this machine serves itself is never asked for through one.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import ipaddress
import netrc
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from threading import Thread
from typing import TYPE_CHECKING, Any, BinaryIO, cast
from urllib.parse import parse_qs, unquote, urljoin, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3.exceptions import HTTPError, MaxRetryError

from core import console, files
from core.cli.options import environment
from core.errors import FatalError, ServiceError
from core.parallel import JOBS, transfer
from core.stores import Store, Stored, headers_for

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse

    from core.parallel import Transfer

_TIMEOUT = 60.0  # seconds to connect, and between two pieces of an answer
_MOST_REDIRECTS = 10
_DOWNLOAD_ATTEMPTS = 5
# A page is read into memory, and a small compressed one may unpack to anything.
_LARGEST_PAGE = 256 << 20
# The directory at a wheel's end and its METADATA beside it fit into one request.
_READ_AHEAD = 1 << 18

# Faults of a moment: a server that is busy or being replaced, a connection that is refused or breaks off.
_PATIENTLY = urllib3.Retry(
    total=3,
    connect=2,
    status_forcelist=(HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE),
    backoff_factor=0.2,
    retry_after_max=30,
    raise_on_status=False,
)
_ONCE = urllib3.Retry(connect=0, read=0, status=0, other=0, respect_retry_after_header=False)


def has_secret(url: str) -> bool:
    """Return whether an address carries a user name or password, which no installer may be given."""
    return "@" in urlsplit(url).netloc


def without_secret(url: str) -> str:
    """Return an address as it may be shown."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


# Requests


@dataclass(frozen=True, kw_only=True)
class _Request:
    """How addresses are asked: `cert` is a CA bundle, and a body is POSTed."""

    headers: Mapping[str, str]
    cert: str | None = None
    body: bytes | None = None
    timeout: float = _TIMEOUT
    retries: urllib3.Retry = _PATIENTLY
    decode_content: bool = True

    def send(self, url: str) -> BaseHTTPResponse:
        """Return the answer of an address, whatever its status; redirects of what has no body are followed.

        A password is not shown to another server.

        Raises:
            ServiceError: There is no answer.
        """
        if self.cert and not Path(self.cert).is_file():
            raise ServiceError(f"There is no file of certificates {self.cert}.", hint="Correct its path.")
        _require_http_address(url)
        authorization = self.headers.get("Authorization") or _login_in_address(url)
        for _hop in range(_MOST_REDIRECTS):
            try:
                response = self._send_once(url, authorization)
            except HTTPError as problem:
                raise _unreadable(url, problem) from problem

            location = response.get_redirect_location()
            if not location or self.body is not None:
                return response

            response.close()
            target = urljoin(without_secret(url), location)
            _require_http_address(target)
            if not _is_same_server(url, target):
                authorization = _login_in_address(target)
            url = target
        raise ServiceError(f"{without_secret(url)} could not be read: it redirects without end.")

    def _send_once(self, url: str, authorization: str | None) -> BaseHTTPResponse:
        host = urlsplit(url).hostname or ""
        authorization = authorization or _login_in_netrc(host)
        headers = {name: value for name, value in self.headers.items() if name != "Authorization"}
        if authorization is not None:
            headers["Authorization"] = authorization

        return _connections(_proxy_for(url), self.cert or None).request(
            "GET" if self.body is None else "POST",
            without_secret(url),
            body=self.body,
            headers=headers,
            timeout=self.timeout,
            retries=self.retries,
            redirect=False,
            preload_content=False,
            decode_content=self.decode_content,
        )


def _require_http_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise ServiceError(f"{console.mask(url)} is not an HTTP address.", hint="Correct the address.")


@functools.cache
def _connections(proxy: str | None, cert: str | None) -> urllib3.PoolManager:
    """Return the open connections that go through a proxy, or through none."""
    if proxy is None:
        return urllib3.PoolManager(maxsize=JOBS, ca_certs=cert)
    login = _login_in_address(proxy)
    return urllib3.ProxyManager(
        without_secret(proxy),
        proxy_headers=None if login is None else {"Proxy-Authorization": login},
        maxsize=JOBS,
        ca_certs=cert,
    )


def _proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names for an address; None where it is asked directly."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host) or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or "://" in proxy:
        return proxy or None
    return f"http://{proxy}"


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine by its name or number, which a proxy would take for itself."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_same_server(url: str, target: str) -> bool:
    """Return whether a redirect stays on its server, or on its encrypted twin."""
    before = urlsplit(without_secret(url))
    after = urlsplit(without_secret(target))
    return before.netloc == after.netloc and after.scheme in {before.scheme, "https"}


def _login_in_address(url: str) -> str | None:
    """Return the header for the user name and password that an address carries."""
    parts = urlsplit(url)
    if not has_secret(url):
        return None
    return _basic_login(unquote(parts.username or ""), unquote(parts.password or ""))


def _login_in_netrc(host: str) -> str | None:
    """Return the header for a host by the user's netrc file, as pip and curl read it."""
    file = environment().get("NETRC") or str(Path.home() / ".netrc")
    login = _logins_of_netrc(Path(file)).get(host)
    return None if login is None else _basic_login(login[0], login[2])


@functools.cache
def _logins_of_netrc(file: Path) -> Mapping[str, tuple[str, str, str]]:
    if not file.is_file():
        return {}
    try:
        return netrc.netrc(file).hosts
    except (OSError, ValueError, netrc.NetrcParseError) as problem:
        console.warn(f"{file} cannot be read, so no password in it is used: {problem}")
        return {}


def _basic_login(user: str, password: str) -> str:
    login = base64.b64encode(f"{user}:{password}".encode()).decode()
    return f"Basic {login}"


def _unreadable(url: str, problem: Exception) -> ServiceError:
    return ServiceError(
        f"{without_secret(url)} could not be read: {_reason(problem)}.",
        hint="Try again, or correct the address, proxy or certificate.",
    )


def _reason(problem: BaseException) -> str:
    """Return what happened in the network's own words, which urllib3 wraps in its own."""
    if isinstance(problem, MaxRetryError) and problem.reason is not None:
        return _reason(problem.reason)
    if isinstance(problem.__cause__, OSError | HTTPError):
        return _reason(problem.__cause__)
    return problem.message if isinstance(problem, ServiceError) else str(problem)


def _status_words(status: int) -> str:
    """Return a status with its meaning: ``404 Not Found``."""
    meaning = ""
    with suppress(ValueError):
        meaning = HTTPStatus(status).phrase
    return f"{status} {meaning}".rstrip()


# Answers


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an address answered: its page, or why there is none; without a status there was no answer."""

    text: str | None = None
    status: int | None = None
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class Response:
    """A whole answer, perhaps a refusal."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@contextmanager
def request(
    url: str, *, cert: str | None = None, headers: Mapping[str, str] | None = None
) -> Iterator[BaseHTTPResponse]:
    """Yield the answer of an address, whatever its status, to be read piece by piece.

    The address may carry a user name and password; where it does not, the user's netrc file may have them.

    Raises:
        ServiceError: The address cannot be reached, or its answer breaks off.
    """
    # What is stored compressed stays so: its digest is of the compressed bytes.
    file_headers = {"Accept-Encoding": "identity", **(headers or {})}
    response = _Request(headers=file_headers, cert=cert, decode_content=False).send(url)
    try:
        yield response
    except HTTPError as problem:
        raise _unreadable(url, problem) from problem
    finally:
        response.close()


@contextmanager
def open_url(
    url: str, *, cert: str | None = None, headers: Mapping[str, str] | None = None
) -> Iterator[BaseHTTPResponse]:
    """Yield the answer of an address that has what is asked for, as `request` does.

    Raises:
        ServiceError: There is no answer, its answer breaks off, or it is a refusal.
    """
    with request(url, cert=cert, headers=headers) as response:
        require_success(url, response)
        yield response


def require_success(url: str, response: BaseHTTPResponse) -> None:
    """Refuse an answer that is an error."""
    if response.status >= HTTPStatus.MULTIPLE_CHOICES:
        raise ServiceError(
            f"{without_secret(url)} could not be read: it answers {_status_words(response.status)}.",
            hint="Try again, or correct the address.",
        )


def respond(
    url: str, *, headers: Mapping[str, str], body: bytes | None = None, timeout: float = _TIMEOUT
) -> Response:
    """Ask a service once, and return its whole answer, that of a refusal, too; a body is POSTed.

    Raises:
        ServiceError: The address cannot be reached, or its answer breaks off.
    """
    response = _Request(headers=headers, body=body, timeout=timeout, retries=_ONCE).send(url)
    try:
        content = response.read()
    except HTTPError as problem:
        raise _unreadable(url, problem) from problem
    finally:
        response.close()
    return Response(status=response.status, headers=response.headers, body=content)


def fetch(url: str, *, cert: str | None = None) -> Answer:
    """Request a page, not a cached copy of it; no answer is an answer, too."""
    headers = {"Accept": "text/html", "Accept-Encoding": "gzip, deflate", "Cache-Control": "no-cache"}
    try:
        response = _Request(headers=headers, cert=cert).send(url)
    except ServiceError as problem:
        return Answer(problem=f"it cannot be reached ({_reason(problem).removesuffix('.')})")

    status = response.status
    try:
        if status >= HTTPStatus.MULTIPLE_CHOICES:
            return Answer(status=status, problem=f"it answers {_status_words(status)}")
        content = response.read(_LARGEST_PAGE + 1)
    except HTTPError as problem:
        return Answer(problem=f"its answer broke off ({_reason(problem)})")
    finally:
        response.close()

    if len(content) > _LARGEST_PAGE:
        return Answer(status=status, problem=f"its page is larger than {console.size(_LARGEST_PAGE)}")
    return Answer(text=content.decode("utf-8", "replace"), status=status)


# Files


def digest_of(url: str, *, cert: str | None = None) -> str:
    """Return the hex SHA-256 of a file, which is read for it."""
    digest = hashlib.sha256()
    with open_url(url, cert=cert) as response:
        for chunk in response.stream(files.CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def download(url: str, path: Path, *, sha256: str) -> None:
    """Download a file that has to have a digest; one that is there already is left alone."""
    if path.is_file() and files.sha256(path) == sha256:
        return

    with files.half(path) as part:
        with part.open("wb") as stream, transfer("fetch", size=0) as progress:
            _download_to_the_end(url, stream, progress)
        downloaded_sha256 = files.sha256(part)
        if downloaded_sha256 != sha256:
            raise ServiceError(
                f"{url} has SHA-256 {downloaded_sha256}, and the data says {sha256}.",
                hint="Try again. If it persists, the file was replaced: do not use it.",
            )


def _download_to_the_end(url: str, stream: BinaryIO, progress: Transfer) -> None:
    """Write a file's content; where a connection breaks off, the next one continues there."""
    for attempt in range(1, _DOWNLOAD_ATTEMPTS + 1):
        try:
            _download_rest(url, stream, progress)
        except ServiceError:
            if attempt == _DOWNLOAD_ATTEMPTS or stream.tell() == 0:
                raise
        else:
            return


def _download_rest(url: str, stream: BinaryIO, progress: Transfer) -> None:
    headers = {"Range": f"bytes={stream.tell()}-"} if stream.tell() else {}
    with open_url(url, headers=headers) as response:
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            stream.seek(0)
            stream.truncate()
        remaining = int(response.headers.get("Content-Length") or 0)
        progress.reach(stream.tell(), stream.tell() + remaining)

        for chunk in response.stream(files.CHUNK):
            stream.write(chunk)
            progress.advance(len(chunk))


def remote_file(url: str, *, cert: str | None = None) -> BinaryIO:
    """Open a file that is read where it is wanted; whole, if its server does not support ranges."""
    with open_url(url, cert=cert, headers={"Range": "bytes=0-0"}) as response:
        size = response.headers.get("Content-Range", "").rpartition("/")[2]
        if response.status != HTTPStatus.PARTIAL_CONTENT or not size.isdigit():
            return io.BytesIO(response.read())
    return io.BufferedReader(_RemoteFile(url, cert, int(size)), _READ_AHEAD)


class _RemoteFile(io.RawIOBase):
    """A file behind an address, each piece of which is a request."""

    def __init__(self, url: str, cert: str | None, size: int) -> None:
        self._url = url
        self._cert = cert
        self._size = size
        self._position = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origins = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        self._position = origins[whence] + offset
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0

        headers = {"Range": f"bytes={self._position}-{end - 1}"}
        with open_url(self._url, cert=self._cert, headers=headers) as response:
            if response.status != HTTPStatus.PARTIAL_CONTENT:
                raise ServiceError(f"{without_secret(self._url)} answers no longer with a part of the file.")
            content = response.read(end - self._position)
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


# Pages


@dataclass(frozen=True, kw_only=True)
class Link:
    """A file that a page lists (PEP 503); a field is "" where the page says nothing of it."""

    name: str
    sha256: str = ""
    requires_python: str = ""
    yanked: bool = False


class _LinkReader(HTMLParser):
    """Collects the links of a page; the first ``<base>`` says what they are relative to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: dict[str, Link] = {}
        self._base: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        href = attributes.get("href")
        if not href:
            return
        if tag == "base" and self._base is None:
            self._base = href
        if tag == "a":
            self._add_link(href, attributes)

    def _add_link(self, href: str, attributes: Mapping[str, str | None]) -> None:
        parts = urlsplit(href)
        address = href.partition("#")[0]
        if self._base is not None:
            address = urljoin(self._base, address)
        self.links[address] = Link(
            name=PurePosixPath(unquote(parts.path)).name,
            sha256=parse_qs(parts.fragment).get("sha256", [""])[0],
            requires_python=attributes.get("data-requires-python") or "",
            yanked="data-yanked" in attributes,
        )


def links(page: str) -> Mapping[str, Link]:
    """Return the links of a page (PEP 503), by an address that may be relative to the page's."""
    reader = _LinkReader()
    reader.feed(page)
    reader.close()
    return reader.links


# Servers


class RemoteFiles:
    """Files by name behind addresses with a password, which this process keeps to itself."""

    def __init__(self, urls: Mapping[str, str], *, cert: str | None) -> None:
        """Request nothing yet."""
        self._urls = urls
        self._cert = cert

    def find(self, key: str) -> Stored | None:
        """Look a file up."""
        if key not in self._urls:
            return None
        with open_url(self._urls[key], cert=self._cert) as response:
            size = int(response.headers["Content-Length"])
        return Stored(key=key, size=size, etag="", modified=0)

    @contextmanager
    def open(self, key: str) -> Iterator[BinaryIO]:
        """Open a file."""
        with open_url(self._urls[key], cert=self._cert) as response:
            yield cast("BinaryIO", response)


class _FileHandler(BaseHTTPRequestHandler):
    """Answers with pages, and with the files of a store."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments: Any, store: Store | RemoteFiles, pages: Mapping[str, bytes]) -> None:  # noqa: ANN401 - the base class's
        self._store = store
        self._pages = pages
        super().__init__(*arguments)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Print nothing: the installer shows what it fetches."""

    def do_GET(self) -> None:
        key = unquote(urlsplit(self.path).path).lstrip("/")
        if key.endswith("/"):
            key += "index.html"
        try:
            self._answer(key)
        except FatalError as problem:
            # What was promised cannot be kept: the client sees that the answer broke off.
            console.error(problem.message)
            self.close_connection = True
        except ConnectionError:
            self.close_connection = True

    do_HEAD = do_GET  # noqa: N815 - the base class's name

    def _answer(self, key: str) -> None:
        size = self._size(key)
        if size is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return

        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", headers_for(key)["ContentType"])
        self.send_header("Content-Length", str(size))
        self.end_headers()
        if self.command != "GET":
            return
        if key in self._pages:
            self.wfile.write(self._pages[key])
            return
        with self._store.open(key) as stream:
            shutil.copyfileobj(stream, self.wfile)

    def _size(self, key: str) -> int | None:
        if key in self._pages:
            return len(self._pages[key])
        stored: Stored | None = None
        with suppress(FatalError):  # an invalid key does not exist
            stored = self._store.find(key)
        return None if stored is None else stored.size


@contextmanager
def served_store(store: Store | RemoteFiles, pages: Mapping[str, bytes] | None = None) -> Iterator[str]:
    """Serve a store's keys, with `pages` before its own, to this machine with this process's rights."""
    with answering(partial(_FileHandler, store=store, pages=pages or {})) as address:
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
