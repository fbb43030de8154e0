import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest

from core import files
from core.errors import MachineError, StoreError
from core.stores import directory
from core.stores.directory import DirectoryStore
from core.stores.dry_run import DryRunStore
from tests.kit.wheels import sha256


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """Return a store in a folder, with one object."""
    store = DirectoryStore(tmp_path / "out")
    store.put_bytes("run/a.whl", b"a")
    return store


@pytest.mark.parametrize("key", ["run/a<b>.whl", "run/nul", "run/c:d/e.whl", "run./a.whl"])
def test_a_key_that_windows_cannot_hold_is_refused_by_name(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setattr(directory, "sys", SimpleNamespace(platform="win32"))
    source = tmp_path / "source"
    source.write_bytes(b"b")

    with pytest.raises(MachineError) as of_bytes:
        store.put_bytes(key, b"b")
    with pytest.raises(MachineError) as of_file:
        store.put_file(key, source, sha256=sha256(b"b"), replace=False)

    assert key in of_bytes.value.message
    assert key in of_file.value.message
    assert [stored_object.key for stored_object in store.list("")] == ["run/a.whl"]


@pytest.mark.parametrize("name", [".b.whl.x.part", ".link.x/b.whl"])
def test_does_not_list_a_file_that_is_being_written(store: DirectoryStore, name: str) -> None:
    path = store.root / "run" / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"half")

    assert [stored_object.key for stored_object in store.list("")] == ["run/a.whl"]


def test_does_not_list_a_file_that_disappears_meanwhile(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_bytes("run/b.whl", b"b")
    stat = os.stat

    def delete_and_stat(path: Any, **options: Any) -> os.stat_result:
        if str(path).endswith("a.whl"):
            os.unlink(path)  # noqa: PTH108 - a Path would look first
        return stat(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", delete_and_stat)
        listed = store.list("run")

    assert [stored_object.key for stored_object in listed] == ["run/b.whl"]


@pytest.mark.parametrize("has_other_source", [True, False], ids=["another store", "the same store"])
def test_a_copy_has_bytes_of_its_own(
    store: DirectoryStore, tmp_path: Path, *, has_other_source: bool
) -> None:
    target = DirectoryStore(tmp_path / "release") if has_other_source else store
    target.copy("v4/a.whl", store, "run/a.whl", sha256=store.digest("run/a.whl"))

    # As an editor does, or a disk: the same file, other bytes.
    (store.root / "run" / "a.whl").write_bytes(b"other")

    assert target.read("v4/a.whl") == b"a"


# Digests


@pytest.fixture
def hashed_files(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the files that are hashed from now on."""
    hashed: list[Path] = []
    hash_file = files.sha256

    def note_and_hash(path: Path) -> str:
        hashed.append(path)
        return hash_file(path)

    monkeypatch.setattr(files, "sha256", note_and_hash)
    return hashed


def test_hashes_a_file_once(store: DirectoryStore, hashed_files: list[Path]) -> None:
    for _time in range(2):
        assert store.digest("run/a.whl") == sha256(b"a")

    assert DirectoryStore(store.root).digest("run/a.whl") == sha256(b"a"), "another process knows it, too"
    assert len(hashed_files) == 1


def test_hashes_a_file_again_that_has_changed(store: DirectoryStore) -> None:
    store.digest("run/a.whl")
    path = store.root / "run" / "a.whl"
    path.write_bytes(b"b")
    os.utime(path, ns=(1, 1))

    assert store.digest("run/a.whl") == sha256(b"b")


def test_hashes_files_once_where_a_process_died_while_it_wrote_a_digest(
    store: DirectoryStore, hashed_files: list[Path]
) -> None:
    memory = store.root / ".digests" / "run" / ".known"
    memory.parent.mkdir(parents=True, exist_ok=True)
    with memory.open("ab") as stream:
        stream.write(b"run/b.whl\thalf a l")

    # The first one ends the half line.
    store.digest("run/a.whl")
    DirectoryStore(store.root).digest("run/a.whl")
    hashed_files.clear()

    assert DirectoryStore(store.root).digest("run/a.whl") == sha256(b"a")
    assert hashed_files == []


def test_hashes_files_of_a_store_that_can_only_be_read(store: DirectoryStore) -> None:
    # A folder in the place of the file that digests are kept in.
    (store.root / ".digests" / "run" / ".known").mkdir(parents=True)

    assert store.digest("run/a.whl") == sha256(b"a")


# Addresses


def test_the_address_of_a_key_is_its_file(store: DirectoryStore) -> None:
    store.put_bytes("g/a+b c.whl", b"wheel")

    url = store.url_of("g/a+b c.whl")

    assert "a%2Bb%20c.whl" in url
    with urlopen(url) as stream:  # noqa: S310 - a file of ours
        assert stream.read() == b"wheel"


def test_a_dry_run_has_the_addresses_of_its_store(store: DirectoryStore) -> None:
    assert DryRunStore(store).url_of("k") == store.url_of("k")


# Writers


@pytest.fixture
def draft(store: DirectoryStore) -> Path:
    """Return the file that new content of an object is written to."""
    return store.root / "run" / ".a.whl.half"


def test_a_write_leaves_no_file_but_the_object(store: DirectoryStore, draft: Path) -> None:
    store.put_bytes("run/a.whl", b"other")
    store.put_bytes("run/a.whl", b"other")
    with pytest.raises(StoreError):
        store.put_bytes("run/a.whl", b"a", replace=False)

    assert [path.name for path in draft.parent.iterdir()] == ["a.whl"]


def test_takes_over_what_a_killed_writer_left(store: DirectoryStore, draft: Path) -> None:
    draft.write_bytes(b"longer than what comes next")

    store.put_bytes("run/a.whl", b"b")

    assert store.read("run/a.whl") == b"b"
    assert not draft.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows locks a file of its own")
@pytest.mark.parametrize("is_written", [True, False], ids=["put in place", "removed"])
def test_a_writer_that_waited_locks_the_file_of_its_own_content(
    store: DirectoryStore, draft: Path, *, is_written: bool
) -> None:
    import fcntl

    with draft.open("wb") as stream, ThreadPoolExecutor() as pool:
        fcntl.flock(stream, fcntl.LOCK_EX)
        waiting_write = pool.submit(store.put_bytes, "run/a.whl", b"second")
        stream.write(b"first")
        stream.flush()
        time.sleep(0.1)  # until the other writer has opened the file
        if is_written:
            draft.replace(store.root / "run" / "a.whl")
        else:
            draft.unlink()
        fcntl.flock(stream, fcntl.LOCK_UN)
        assert waiting_write.result().outcome == "written"

    assert store.read("run/a.whl") == b"second"
    assert not draft.exists()


@pytest.mark.parametrize("umask", [0o000, 0o077], ids=oct)
def test_everyone_may_read_an_object(store: DirectoryStore, umask: int) -> None:
    previous_umask = os.umask(umask)
    try:
        store.put_bytes("run/b.whl", b"b")
    finally:
        os.umask(previous_umask)

    assert (store.root / "run" / "b.whl").stat().st_mode & 0o444 == 0o444
