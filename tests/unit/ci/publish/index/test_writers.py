"""Several writers of one index, and writers that are killed."""

import json
import random
import threading
from pathlib import Path

import pytest

from ci.publish.index.listing import ROOT_PAGE
from core import parallel
from core.errors import ConflictError, StoreError
from core.stores import Store
from core.stores.directory import DirectoryStore
from tests.kit.index_pages import (
    MANIFESTS,
    PREFIX,
    index_wheels,
    pages_in,
    pages_written_at_once,
    publish_wheels,
)
from tests.kit.memory_store import KilledError, MemoryStore
from tests.kit.wheels import wheel_filename

TORCH = wheel_filename(name="torch", version="2.9.0")
NEWER_TORCH = wheel_filename(name="torch", version="2.10.0")
APEX = wheel_filename(name="apex", version="1.0")
TRITON = wheel_filename(name="triton", version="3.0")


def test_mends_an_older_listing_that_was_written_last() -> None:
    """A writer lists and is held up; another lists more and writes; the first goes on, conditions ignored."""
    store = MemoryStore(ignores_conditions=True, folder_pages=False)
    publish_wheels(store, TORCH)

    def let_another_write_first(call: str, _key: str) -> None:
        if call == "put":
            store.before = lambda _call, _key: None
            publish_wheels(store, NEWER_TORCH)
            index_wheels(store)

    store.before = let_another_write_first

    index_wheels(store)

    assert pages_in(store) == pages_written_at_once(store)
    assert NEWER_TORCH.encode() in pages_in(store)["index.html"]


def test_lists_a_file_again_whose_page_an_older_listing_replaced(memory: MemoryStore) -> None:
    publish_wheels(memory, TORCH)
    index_wheels(memory)
    older_pages = pages_in(memory)
    publish_wheels(memory, NEWER_TORCH)
    index_wheels(memory)
    pages = pages_in(memory)

    # A server that ignores conditions: the older pages come last, and with them a list of projects that
    # remembers the newer record.
    older_root = json.loads(older_pages[ROOT_PAGE])
    older_root["_records"] = json.loads(pages[ROOT_PAGE])["_records"]
    older_pages[ROOT_PAGE] = json.dumps(older_root).encode()
    for path, page in older_pages.items():
        memory.put_bytes(f"{PREFIX}/{path}", page)

    assert index_wheels(memory).held_back_files == {}
    assert pages_in(memory) == pages


def changed_folder(*, ignores_conditions: bool) -> MemoryStore:
    """Return a folder that was indexed, and in which wheels came and one went since."""
    store = MemoryStore(ignores_conditions=ignores_conditions, folder_pages=False)
    publish_wheels(store, TORCH, APEX)
    index_wheels(store)
    del store.objects[f"{MANIFESTS}/{TORCH}.json"]
    del store.objects[f"{PREFIX}/{APEX}"]
    publish_wheels(store, TORCH, NEWER_TORCH, TRITON)
    return store


def kill_at_call(store: MemoryStore, number: int) -> bool:
    """Index until the call of this number; return whether there was one."""
    calls = 0

    def die(_call: str, _key: str) -> None:
        nonlocal calls
        calls += 1
        if calls > number:
            raise KilledError

    store.before = die
    try:
        index_wheels(store)
    except KilledError:
        return True
    finally:
        store.before = lambda _call, _key: None
    return False


@pytest.mark.parametrize("has_conditional_writes", [True, False])
def test_completes_an_index_that_was_killed_at_any_call(*, has_conditional_writes: bool) -> None:
    start = changed_folder(ignores_conditions=not has_conditional_writes)
    killed_calls = 0
    store = start.copy_of()
    while kill_at_call(store, killed_calls):
        listing_pages = [
            page
            for path, page in pages_in(store).items()
            if path.endswith(".html") and path != "simple/index.html"
        ]
        assert f"{PREFIX}/{TRITON}" in store.objects or not any(b"triton" in page for page in listing_pages)

        index_wheels(store)

        assert pages_in(store) == pages_written_at_once(store), f"killed at call {killed_calls}"
        killed_calls += 1
        store = start.copy_of()
    assert killed_calls > 10


WRITERS = 12


def wheels_of_writer(number: int) -> dict[str, str]:
    """Return what one of several writers uploads: wheel to project."""
    project = f"p{number % 5}"
    return {
        wheel_filename(name=project, version=f"{number}.0"): project,
        wheel_filename(name="torch", version=f"2.{number}"): "torch",
    }


@pytest.mark.parametrize("kind", ["directory", "memory", "memory without conditional writes"])
def test_many_writers_at_once_end_with_a_complete_index(tmp_path: Path, kind: str) -> None:
    store: Store
    if kind == "directory":
        store = DirectoryStore(tmp_path)
    else:
        chance = random.Random(7)  # noqa: S311 - the same each time
        pause = threading.Event()
        store = MemoryStore(ignores_conditions=kind != "memory", folder_pages=False)
        store.before = lambda _call, _key: pause.wait(chance.random() * 0.002)

    def upload_and_index(number: int) -> None:
        publish_wheels(store, *wheels_of_writer(number))
        index_wheels(store)

    parallel.map_in_threads(upload_and_index, range(WRITERS), jobs=WRITERS)

    flat_page = store.read(f"{PREFIX}/index.html").decode()
    assert flat_page.count("<li>") == 2 * WRITERS
    for number in range(WRITERS):
        for name, project in wheels_of_writer(number).items():
            assert f">{name}</a>" in flat_page
            for suffix in ("html", "json"):
                assert name in store.read(f"{PREFIX}/simple/{project}/index.{suffix}").decode()

    assert index_wheels(store).written_pages == ()


def test_gives_up_where_others_always_come_first(memory: MemoryStore) -> None:
    publish_wheels(memory, TORCH)

    def write_first(call: str, key: str) -> None:
        if call == "put":
            memory.objects[key] = str(len(memory.calls)).encode()

    memory.before = write_first

    with pytest.raises(StoreError) as raised:
        index_wheels(memory)

    assert PREFIX in raised.value.message
    # A conflict is handled by trying again, and this must not be.
    assert not isinstance(raised.value, ConflictError)
