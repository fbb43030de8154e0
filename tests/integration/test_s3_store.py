from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import pytest

from core.errors import ConflictError
from core.stores import open_store

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.s3_servers import S3Server


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_objects_of_every_size_come_and_go(rclone: S3Server, tmp_path: Path) -> None:
    store = open_store(f"s3://{rclone.make_bucket()}/run", root=tmp_path)
    objects = {f"python/g/{size}.whl": os.urandom(size) for size in (0, 1, 100_000, 16 << 20, (40 << 20) + 1)}
    for key, data in objects.items():
        source = tmp_path / "source"
        source.write_bytes(data)
        for outcome in ("written", "unchanged"):
            assert store.put_file(key, source, sha256=sha(data), replace=False) == outcome
        assert store.digest(key) == sha(data)
        assert store.read(key) == data
        assert store.fetch(key, tmp_path / "fetched").read_bytes() == data
        assert store.copy(f"copies/{key}", store, key, sha256=sha(data), replace=False) == "written"
        assert store.read(f"copies/{key}") == data
        assert store.digest(f"copies/{key}") == sha(data)
        found = store.find(key)
        assert found in store.list("python")
    assert [(one.key, one.size) for one in store.list("python/g", recursive=False)] == sorted(
        (key, len(data)) for key, data in objects.items()
    )
    assert list(store.list("python", recursive=False)) == []
    for key in objects:
        store.delete(key)
        store.delete(key)
    assert list(store.list("python")) == []


def test_a_server_that_ignores_conditions_is_noticed(rclone: S3Server, tmp_path: Path) -> None:
    bucket = rclone.make_bucket()
    store = open_store(f"s3://{bucket}", root=tmp_path)
    assert store.put_bytes("r/index.html", b"one", if_match="") == "written"
    seen = store.find("r/index.html")
    assert seen is not None
    with pytest.raises(ConflictError):
        store.put_bytes("r/index.html", b"two", if_match="")
    assert store.put_bytes("r/index.html", b"two", if_match=seen.etag) == "written"
    with pytest.raises(ConflictError):
        store.put_bytes("r/index.html", b"three", if_match=seen.etag)
    assert store.read("r/index.html") == b"two"
    assert [one["Key"] for one in rclone.client().list_objects_v2(Bucket=bucket)["Contents"]] == [
        "r/index.html"
    ]
