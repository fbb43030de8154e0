import base64
import gzip
import hashlib
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from core.errors import ServiceError
from core.http import Answer, digest_of, download, fetch, open_url, remote_file, send_request
from core.http_server import answering
from tests.kit.servers import Quiet, served

CONTENT = bytes(range(256)) * 1000
CONTENT_SHA256 = hashlib.sha256(CONTENT).hexdigest()


# Pages and addresses


def test_fetches_a_page(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("links")

    with served(tmp_path) as url:
        assert fetch(f"{url}/page.html") == Answer(text="links", status=200)


def test_tells_which_status_an_absent_page_has(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        page_answer = fetch(f"{url}/absent.html")

    assert page_answer.text is None
    assert page_answer.status == 404
    assert page_answer.problem == "it answers 404 Not Found"


def test_tells_why_a_server_cannot_be_reached(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        pass  # it is gone

    page_answer = fetch(f"{url}/page.html")

    assert page_answer.text is None
    assert page_answer.status is None
    assert "refused" in str(page_answer.problem)


@pytest.mark.parametrize("address", ["ftp://files.example/", "https://", "http://[::1/", "http://host:port/"])
def test_tells_what_is_not_an_address(address: str) -> None:
    page_answer = fetch(address)

    assert page_answer.text is None
    assert page_answer.problem is not None


class RecordingServer(Quiet):
    """Answers every request alike, and keeps its path and headers."""

    requests: list[tuple[str, dict[str, str]]] = []  # noqa: RUF012 - a server makes an object for each request
    content = b"page"
    content_encoding = "identity"

    def do_GET(self) -> None:  # noqa: N802 - the base class's name
        """Answer a request."""
        self.requests.append((self.path, dict(self.headers)))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.content)))
        self.send_header("Content-Encoding", self.content_encoding)
        self.end_headers()
        self.wfile.write(self.content)


def test_reads_a_compressed_page() -> None:
    class Server(RecordingServer):
        content = gzip.compress(b"links")
        content_encoding = "gzip"

    with answering(Server) as url:
        assert fetch(url).text == "links"


def test_leaves_a_file_compressed_as_its_digest_has_it() -> None:
    class Server(RecordingServer):
        content = gzip.compress(b"an archive")
        content_encoding = "gzip"

    with answering(Server) as url, open_url(url) as response:
        assert response.read() == Server.content


# Faults of a moment


class FailingServer(Quiet):
    """Is busy for the first requests."""

    failures = 2
    requests: list[str] = []  # noqa: RUF012 - as above

    def do_GET(self) -> None:  # noqa: N802 - the base class's name
        """Answer a request."""
        self.requests.append(self.path)
        is_busy = len(self.requests) <= self.failures
        self.send_response(503 if is_busy else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()


def test_asks_a_busy_server_again() -> None:
    class Server(FailingServer):
        requests: list[str] = []  # noqa: RUF012 - as above

    with answering(Server) as url:
        assert fetch(url).status == 200
    assert len(Server.requests) == 3


def test_returns_what_a_server_answers_that_stays_busy() -> None:
    class Server(FailingServer):
        failures = 99
        requests: list[str] = []  # noqa: RUF012 - as above

    with answering(Server) as url:
        assert fetch(url).status == 503


def test_asks_a_service_once_as_its_callers_decide_when_to_ask_again() -> None:
    class Server(FailingServer):
        requests: list[str] = []  # noqa: RUF012 - as above

    with answering(Server) as url:
        assert send_request(url, headers={}).status == 503
    assert len(Server.requests) == 1


class BreakingServer(Quiet):
    """Breaks off in the middle of its first answer."""

    requests: list[str] = []  # noqa: RUF012 - as above

    def do_GET(self) -> None:  # noqa: N802 - the base class's name
        """Answer a request."""
        self.requests.append(self.path)
        is_broken = len(self.requests) == 1
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:5000] if is_broken else CONTENT)
        self.close_connection = True


def test_reads_a_page_again_that_broke_off() -> None:
    class Server(BreakingServer):
        requests: list[str] = []  # noqa: RUF012 - as above

    with answering(Server) as url:
        assert fetch(url).text == CONTENT.decode("utf-8", "replace")


def test_reads_a_file_again_that_broke_off() -> None:
    class Server(BreakingServer):
        requests: list[str] = []  # noqa: RUF012 - as above

    with answering(Server) as url:
        assert digest_of(url) == CONTENT_SHA256


def test_reads_a_file_again_that_breaks_off_without_ranges() -> None:
    class Server(BreakingServer):
        requests: list[str] = []  # noqa: RUF012 - as above

    with answering(Server) as url:
        assert remote_file(url).read() == CONTENT


# Passwords


def basic_login(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def test_takes_a_password_from_the_netrc_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Server(RecordingServer):
        requests: list[tuple[str, dict[str, str]]] = []  # noqa: RUF012 - as above

    file = tmp_path / "netrc"
    file.write_text("machine 127.0.0.1 login me password secret")
    monkeypatch.setenv("NETRC", str(file))

    with answering(Server) as url:
        fetch(url)
        fetch(url.replace("//", "//you:other@"))

    logins = [headers["Authorization"] for _path, headers in Server.requests]
    assert logins == [basic_login("me", "secret"), basic_login("you", "other")]


def test_shows_the_netrc_file_s_password_to_its_own_machine_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Server(RecordingServer):
        requests: list[tuple[str, dict[str, str]]] = []  # noqa: RUF012 - as above

    file = tmp_path / "netrc"
    file.write_text("machine index.example login me password secret\ndefault login any password thing")
    monkeypatch.setenv("NETRC", str(file))

    with answering(Server) as url:
        fetch(url)

    [(_path, headers)] = Server.requests
    assert "Authorization" not in headers


def test_a_damaged_netrc_file_is_told_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "netrc"
    file.write_text("machine")
    monkeypatch.setenv("NETRC", str(file))

    with answering(RecordingServer) as url:
        assert fetch(url).text == "page"
    assert str(file) in capfd.readouterr().err


# Proxies


@pytest.fixture
def proxied_requests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, dict[str, str]]]]:
    """Let the environment name a proxy, which asks for a password; return what it is asked for."""

    class Proxy(RecordingServer):
        requests: list[tuple[str, dict[str, str]]] = []  # noqa: RUF012 - as above

    with answering(Proxy) as url:
        monkeypatch.setenv("HTTP_PROXY", url.replace("//", "//me:secret@"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        yield Proxy.requests


def test_asks_other_machines_through_the_proxy(
    proxied_requests: list[tuple[str, dict[str, str]]],
) -> None:
    assert fetch("http://index.example/simple/").text == "page"

    [(address, headers)] = proxied_requests
    assert address == "http://index.example/simple/"
    assert headers["Proxy-Authorization"] == basic_login("me", "secret")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_never_asks_this_machine_through_a_proxy(
    proxied_requests: list[tuple[str, dict[str, str]]], tmp_path: Path, host: str
) -> None:
    (tmp_path / "page.html").write_text("links")

    with served(tmp_path) as url:
        page_answer = fetch(f"{url.replace('127.0.0.1', host)}/page.html")

    assert page_answer.text == "links"
    assert proxied_requests == []


def test_asks_machines_directly_that_need_no_proxy(
    proxied_requests: list[tuple[str, dict[str, str]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "page.html").write_text("links")
    look_up = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _host, *arguments: look_up("127.0.0.1", *arguments))
    monkeypatch.setenv("NO_PROXY", "index.example")

    with served(tmp_path) as url:
        page_answer = fetch(f"{url.replace('127.0.0.1', 'index.example')}/page.html")

    assert page_answer.text == "links"
    assert proxied_requests == []


# Redirects


class RedirectingServer(Quiet, BaseHTTPRequestHandler):
    """Sends requests for ``/here`` to ``/there`` of a server, and keeps the passwords that it is shown."""

    target = ""
    passwords: list[str] = []  # noqa: RUF012 - a server makes an object for each request

    def do_GET(self) -> None:
        """Answer a request."""
        self.passwords.append(self.headers.get("Authorization", ""))
        is_redirect = self.path == "/here"
        self.send_response(302 if is_redirect else 200)
        self.send_header("Location", f"{self.target}/there" if is_redirect else "")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_POST = do_GET  # noqa: N815 - the base class's name


@pytest.mark.parametrize(
    ("target", "is_shown"),
    [("", True), ("http://localhost:{port}", False), ("http://127.0.0.1:{other_port}", False)],
    ids=["same server", "other host", "other port"],
)
def test_shows_a_password_to_no_other_server(target: str, *, is_shown: bool) -> None:
    class Server(RedirectingServer):
        passwords: list[str] = []  # noqa: RUF012 - as above

    with answering(Server) as other_url, answering(Server) as url:
        Server.target = target.format(port=url.rpartition(":")[2], other_port=other_url.rpartition(":")[2])
        fetch(f"{url.replace('//', '//me:secret@')}/here")

    first, redirected = Server.passwords
    assert first.startswith("Basic ")
    assert bool(redirected) is is_shown


def test_shows_a_token_to_no_other_server() -> None:
    class Server(RedirectingServer):
        passwords: list[str] = []  # noqa: RUF012 - as above

    with answering(Server) as other_url, answering(Server) as url:
        Server.target = other_url
        send_request(f"{url}/here", headers={"Authorization": "Bearer secret"})

    assert Server.passwords == ["Bearer secret", ""]


def test_tells_where_a_redirect_led() -> None:
    class Server(RedirectingServer):
        passwords: list[str] = []  # noqa: RUF012 - as above

    with answering(Server) as url:
        own_url = url.replace("//", "//me:secret@")
        assert fetch(f"{own_url}/here").redirected_to == f"{own_url}/there"
        assert fetch(f"{url}/there").redirected_to is None


def test_never_repeats_a_request_with_a_body() -> None:
    with answering(RedirectingServer) as url:
        response = send_request(f"{url}/here", headers={}, body=b"body")

    assert response.status == 302


def test_gives_up_where_redirects_have_no_end() -> None:
    class Server(RedirectingServer):
        target = "/here?"

        def do_GET(self) -> None:
            """Send every request somewhere else."""
            self.send_response(302)
            self.send_header("Location", "/here")
            self.send_header("Content-Length", "0")
            self.end_headers()

    with answering(Server) as url, pytest.raises(ServiceError) as raised:
        send_request(f"{url}/here", headers={})

    assert url in raised.value.message


# Files


class FragileServer(Quiet):
    """Sends the content, of which a connection carries a part; with ranges the next one goes on there."""

    has_ranges = True
    positions: list[int] = []  # noqa: RUF012 - as above
    most_bytes = 100_000

    def do_GET(self) -> None:  # noqa: N802 - as above
        """Answer a request."""
        asked_range = self.headers.get("Range", "bytes=0-") if self.has_ranges else "bytes=0-"
        start, _, end = asked_range.removeprefix("bytes=").partition("-")
        rest = CONTENT[int(start) : int(end) + 1 if end else None]
        self.positions.append(int(start))

        self.send_response(206 if self.has_ranges and "Range" in self.headers else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.send_header("Content-Range", f"bytes {start}-{end}/{len(CONTENT)}")
        self.end_headers()
        self.wfile.write(rest[: self.most_bytes])
        self.close_connection = True


def test_continues_a_download_where_it_broke_off(tmp_path: Path) -> None:
    class Server(FragileServer):
        positions: list[int] = []  # noqa: RUF012 - as above

    with answering(Server) as url:
        download(url, tmp_path / "file", sha256=CONTENT_SHA256)

    assert (tmp_path / "file").read_bytes() == CONTENT
    assert Server.positions == [0, 100_000, 200_000]


def test_begins_a_download_again_where_a_server_cannot_continue_it(tmp_path: Path) -> None:
    class Server(FragileServer):
        has_ranges = False
        positions: list[int] = []  # noqa: RUF012 - as above

        @property
        def most_bytes(self) -> int:  # type: ignore[override]
            """The second connection holds."""
            return 10 if len(self.positions) == 1 else len(CONTENT)

    with answering(Server) as url:
        download(url, tmp_path / "file", sha256=CONTENT_SHA256)

    assert (tmp_path / "file").read_bytes() == CONTENT


def test_gives_a_download_up_that_does_not_end(tmp_path: Path) -> None:
    class Server(FragileServer):
        most_bytes = 10

    with answering(Server) as url, pytest.raises(ServiceError):
        download(url, tmp_path / "file", sha256=CONTENT_SHA256)

    assert list(tmp_path.iterdir()) == []


def test_refuses_a_download_that_is_another_file(tmp_path: Path) -> None:
    with answering(RecordingServer) as url, pytest.raises(ServiceError) as raised:
        download(url, tmp_path / "file", sha256=CONTENT_SHA256)

    assert CONTENT_SHA256 in raised.value.message
    assert list(tmp_path.iterdir()) == []


def test_downloads_a_file_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)

    download("http://index.example/file", tmp_path / "file", sha256=CONTENT_SHA256)


@pytest.mark.parametrize("has_ranges", [True, False], ids=["by ranges", "as a whole"])
def test_reads_a_part_of_a_remote_file(*, has_ranges: bool) -> None:
    class Server(FragileServer):
        most_bytes = len(CONTENT)

    Server.has_ranges = has_ranges
    with answering(Server) as url, remote_file(url) as stream:
        stream.seek(-300, 2)
        assert stream.read() == CONTENT[-300:]
