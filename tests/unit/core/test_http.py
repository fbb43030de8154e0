from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse, IncompleteRead
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from core.errors import StoreError
from core.http import Answer, Link, answering, fetch, links, open_url, served_store
from core.stores.directory import DirectoryStore
from tests.kit.servers import Quiet, served

TORCH_SHA256 = "a" * 64


@contextmanager
def requested(url: str, *, method: str = "GET") -> Iterator[HTTPResponse]:
    """Request an address of this machine."""
    with urlopen(Request(url, method=method)) as response:  # noqa: S310 - our own address
        yield response


def read_url(url: str) -> bytes:
    """Return the body of an address of this machine."""
    with requested(url) as response:
        return bytes(response.read())


# Pages and addresses


def test_reads_links_as_installers_read_them() -> None:
    page = (
        f'<a href="../../torch-2.10.0%2Brocm7.1.whl#sha256={TORCH_SHA256}">torch</a>'
        '<a href="rocm-7.1.tar.gz">rocm</a>'
        '<a name="top">no link</a>'
    )

    assert links(page) == {
        "../../torch-2.10.0%2Brocm7.1.whl": Link(name="torch-2.10.0+rocm7.1.whl", sha256=TORCH_SHA256),
        "rocm-7.1.tar.gz": Link(name="rocm-7.1.tar.gz"),
    }


def test_fetches_a_page(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("links")

    with served(tmp_path) as url:
        assert fetch(f"{url}/page.html") == Answer(text="links", status=200)


def test_tells_which_status_an_absent_page_has(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        page_answer = fetch(f"{url}/absent.html")

    assert page_answer.text is None
    assert page_answer.status == 404
    assert "404" in page_answer.problem


def test_tells_why_a_server_cannot_be_reached(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        pass  # it is gone

    page_answer = fetch(f"{url}/page.html")

    assert page_answer.text is None
    assert page_answer.status == 0
    assert "refused" in page_answer.problem


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
        open_url(f"{url.replace('//', '//me:secret@')}/here").close()

    first, redirected = Server.passwords
    assert first.startswith("Basic ")
    assert bool(redirected) is is_shown


def test_never_repeats_a_request_with_a_body() -> None:
    with answering(RedirectingServer) as url, pytest.raises(HTTPError, match="302") as raised:
        open_url(f"{url}/here", data=b"body")

    raised.value.close()


# A store over HTTP


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """Return a store with a wheel and a page."""
    store = DirectoryStore(tmp_path)
    store.put_bytes("9/torch-2+rocm.whl", b"wheel")
    store.put_bytes("9/simple/torch/index.html", b"page")
    return store


@pytest.mark.parametrize("path", ["9/torch-2%2Brocm.whl", "9/torch-2+rocm.whl"], ids=["quoted", "as it is"])
def test_answers_with_the_file_of_a_key(store: DirectoryStore, path: str) -> None:
    with served_store(store) as url:
        assert read_url(f"{url}/{path}") == b"wheel"


def test_answers_with_files_that_are_read_in_pieces(store: DirectoryStore) -> None:
    content = bytes(range(256)) * 20_000
    store.put_bytes("9/large.whl", content)

    with served_store(store) as url:
        assert read_url(f"{url}/9/large.whl") == content


def test_answers_for_a_folder_with_its_page(store: DirectoryStore) -> None:
    with served_store(store) as url, requested(f"{url}/9/simple/torch/") as response:
        assert response.read() == b"page"
        assert response.headers["Content-Type"].startswith("text/html")


def test_answers_with_given_pages_before_those_of_the_store(store: DirectoryStore) -> None:
    with served_store(store, {"9/simple/torch/index.html": b"newer"}) as url:
        assert read_url(f"{url}/9/simple/torch/") == b"newer"


def test_answers_how_long_a_file_is(store: DirectoryStore) -> None:
    with served_store(store) as url, requested(f"{url}/9/torch-2%2Brocm.whl", method="HEAD") as response:
        assert response.read() == b""
        assert response.headers["Content-Length"] == "5"


@pytest.mark.parametrize("path", ["9/absent.whl", "", "%2Fetc/passwd", "../secret", ".digests/9/x"])
def test_finds_nothing_that_is_no_key(store: DirectoryStore, path: str) -> None:
    (store.root.parent / "secret").write_text("secret")

    with served_store(store) as url, pytest.raises(HTTPError, match="404") as raised:
        read_url(f"{url}/{path}")

    raised.value.close()


def test_a_client_sees_that_an_answer_broke_off(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_arguments: Any) -> None:
        raise StoreError("The bucket is gone.")

    monkeypatch.setattr(DirectoryStore, "open", fail)
    with served_store(store) as url, pytest.raises(IncompleteRead):
        read_url(f"{url}/9/torch-2+rocm.whl")

    assert "The bucket is gone" in capfd.readouterr().err
