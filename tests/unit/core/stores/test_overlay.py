from __future__ import annotations

import hashlib
import socket
from typing import TYPE_CHECKING

import pytest

from core.errors import MissingInputError, StoreError
from core.stores import location
from core.stores.directory import DirectoryStore
from core.stores.location import OverlayStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from core.stores import Stored

ANSWERS = location.answers  # before the unit tests' own answer takes its place


class Unreachable(DirectoryStore):
    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        raise StoreError(f"No network for {prefix}{recursive}.")


@pytest.fixture(name="both")
def both_fixture(tmp_path: Path) -> OverlayStore:
    first, behind = DirectoryStore(tmp_path / "out"), DirectoryStore(tmp_path / "bucket")
    first.put_bytes("r/own", b"1")
    first.put_bytes("r/shared", b"here")
    behind.put_bytes("r/other", b"2")
    behind.put_bytes("r/shared", b"there")
    return OverlayStore(first, lambda: behind, "the bucket")


def test_what_the_first_lacks_is_read_behind_it(both: OverlayStore, tmp_path: Path) -> None:
    assert [one.key for one in both.list("r")] == ["r/other", "r/own", "r/shared"]
    assert [both.read(f"r/{name}") for name in ("own", "other", "shared")] == [b"1", b"2", b"here"]
    assert both.digest("r/other") == hashlib.sha256(b"2").hexdigest()
    assert both.fetch("r/other", tmp_path / "fetched").read_bytes() == b"2"
    assert both.url_of("r/other") == (tmp_path / "bucket/r/other").as_uri()
    assert both.url_of("r/shared") == (tmp_path / "out/r/shared").as_uri()
    with both.open("r/other") as stream:
        assert stream.read() == b"2"
    found = both.find("r/shared")
    assert found is not None
    assert found.size == 4
    assert both.find("r/none") is None
    with pytest.raises(MissingInputError, match=r"r/none is not in .*out"):
        both.read("r/none")


def test_only_the_first_is_written(both: OverlayStore, tmp_path: Path) -> None:
    before = [(one.key, one.etag) for one in both.behind.list("")]
    both.put_bytes("r/other", b"mine")
    both.put_file("r/file", tmp_path / "out/r/own", sha256=hashlib.sha256(b"1").hexdigest(), replace=False)
    both.copy("r/copy", both, "r/own", sha256=hashlib.sha256(b"1").hexdigest(), replace=False)
    both.delete("r/shared")
    assert [(one.key, one.etag) for one in both.behind.list("")] == before
    assert [one.key for one in both.store.list("")] == ["r/copy", "r/file", "r/other", "r/own"]
    assert both.url == both.store.url


def test_who_holds_a_key_is_told(both: OverlayStore) -> None:
    assert location.holding(both, "r/other") == both.behind
    assert location.holding(both, "r/own") == both.store
    assert location.holding(both.store, "r/other") == both.store


def test_without_the_store_behind_what_is_here_is_used_and_said_so_once(
    both: OverlayStore, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    alone = OverlayStore(both.store, lambda: Unreachable(tmp_path), "a broken one")
    for _ in range(2):
        assert [one.key for one in alone.list("r")] == ["r/own", "r/shared"]
        assert alone.find("r/other") is None
    with pytest.raises(MissingInputError, match=r"r/other is not in .*out"):
        alone.read("r/other")
    assert capsys.readouterr().err.count("No network for r") == 1


def test_nobody_waits_for_a_network_that_is_not_there(
    both: OverlayStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "answers", ANSWERS)
    monkeypatch.setattr(location, "getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        heard = OverlayStore(both.store, lambda: both.behind, "the bucket", f"{address}/a")
        assert heard.read("r/other") == b"2"
    gone = OverlayStore(both.store, pytest.fail, "the bucket", f"{address}/b")
    for _ in range(2):
        assert [one.key for one in gone.list("r")] == ["r/own", "r/shared"]
    assert capsys.readouterr().err.count("cannot be reached") == 1
