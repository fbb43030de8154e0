from __future__ import annotations

import hashlib
import os
import threading
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core import files
from core.errors import ConflictError, FatalError, MissingInputError, StoreError, UsageError
from core.stores.directory import DirectoryStore
from core.stores.dry_run import DryRunStore

if TYPE_CHECKING:
    from collections.abc import Callable

SEGMENTS = st.from_regex(r"[a-z0-9][a-zA-Z0-9+_-]{0,8}\.(whl|html|json)", fullmatch=True)
KEYS = st.builds(
    lambda folders, name: "/".join([*folders, name]),
    st.lists(st.sampled_from(["run-linux", "python", "gfx110X-all"]), max_size=3),
    SEGMENTS,
)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "out")


@settings(max_examples=30)
@given(st.dictionaries(KEYS, st.binary(max_size=50), max_size=6))
def test_what_is_put_is_listed_read_and_hashed(objects: dict[str, bytes]) -> None:
    with TemporaryDirectory() as folder:
        store = DirectoryStore(Path(folder) / "out")
        for number, (key, data) in enumerate(objects.items()):
            if number % 2:
                store.put_bytes(key, data)
            else:
                source = Path(folder) / f"source{number}"
                source.write_bytes(data)
                assert store.put_file(key, source, sha256=sha(data), replace=False) == "written"
        assert [(one.key, one.size) for one in store.list("")] == [
            (key, len(objects[key])) for key in sorted(objects)
        ]
        for key, data in objects.items():
            assert store.read(key) == data
            assert store.digest(key) == sha(data)
            assert store.fetch(key, Path(folder) / "unused").read_bytes() == data
            found = store.find(key)
            assert found in store.list(key.rpartition("/")[0])
            store.delete(key)
            store.delete(key)
        assert list(store.list("")) == []


def test_a_listing_is_of_one_folder(store: DirectoryStore) -> None:
    store.put_bytes("1-linux/python/gfx110X-all/a.whl", b"")
    store.put_bytes("1-linux/python/gfx110X-all-debug/a.whl", b"")
    listed = store.list("1-linux/python/gfx110X-all")
    assert [one.key for one in listed] == ["1-linux/python/gfx110X-all/a.whl"]
    assert list(store.list("2-linux")) == []


def test_what_is_half_written_is_not_listed(store: DirectoryStore) -> None:
    store.put_bytes("run/a.whl", b"a")
    for half in (".b.whl.x.part", ".link.x/b.whl"):
        path = store.root / "run" / half
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
    assert [one.key for one in store.list("")] == ["run/a.whl"]


def test_what_goes_during_a_listing_is_left_out(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "a/../../x", ".digests/a", "a/.hidden/b"])
def test_no_key_leaves_the_store_or_touches_its_memory(store: DirectoryStore, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put_bytes(key, b""),
        lambda: store.read(key),
        lambda: store.list(key),
        lambda: store.delete(key),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="is no key of the store"):
            call()


def test_what_is_not_there_is_named(store: DirectoryStore, tmp_path: Path) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.read("a/b.whl"),
        lambda: store.digest("a/b.whl"),
        lambda: store.fetch("a/b.whl", tmp_path),
    ]
    for call in calls:
        with pytest.raises(MissingInputError, match=r"a/b\.whl is not in the store"):
            call()
    assert store.find("a/b.whl") is None


def test_the_same_bytes_are_no_write(store: DirectoryStore, tmp_path: Path) -> None:
    source = tmp_path / "a.whl"
    source.write_bytes(b"a")
    assert store.put_file("r/a.whl", source, sha256=sha(b"a"), replace=False) == "written"
    before = store.find("r/a.whl")
    assert store.put_file("r/a.whl", source, sha256=sha(b"a"), replace=False) == "unchanged"
    assert store.put_bytes("r/a.whl", b"a", replace=False) == "unchanged"
    assert store.put_bytes("r/a.whl", b"a", if_match="other") == "unchanged"
    assert store.find("r/a.whl") == before


def test_other_bytes_are_refused_where_nothing_is_replaced(store: DirectoryStore, tmp_path: Path) -> None:
    source = tmp_path / "a.whl"
    source.write_bytes(b"b")
    store.put_bytes("r/a.whl", b"a")
    with pytest.raises(StoreError, match=r"r/a\.whl exists in .* with other bytes"):
        store.put_bytes("r/a.whl", b"b", replace=False)
    with pytest.raises(StoreError, match="with other bytes"):
        store.put_file("r/a.whl", source, sha256=sha(b"b"), replace=False)
    assert store.read("r/a.whl") == b"a"
    assert store.put_file("r/a.whl", source, sha256=sha(b"b"), replace=True) == "written"
    assert (store.read("r/a.whl"), store.digest("r/a.whl")) == (b"b", sha(b"b"))


def test_a_digest_is_remembered_until_the_file_changes(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_bytes("r/a.whl", b"a")
    assert store.digest("r/a.whl") == sha(b"a")
    monkeypatch.setattr(files, "sha256", lambda _path: "hashed again")
    assert store.digest("r/a.whl") == sha(b"a")
    path = store.root / "r/a.whl"
    path.write_bytes(b"b")
    os.utime(path, ns=(1, 1))
    assert store.digest("r/a.whl") == "hashed again"


def test_a_store_that_can_only_be_read_is_hashed_without_a_memory(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put_bytes("r/a.whl", b"a")

    def refuse(_path: Path, _text: str) -> None:
        raise FatalError("Read-only file system")

    monkeypatch.setattr(files, "write_text", refuse)
    assert store.digest("r/a.whl") == sha(b"a")


def test_a_conditional_write_needs_the_object_that_was_seen(store: DirectoryStore) -> None:
    assert store.put_bytes("r/index.html", b"one", if_match="") == "written"
    with pytest.raises(ConflictError, match="written by somebody else"):
        store.put_bytes("r/index.html", b"two", if_match="")
    seen = store.find("r/index.html")
    assert seen is not None
    assert store.put_bytes("r/index.html", b"two", if_match=seen.etag) == "written"
    with pytest.raises(ConflictError):
        store.put_bytes("r/index.html", b"six", if_match=seen.etag)
    store.delete("r/index.html")
    with pytest.raises(ConflictError):
        store.put_bytes("r/index.html", b"six", if_match=seen.etag)
    assert store.find("r/index.html") is None


def race(writers: list[Callable[[], object]]) -> list[object]:
    """Call all at once, for what each gave or raised."""
    barrier = threading.Barrier(len(writers))
    ends: list[object] = []

    def run(write: Callable[[], object]) -> None:
        barrier.wait()
        try:
            ends.append(write())
        except StoreError as problem:
            ends.append(type(problem))

    threads = [threading.Thread(target=run, args=(write,)) for write in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ends


@pytest.mark.parametrize("present", [False, True])
def test_of_racing_conditional_writers_exactly_one_wins(store: DirectoryStore, *, present: bool) -> None:
    for number in range(10):
        key = f"r/{number}.html"
        if present:
            store.put_bytes(key, b"before")
        seen = store.find(key)
        put = partial(store.put_bytes, key, if_match=seen.etag if seen else "")
        pages = [f"page {writer}".encode() for writer in range(4)]
        ends = race([partial(put, page) for page in pages])
        assert sorted(map(str, ends)) == sorted(map(str, ["written", *[ConflictError] * 3]))
        assert store.read(key) in pages


def test_of_racing_writers_of_an_immutable_file_exactly_one_wins(
    store: DirectoryStore, tmp_path: Path
) -> None:
    for number in range(10):
        key = f"r/{number}.whl"
        sources = [tmp_path / f"{number}-{writer}" for writer in range(4)]
        for source in sources:
            source.write_text(source.name)
        ends = race(
            [
                partial(store.put_file, key, source, sha256=files.sha256(source), replace=False)
                for source in sources
            ]
        )
        assert sorted(map(str, ends)) == sorted(map(str, ["written", *[StoreError] * 3]))
        assert store.digest(key) == sha(store.read(key))


def test_a_keys_address_is_its_file(store: DirectoryStore) -> None:
    store.put_bytes("g/a+b c.whl", b"wheel")
    with urlopen(store.url_of("g/a+b c.whl")) as stream:  # noqa: S310 - a file of ours
        assert stream.read() == b"wheel"
    assert "a%2Bb%20c.whl" in store.url_of("g/a+b c.whl")
    assert DryRunStore(store).url_of("k") == store.url_of("k")
