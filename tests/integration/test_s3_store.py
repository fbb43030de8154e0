from __future__ import annotations

import hashlib
import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from core.errors import ConflictError
from core.parallel import each
from core.stores import open_store
from core.stores.s3 import S3Store
from core.stores.s3_client import connect
from core.stores.s3_transfer import MIB, Sizes
from tests.integration.s3_proxy import FAULTS, proxied

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.s3_servers import S3Server


SMALL = Sizes(part=MIB)


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


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_is_lost_behind_a_network_that_fails(rclone: S3Server, tmp_path: Path, seed: int) -> None:
    bucket = rclone.make_bucket()
    objects = {f"python/g/{number}.whl": os.urandom(number * 40_000) for number in range(40)}
    objects["python/g/large.whl"] = os.urandom((8 << 20) + 7)
    for key, data in objects.items():
        (tmp_path / key.rpartition("/")[2]).write_bytes(data)
    with proxied(rclone.endpoint, rate=0.3, seed=seed) as proxy:
        store = S3Store(connection=connect(endpoint=proxy.endpoint), bucket=bucket, prefix="run", sizes=SMALL)

        def put(key: str) -> str:
            source = tmp_path / key.rpartition("/")[2]
            return store.put_file(key, source, sha256=sha(objects[key]), replace=False)

        def copy(key: str) -> str:
            return store.copy(f"v2/{key}", store, key, sha256=sha(objects[key]), replace=False)

        def fetch(key: str) -> bytes:
            return store.fetch(key, tmp_path / "fetched").read_bytes()

        assert set(each(put, objects)) <= {"written", "unchanged"}
        assert set(each(copy, objects)) <= {"written", "unchanged"}
        assert each(fetch, objects) == list(objects.values())
        assert each(store.read, objects) == list(objects.values())
        assert [one.key for one in store.list("python")] == sorted(objects)
        assert store.put_bytes("python/g/index.html", b"page", if_match="") in {"written", "unchanged"}
        faults = Counter(request.fault for request in proxy.requests)
        assert set(faults) == {None, *FAULTS}
        assert 0.2 < 1 - faults[None] / faults.total() < 0.4
    direct = open_store(f"s3://{bucket}/run", root=tmp_path)
    for key, data in objects.items():
        assert direct.read(key) == direct.read(f"v2/{key}") == data
    # of an upload whose beginning was not answered nobody knows the name; a lifecycle rule ends it
    known = {request.query.get("uploadId") for request in proxy.requests}
    unfinished = rclone.client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    assert known.isdisjoint(upload["UploadId"] for upload in unfinished)
