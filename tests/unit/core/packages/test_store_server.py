from __future__ import annotations

import hashlib
from http.client import IncompleteRead
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from core.errors import StoreError
from core.packages.server import served_store
from core.stores.directory import DirectoryStore

if TYPE_CHECKING:
    from pathlib import Path


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
    with served_store(store) as url:
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


def test_given_pages_take_the_place_of_the_stores_own(store: DirectoryStore) -> None:
    with served_store(store, {"9/simple/torch/index.html": b"newer"}) as url:
        assert read(f"{url}/9/simple/torch/") == b"newer"


def test_reading_that_breaks_off_is_seen_by_the_client(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_arguments: Any) -> None:
        raise StoreError("The bucket is gone.")

    monkeypatch.setattr(DirectoryStore, "open", broken)
    with served_store(store) as url, pytest.raises(IncompleteRead):
        read(f"{url}/9/torch-2+rocm.whl")
    assert "The bucket is gone" in capfd.readouterr().err


def test_large_objects_are_streamed_whole(store: DirectoryStore) -> None:
    data = bytes(range(256)) * 20000
    store.put_bytes("9/large.whl", data)
    with served_store(store) as url:
        assert hashlib.sha256(read(f"{url}/9/large.whl")).digest() == hashlib.sha256(data).digest()
