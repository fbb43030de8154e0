from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ci.publish import server
from ci.publish.index import is_page, write_index
from ci.publish.index.sources import Carried
from ci.publish.server import RUN_FOLDERS, Place, folder_of, handle, title_of
from ci.verbs import index
from core.stores.directory import DirectoryStore
from core.stores.s3 import open_bucket

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from types_boto3_s3 import S3Client

    from core.run import RunOutputs
    from core.run.records import FileRecord
    from core.stores import Store

FOLDERS = re.compile(RUN_FOLDERS)
PREFIX = "17-linux/python/gfx94X-dcgpu"


def metadata(name: str) -> bytes:
    project, version = name.split("-")[:2]
    return f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\nRequires-Python: >=3.11\n".encode()


def put(store: Store, name: str, data: bytes = b"a wheel", folder: str = PREFIX) -> str:
    with TemporaryDirectory() as place:
        source = Path(place) / "file"
        source.write_bytes(data)
        store.put_file(f"{folder}/{name}", source, sha256=hashlib.sha256(data).hexdigest(), replace=True)
    return f"{folder}/{name}"


def put_sidecar(store: Store, name: str, folder: str = PREFIX) -> str:
    key = f"{folder}/{name}.metadata"
    store.put_bytes(key, metadata(name))
    return key


def event(*keys: str, bucket: str = "b") -> dict[str, Any]:
    """Write what a queue delivers: a message a key, named as the key."""

    def body(key: str) -> str:
        told = {"bucket": {"name": bucket}, "object": {"key": quote_plus(key, safe="/")}}
        return json.dumps({"Records": [{"eventSource": "aws:s3", "s3": told}]})

    return {"Records": [{"eventSource": "aws:sqs", "messageId": key, "body": body(key)} for key in keys]}


def told(store: Store, *keys: str) -> list[str]:
    answer = handle(event(*keys), open_bucket=lambda _: store, folders=FOLDERS)
    return [one["itemIdentifier"] for one in answer["batchItemFailures"]]


def page_texts(store: Store, folder: str = PREFIX) -> dict[str, bytes]:
    keys = [one.key for one in store.list(folder)]
    return {key: store.read(key) for key in keys if is_page(key) and not key.endswith(".txt")}


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
def test_pages_follow_distributions_and_nothing_else(key: str, prefix: str | None) -> None:
    expected = None if prefix is None else Place(bucket="b", key=prefix)
    assert folder_of(Place(bucket="b", key=key), FOLDERS) == expected


def test_pages_are_the_clients(store: Store, outputs: RunOutputs, publish: Callable[..., FileRecord]) -> None:
    keys = [publish().key, publish("apex", "1.10.0", fields=[("Requires-Python", ">=3.11")]).key]
    index.write_pages(store, outputs, "g")
    folder = outputs.python_prefix("g")
    clients = page_texts(store, folder)
    for key in clients:
        store.delete(key)
    store.delete(f"{folder}/simple/index-state.txt")
    assert told(store, *keys) == []
    assert page_texts(store, folder) == clients
    assert len(clients) == 7
    assert title_of("me-TheRock/17-linux/python/g") == "g (me-TheRock/17-linux)"


class Broken(DirectoryStore):
    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Any]:
        if "bad" in prefix:
            raise OSError(prefix)
        return super().list(prefix, recursive=recursive)


def test_messages_of_a_folder_that_fails_and_broken_ones_are_named_and_no_others(tmp_path: Path) -> None:
    store = Broken(tmp_path)
    good = put(store, "rocm-1.0.tar.gz")
    bad = [f"17-linux/python/bad/rocm-{number}.tar.gz" for number in (1, 2)]
    whole = event(*bad, good)
    whole["Records"].append({"eventSource": "aws:sqs", "messageId": "garbled", "body": "{"})
    answer = handle(whole, open_bucket=lambda _: store, folders=FOLDERS)
    assert answer == {"batchItemFailures": [{"itemIdentifier": one} for one in (*bad, "garbled")]}
    assert f"{PREFIX}/index.html" in page_texts(store)


def test_without_a_queue_a_failure_is_raised_so_that_lambda_tries_again(tmp_path: Path) -> None:
    direct = {
        "source": "aws.s3",
        "detail": {"bucket": {"name": "b"}, "object": {"key": "1-linux/python/bad/rocm-1.0.tar.gz"}},
    }
    with pytest.raises(OSError, match="bad"):
        handle(direct, open_bucket=lambda _: Broken(tmp_path), folders=FOLDERS)


NAMES = [
    f"{project}-{version}-py3-none-any.whl" for project in ("torch", "rocm") for version in ("1.0", "1.1")
]
KINDS = st.sampled_from(["wheel", "sidecar", "drop", "drop sidecar"])
ACTS = st.lists(st.tuples(KINDS, st.sampled_from(NAMES)), max_size=12)
LINK = re.compile(rb"[a-z]+-1\.[01]-py3-none-any\.whl#sha256=[0-9a-f]{64}")


def links(store: Store) -> dict[str, list[bytes]]:
    """Return what each page links to, pages without links aside."""
    found = {key: LINK.findall(text) for key, text in page_texts(store).items()}
    return {key: one for key, one in found.items() if one}


@settings(max_examples=25)
@given(ACTS, st.randoms(use_true_random=False))
def test_in_any_order_of_events_pages_end_as_files(acts: list[tuple[str, str]], order: random.Random) -> None:
    with TemporaryDirectory() as place:
        store = DirectoryStore(Path(place) / "bucket")
        waiting: list[str] = []
        for act, name in acts:
            key = f"{PREFIX}/{name}"
            match act:
                case "wheel":
                    waiting.append(put(store, name, order.randbytes(4)))
                case "sidecar":
                    waiting.append(put_sidecar(store, name))
                case "drop":
                    store.delete(key)
                    waiting.append(key)
                case _:
                    store.delete(f"{key}.metadata")
                    waiting.append(f"{key}.metadata")
            # some come at once, in any order, and again; the others later
            now = order.sample(waiting, order.randint(0, len(waiting)))
            told(store, *now)
            waiting = [key for key in waiting if key not in now or order.random() < 0.2]
        order.shuffle(waiting)
        for key in waiting:
            told(store, key)
        fresh = DirectoryStore(Path(place) / "fresh")
        for one in store.list(PREFIX, recursive=False):
            if not is_page(one.key):
                fresh.put_bytes(one.key, store.read(one.key))
        write_index(fresh, PREFIX, Carried(store=fresh), title=title_of(PREFIX), strict=False)
        assert links(store) == links(fresh)


@pytest.fixture(name="bucket")
def bucket_fixture(aws: S3Client) -> Store:
    aws.create_bucket(Bucket="run-outputs")
    return open_bucket("s3://run-outputs")


def test_the_handler_reads_folders_from_variables(bucket: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "open_bucket", lambda _: bucket)
    monkeypatch.setenv("PAGES_FOLDERS", "wheels/[a-z]+")
    server._folders.cache_clear()
    try:
        server.handler(event(put(bucket, "rocm-1.0.tar.gz", folder="wheels/g")), None)
        server.handler(event(put(bucket, "rocm-1.0.tar.gz")), None)
    finally:
        server._folders.cache_clear()
    assert page_texts(bucket, "wheels")
    assert not page_texts(bucket)


def test_a_folder_of_1000_messages_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, written = DirectoryStore(tmp_path), []
    monkeypatch.setattr(server, "_write", lambda _store, folder: written.append(folder.key))
    told(store, *[f"{PREFIX}/rocm-{number}.tar.gz" for number in range(1000)])
    assert written == [PREFIX]
