"""HTTP: the one way to request an address, and to download a file.

Requests go through urllib3: it repeats what failed for a moment and reads compressed pages. Proxies are those
of the environment (HTTPS_PROXY, NO_PROXY); what this machine serves itself is never asked for through one.
Many a verb only shows addresses, so urllib3 is imported with the first request.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import io
import ipaddress
import netrc
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

from core import console, files
from core.cli.options import environment
from core.errors import ServiceError
from core.parallel import JOBS, transfer

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager, Retry

    from core.parallel import Transfer

_TIMEOUT = 60.0  # seconds to connect, and between two pieces of an answer
_MOST_REDIRECTS = 10
_DOWNLOAD_ATTEMPTS = 5
# A page is read into memory, and a small compressed one may unpack to anything.
_LARGEST_PAGE = 256 << 20
# The directory at a wheel's end and its METADATA beside it fit into one request.
_READ_AHEAD = 1 << 18

_Content = TypeVar("_Content")


def has_secret(url: str) -> bool:
    """Return whether an address carries a user name or password, which no installer may be given."""
    return "@" in urlsplit(url).netloc


def without_secret(url: str) -> str:
    """Return an address as it may be shown."""
    parts = urlsplit(url)
    _login, _at, host_and_port = parts.netloc.rpartition("@")
    shown_parts = parts._replace(netloc=host_and_port)
    return urlunsplit(shown_parts)


# Requests


@dataclass(frozen=True, kw_only=True)
class _Received:
    """An answer, and the address that gave it, at the end of all redirects."""

    response: BaseHTTPResponse
    url: str


@dataclass(frozen=True, kw_only=True)
class _Request:
    """How addresses are asked: `cert` is a CA bundle, a body is POSTed, faults of a moment are waited for."""

    headers: Mapping[str, str]
    cert: str | None = None
    body: bytes | None = None
    timeout: float = _TIMEOUT
    is_repeated: bool = True
    decode_content: bool = True

    def send(self, url: str) -> _Received:
        """Return the answer of an address, whatever its status; redirects of what has no body are followed.

        A password is not shown to another server.

        Raises:
            ServiceError: There is no answer.
        """
        from urllib3.exceptions import HTTPError

        self._require_certificates()
        _require_http_address(url)
        authorization = self.headers.get("Authorization") or _authorization_in_address(url)

        for _hop in range(_MOST_REDIRECTS):
            try:
                response = self._send_once(url, authorization)
            except HTTPError as problem:
                raise _unreadable(url, problem) from problem

            location = response.get_redirect_location()
            if not location or self.body is not None:
                return _Received(response=response, url=url)

            response.close()
            target = urljoin(without_secret(url), location)
            _require_http_address(target)
            if _is_same_server(url, target):
                target = _with_login_of(url, target)
            else:
                authorization = _authorization_in_address(target)
            url = target

        shown_url = without_secret(url)
        raise ServiceError(f"{shown_url} could not be read: it redirects without end.")

    def _require_certificates(self) -> None:
        if not self.cert:
            return
        if not Path(self.cert).is_file():
            raise ServiceError(
                f"There is no file of certificates {self.cert}.",
                hint="Correct its path.",
            )

    def _send_once(self, url: str, authorization: str | None) -> BaseHTTPResponse:
        """Return the answer of one address, without following a redirect."""
        method = "GET" if self.body is None else "POST"
        proxy = _proxy_for(url)
        connections = _connections(proxy, self.cert or None)
        headers = self._headers_for(url, authorization)

        return connections.request(
            method,
            without_secret(url),
            body=self.body,
            headers=headers,
            timeout=self.timeout,
            retries=_retries(is_repeated=self.is_repeated),
            redirect=False,
            preload_content=False,
            decode_content=self.decode_content,
        )

    def _headers_for(self, url: str, authorization: str | None) -> Mapping[str, str]:
        """Return the request's headers, with the login that is meant for this server and no other."""
        headers = dict(self.headers)
        headers.pop("Authorization", None)

        if authorization is None:
            host = urlsplit(url).hostname or ""
            authorization = _authorization_in_netrc(host)
        if authorization is not None:
            headers["Authorization"] = authorization
        return headers


def _require_http_address(url: str) -> None:
    if not _is_http_address(url):
        # What cannot be parsed may still hold a password, which is masked where it is known.
        shown_url = console.mask(url)
        raise ServiceError(f"{shown_url} is not an HTTP address.", hint="Correct the address.")


def _is_http_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # such as a bracket that is not closed, or a port that is no number
        return False

    if parts.scheme not in {"http", "https"}:
        return False
    return bool(parts.hostname) and port != 0


def _retries(*, is_repeated: bool) -> Retry:
    """Return after which answers a request is sent again."""
    from urllib3 import Retry

    if not is_repeated:
        return Retry(connect=0, read=0, status=0, other=0, respect_retry_after_header=False)
    # Faults of a moment: a server that is busy or being replaced, a connection that is refused or breaks off.
    return Retry(
        total=3,
        connect=2,
        status_forcelist=(
            HTTPStatus.TOO_MANY_REQUESTS,
            HTTPStatus.BAD_GATEWAY,
            HTTPStatus.SERVICE_UNAVAILABLE,
        ),
        backoff_factor=0.2,
        retry_after_max=30,
        raise_on_status=False,
    )


@functools.cache
def _connections(proxy: str | None, cert: str | None) -> PoolManager:
    """Return the open connections that go through a proxy, or through none."""
    from urllib3 import PoolManager, ProxyManager

    if proxy is None:
        return PoolManager(maxsize=JOBS, ca_certs=cert)

    proxy_headers: dict[str, str] = {}
    authorization = _authorization_in_address(proxy)
    if authorization is not None:
        proxy_headers["Proxy-Authorization"] = authorization

    proxy_address = without_secret(proxy)
    return ProxyManager(
        proxy_address,
        proxy_headers=proxy_headers,
        maxsize=JOBS,
        ca_certs=cert,
    )


def _proxy_for(url: str) -> str | None:
    """Return the proxy that the environment names for an address; None where it is asked directly."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(without_secret(url))
    host = parts.hostname or ""
    if is_loopback(host):
        return None
    if proxy_bypass(parts.netloc) or _is_in_direct_network(host):  # by NO_PROXY
        return None

    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy:
        return None
    # Often written as a host and a port alone, as curl takes it.
    if "://" not in proxy:
        return f"http://{proxy}"
    return proxy


def _is_in_direct_network(host: str) -> bool:
    """Return whether NO_PROXY has a network (``10.0.0.0/8``) of this address, as pip, uv and curl read it."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False

    variables = environment()
    names = variables.get("no_proxy") or variables.get("NO_PROXY", "")
    for name in names.split(","):
        with suppress(ValueError):
            if address in ipaddress.ip_network(name.strip(), strict=False):
                return True
    return False


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
    source_parts = urlsplit(without_secret(url))
    target_parts = urlsplit(without_secret(target))
    if source_parts.netloc != target_parts.netloc:
        return False
    return target_parts.scheme in {source_parts.scheme, "https"}


def _with_login_of(url: str, target: str) -> str:
    """Return the address that a redirect leads to on the same server, with the login of the first one."""
    login, at, _host_and_port = urlsplit(url).netloc.rpartition("@")
    target_parts = urlsplit(target)
    if not at or "@" in target_parts.netloc:
        return target
    return urlunsplit(target_parts._replace(netloc=f"{login}@{target_parts.netloc}"))


def _authorization_in_address(url: str) -> str | None:
    """Return the value of the header for the user name and password that an address carries."""
    if not has_secret(url):
        return None
    parts = urlsplit(url)
    user = unquote(parts.username or "")
    password = unquote(parts.password or "")
    return _basic_authorization(user, password)


def _authorization_in_netrc(host: str) -> str | None:
    """Return the value of the header for a host by the user's netrc file, as pip and curl read it."""
    file = _netrc_file()
    if file is None:
        return None
    # Its entry `default` would be shown to every server that a page links to.
    login = _logins_of_netrc(file).get(host)
    if login is None:
        return None
    user, _account, password = login
    return _basic_authorization(user, password)


def _netrc_file() -> Path | None:
    """Return where the user's netrc file would be; None for a user without a home, as in many a container."""
    path = environment().get("NETRC")
    if path:
        return Path(path)
    try:
        return Path.home() / ".netrc"
    except RuntimeError:
        return None


@functools.cache
def _logins_of_netrc(file: Path) -> Mapping[str, tuple[str, str, str]]:
    if not file.is_file():
        return {}
    try:
        return netrc.netrc(file).hosts
    except (OSError, ValueError, netrc.NetrcParseError) as problem:
        console.warn(f"{file} cannot be read, so no password in it is used: {problem}")
        return {}


def _basic_authorization(user: str, password: str) -> str:
    login = f"{user}:{password}".encode()
    encoded_login = base64.b64encode(login).decode()
    return f"Basic {encoded_login}"


def _unreadable(url: str, problem: Exception) -> ServiceError:
    shown_url = without_secret(url)
    reason = _reason(problem)
    return ServiceError(
        f"{shown_url} could not be read: {reason}.",
        hint="Try again, or correct the address, proxy or certificate.",
    )


def _reason(problem: BaseException) -> str:
    """Return what happened in the network's own words, which urllib3 wraps in its own."""
    from urllib3.exceptions import HTTPError, MaxRetryError

    if isinstance(problem, MaxRetryError) and problem.reason is not None:
        return _reason(problem.reason)
    cause = problem.__cause__
    if isinstance(cause, OSError | HTTPError):
        return _reason(cause)
    if isinstance(problem, ServiceError):
        return problem.message
    return str(problem)


def _status_words(status: int) -> str:
    """Return a status with its meaning: ``404 Not Found``."""
    try:
        meaning = HTTPStatus(status).phrase
    except ValueError:  # a server's own, such as Cloudflare's 520
        return str(status)
    return f"{status} {meaning}"


# Answers


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What an address answered: its page, or why there is none; without a status there was no answer.

    `redirected_to` is the address of the page itself, which its links are relative to; None where that is
    the address that was asked.
    """

    text: str | None = None
    status: int | None = None
    problem: str | None = None
    redirected_to: str | None = None


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
    from urllib3.exceptions import HTTPError

    # What is stored compressed stays so: its digest is of the compressed bytes.
    file_headers = {"Accept-Encoding": "identity"}
    if headers is not None:
        file_headers.update(headers)

    file_request = _Request(headers=file_headers, cert=cert, decode_content=False)
    response = file_request.send(url).response
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
    if response.status < HTTPStatus.MULTIPLE_CHOICES:
        return
    shown_url = without_secret(url)
    status = _status_words(response.status)
    raise ServiceError(
        f"{shown_url} could not be read: it answers {status}.",
        hint="Try again, or correct the address.",
    )


def send_request(
    url: str, *, headers: Mapping[str, str], body: bytes | None = None, timeout: float = _TIMEOUT
) -> Response:
    """Ask a service once, and return its whole answer, that of a refusal, too; a body is POSTed.

    Raises:
        ServiceError: The address cannot be reached, or its answer breaks off.
    """
    from urllib3.exceptions import HTTPError

    service_request = _Request(headers=headers, body=body, timeout=timeout, is_repeated=False)
    response = service_request.send(url).response
    try:
        content = response.read()
    except HTTPError as problem:
        raise _unreadable(url, problem) from problem
    finally:
        response.close()
    return Response(status=response.status, headers=response.headers, body=content)


def fetch(url: str, *, cert: str | None = None) -> Answer:
    """Request a page, not a cached copy of it; no answer is an answer, too."""
    headers = {
        "Accept": "text/html",
        "Accept-Encoding": "gzip, deflate",
        "Cache-Control": "no-cache",
    }
    page_request = _Request(headers=headers, cert=cert)
    try:
        return _repeat_where_broken_off(lambda: _fetch_page(page_request, url))
    except ServiceError as problem:
        reason = _reason(problem).removesuffix(".")
        if _has_broken_off(problem):
            return Answer(problem=f"its answer broke off ({reason})")
        return Answer(problem=f"it cannot be reached ({reason})")


def _fetch_page(page_request: _Request, url: str) -> Answer:
    from urllib3.exceptions import HTTPError

    received = page_request.send(url)
    try:
        answer = _read_page(received.response)
    except HTTPError as problem:
        raise _unreadable(url, problem) from problem
    finally:
        received.response.close()

    if received.url == url:
        return answer
    return replace(answer, redirected_to=received.url)


def _repeat_where_broken_off(read: Callable[[], _Content]) -> _Content:
    """Return what is read; where a connection breaks off in the middle, all is read once more."""
    for _attempt in range(_DOWNLOAD_ATTEMPTS - 1):
        try:
            return read()
        except ServiceError as problem:
            if not _has_broken_off(problem):
                raise
    return read()


def _has_broken_off(problem: ServiceError) -> bool:
    """Return whether an answer began and did not end; a server out of reach has been asked again already."""
    from urllib3.exceptions import ProtocolError, ReadTimeoutError

    return isinstance(problem.__cause__, ProtocolError | ReadTimeoutError)


def _read_page(response: BaseHTTPResponse) -> Answer:
    status = response.status
    if status >= HTTPStatus.MULTIPLE_CHOICES:
        return Answer(status=status, problem=f"it answers {_status_words(status)}")

    # One byte more than is allowed tells a page that is too large.
    content = response.read(_LARGEST_PAGE + 1)
    if len(content) > _LARGEST_PAGE:
        limit = console.size(_LARGEST_PAGE)
        return Answer(status=status, problem=f"its page is larger than {limit}")

    text = content.decode("utf-8", "replace")
    return Answer(text=text, status=status)


# Files


def digest_of(url: str, *, cert: str | None = None) -> str:
    """Return the hex SHA-256 of a file, which is read for it."""

    def compute_digest() -> str:
        digest = hashlib.sha256()
        with open_url(url, cert=cert) as response:
            for chunk in response.stream(files.CHUNK):
                digest.update(chunk)
        return digest.hexdigest()

    return _repeat_where_broken_off(compute_digest)


def download(url: str, path: Path, *, sha256: str) -> None:
    """Download a file that has to have a digest; one that is there already is left alone."""
    if path.is_file() and files.sha256(path) == sha256:
        return

    with files.partial_file(path) as part:
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
    headers: dict[str, str] = {}
    received = stream.tell()
    if received > 0:
        headers["Range"] = f"bytes={received}-"

    with open_url(url, headers=headers) as response:
        # A server without ranges sends the file from its beginning.
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            received = 0
            stream.seek(0)
            stream.truncate()

        remaining = int(response.headers.get("Content-Length") or 0)
        progress.reach(received, received + remaining)

        for chunk in response.stream(files.CHUNK):
            stream.write(chunk)
            progress.advance(len(chunk))


def remote_file(url: str, *, cert: str | None = None) -> BinaryIO:
    """Open a file that is read where it is wanted; whole, if its server does not support ranges."""
    return _repeat_where_broken_off(lambda: _open_remote_file(url, cert))


def _open_remote_file(url: str, cert: str | None) -> BinaryIO:
    first_byte = {"Range": "bytes=0-0"}
    with open_url(url, cert=cert, headers=first_byte) as response:
        size = _size_by_range(response)
        if size is None:
            content = response.read()
            return io.BytesIO(content)

    file = _RemoteFile(url, cert, size)
    return io.BufferedReader(file, _READ_AHEAD)


def _size_by_range(response: BaseHTTPResponse) -> int | None:
    """Return the size of a file of which a part is answered: 1000 of ``bytes 0-0/1000``."""
    if response.status != HTTPStatus.PARTIAL_CONTENT:
        return None
    content_range = response.headers.get("Content-Range", "")
    _range, _slash, size = content_range.rpartition("/")
    if not size.isdigit():  # an asterisk, where the server does not know it
        return None
    return int(size)


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

        position = self._position
        content = _repeat_where_broken_off(lambda: self._read_range(position, end))
        count = len(content)
        buffer[:count] = content
        self._position += count
        return count

    def _read_range(self, start: int, end: int) -> bytes:
        last_byte = end - 1
        headers = {"Range": f"bytes={start}-{last_byte}"}
        with open_url(self._url, cert=self._cert, headers=headers) as response:
            if response.status != HTTPStatus.PARTIAL_CONTENT:
                shown_url = without_secret(self._url)
                raise ServiceError(f"{shown_url} answers no longer with a part of the file.")
            return response.read(end - start)
