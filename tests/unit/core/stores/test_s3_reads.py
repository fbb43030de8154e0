"""Reads and downloads over connections that break."""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any

import pytest
from botocore import exceptions as boto

from core.errors import ServiceError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from core.stores.s3 import S3Store
    from tests.kit.aws import Operation, SetSubstitute

    # Lets reads end after some bytes with an error; returns the ranges that are asked for.
    BreakReads = Callable[[int, BaseException | None], list[str]]

READ = hashlib.shake_256(b"content").digest(2_000_000)


class BreakingBody(io.BytesIO):
    """A body that gives no more than some bytes, then what a broken connection gives."""

    def __init__(self, content: bytes, problem: BaseException | None) -> None:
        super().__init__(content)
        self.problem = problem

    def read(self, size: int | None = -1, /) -> bytes:
        """Read, or fail."""
        content = super().read(size)
        if not content and self.problem is not None:
            raise self.problem
        return content


@pytest.fixture
def readable(bucket: S3Store) -> S3Store:
    """Return a bucket with an object to read."""
    bucket.put_bytes("a.whl", READ)
    return bucket


@pytest.fixture
def break_reads(readable: S3Store, substitute: SetSubstitute) -> BreakReads:
    """Return the function that lets reads end after some bytes; it returns the ranges that are asked for."""

    def break_reads(length: int, problem: BaseException | None = None) -> list[str]:
        assert readable.find("a.whl") is not None
        ranges: list[str] = []

        def get_object(real: Operation, **arguments: Any) -> Any:
            ranges.append(arguments.get("Range", ""))
            response = real(**arguments)
            return {
                **response,
                "Body": BreakingBody(response["Body"].read()[:length], problem),
            }

        substitute("get_object", get_object)
        return ranges

    return break_reads


def test_a_read_that_gains_nothing_is_an_error(readable: S3Store, break_reads: BreakReads) -> None:
    break_reads(0, boto.IncompleteReadError(actual_bytes=1, expected_bytes=2))

    with pytest.raises(ServiceError) as raised:
        readable.read("a.whl")

    assert "s3://bucket/a.whl" in raised.value.message
    assert f"byte 0 of {len(READ)}" in raised.value.message


def test_notices_an_object_that_is_replaced_while_it_is_read(
    readable: S3Store, break_reads: BreakReads
) -> None:
    break_reads(1_000_000, None)

    with readable.open("a.whl") as stream:
        assert stream.read(10) == READ[:10]
        readable.put_bytes("a.whl", READ[::-1])
        with pytest.raises(StoreError, match="replaced"):
            stream.read()


def ignore_ranges(real: Operation, **arguments: Any) -> Any:
    """Answer with all of an object, whatever is asked of it."""
    return real(Bucket=arguments["Bucket"], Key=arguments["Key"])


def test_reads_from_a_place_where_the_server_ignores_ranges(
    readable: S3Store, substitute: SetSubstitute
) -> None:
    substitute("get_object", ignore_ranges)

    with readable.stream("a.whl", start=1_500_000) as stream:
        assert stream.read() == READ[1_500_000:]


def test_notices_another_object_where_the_server_ignores_conditions(
    readable: S3Store, substitute: SetSubstitute
) -> None:
    seen_object = readable.find("a.whl")
    assert seen_object is not None
    substitute("get_object", ignore_ranges)
    readable.put_bytes("a.whl", b"other")

    with pytest.raises(StoreError, match="replaced"):
        readable.stream("a.whl", start=2, etag=seen_object.etag)


@pytest.fixture
def interrupted_download(
    readable: S3Store,
    break_reads: BreakReads,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Return the folder into which an object was fetched when the user pressed Ctrl-C."""
    folder = tmp_path / "wheels"
    break_reads(1_200_000, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        readable.fetch("a.whl", folder)
    monkeypatch.undo()
    return folder


def test_an_interrupted_download_leaves_no_file(interrupted_download: Path) -> None:
    assert not (interrupted_download / "a.whl").exists()


def test_goes_on_with_an_interrupted_download(
    readable: S3Store,
    interrupted_download: Path,
    break_reads: BreakReads,
) -> None:
    ranges = break_reads(len(READ), None)

    path = readable.fetch("a.whl", interrupted_download)

    assert path == interrupted_download / "a.whl"
    assert path.read_bytes() == READ
    assert ranges == ["bytes=1200000-"]
    assert list(interrupted_download.iterdir()) == [path]


def test_fetches_no_file_that_is_there(
    readable: S3Store,
    break_reads: BreakReads,
    tmp_path: Path,
) -> None:
    path = readable.fetch("a.whl", tmp_path / "wheels")
    ranges = break_reads(len(READ), None)

    assert readable.fetch("a.whl", tmp_path / "wheels") == path

    assert ranges == []
