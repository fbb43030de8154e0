import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from core.errors import MissingInputError, StoreError
from core.stores import Stored
from core.stores import overlay as overlay_module
from core.stores.directory import DirectoryStore
from core.stores.overlay import OverlayStore
from tests.kit.stores import find_object, list_keys
from tests.kit.wheels import sha256

# Before the unit tests' own function takes its place.
IS_REACHABLE = overlay_module.is_reachable


@pytest.fixture
def front(tmp_path: Path) -> DirectoryStore:
    """Return the store that is written to."""
    front = DirectoryStore(tmp_path / "front")
    front.put_bytes("r/own", b"1")
    front.put_bytes("r/shared", b"here")
    return front


@pytest.fixture
def behind(tmp_path: Path) -> DirectoryStore:
    """Return the store that is only read."""
    behind = DirectoryStore(tmp_path / "behind")
    behind.put_bytes("r/other", b"2")
    behind.put_bytes("r/shared", b"there")
    return behind


@pytest.fixture
def overlay(front: DirectoryStore, behind: DirectoryStore) -> OverlayStore:
    """Return the one over the other."""
    return OverlayStore(front, lambda: behind, "the bucket")


def test_lists_both_stores(overlay: OverlayStore) -> None:
    assert list_keys(overlay, "r") == ["r/other", "r/own", "r/shared"]
    assert find_object(overlay, "r/shared").size == len(b"here")


@pytest.mark.parametrize(("key", "content"), [("r/own", b"1"), ("r/other", b"2"), ("r/shared", b"here")])
def test_reads_what_either_store_has(overlay: OverlayStore, tmp_path: Path, key: str, content: bytes) -> None:
    assert overlay.read(key) == content
    assert overlay.digest(key) == sha256(content)
    assert overlay.fetch(key, tmp_path / "fetched").read_bytes() == content
    with overlay.open(key) as stream:
        assert stream.read() == content


@pytest.mark.parametrize(
    ("key", "folder"), [("r/own", "front"), ("r/other", "behind"), ("r/shared", "front")]
)
def test_the_address_of_a_key_is_that_of_the_store_that_has_it(
    overlay: OverlayStore, tmp_path: Path, key: str, folder: str
) -> None:
    assert overlay.url_of(key) == (tmp_path / folder / key).as_uri()


def test_names_an_object_that_neither_store_has(overlay: OverlayStore) -> None:
    assert overlay.find("r/none") is None
    with pytest.raises(MissingInputError) as raised:
        overlay.read("r/none")

    assert "r/none" in raised.value.message
    assert overlay.store.url in raised.value.message


def test_tells_which_store_holds_a_key(
    overlay: OverlayStore, front: DirectoryStore, behind: DirectoryStore
) -> None:
    assert overlay_module.store_of(overlay, "r/other") == behind
    assert overlay_module.store_of(overlay, "r/own") == front
    assert overlay_module.store_of(front, "r/other") == front


def test_writes_to_the_first_store_alone(
    overlay: OverlayStore, front: DirectoryStore, behind: DirectoryStore, tmp_path: Path
) -> None:
    before = [(stored_object.key, stored_object.etag) for stored_object in behind.list("")]

    overlay.put_bytes("r/other", b"mine")
    overlay.put_file("r/file", tmp_path / "front" / "r" / "own", sha256=sha256(b"1"), replace=False)
    overlay.copy("r/copy", overlay, "r/own", sha256=sha256(b"1"))
    overlay.delete("r/shared")

    assert [(stored_object.key, stored_object.etag) for stored_object in behind.list("")] == before
    assert list_keys(front) == ["r/copy", "r/file", "r/other", "r/own"]
    assert overlay.url == front.url


class UnreachableStore(DirectoryStore):
    """A store that no network leads to."""

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """Fail."""
        raise StoreError(f"No network for {prefix}{recursive}.")


def test_uses_the_first_store_alone_where_the_one_behind_fails_and_says_so_once(
    front: DirectoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overlay = OverlayStore(front, lambda: UnreachableStore(tmp_path), "a broken one")

    for _time in range(2):
        assert list_keys(overlay, "r") == ["r/own", "r/shared"]
        assert overlay.find("r/other") is None

    assert capsys.readouterr().err.count("No network for r") == 1


@pytest.fixture
def _asked_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers be asked whether they are there, which unit tests leave out otherwise."""
    monkeypatch.setattr(overlay_module, "is_reachable", IS_REACHABLE)
    monkeypatch.setattr("urllib.request.getproxies", dict)


@pytest.mark.usefixtures("_asked_servers")
def test_reads_the_store_behind_where_its_server_is_there(
    front: DirectoryStore, behind: DirectoryStore
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/a"
        overlay = OverlayStore(front, lambda: behind, "the bucket", address)

        assert overlay.read("r/other") == b"2"


@pytest.mark.usefixtures("_asked_servers")
def test_waits_for_no_server_that_is_not_there(
    front: DirectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/b"
    # Nobody listens there any more; opening the store behind fails the test.
    overlay = OverlayStore(front, pytest.fail, "the bucket", address)

    for _time in range(2):
        assert list_keys(overlay, "r") == ["r/own", "r/shared"]

    assert capsys.readouterr().err.count("cannot be reached") == 1
