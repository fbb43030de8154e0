from __future__ import annotations

import dataclasses
import hashlib
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from core.errors import StoreError
from core.stores import open_store, s3_client
from core.stores.s3 import S3Store
from core.stores.s3_transfer import MIB, Sizes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from types_boto3_s3 import S3Client

DATA = os.urandom(MIB) * 11
SHA = hashlib.sha256(DATA).hexdigest()
IN_PARTS = Sizes(copy_whole=MIB, copy_part=5 * MIB, copy_limit=6 * MIB)


@pytest.fixture(name="stores", params=[Sizes(), IN_PARTS], ids=["whole", "parts"])
def stores_fixture(request: pytest.FixtureRequest, s3: S3Client, tmp_path: Path) -> tuple[S3Store, S3Store]:
    assert s3.list_buckets()["Buckets"]
    source, target = (open_store(f"s3://{name}/run", root=tmp_path) for name in ("bucket", "other"))
    assert isinstance(source, S3Store)
    assert isinstance(target, S3Store)
    source.put_bytes("staging/a.whl", DATA)
    return source, dataclasses.replace(target, sizes=request.param)


def test_a_copy_has_headers_metadata_and_digest_at_every_size(
    stores: tuple[S3Store, S3Store], s3: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    with monkeypatch.context() as patch:
        for operation in ("get_object", "put_object", "upload_part"):  # not a byte comes through here
            patch.setattr(source.connection.client, operation, None)
        assert target.copy("v2/a.whl", source, "staging/a.whl", sha256=SHA, replace=False) == "written"
    head = s3.head_object(Bucket="other", Key="run/v2/a.whl")
    assert head["ContentType"] == "application/zip"
    assert "immutable" in head["CacheControl"]
    assert head["Metadata"] == {"sha256": SHA}
    assert head["ContentLength"] == len(DATA)
    assert ('-3"' in head["ETag"]) == (target.sizes == IN_PARTS)
    assert target.read("v2/a.whl") == DATA


def replacing(client: Any, operation: str, monkeypatch: pytest.MonkeyPatch, s3: S3Client) -> None:
    real: Callable[..., Any] = getattr(client, operation)
    once = threading.Lock()

    def call(**arguments: Any) -> Any:
        if once.acquire(blocking=False):
            s3.put_object(Bucket="bucket", Key="run/staging/a.whl", Body=DATA[::-1], Metadata={"sha256": SHA})
        return real(**arguments)

    monkeypatch.setattr(client, operation, call)


def test_an_object_that_is_replaced_between_check_and_copy_is_refused(
    stores: tuple[S3Store, S3Store], s3: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    client = target.connection.client
    operation = "upload_part_copy" if target.sizes == IN_PARTS else "copy_object"
    replacing(client, operation, monkeypatch, s3)
    with pytest.raises(
        StoreError, match=r"staging/a\.whl in s3://bucket/run was replaced while it was copied"
    ):
        target.copy("v2/a.whl", source, "staging/a.whl", sha256=SHA, replace=False)
    assert target.find("v2/a.whl") is None
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="other")


def test_a_copy_is_taken_back_where_the_server_ignores_what_it_was_to_be_of(
    stores: tuple[S3Store, S3Store], s3: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    client: Any = target.connection.client
    monkeypatch.setattr(s3_client, "is_amazon", lambda _endpoint: False)
    for operation in ("copy_object", "upload_part_copy"):
        real: Callable[..., Any] = getattr(client, operation)

        def careless(real: Callable[..., Any] = real, **arguments: Any) -> Any:
            del arguments["CopySourceIfMatch"]
            return real(**arguments)

        monkeypatch.setattr(client, operation, careless)
        replacing(client, operation, monkeypatch, s3)
    with pytest.raises(StoreError, match="was replaced while it was copied"):
        target.copy("v2/a.whl", source, "staging/a.whl", sha256=SHA, replace=False)
    assert target.find("v2/a.whl") is None


def test_an_object_of_another_service_comes_through_this_machine(
    stores: tuple[S3Store, S3Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = stores
    elsewhere = dataclasses.replace(source, connection=s3_client.connect())
    monkeypatch.setattr(target.connection.client, "copy_object", None)
    assert target.copy("v2/a.whl", elsewhere, "staging/a.whl", sha256=SHA, replace=False) == "written"
    assert target.read("v2/a.whl") == DATA
