"""What the documentation promises of events that the server behind a bucket gets."""

import re
from typing import NoReturn

import pytest

from ci.publish.server import RUN_FOLDERS, handle


def refuse_to_open(bucket: str) -> NoReturn:
    """Fail, because no bucket may be opened for these events."""
    raise AssertionError(bucket)


@pytest.mark.parametrize("name", ["notes.txt", "torch-2.10.0.zip", "index.html"])
def test_files_that_are_neither_wheels_nor_sdists_are_ignored(name: str) -> None:
    detail = {"bucket": {"name": "bucket"}, "object": {"key": f"17-linux/python/gfx94X-dcgpu/{name}"}}

    answer = handle({"detail": detail}, open_bucket=refuse_to_open, folders=re.compile(RUN_FOLDERS))

    assert answer == {"batchItemFailures": []}


def test_wheels_are_not_ignored() -> None:
    name = "torch-2.10.0-cp312-cp312-linux_x86_64.whl"
    detail = {"bucket": {"name": "bucket"}, "object": {"key": f"17-linux/python/gfx94X-dcgpu/{name}"}}

    with pytest.raises(AssertionError, match="bucket"):
        handle({"detail": detail}, open_bucket=refuse_to_open, folders=re.compile(RUN_FOLDERS))
