"""What every store does, whatever it is: callers must not be able to tell."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from core.errors import ConflictError, MissingInputError, StoreError, UsageError
from core.stores import Store, s3_client
from core.stores.location import DryRunStore, open_store
from core.stores.s3_client import Conditions
from tests.kit.wheels import sha256

Put = Callable[..., str]

KINDS = ["out", "s3://bucket", "s3://bucket/a/prefix", "s3://bucket/compared"]


@pytest.fixture(name="store", params=KINDS)
def store_fixture(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param.startswith("s3:"):
        request.getfixturevalue("s3").put_object(Bucket="bucket", Key="a/prefix-of-another/x.whl", Body=b"x")
    if request.param.endswith("compared"):
        monkeypatch.setattr(s3_client, "AMAZON", Conditions())
    return open_store(f"{request.param}/within" if ":" in request.param else request.param, root=tmp_path)


@pytest.fixture(name="put")
def put_fixture(store: Store, tmp_path: Path) -> Callable[..., str]:
    def put(key: str, data: bytes, *, replace: bool = False, into: Store = store) -> str:
        source = tmp_path / "source"
        source.unlink(missing_ok=True)  # a directory store may have linked it
        source.write_bytes(data)
        return into.put_file(key, source, sha256=sha256(data), replace=replace)

    return put


def test_what_is_put_is_listed_read_fetched_and_hashed(store: Store, put: Put, tmp_path: Path) -> None:
    objects = {
        "r/python/g/torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl": b"wheel",
        "r/python/g/empty.whl": b"",
        "r/python/g/a b&<c>%2B=ä.whl": b"odd",
        "r/python/g/simple/torch/index.html": b"page",
        "r/python/g-2/other.whl": b"other",
    }
    for number, (key, data) in enumerate(objects.items()):
        if number % 2:
            assert store.put_bytes(key, data) == "written"
        else:
            assert put(key, data) == "written"
    assert [(one.key, one.size) for one in store.list("")] == [
        (key, len(objects[key])) for key in sorted(objects)
    ]
    for key, data in objects.items():
        found = store.find(key)
        assert found is not None
        assert found.key == key
        assert found.modified > 1_600_000_000
        assert found.etag in {one.etag for one in store.list(key.rpartition("/")[0]) if one.key == key}
        assert store.read(key) == data
        assert store.digest(key) == sha256(data)
        assert store.fetch(key, tmp_path / "fetched").read_bytes() == data
        with store.open(key) as stream:
            assert [stream.read(2), stream.read()] == [data[:2], data[2:]]
        store.delete(key)
        store.delete(key)
        assert store.find(key) is None
    assert list(store.list("")) == []


def test_a_listing_is_of_one_folder_and_folders_are_named_without_what_lies_in_them(store: Store) -> None:
    keys = ["r/g/a.whl", "r/g/deep/b.whl", "r/g.html", "r/g-debug/a.whl", "s/x"]
    for key in keys:
        store.put_bytes(key, b"")

    def listed(prefix: str, *, recursive: bool = True) -> list[str]:
        return [one.key for one in store.list(prefix, recursive=recursive)]

    assert listed("r/g") == listed("r/g/") == ["r/g/a.whl", "r/g/deep/b.whl"]
    assert listed("r/g", recursive=False) == ["r/g/a.whl"]
    assert listed("r", recursive=False) == ["r/g.html"]
    assert listed("r") == sorted(keys[:-1])
    assert listed("absent") == listed("", recursive=False) == []
    assert store.folders("") == ["r", "s"]
    assert store.folders("r") == store.folders("r/") == ["g", "g-debug"]
    assert store.folders("r/g/deep") == store.folders("absent") == []


@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "a/../../x", ".digests/a", "a/.hidden/b"])
def test_no_key_leaves_the_store(store: Store, put: Put, key: str) -> None:
    calls: list[Callable[[], object]] = [
        partial(store.put_bytes, key, b""),
        partial(put, key, b""),
        partial(store.read, key),
        partial(store.find, key),
        partial(store.list, key),
        partial(store.delete, key),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="is not a key of the store"):
            call()


def test_what_is_not_there_is_named(store: Store, tmp_path: Path) -> None:
    calls: list[Callable[[], object]] = [
        partial(store.read, "a/b.whl"),
        partial(store.open, "a/b.whl"),
        partial(store.digest, "a/b.whl"),
        partial(store.fetch, "a/b.whl", tmp_path),
        partial(store.copy, "c.whl", store, "a/b.whl", sha256=sha256(b"")),
    ]
    for call in calls:
        with pytest.raises(MissingInputError, match=r"a/b\.whl is not in the store"):
            call()
    assert store.find("a/b.whl") is None
    assert list(store.list("")) == []


def test_the_same_bytes_are_no_write(store: Store, put: Put) -> None:
    assert put("r/a.whl", b"a") == "written"
    before = store.find("r/a.whl")
    assert put("r/a.whl", b"a") == "unchanged"
    assert put("r/a.whl", b"a", replace=True) == "unchanged"
    assert store.put_bytes("r/a.whl", b"a", replace=False) == "unchanged"
    assert store.put_bytes("r/a.whl", b"a", if_match="other") == "unchanged"
    assert store.find("r/a.whl") == before


def test_other_bytes_are_refused_where_nothing_is_replaced(store: Store, put: Put) -> None:
    store.put_bytes("r/a.whl", b"a")
    for write in (partial(put, "r/a.whl", b"b"), partial(store.put_bytes, "r/a.whl", b"b", replace=False)):
        with pytest.raises(StoreError, match=r"r/a\.whl exists in .* with other bytes"):
            write()
    assert store.read("r/a.whl") == b"a"
    assert put("r/a.whl", b"b", replace=True) == "written"
    assert (store.read("r/a.whl"), store.digest("r/a.whl")) == (b"b", sha256(b"b"))
    assert store.put_bytes("r/a.whl", b"c") == "written"
    assert (store.read("r/a.whl"), store.digest("r/a.whl")) == (b"c", sha256(b"c"))


def test_a_conditional_write_needs_the_object_that_was_seen(store: Store) -> None:
    assert store.put_bytes("r/index.html", b"one", if_match="") == "written"
    with pytest.raises(ConflictError, match="written by another process"):
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


def race(writers: list[Callable[[], object]]) -> list[str]:
    barrier = threading.Barrier(len(writers))

    def run(write: Callable[[], object]) -> str:
        barrier.wait()
        try:
            return str(write())
        except StoreError as problem:
            return type(problem).__name__

    with ThreadPoolExecutor(len(writers)) as pool:
        return sorted(pool.map(run, writers))


def rounds(store: Store) -> int:
    """Return how often to race: in a folder often, as not every race is close; moto takes its time."""
    return 2 if "s3://" in store.url else 10


@pytest.mark.parametrize("kind", ["new page", "page", "file"])
def test_of_racing_writers_exactly_one_wins(store: Store, kind: str, tmp_path: Path) -> None:
    pages = [f"page {writer}".encode() for writer in range(6)]
    sources = [tmp_path / str(writer) for writer in range(6)]
    for source, page in zip(sources, pages, strict=True):
        source.write_bytes(page)
    for number in range(rounds(store)):
        key = f"r/{number}.html"
        if kind == "page":
            store.put_bytes(key, b"before")
        seen = store.find(key)
        put = partial(store.put_bytes, key, if_match=seen.etag if seen else "")
        put_file = partial(store.put_file, key, replace=False)
        writers: list[Callable[[], object]] = [
            partial(put_file, source, sha256=sha256(page)) if kind == "file" else partial(put, page)
            for source, page in zip(sources, pages, strict=True)
        ]
        lost = "StoreError" if kind == "file" else "ConflictError"
        assert race(writers) == [*[lost] * 5, "written"]
        assert store.read(key) in pages
        assert store.digest(key) == sha256(store.read(key))


@pytest.mark.parametrize("origin", ["itself", "folder", "s3://other/x"])
def test_an_object_is_copied_only_if_it_is_the_one_that_was_meant(
    store: Store, put: Put, origin: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if origin.startswith("s3:"):
        request.getfixturevalue("s3")
    source = store if origin == "itself" else open_store(origin, root=tmp_path)
    source.put_bytes("staging/a.whl", b"a")
    with pytest.raises(
        StoreError, match=f"has the digest {sha256(b'a')}, and {sha256(b'b')} was to be copied"
    ):
        store.copy("v2/a.whl", source, "staging/a.whl", sha256=sha256(b"b"))
    assert store.find("v2/a.whl") is None
    copy = partial(store.copy, "v2/a.whl", source, "staging/a.whl", sha256=sha256(b"a"))
    assert [copy(), copy()] == ["written", "unchanged"]
    assert (store.read("v2/a.whl"), store.digest("v2/a.whl")) == (b"a", sha256(b"a"))
    put("v2/a.whl", b"other", replace=True)
    with pytest.raises(StoreError, match="with other bytes"):
        copy()
    assert store.read("v2/a.whl") == b"other"


def test_a_store_that_keeps_pages_of_folders_gives_them_back(store: Store) -> None:
    keeps = store.keeps_folder_pages("9-linux/python")
    assert keeps == ("://" in store.url)
    if keeps:
        assert store.put_bytes("9-linux/python/simple/", b"a page", if_match="") == "written"
        assert store.put_bytes("9-linux/python/simple/x/index.html", b"another") == "written"
        assert store.read("9-linux/python/simple/") == b"a page"
    assert DryRunStore(store).keeps_folder_pages("9-linux/python") == keeps
    keys = [stored.key for stored in store.list("9-linux/python")]
    wanted = ["9-linux/python/simple/", "9-linux/python/simple/x/index.html"]
    assert keys == (wanted if keeps else []), "the probe is gone"
