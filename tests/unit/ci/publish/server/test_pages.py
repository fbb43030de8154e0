"""The server that writes an index's pages where files of it changed."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.publish import server
from ci.publish.index import is_page, write_index
from ci.publish.index.sources import UploadedSource
from ci.publish.server import RUN_FOLDERS, BucketKey, folder_of, handle, title_of
from ci.verbs import index
from core.stores.s3 import open_bucket
from tests.kit import runs, stores, wheels
from tests.kit.memory_store import MemoryStore

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType

    from types_boto3_s3 import S3Client

    from core.stores import Store

FOLDERS = re.compile(RUN_FOLDERS)
PREFIX = "17-linux/python/gfx94X-dcgpu"
SDIST = "rocm-1.0.tar.gz"


def queue_event(*keys: str, bucket: str = "b") -> dict[str, Any]:
    """Return what a queue delivers: a message for each changed key, whose id is the key."""
    messages: list[dict[str, Any]] = []
    for key in keys:
        change = {"bucket": {"name": bucket}, "object": {"key": quote_plus(key, safe="/")}}
        body = {"Records": [{"eventSource": "aws:s3", "s3": change}]}
        messages.append({"eventSource": "aws:sqs", "messageId": key, "body": json.dumps(body)})
    return {"Records": messages}


def handle_changes(store: Store, *keys: str) -> list[str]:
    """Deliver changes of a store; return the ids of the messages that failed."""
    failures = handle(queue_event(*keys), open_bucket=lambda _address: store, folders=FOLDERS)
    return [failure["itemIdentifier"] for failure in failures["batchItemFailures"]]


def pages_in(store: Store, folder: str = PREFIX) -> dict[str, bytes]:
    """Return the pages of a folder, without the records that the list of projects remembers.

    The server reads no records.
    """
    keys = [stored_object.key for stored_object in store.list(folder)]
    pages = {key: store.read(key) for key in keys if is_page(key)}
    for key in pages:
        if key.endswith("/simple/index.json"):
            pages[key] = pages[key].partition(b'"_records"')[0]
    return pages


# Which changes concern an index


@pytest.mark.parametrize(
    ("key", "prefix"),
    [
        (f"{PREFIX}/torch-1.0-py3-none-any.whl", PREFIX),
        (f"{PREFIX}/torch-1.0-py3-none-any.whl.metadata", PREFIX),
        (f"{PREFIX}/rocm-1.0.tar.gz", PREFIX),
        (f"{PREFIX}/yanked.json", PREFIX),
        (f"me-TheRock/{PREFIX}/rocm-1.0.tar.gz", f"me-TheRock/{PREFIX}"),
        (f"{PREFIX}/index.html", None),
        (f"{PREFIX}/simple/torch/index.html", None),
        (f"{PREFIX}/simple/index-state.txt", None),
        (f"{PREFIX}/simple/torch-1.0-py3-none-any.whl", None),
        (f"{PREFIX}/notes.txt", None),
        ("17-linux/tarballs/therock-dist-linux-gfx94X-7.1.tar.gz", None),
        ("17-linux/python/rocm-1.0.tar.gz", None),
        ("python-deps/simple/numpy/numpy-1.0-py3-none-any.whl", None),
        ("v2/gfx94X-dcgpu/torch-1.0-py3-none-any.whl", None),
        ("v2-staging/gfx94X-dcgpu/torch-1.0-py3-none-any.whl", None),
    ],
)
def test_follows_distributions_in_folders_of_runs_alone(key: str, prefix: str | None) -> None:
    folder = folder_of(BucketKey(bucket="b", key=key), FOLDERS)

    assert folder == (None if prefix is None else BucketKey(bucket="b", key=prefix))


# Pages


def test_writes_the_pages_that_a_client_writes(tmp_path: Path) -> None:
    store = MemoryStore(folder_pages=False)
    run = runs.run_outputs("17")
    paths = [
        wheels.write_wheel(tmp_path, name="torch"),
        wheels.write_wheel(tmp_path, name="apex", metadata_fields=[("Requires-Python", ">=3.11")]),
    ]
    files = runs.publish_files(store, run, paths, step="build_torch", family="g")
    index.write_pages(store, run, "g")
    folder = run.python_prefix("g")
    clients_pages = pages_in(store, folder)
    for key in [key for key in store.objects if is_page(key)]:
        store.delete(key)

    assert handle_changes(store, *(file.key for file in files)) == []

    assert pages_in(store, folder) == clients_pages
    assert len(clients_pages) == 7


def test_titles_pages_by_group_and_run() -> None:
    assert title_of("me-TheRock/17-linux/python/g") == "g (me-TheRock/17-linux)"


def test_writes_the_pages_of_a_folder_once_for_all_its_messages() -> None:
    def count_calls(messages: int) -> int:
        store = MemoryStore(objects={f"{PREFIX}/{SDIST}": b"sdist"}, folder_pages=False)
        handle_changes(store, *(f"{PREFIX}/rocm-{number}.tar.gz" for number in range(messages)))
        assert pages_in(store)
        return len(store.calls)

    assert count_calls(1000) == count_calls(1)


# Failures


BAD_PREFIX = "17-linux/python/bad"


@pytest.fixture
def failing_store() -> MemoryStore:
    """Return a store in which one folder cannot be listed."""

    def fail(call: str, key: str) -> None:
        if call == "list" and key.startswith(BAD_PREFIX):
            raise OSError(key)

    objects = {f"{prefix}/{SDIST}": b"sdist" for prefix in (PREFIX, BAD_PREFIX)}
    return MemoryStore(objects=objects, folder_pages=False, before=fail)


def test_names_the_messages_of_a_folder_that_fails_and_no_others(failing_store: MemoryStore) -> None:
    bad_keys = [f"{BAD_PREFIX}/rocm-{number}.tar.gz" for number in (1, 2)]

    assert handle_changes(failing_store, *bad_keys, f"{PREFIX}/{SDIST}") == bad_keys
    assert f"{PREFIX}/index.html" in failing_store.objects


def test_names_a_message_that_cannot_be_read(failing_store: MemoryStore) -> None:
    event = queue_event(f"{PREFIX}/{SDIST}")
    event["Records"].append({"eventSource": "aws:sqs", "messageId": "garbled", "body": "{"})

    failures = handle(event, open_bucket=lambda _address: failing_store, folders=FOLDERS)

    assert failures == {"batchItemFailures": [{"itemIdentifier": "garbled"}]}
    assert f"{PREFIX}/index.html" in failing_store.objects


def test_raises_a_failure_without_a_queue_so_that_it_is_tried_again(failing_store: MemoryStore) -> None:
    change = {"bucket": {"name": "b"}, "object": {"key": f"{BAD_PREFIX}/{SDIST}"}}
    event = {"source": "aws.s3", "detail": change}

    with pytest.raises(OSError, match="bad"):
        handle(event, open_bucket=lambda _address: failing_store, folders=FOLDERS)


# Any order of events


NAMES = [
    wheels.wheel_filename(name=project, version=version)
    for project in ("torch", "rocm")
    for version in ("1.0", "1.1")
]
ACTIONS = st.sampled_from(["put wheel", "put sidecar", "delete wheel", "delete sidecar"])
LINK = re.compile(rb"[a-z]+-1\.[01]-py3-none-any\.whl#sha256=[0-9a-f]{64}")


def links_in(store: Store) -> dict[str, list[bytes]]:
    """Return what each page links to, pages without links aside."""
    links = {key: LINK.findall(page) for key, page in pages_in(store).items()}
    return {key: page_links for key, page_links in links.items() if page_links}


def act(store: Store, action: str, name: str, chance: random.Random) -> str:
    """Change a wheel or its sidecar; return the key that a message tells of."""
    key = f"{PREFIX}/{name}"
    if action == "put wheel":
        store.put_bytes(key, chance.randbytes(4))
        return key
    if action == "delete wheel":
        store.delete(key)
        return key
    if action == "put sidecar":
        project, version = name.split("-")[:2]
        metadata = wheels.metadata_text(name=project, version=version)
        store.put_bytes(f"{key}.metadata", metadata.encode())
    else:
        store.delete(f"{key}.metadata")
    return f"{key}.metadata"


@given(st.lists(st.tuples(ACTIONS, st.sampled_from(NAMES)), max_size=8), st.randoms(use_true_random=False))
def test_pages_end_as_the_files_do_in_any_order_of_events(
    actions: list[tuple[str, str]],
    chance: random.Random,
) -> None:
    store = MemoryStore(folder_pages=False)
    waiting: list[str] = []
    for action, name in actions:
        waiting.append(act(store, action, name, chance))
        # Some messages come at once, in any order; some of these come again, and the others later.
        delivered = chance.sample(waiting, chance.randint(0, len(waiting)))
        handle_changes(store, *delivered)
        waiting = [key for key in waiting if key not in delivered or chance.random() < 0.2]
    chance.shuffle(waiting)
    for key in waiting:
        handle_changes(store, key)

    fresh_store = MemoryStore(folder_pages=False)
    for key in stores.keys_below(store, PREFIX):
        if not is_page(key):
            fresh_store.put_bytes(key, store.objects[key])
    write_index(fresh_store, PREFIX, UploadedSource(store=fresh_store), title=title_of(PREFIX), strict=False)
    assert links_in(store) == links_in(fresh_store)


# The function that is deployed


@pytest.fixture
def bucket(aws: S3Client) -> Store:
    """Return an empty bucket."""
    aws.create_bucket(Bucket="run-outputs")
    return open_bucket("s3://run-outputs")


@pytest.fixture
def deployed_server(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import the server anew: it reads its variables once, as a deployed function does."""
    spec = importlib.util.spec_from_file_location("deployed_server", server.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "deployed_server", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("folder", "is_followed"), [("wheels/g", True), (PREFIX, False)])
def test_follows_the_folders_that_a_variable_names(
    bucket: Store,
    deployed_server: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
    *,
    is_followed: bool,
) -> None:
    monkeypatch.setenv("PAGES_FOLDERS", "wheels/[a-z]+")
    key = f"{folder}/{SDIST}"
    bucket.put_bytes(key, b"sdist")

    deployed_server.handler(queue_event(key, bucket="run-outputs"), None)

    assert bool(pages_in(bucket, folder)) is is_followed
