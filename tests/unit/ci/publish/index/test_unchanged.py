"""An index writes a page again where one of its inputs has changed, and nowhere else."""

import json
from collections.abc import Callable, Iterator, Sequence

import pytest

from ci.publish.index import html_pages, json_pages
from core import console
from tests.kit.index_pages import (
    MANIFESTS,
    PREFIX,
    ROOT_KEY,
    index_wheels,
    pages_in,
    publish_wheels,
    yank,
)
from tests.kit.memory_store import MemoryStore
from tests.kit.wheels import sha256, wheel_filename

TORCH = wheel_filename(name="torch", version="2.9.0")
NEWER_TORCH = wheel_filename(name="torch", version="2.10.0")
APEX = wheel_filename(name="apex", version="1.0")
TRITON = wheel_filename(name="triton", version="3.0")
TORCH_KEY = f"{PREFIX}/{TORCH}"
TORCH_RECORD = f"{MANIFESTS}/{TORCH}.json"

FLAT_PAGE = ["index.html"]
ROOT_PAGES = ["simple/index.html", "simple/index.json"]
TORCH_PAGES = ["simple/torch/index.html", "simple/torch/index.json"]
APEX_PAGES = ["simple/apex/index.html", "simple/apex/index.json"]
TRITON_PAGES = ["simple/triton/index.html", "simple/triton/index.json"]
EVERY_PAGE = [*FLAT_PAGE, *ROOT_PAGES, *TORCH_PAGES, *APEX_PAGES]

Change = Callable[[MemoryStore], object]


@pytest.fixture
def store() -> MemoryStore:
    """Return an index of two projects, which names a yank of one of them."""
    store = MemoryStore(folder_pages=False, moments={})
    publish_wheels(store, TORCH)
    publish_wheels(store, APEX)
    yank(store, {APEX: "broken"})
    index_wheels(store)
    return store


def written_paths(store: MemoryStore, *, title: str = "g") -> list[str]:
    """Index again; return the pages that were written, sorted."""
    written = index_wheels(store, title=title).written_pages
    return sorted(key.removeprefix(f"{PREFIX}/") for key in written)


def change_record(store: MemoryStore, field: str, value: object) -> None:
    """Change what the record of torch says of its wheel."""
    document = json.loads(store.objects[TORCH_RECORD])
    document["files"][0][field] = value
    store.put_bytes(TORCH_RECORD, json.dumps(document).encode())


# One input after the other


def rename(store: MemoryStore) -> None:
    """Give torch's wheel another name: a build number."""
    new_name = TORCH.replace("-py3", "-1-py3")
    for suffix in ("", ".metadata"):
        store.put_bytes(f"{PREFIX}/{new_name}{suffix}", store.objects.pop(f"{TORCH_KEY}{suffix}"))
    change_record(store, "key", f"{PREFIX}/{new_name}")


def change_bytes(store: MemoryStore) -> None:
    """Change the bytes of torch's wheel, and not their number."""
    content = TORCH.swapcase().encode()
    store.put_bytes(TORCH_KEY, content)
    change_record(store, "sha256", sha256(content))


def change_size(store: MemoryStore) -> None:
    """Make torch's wheel larger."""
    content = store.objects[TORCH_KEY] + b"more"
    store.put_bytes(TORCH_KEY, content)
    change_record(store, "sha256", sha256(content))
    change_record(store, "size", len(content))


def change_metadata(store: MemoryStore) -> None:
    """Change the metadata of torch's wheel."""
    store.put_bytes(f"{TORCH_KEY}.metadata", b"Name: torch\n")
    change_record(store, "metadata_sha256", sha256(b"Name: torch\n"))


def put_again(store: MemoryStore) -> None:
    """Put the same bytes again, at a later time."""
    content = store.objects.pop(TORCH_KEY)
    store.put_bytes(TORCH_KEY, content)


def put_a_minute_later(store: MemoryStore) -> None:
    """Let torch's wheel be a minute younger."""
    assert store.moments is not None
    store.moments[TORCH_KEY] += 60


def remove(store: MemoryStore, name: str) -> None:
    """Take a wheel, its sidecar and its record away."""
    for key in (f"{PREFIX}/{name}", f"{PREFIX}/{name}.metadata", f"{MANIFESTS}/{name}.json"):
        store.delete(key)


INPUTS: dict[str, tuple[Change, Sequence[str]]] = {
    "name": (rename, [*TORCH_PAGES, *FLAT_PAGE]),
    "digest": (change_bytes, [*TORCH_PAGES, *FLAT_PAGE]),
    "size": (change_size, [*TORCH_PAGES, *FLAT_PAGE]),
    "metadata": (change_metadata, [*TORCH_PAGES, *FLAT_PAGE]),
    # People read minutes, programs seconds: the HTML pages of a second later are the same.
    "time": (put_again, ["simple/torch/index.json"]),
    "minute": (put_a_minute_later, [*TORCH_PAGES, *FLAT_PAGE]),
    "required Python": (
        lambda store: change_record(store, "requires_python", ">=3.12"),
        [*TORCH_PAGES, *FLAT_PAGE],
    ),
    "yank of a file": (
        lambda store: yank(store, {APEX: "broken", TORCH: "broken"}),
        [*TORCH_PAGES, *FLAT_PAGE],
    ),
    "yank of a version": (
        lambda store: yank(store, {APEX: "broken", "torch==2.9.0": "broken"}),
        [*TORCH_PAGES, *FLAT_PAGE],
    ),
    "reason of a yank": (lambda store: yank(store, {APEX: "wrong"}), [*APEX_PAGES, *FLAT_PAGE]),
    "yank without a reason": (lambda store: yank(store, {APEX: ""}), [*APEX_PAGES, *FLAT_PAGE]),
    "yank taken back": (lambda store: yank(store, {}), [*APEX_PAGES, *FLAT_PAGE]),
    "version more": (lambda store: publish_wheels(store, NEWER_TORCH), [*TORCH_PAGES, *FLAT_PAGE]),
    "project more": (
        lambda store: publish_wheels(store, TRITON),
        [*TRITON_PAGES, *ROOT_PAGES, *FLAT_PAGE],
    ),
    "project less": (lambda store: remove(store, APEX), [*ROOT_PAGES, *FLAT_PAGE]),
}


@pytest.mark.parametrize(("change", "pages"), INPUTS.values(), ids=INPUTS)
def test_rewrites_the_pages_of_one_changed_input(
    store: MemoryStore, change: Change, pages: Sequence[str]
) -> None:
    change(store)

    assert written_paths(store) == sorted(pages)
    assert written_paths(store) == []


def test_rewrites_the_flat_page_where_the_title_changes(store: MemoryStore) -> None:
    assert written_paths(store, title="another title") == FLAT_PAGE
    assert written_paths(store, title="another title") == []


# The form of pages


@pytest.fixture(autouse=True)
def forget_page_format() -> Iterator[None]:
    """Let the next test compute the form of pages anew: it is computed once."""
    yield
    html_pages.page_format.cache_clear()


def test_rewrites_every_page_where_the_template_changes(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_pages, "_HEAD", f"<!-- another -->{html_pages._HEAD}")
    html_pages.page_format.cache_clear()

    # The template is of HTML.
    assert written_paths(store) == sorted(page for page in EVERY_PAGE if page.endswith(".html"))
    assert written_paths(store) == []


def test_rewrites_every_row_where_the_form_of_sizes_changes(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "size", lambda size: f"{size} bytes in all")
    html_pages.page_format.cache_clear()

    assert written_paths(store) == sorted(["simple/torch/index.html", "simple/apex/index.html", *FLAT_PAGE])
    assert written_paths(store) == []


def test_rewrites_every_json_page_where_the_version_of_the_api_changes(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_pages, "API_VERSION", "1.9")
    html_pages.page_format.cache_clear()

    assert written_paths(store) == ["simple/apex/index.json", "simple/torch/index.json"]
    assert json.loads(store.objects[ROOT_KEY])["meta"]["api-version"] == "1.9"
    assert written_paths(store) == []


# Nothing that pages say


def test_writes_nothing_where_nothing_has_changed(store: MemoryStore) -> None:
    objects_before = dict(store.objects)
    store.calls.clear()

    assert written_paths(store) == []

    assert store.objects == objects_before
    assert [key for call, key in store.calls if call in {"put", "delete"}] == []


def record_again(store: MemoryStore) -> None:
    """Name torch's wheel in a second record, which says the same."""
    store.put_bytes(f"{MANIFESTS}/again.json", store.objects[TORCH_RECORD])


UNLISTED: dict[str, Change] = {
    "failed step": lambda store: store.put_bytes(
        f"{MANIFESTS}/x.failed.json", b'{"schema_version":1,"status":"failed","files":[]}'
    ),
    "another record of the same": record_again,
    "another file": lambda store: store.put_bytes(f"{PREFIX}/notes.txt", b"notes"),
    "wheel without a record": lambda store: store.put_bytes(f"{PREFIX}/{TRITON}", b"wheel"),
    "yank of a file that is not listed": lambda store: yank(store, {APEX: "broken", TRITON: "broken"}),
}


@pytest.mark.parametrize("change", UNLISTED.values(), ids=UNLISTED)
def test_writes_no_page_for_what_no_page_says(store: MemoryStore, change: Change) -> None:
    pages_before = pages_in(store)
    change(store)

    assert written_paths(store) == []

    pages_after = pages_in(store)
    for pages in (pages_before, pages_after):
        del pages[ROOT_KEY.removeprefix(f"{PREFIX}/")]
    assert pages_after == pages_before
