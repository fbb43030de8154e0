"""Several writers of one index, and writers that are killed."""

import itertools
import json
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ci.publish.index.listing import ROOT_PAGE
from core import parallel
from core.errors import ConflictError, StoreError
from core.stores import Store
from core.stores.directory import DirectoryStore
from tests.kit.index_pages import (
    APEX,
    MANIFESTS,
    NEWER_TORCH,
    PREFIX,
    TORCH,
    TRITON,
    index_wheels,
    pages_in,
    pages_written_at_once,
    publish_wheels,
)
from tests.kit.memory_store import KilledError, MemoryStore
from tests.kit.wheels import wheel_filename


def test_mends_pages_that_were_written_from_an_older_listing() -> None:
    store = MemoryStore(ignores_conditions=True, folder_pages=False)
    publish_wheels(store, TORCH)

    def let_another_writer_go_first(call: str, _key: str) -> None:
        # The first writer has listed one wheel; before it writes, another one lists two and writes.
        if call == "put":
            store.before = lambda _call, _key: None
            publish_wheels(store, NEWER_TORCH)
            index_wheels(store)

    store.before = let_another_writer_go_first

    index_wheels(store)

    assert pages_in(store) == pages_written_at_once(store)
    assert NEWER_TORCH.encode() in pages_in(store)["index.html"]


def test_lists_a_wheel_again_that_older_pages_have_lost(store: MemoryStore) -> None:
    publish_wheels(store, TORCH)
    index_wheels(store)
    older_pages = pages_in(store)
    publish_wheels(store, NEWER_TORCH)
    index_wheels(store)
    pages = pages_in(store)

    # On a server that ignores conditions older pages may come last, with a root page that remembers the
    # newer record.
    older_root = json.loads(older_pages[ROOT_PAGE])
    older_root["_records"] = json.loads(pages[ROOT_PAGE])["_records"]
    older_pages[ROOT_PAGE] = json.dumps(older_root).encode()
    for path, page in older_pages.items():
        store.put_bytes(f"{PREFIX}/{path}", page)

    assert index_wheels(store).held_back_files == {}
    assert pages_in(store) == pages


# Writers that are killed


def changed_folder(*, ignores_conditions: bool) -> MemoryStore:
    """Return an indexed folder to which wheels were added later, and from which one was deleted."""
    store = MemoryStore(ignores_conditions=ignores_conditions, folder_pages=False)
    publish_wheels(store, TORCH, APEX)
    index_wheels(store)
    del store.objects[f"{MANIFESTS}/{TORCH}.json"]
    del store.objects[f"{PREFIX}/{APEX}"]
    publish_wheels(store, TORCH, NEWER_TORCH, TRITON)
    return store


def is_killed_at_call(store: MemoryStore, number: int) -> bool:
    """Write the index, and die before the call of this number; return whether there were so many calls."""
    calls_begun = 0

    def die(_call: str, _key: str) -> None:
        nonlocal calls_begun
        calls_begun += 1
        if calls_begun >= number:
            store.dead = True
            raise KilledError

    store.before = die
    try:
        index_wheels(store)
    except KilledError:
        return True
    return False


def require_linked_pages(store: MemoryStore) -> None:
    """Require that the page of each project is there to which the list of projects links."""
    root_page = store.objects.get(f"{PREFIX}/simple/index.html", b"").decode()
    for project in re.findall('href="([^"]+)/"', root_page):
        assert f"{PREFIX}/simple/{project}/index.html" in store.objects


@pytest.mark.parametrize("has_conditional_writes", [True, False])
def test_completes_an_index_whose_writer_was_killed_at_any_call(*, has_conditional_writes: bool) -> None:
    start = changed_folder(ignores_conditions=not has_conditional_writes)

    for number in itertools.count(1):
        killed_store = start.copy_of()
        if not is_killed_at_call(killed_store, number):
            break
        store = killed_store.copy_of()
        require_linked_pages(store)

        index_wheels(store)

        assert pages_in(store) == pages_written_at_once(store), f"killed at call {number}"

    assert number > 11, "the index took more than ten calls"


# Several writers at once

WRITERS = 12


def directory_store(folder: Path) -> Store:
    return DirectoryStore(folder)


def slow_memory_store(_folder: Path) -> Store:
    """Return a store whose calls take as long as chance wants, the same each time."""
    return slowed_down(MemoryStore(folder_pages=False))


def slow_store_without_conditional_writes(_folder: Path) -> Store:
    return slowed_down(MemoryStore(folder_pages=False, ignores_conditions=True))


def slowed_down(store: MemoryStore) -> MemoryStore:
    """Return a store that pauses before each call."""
    chance = random.Random(7)  # noqa: S311 - the same each time
    pause = threading.Event()
    store.before = lambda _call, _key: pause.wait(chance.random() * 0.002)
    return store


def wheels_of_writer(number: int) -> dict[str, str]:
    """Return the wheels that a writer uploads: file name to project."""
    project = f"p{number % 5}"
    return {
        wheel_filename(name=project, version=f"{number}.0"): project,
        wheel_filename(name="torch", version=f"2.{number}"): "torch",
    }


@pytest.mark.parametrize(
    "make_store",
    [directory_store, slow_memory_store, slow_store_without_conditional_writes],
    ids=["directory", "memory", "memory without conditional writes"],
)
def test_many_writers_at_once_leave_a_complete_index(
    tmp_path: Path, make_store: Callable[[Path], Store]
) -> None:
    store = make_store(tmp_path)

    def upload_and_index(number: int) -> None:
        publish_wheels(store, *wheels_of_writer(number))
        index_wheels(store)

    parallel.map_in_threads(upload_and_index, range(WRITERS), jobs=WRITERS)

    flat_page = store.read(f"{PREFIX}/index.html").decode()
    assert flat_page.count("<li>") == 2 * WRITERS
    for number in range(WRITERS):
        for filename, project in wheels_of_writer(number).items():
            assert f">{filename}</a>" in flat_page
            for suffix in ("html", "json"):
                page = store.read(f"{PREFIX}/simple/{project}/index.{suffix}")
                assert filename in page.decode()

    assert index_wheels(store).written_pages == ()


def test_gives_up_where_others_always_write_first(store: MemoryStore) -> None:
    publish_wheels(store, TORCH)

    def write_another_page_first(call: str, key: str) -> None:
        if call == "put":
            store.objects[key] = str(len(store.calls)).encode()

    store.before = write_another_page_first

    with pytest.raises(StoreError) as raised:
        index_wheels(store)

    assert PREFIX in raised.value.message
    # A conflict is handled by trying again, and this must not be.
    assert not isinstance(raised.value, ConflictError)
