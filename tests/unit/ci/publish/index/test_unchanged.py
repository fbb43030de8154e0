"""An index writes a page again where one of its inputs has changed, and nowhere else."""

import json
from collections.abc import Callable, Iterator, Mapping

import pytest

from ci.publish.index import html_pages, json_pages
from ci.publish.index.listing import ROOT_PAGE
from core import console
from tests.kit.index_pages import (
    APEX,
    MANIFESTS,
    NEWER_TORCH,
    PREFIX,
    ROOT_KEY,
    TORCH,
    TRITON,
    index_wheels,
    pages_in,
    publish_wheels,
    yank,
)
from tests.kit.memory_store import MemoryStore
from tests.kit.wheels import sha256

TORCH_KEY = f"{PREFIX}/{TORCH}"
TORCH_RECORD = f"{MANIFESTS}/{TORCH}.json"

Change = Callable[[MemoryStore], object]


@pytest.fixture
def store() -> MemoryStore:
    """Return an index of torch and of apex, which is yanked."""
    store = MemoryStore(folder_pages=False, moments={})
    publish_wheels(store, TORCH)
    publish_wheels(store, APEX)
    yank(store, {APEX: "broken"})
    index_wheels(store)
    return store


def written_paths(store: MemoryStore, *, title: str = "g") -> list[str]:
    """Write the index again; return the paths of the pages that were written, sorted."""
    update = index_wheels(store, title=title)
    return sorted(key.removeprefix(f"{PREFIX}/") for key in update.written_pages)


def change_record(store: MemoryStore, field: str, value: object) -> None:
    """Change a field of torch's wheel in its record."""
    document = json.loads(store.objects[TORCH_RECORD])
    document["files"][0][field] = value
    store.put_bytes(TORCH_RECORD, json.dumps(document).encode())


# Changes of a wheel


def rename(store: MemoryStore) -> None:
    """Give the file name of torch's wheel a build number."""
    new_key = TORCH_KEY.replace("-py3", "-1-py3")
    wheel = store.objects.pop(TORCH_KEY)
    sidecar = store.objects.pop(f"{TORCH_KEY}.metadata")
    store.put_bytes(new_key, wheel)
    store.put_bytes(f"{new_key}.metadata", sidecar)
    change_record(store, "key", new_key)


def change_bytes(store: MemoryStore) -> None:
    """Replace torch's wheel by another one of the same size."""
    content = TORCH.swapcase().encode()
    store.put_bytes(TORCH_KEY, content)
    change_record(store, "sha256", sha256(content))


def change_size(store: MemoryStore) -> None:
    """Replace torch's wheel by a larger one."""
    content = store.objects[TORCH_KEY] + b"more"
    store.put_bytes(TORCH_KEY, content)
    change_record(store, "sha256", sha256(content))
    change_record(store, "size", len(content))


def change_metadata(store: MemoryStore) -> None:
    store.put_bytes(f"{TORCH_KEY}.metadata", b"Name: torch\n")
    change_record(store, "metadata_sha256", sha256(b"Name: torch\n"))


def make_a_minute_newer(store: MemoryStore) -> None:
    assert store.moments is not None
    store.moments[TORCH_KEY] += 60


def require_newer_python(store: MemoryStore) -> None:
    change_record(store, "requires_python", ">=3.12")


def yank_file(store: MemoryStore) -> None:
    yank(store, {APEX: "broken", TORCH: "broken"})


def yank_version(store: MemoryStore) -> None:
    yank(store, {APEX: "broken", "torch==2.9.0": "broken"})


def add_version(store: MemoryStore) -> None:
    publish_wheels(store, NEWER_TORCH)


CHANGES_OF_TORCH: Mapping[str, Change] = {
    "name": rename,
    "digest": change_bytes,
    "size": change_size,
    "metadata": change_metadata,
    "minute of the upload": make_a_minute_newer,
    "required Python": require_newer_python,
    "yank of a file": yank_file,
    "yank of a version": yank_version,
    "another version": add_version,
}


@pytest.mark.parametrize("change", CHANGES_OF_TORCH.values(), ids=CHANGES_OF_TORCH)
def test_rewrites_the_pages_of_a_changed_project_and_the_flat_page(
    store: MemoryStore, change: Change
) -> None:
    change(store)

    assert written_paths(store) == ["index.html", "simple/torch/index.html", "simple/torch/index.json"]
    assert written_paths(store) == []


@pytest.mark.parametrize(
    "yanks",
    [{APEX: "wrong"}, {APEX: ""}, {}],
    ids=["another reason", "no reason", "taken back"],
)
def test_rewrites_the_pages_of_a_project_whose_yank_changes(
    store: MemoryStore, yanks: Mapping[str, str]
) -> None:
    yank(store, yanks)

    assert written_paths(store) == ["index.html", "simple/apex/index.html", "simple/apex/index.json"]
    assert written_paths(store) == []


def test_rewrites_only_the_json_page_where_a_time_changes_by_seconds(store: MemoryStore) -> None:
    content = store.objects.pop(TORCH_KEY)
    store.put_bytes(TORCH_KEY, content)

    # HTML pages give times in minutes.
    assert written_paths(store) == ["simple/torch/index.json"]
    assert written_paths(store) == []


# Changes of the list of projects


def test_writes_the_pages_of_a_new_project_and_the_lists_of_projects(store: MemoryStore) -> None:
    publish_wheels(store, TRITON)

    assert written_paths(store) == [
        "index.html",
        "simple/index.html",
        "simple/index.json",
        "simple/triton/index.html",
        "simple/triton/index.json",
    ]
    assert written_paths(store) == []


def test_rewrites_the_lists_of_projects_where_a_project_goes(store: MemoryStore) -> None:
    store.delete(f"{PREFIX}/{APEX}")
    store.delete(f"{PREFIX}/{APEX}.metadata")
    store.delete(f"{MANIFESTS}/{APEX}.json")

    assert written_paths(store) == ["index.html", "simple/index.html", "simple/index.json"]
    assert written_paths(store) == []


# The title, and the form of pages


def test_rewrites_the_flat_page_where_the_title_changes(store: MemoryStore) -> None:
    assert written_paths(store, title="another title") == ["index.html"]
    assert written_paths(store, title="another title") == []


@pytest.fixture(autouse=True)
def forget_page_format() -> Iterator[None]:
    """Forget the form of pages after each test, as it is computed only once."""
    yield
    html_pages.page_format.cache_clear()


def test_rewrites_every_html_page_where_the_template_changes(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_pages, "_HEAD", f"<!-- another -->{html_pages._HEAD}")
    html_pages.page_format.cache_clear()

    assert written_paths(store) == [
        "index.html",
        "simple/apex/index.html",
        "simple/index.html",
        "simple/torch/index.html",
    ]
    assert written_paths(store) == []


def test_rewrites_every_page_with_sizes_where_their_form_changes(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "size", lambda size: f"{size} bytes in all")
    html_pages.page_format.cache_clear()

    assert written_paths(store) == [
        "index.html",
        "simple/apex/index.html",
        "simple/torch/index.html",
    ]
    assert written_paths(store) == []


def test_rewrites_every_json_page_where_the_version_of_the_api_changes(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_pages, "API_VERSION", "1.9")
    html_pages.page_format.cache_clear()

    assert written_paths(store) == ["simple/apex/index.json", "simple/torch/index.json"]
    assert json.loads(store.objects[ROOT_KEY])["meta"]["api-version"] == "1.9"
    assert written_paths(store) == []


# Changes that no page shows


def test_writes_nothing_where_nothing_has_changed(store: MemoryStore) -> None:
    objects_before = dict(store.objects)
    store.calls.clear()

    assert written_paths(store) == []

    assert store.objects == objects_before
    assert store.keys_of_calls("put") == ()
    assert store.keys_of_calls("delete") == ()


def fail_a_step(store: MemoryStore) -> None:
    document = b'{"schema_version":1,"status":"failed","files":[]}'
    store.put_bytes(f"{MANIFESTS}/x.failed.json", document)


def copy_record(store: MemoryStore) -> None:
    store.put_bytes(f"{MANIFESTS}/copy.json", store.objects[TORCH_RECORD])


def add_notes(store: MemoryStore) -> None:
    store.put_bytes(f"{PREFIX}/notes.txt", b"notes")


def add_unrecorded_wheel(store: MemoryStore) -> None:
    store.put_bytes(f"{PREFIX}/{TRITON}", b"wheel")


def yank_absent_file(store: MemoryStore) -> None:
    yank(store, {APEX: "broken", TRITON: "broken"})


INVISIBLE_CHANGES: Mapping[str, Change] = {
    "failed step": fail_a_step,
    "second record with the same content": copy_record,
    "file that is no wheel": add_notes,
    "wheel without a record": add_unrecorded_wheel,
    "yank of a file that is not listed": yank_absent_file,
}


def pages_for_readers(store: MemoryStore) -> dict[str, bytes]:
    """Return the pages but for the root page, which also remembers the records that were read."""
    pages = pages_in(store)
    del pages[ROOT_PAGE]
    return pages


@pytest.mark.parametrize("change", INVISIBLE_CHANGES.values(), ids=INVISIBLE_CHANGES)
def test_writes_no_page_for_a_change_that_no_page_shows(store: MemoryStore, change: Change) -> None:
    pages_before = pages_for_readers(store)
    change(store)

    assert written_paths(store) == []

    assert pages_for_readers(store) == pages_before
