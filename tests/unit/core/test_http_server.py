from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from core.errors import StoreError
from core.http_server import served_store
from core.stores.directory import DirectoryStore


@contextmanager
def requested(url: str, *, method: str = "GET") -> Iterator[HTTPResponse]:
    """Request an address of this machine."""
    with urlopen(Request(url, method=method)) as response:  # noqa: S310 - our own address
        yield response


def read_url(url: str) -> bytes:
    """Return the body of an address of this machine."""
    with requested(url) as response:
        return bytes(response.read())


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
