"""What every store does, whatever it is: callers must not be able to tell one from another."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from core.errors import ConflictError, StoreError
from core.stores import PutResult, Store
from tests.kit.wheels import sha256
from tests.kit.windows import ON_WINDOWS

# Windows has no angle brackets in names of files.
ODD_KEY = "r/python/g/a b&%2B=ä.whl" if ON_WINDOWS else "r/python/g/a b&<c>%2B=ä.whl"
OBJECTS = {
    "r/python/g/torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl": b"wheel",
    "r/python/g/empty.whl": b"",
    ODD_KEY: b"odd",
    "r/python/g/simple/torch/index.html": b"page",
    "r/python/g-2/other.whl": b"other",
}


def put_file(store: Store, folder: Path, key: str, content: bytes, *, replace: bool = False) -> PutResult:
    """Write a file below a folder, and put it into a store."""
    source = folder / "source"
    source.unlink(missing_ok=True)  # a store in a folder may have linked it
    source.write_bytes(content)
    return store.put_file(key, source, sha256=sha256(content), replace=replace)


def hold_to_what_is_put(store: Store, folder: Path) -> None:
    """Hold a store to its word: objects are listed, read, fetched, hashed and deleted as they were put."""
    for key, content in OBJECTS.items():
        is_small = key.endswith(".html")
        result = store.put_bytes(key, content) if is_small else put_file(store, folder, key, content)
        hold_to_result(store, key, result)

    sizes = {stored_object.key: stored_object.size for stored_object in store.list("")}
    assert list(sizes) == sorted(OBJECTS)
    assert sizes == {key: len(content) for key, content in OBJECTS.items()}

    for key, content in OBJECTS.items():
        hold_to_object(store, folder, key, content)
        store.delete(key)
        store.delete(key)
        assert store.find(key) is None
    assert list(store.list("")) == []


def hold_to_result(store: Store, key: str, result: PutResult) -> None:
    """Hold a store to the result of a write: it wrote, and the ETag is that of the object."""
    assert result.outcome == "written"
    stored_object = store.find(key)
    assert stored_object is not None
    assert result.etag == stored_object.etag


def hold_to_object(store: Store, folder: Path, key: str, content: bytes) -> None:
    """Hold a store to the content of one object, whichever way it is read."""
    stored_object = store.find(key)
    assert stored_object is not None
    assert stored_object.key == key
    assert stored_object.modified > 1_600_000_000
    listed_etags = [other.etag for other in store.list(key.rpartition("/")[0]) if other.key == key]
    assert listed_etags == [stored_object.etag]

    assert store.read(key) == content
    assert store.digest(key) == sha256(content)
    assert store.fetch(key, folder / "fetched").read_bytes() == content
    with store.open(key) as stream:
        assert stream.read(2) == content[:2]
        assert stream.read() == content[2:]


def hold_to_conditions(store: Store) -> None:
    """Hold a store to conditional writes: they need the object that was seen, or none."""
    first_result = store.put_bytes("r/index.html", b"one", if_match="")
    hold_to_result(store, "r/index.html", first_result)
    with pytest.raises(ConflictError):
        store.put_bytes("r/index.html", b"two", if_match="")

    second_result = store.put_bytes("r/index.html", b"two", if_match=first_result.etag)
    hold_to_result(store, "r/index.html", second_result)
    with pytest.raises(ConflictError):
        store.put_bytes("r/index.html", b"six", if_match=first_result.etag)

    store.delete("r/index.html")
    with pytest.raises(ConflictError):
        store.put_bytes("r/index.html", b"six", if_match=second_result.etag)
    assert store.find("r/index.html") is None


def hold_to_first_bytes(store: Store, folder: Path) -> None:
    """Hold a store to the bytes that it has, unless they may be replaced."""
    store.put_bytes("r/a.whl", b"a")
    with pytest.raises(StoreError, match=r"r/a\.whl"):
        put_file(store, folder, "r/a.whl", b"b")
    with pytest.raises(StoreError, match=r"r/a\.whl"):
        store.put_bytes("r/a.whl", b"b", replace=False)
    assert store.read("r/a.whl") == b"a"

    hold_to_result(store, "r/a.whl", put_file(store, folder, "r/a.whl", b"b", replace=True))
    assert store.read("r/a.whl") == b"b"
    assert store.digest("r/a.whl") == sha256(b"b")


def hold_to_one_winner(store: Store, *, writers: int = 3, races: int = 1, first: bytes | None = None) -> None:
    """Hold a store to one winner among writers of a page, which was not there or had a first content."""
    pages = [f"page {number}".encode() for number in range(writers)]
    for number in range(races):
        key = f"r/{number}.html"
        if first is not None:
            store.put_bytes(key, first)
        seen_object = store.find(key)
        write = partial(store.put_bytes, key, if_match=seen_object.etag if seen_object else "")

        results = race([partial(write, page) for page in pages])

        assert results == [*["ConflictError"] * (writers - 1), "written"]
        hold_to_one_of(store, key, pages)


def hold_to_one_file(store: Store, folder: Path, *, writers: int = 3, races: int = 1) -> None:
    """Hold a store to one winner among writers of a file that is never replaced."""
    contents = [f"file {number}".encode() for number in range(writers)]
    sources: list[Path] = []
    for number, content in enumerate(contents):
        sources.append(folder / str(number))
        sources[-1].write_bytes(content)

    for number in range(races):
        key = f"r/{number}.whl"
        write = partial(store.put_file, key, replace=False)

        results = race([partial(write, source, sha256=sha256(source)) for source in sources])

        assert results == [*["StoreError"] * (writers - 1), "written"]
        hold_to_one_of(store, key, contents)


def hold_to_one_of(store: Store, key: str, contents: Sequence[bytes]) -> None:
    """Hold a store to one of several contents, with its digest."""
    content = store.read(key)
    assert content in contents
    assert store.digest(key) == sha256(content)


def race(writes: Sequence[Callable[[], PutResult]]) -> list[str]:
    """Make writes at the same time; return their outcomes, or the classes of their errors, sorted."""
    barrier = threading.Barrier(len(writes))

    def run(write: Callable[[], PutResult]) -> str:
        barrier.wait()
        try:
            return write().outcome
        except StoreError as problem:
            return type(problem).__name__

    with ThreadPoolExecutor(len(writes)) as pool:
        return sorted(pool.map(run, writes))
