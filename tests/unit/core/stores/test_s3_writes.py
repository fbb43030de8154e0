"""Uploads and copies, whole and in parts."""

from __future__ import annotations

import dataclasses
import hashlib
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.s3 import models as moto_models

from core import errors
from core.errors import InterruptedStageError, StoreError
from core.stores import s3_client, s3_writes
from core.stores.s3_writes import MAX_PARTS, MIB, PART, part_size
from tests.kit.aws import refusal, unfinished_uploads
from tests.kit.wheels import sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from types_boto3_s3 import S3Client

    from core.stores import PutResult
    from core.stores.s3 import S3Store
    from tests.kit.aws import Operation, SetSubstitute

# Three parts. Parts of more than a MiB wait for their turn.
SMALL_PART = 5 * MIB // 4
CONTENT = hashlib.shake_256(b"content").digest(3 * MIB)
CONTENT_SHA256 = sha256(CONTENT)


# Uploads


@given(st.integers(0, 50 << 40))
def test_an_upload_has_never_too_many_parts(size: int) -> None:
    part = part_size(size, PART)

    assert part >= PART
    assert part % MIB == 0
    assert -(-size // part) <= MAX_PARTS
    assert part == PART or part - MIB < size / MAX_PARTS


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files of a few MiB go in parts."""
    monkeypatch.setattr(moto_models, "S3_UPLOAD_PART_MIN_SIZE", SMALL_PART)
    monkeypatch.setattr(s3_writes, "PART", SMALL_PART)
    monkeypatch.setattr(s3_writes, "COPY_WHOLE", MIB)
    monkeypatch.setattr(s3_writes, "COPY_PART", SMALL_PART)
    monkeypatch.setattr(s3_writes, "COPY_LIMIT", 2 * MIB)


@pytest.fixture(params=[False, True], ids=["whole", "parts"])
def in_parts(request: pytest.FixtureRequest) -> bool:
    """Return whether a file goes in parts."""
    in_parts: bool = request.param
    if in_parts:
        request.getfixturevalue("small_parts")
    return in_parts


@pytest.fixture
def large_file(tmp_path: Path) -> Path:
    """Return a file to upload."""
    path = tmp_path / "large.whl"
    path.write_bytes(CONTENT)
    return path


def test_uploads_a_file_whole_or_in_parts(
    bucket: S3Store, s3: S3Client, large_file: Path, *, in_parts: bool
) -> None:
    assert (
        bucket.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False).outcome == "written"
    )

    head = s3.head_object(Bucket="bucket", Key="r/large.whl")
    assert head["ETag"].endswith('-3"') == in_parts
    assert bucket.read("r/large.whl") == CONTENT
    assert unfinished_uploads(s3) == []


@pytest.mark.usefixtures("in_parts")
def test_an_uploaded_file_has_its_digest_and_headers(bucket: S3Store, s3: S3Client, large_file: Path) -> None:
    bucket.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False)

    head = s3.head_object(Bucket="bucket", Key="r/large.whl")
    assert head["Metadata"] == {"sha256": CONTENT_SHA256}
    assert head["ContentType"] == "application/zip"
    assert "immutable" in head["CacheControl"]


@pytest.mark.usefixtures("in_parts")
def test_uploads_a_file_once(bucket: S3Store, large_file: Path) -> None:
    bucket.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False)

    assert (
        bucket.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False).outcome
        == "unchanged"
    )


@pytest.mark.usefixtures("in_parts")
def test_a_file_with_another_digest_is_never_seen(bucket: S3Store, s3: S3Client, large_file: Path) -> None:
    with pytest.raises(StoreError, match=r"large\.whl"):
        bucket.put_file("r/large.whl", large_file, sha256=sha256(b"other"), replace=False)

    assert bucket.find("r/large.whl") is None
    assert unfinished_uploads(s3) == []


@pytest.fixture(params=["upload_part", "complete_multipart_upload"])
def failing_operation(request: pytest.FixtureRequest) -> str:
    """Return an operation of an upload in parts."""
    operation: str = request.param
    return operation


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("problem", "error"),
    [(refusal("AccessDenied", "UploadPart"), StoreError), (KeyboardInterrupt(), KeyboardInterrupt)],
    ids=["refused", "Ctrl-C"],
)
def test_an_upload_that_fails_leaves_nothing(
    bucket: S3Store,
    s3: S3Client,
    large_file: Path,
    substitute: SetSubstitute,
    failing_operation: str,
    problem: BaseException,
    error: type[BaseException],
) -> None:
    def fail_at_second_part(real: Operation, **arguments: Any) -> Any:
        if arguments.get("PartNumber", 2) == 2:
            raise problem
        return real(**arguments)

    substitute(failing_operation, fail_at_second_part)
    with pytest.raises(error):
        bucket.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False)

    assert bucket.find("r/large.whl") is None
    assert unfinished_uploads(s3) == []


@pytest.mark.usefixtures("small_parts")
def test_an_upload_that_fails_keeps_no_other_one_waiting(
    bucket: S3Store, large_file: Path, substitute: SetSubstitute
) -> None:
    def fail(_real: Operation, **_arguments: Any) -> Any:
        raise refusal("AccessDenied", "UploadPart")

    substitute("upload_part", fail)
    with pytest.raises(StoreError):
        bucket.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False)

    for _part in range(20):
        assert bucket.connection.part_slots.acquire(timeout=1)
        bucket.connection.part_slots.release()


@pytest.fixture
def stopping() -> Iterator[threading.Event]:
    """Return the event that tells all threads to stop, and clear it after the test."""
    yield errors.STOPPING
    errors.STOPPING.clear()


@pytest.mark.usefixtures("small_parts")
def test_an_interrupted_process_sends_no_more_of_a_file(
    bucket: S3Store,
    s3: S3Client,
    large_file: Path,
    substitute: SetSubstitute,
    stopping: threading.Event,
) -> None:
    sent_parts: list[int] = []

    def stop_and_send(real: Operation, **arguments: Any) -> Any:
        stopping.set()
        sent_parts.append(arguments["PartNumber"])
        return real(**arguments)

    substitute("upload_part", stop_and_send)
    with pytest.raises(InterruptedStageError):
        bucket.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False)

    stopping.clear()
    assert sent_parts
    assert bucket.find("r/large.whl") is None
    assert unfinished_uploads(s3) == []


def test_an_interrupted_process_reads_no_more_of_a_file(bucket: S3Store, stopping: threading.Event) -> None:
    bucket.put_bytes("r/a.whl", CONTENT)

    with bucket.open("r/a.whl") as stream:
        stopping.set()
        with pytest.raises(InterruptedStageError):
            stream.read()


@pytest.mark.usefixtures("small_parts")
def test_removes_the_parts_that_a_killed_upload_left(bucket: S3Store, s3: S3Client, large_file: Path) -> None:
    place = bucket.place("r/large.whl")
    s3.create_multipart_upload(**place)
    other_upload = s3.create_multipart_upload(Bucket="bucket", Key="r/large.whl.metadata")

    bucket.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False)

    assert [upload["UploadId"] for upload in unfinished_uploads(s3)] == [other_upload["UploadId"]]


@pytest.mark.usefixtures("small_parts")
def test_uploads_without_permission_to_list_unfinished_uploads(
    bucket: S3Store, substitute: SetSubstitute, large_file: Path
) -> None:
    def deny(_real: Operation, **_arguments: Any) -> Any:
        raise refusal("AccessDenied", "ListMultipartUploads", status=403)

    substitute("list_multipart_uploads", deny)

    result = bucket.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False)

    assert result.outcome == "written"


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("operation", ["upload_part", "complete_multipart_upload"])
def test_starts_again_where_another_writer_took_an_upload_for_a_killed_one(
    bucket: S3Store, substitute: SetSubstitute, s3: S3Client, large_file: Path, operation: str
) -> None:
    first_call = threading.Lock()

    def refuse_once(real: Operation, **arguments: Any) -> Any:
        if first_call.acquire(blocking=False):
            raise refusal("NoSuchUpload", status=404)
        return real(**arguments)

    substitute(operation, refuse_once)
    result = bucket.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False)

    assert result.outcome == "written"
    assert bucket.read("r/large.whl") == CONTENT
    assert unfinished_uploads(s3) == []


# Copies


@pytest.fixture
def source(bucket: S3Store) -> S3Store:
    """Return a folder of a bucket with an object to copy."""
    source = dataclasses.replace(bucket, prefix="run")
    source.put_bytes("staging/a.whl", CONTENT)
    return source


@pytest.fixture
def target(source: S3Store) -> S3Store:
    """Return the same folder of another bucket."""
    return dataclasses.replace(source, bucket="other")


def copy_object(target: S3Store, source: S3Store) -> PutResult:
    """Copy the object."""
    return target.copy("v2/a.whl", source, "staging/a.whl", sha256=CONTENT_SHA256)


def test_a_copy_has_the_content_digest_and_headers(
    source: S3Store, target: S3Store, s3: S3Client, *, in_parts: bool
) -> None:
    assert copy_object(target, source).outcome == "written"

    head = s3.head_object(Bucket="other", Key="run/v2/a.whl")
    assert head["ContentType"] == "application/zip"
    assert "immutable" in head["CacheControl"]
    assert head["Metadata"] == {"sha256": CONTENT_SHA256}
    assert ('-3"' in head["ETag"]) == in_parts
    assert target.read("v2/a.whl") == CONTENT


@pytest.mark.usefixtures("in_parts")
def test_the_server_copies_by_itself(
    source: S3Store, target: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever calls one of these fails.
    for operation in ("get_object", "put_object", "upload_part"):
        monkeypatch.setattr(source.connection.client, operation, None)

    assert copy_object(target, source).outcome == "written"


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("is_careless", [False, True], ids=["Amazon", "server without conditions"])
def test_rejects_an_object_that_is_replaced_while_it_is_copied(
    source: S3Store,
    target: S3Store,
    s3: S3Client,
    substitute: SetSubstitute,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_careless: bool,
) -> None:
    replacement = CONTENT[::-1]
    first_call = threading.Lock()

    def replace_and_copy(real: Operation, **arguments: Any) -> Any:
        if first_call.acquire(blocking=False):
            metadata = {"sha256": CONTENT_SHA256}
            s3.put_object(Bucket="bucket", Key="run/staging/a.whl", Body=replacement, Metadata=metadata)
        if is_careless:
            del arguments["CopySourceIfMatch"]
        return real(**arguments)

    if is_careless:
        monkeypatch.setattr(s3_client.Connection, "is_amazon", False)
    substitute("upload_part_copy", replace_and_copy)
    substitute("copy_object", replace_and_copy)
    with pytest.raises(StoreError, match=r"a\.whl in s3://bucket/run"):
        copy_object(target, source)

    assert target.find("v2/a.whl") is None
    assert unfinished_uploads(s3, "other") == []


@pytest.mark.usefixtures("in_parts")
def test_passes_objects_of_another_service_on(
    source: S3Store, target: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = dataclasses.replace(source, connection=s3_client.connect())
    monkeypatch.setattr(target.connection.client, "copy_object", None)  # which one server cannot do

    assert copy_object(target, elsewhere).outcome == "written"

    assert target.read("v2/a.whl") == CONTENT
