from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

import pytest

from core.archive import Member
from core.archive.zip_reader import span_of
from core.archive.zip_writer import HashingStream, ZipWriter
from core.errors import WheelError

if TYPE_CHECKING:
    from pathlib import Path


def test_an_archive_that_is_cut_off_meanwhile_is_named(tmp_path: Path) -> None:
    path = tmp_path / "original.whl"
    with path.open("wb") as raw:
        writer = ZipWriter(HashingStream(raw))
        writer.add([Member(name="a", source=b"a"), Member(name="b/data", source=bytes(range(256)) * 99)])
        writer.finish()
    with zipfile.ZipFile(path) as archive, path.open("r+b") as stream:
        info = archive.getinfo("b/data")
        span = span_of(stream, info)
        stream.truncate(span.start + 1)
        with pytest.raises(WheelError, match=r"original\.whl is cut off within b/data"):
            ZipWriter(HashingStream(io.BytesIO())).copy(path, stream, info, span, name="b/data", sha256=b"")
