import os
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from core import files
from core.stores.directory import DirectoryStore
from core.stores.location import DryRunStore
from tests.kit.wheels import sha256


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "out")


def test_what_is_half_written_is_not_listed(store: DirectoryStore) -> None:
    store.put_bytes("run/a.whl", b"a")
    for half in (".b.whl.x.part", ".link.x/b.whl"):
        path = store.root / "run" / half
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    assert [one.key for one in store.list("")] == ["run/a.whl"]


def test_what_goes_during_a_listing_is_absent(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put_bytes("run/a.whl", b"a")
    store.put_bytes("run/b.whl", b"b")
    look = os.stat

    def too_late(path: Any, **how: Any) -> os.stat_result:
        if str(path).endswith("a.whl"):
            os.unlink(path)  # noqa: PTH108 - a Path would look first
        return look(path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", too_late)
        listed = store.list("run")
    assert [one.key for one in listed] == ["run/b.whl"]


def test_digests_last_until_a_file_changes(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put_bytes("r/a.whl", b"a")
    with (store.root / ".digests/r/.known").open("wb") as memory:
        memory.write(b"r/b.whl\thalf a l")
    assert store.digest("r/a.whl") == store.digest("r/a.whl") == sha256(b"a")
    assert DirectoryStore(store.root).digest("r/a.whl") == sha256(b"a"), "hashed once more, after half a line"
    monkeypatch.setattr(files, "sha256", lambda _path: "hashed again")
    assert DirectoryStore(store.root).digest("r/a.whl") == store.digest("r/a.whl") == sha256(b"a")
    path = store.root / "r/a.whl"
    path.write_bytes(b"b")
    os.utime(path, ns=(1, 1))
    assert store.digest("r/a.whl") == "hashed again"


def test_a_store_that_can_only_be_read_is_hashed_without_a_memory(store: DirectoryStore) -> None:
    store.put_bytes("r/a.whl", b"a")
    (store.root / ".digests/r/.known").mkdir()
    assert store.digest("r/a.whl") == sha256(b"a")


def test_a_keys_address_is_its_file(store: DirectoryStore) -> None:
    store.put_bytes("g/a+b c.whl", b"wheel")
    with urlopen(store.url_of("g/a+b c.whl")) as stream:  # noqa: S310 - a file of ours
        assert stream.read() == b"wheel"
    assert "a%2Bb%20c.whl" in store.url_of("g/a+b c.whl")
    assert DryRunStore(store).url_of("k") == store.url_of("k")
