from http.client import IncompleteRead
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from ci.publish.index.pages import Entry
from core.errors import MissingInputError, StoreError
from core.http import Answer, Link, answering, fetch, links, open_url, served_store
from core.packages import Offer, sources
from core.packages.sources import unlisted, wait_for
from core.stores.directory import DirectoryStore
from tests.kit.index_pages import render_pages
from tests.kit.servers import Quiet, served

TORCH = Offer(
    name="torch-2.10.0+rocm7.1.whl", distribution="torch", version="2.10.0+rocm7.1", sha256="a" * 64
)
ROCM = Offer(name="rocm-7.1.tar.gz", distribution="rocm", version="7.1", sha256="b" * 64)


def page(*offers: Offer) -> str:
    return "".join(
        f'<a href="../../{one.name.replace("+", "%2B")}#sha256={one.sha256}">{one.name}</a>' for one in offers
    )


def test_links_are_read_as_installers_read_them() -> None:
    text = page(TORCH) + '<a href="rocm-7.1.tar.gz">rocm</a><a name="top">no link</a>'
    assert links(text) == {
        "../../torch-2.10.0%2Brocm7.1.whl": Link(name=TORCH.name, sha256=TORCH.sha256),
        "rocm-7.1.tar.gz": Link(name=ROCM.name),
    }


def test_our_own_pages_are_read() -> None:
    entry = Entry(
        filename=TORCH.name, name="torch", version="2.10.0", sha256=TORCH.sha256, size=1, modified=0
    )
    pages = render_pages("g", [entry])
    for path in ("index.html", "simple/torch/index.html"):
        assert unlisted(pages[path], [TORCH]) == []


def test_what_is_absent_or_of_another_digest_is_named() -> None:
    other = Offer(name=ROCM.name, distribution="rocm", version="7.1", sha256="c" * 64)
    assert unlisted(page(other), [TORCH, ROCM]) == [TORCH.name, f"{ROCM.name} (listed with another digest)"]
    assert unlisted(None, [TORCH]) == [TORCH.name]
    assert unlisted(f'<a href="{TORCH.name}">without a digest</a>', [TORCH]) == []


@pytest.fixture(name="slept", autouse=True)
def slept_fixture(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let only waiting move the clock."""
    slept: list[float] = []
    monkeypatch.setattr(sources, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept)))
    return slept


def test_pages_are_read_until_they_list_files(slept: list[float], capfd: pytest.CaptureFixture[str]) -> None:
    asked: list[str] = []

    def read(url: str) -> Answer:
        asked.append(url)
        if url == "torch":
            return Answer(text=page(TORCH) if sum(slept) >= 2 else "")
        return Answer(text=page(ROCM)) if sum(slept) >= 1 else Answer(problem="it answers 404 Not Found")

    wait_for({"torch": [TORCH], "rocm": [ROCM]}, seconds=60, read=read)
    assert 2 <= sum(slept) < 5
    assert asked.count("rocm") < asked.count("torch"), "a page that is complete is not asked again"
    said = capfd.readouterr().err
    assert f"rocm: it answers 404 Not Found; it should list {ROCM.name}." in said
    assert f"torch lacks {TORCH.name}." in said


def test_a_complete_page_is_read_once_silently(slept: list[float], capfd: pytest.CaptureFixture[str]) -> None:
    wait_for({"torch": [TORCH]}, seconds=0, read=lambda _: Answer(text=page(TORCH)))
    assert (slept, capfd.readouterr().err) == ([], "")


def test_when_time_is_up_one_message_names_what_is_missing(slept: list[float]) -> None:
    many = [Offer(name=f"x-{n}.whl", distribution="x", version=str(n), sha256="a" * 64) for n in range(20)]
    with pytest.raises(MissingInputError) as caught:
        wait_for({"flat": many}, seconds=30, read=lambda _: Answer(text=""))
    assert sum(slept) == 30
    assert max(slept) <= 15
    assert "After 30 s" in caught.value.message
    assert "flat lacks x-0.whl," in caught.value.message
    assert "and 12 more." in caught.value.message
    assert "nox -s index" in caught.value.hint


def test_addresses_that_do_not_answer_say_why(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("links")
    with served(tmp_path) as url:
        assert fetch(f"{url}/page.html") == Answer(text="links", status=200)
        assert fetch(f"{url}/absent.html").problem == "it answers 404 File not found"
    gone = fetch(f"{url}/page.html")
    assert gone.text is None
    assert "cannot be reached" in gone.problem
    assert "refused" in gone.problem


def test_a_password_does_not_follow_a_redirect_to_another_server() -> None:
    seen: list[str] = []

    class Server(Quiet, BaseHTTPRequestHandler):
        to = ""

        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            moved = "" if self.path == "/there" else self.to + "/there"
            self.send_response(302 if moved else 200)
            self.send_header("Location", moved)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            self.do_GET()

    with answering(Server) as other, answering(Server) as here:
        secret = here.replace("//", "//me:secret@")
        for Server.to in ("", other, here.replace("127.0.0.1", "localhost")):
            open_url(f"{secret}/here").close()
        assert [bool(one) for one in seen] == [True, True, True, False, True, False]
        # what has a body is never repeated
        with pytest.raises(HTTPError, match="302") as caught:
            open_url(f"{here}/here", data=b"body")
        caught.value.close()


def read(url: str) -> bytes:
    with urlopen(url) as answer:  # noqa: S310 - our own address
        return bytes(answer.read())


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path)
    for key, data in {"9/torch-2+rocm.whl": b"wheel", "9/simple/torch/index.html": b"page"}.items():
        store.put_bytes(key, data)
    return store


def test_keys_are_answered_and_a_folder_is_its_page(store: DirectoryStore) -> None:
    with served_store(store, {"9/simple/torch/index.html": b"newer"}) as url:
        assert read(f"{url}/9/simple/torch/") == b"newer"
    data = bytes(range(256)) * 20000
    store.put_bytes("9/large.whl", data)
    with served_store(store) as url:
        assert read(f"{url}/9/large.whl") == data
        assert read(f"{url}/9/torch-2%2Brocm.whl") == read(f"{url}/9/torch-2+rocm.whl") == b"wheel"
        with urlopen(f"{url}/9/simple/torch/") as answer:  # noqa: S310
            assert answer.read() == b"page"
            assert answer.headers["Content-Type"].startswith("text/html")
        with urlopen(Request(f"{url}/9/torch-2%2Brocm.whl", method="HEAD")) as answer:  # noqa: S310
            assert (answer.read(), answer.headers["Content-Length"]) == (b"", "5")


@pytest.mark.parametrize("path", ["9/absent.whl", "", "%2Fetc/passwd", "../secret", ".digests/9/x"])
def test_what_is_no_key_is_not_found(store: DirectoryStore, path: str) -> None:
    (store.root.parent / "secret").write_text("secret")
    with served_store(store) as url, pytest.raises(HTTPError, match="404") as caught:
        read(f"{url}/{path}")
    caught.value.close()


def test_reading_that_breaks_off_is_seen_by_the_client(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_arguments: Any) -> None:
        raise StoreError("The bucket is gone.")

    monkeypatch.setattr(DirectoryStore, "open", broken)
    with served_store(store) as url, pytest.raises(IncompleteRead):
        read(f"{url}/9/torch-2+rocm.whl")
    assert "The bucket is gone" in capfd.readouterr().err
