from __future__ import annotations

import hashlib
import io
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.archive import zip_reader
from core.archive.zip_reader import MemberStream
from core.errors import WheelError

if TYPE_CHECKING:
    from collections.abc import Sequence

DATA = hashlib.shake_256(b"member").digest(3_000_000) + bytes(500_000)


def archive(folder: Path, method: int = zipfile.ZIP_DEFLATED) -> tuple[Path, zipfile.ZipInfo]:
    path = folder / "demo.zip"
    with zipfile.ZipFile(path, "w", method) as made:
        made.writestr("other", b"before")
        made.writestr("member", DATA)
    with zipfile.ZipFile(path) as read:
        return path, read.getinfo("member")


@settings(max_examples=30)
@given(
    reads=st.lists(
        st.tuples(st.integers(0, len(DATA) + 10), st.integers(-1, 2_000_000)), min_size=1, max_size=6
    ),
    kept=st.sampled_from([0, 1000, 1 << 20, 64 << 20]),
    method=st.sampled_from([zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED]),
)
def test_reads_at_any_places_give_what_a_file_gives(
    reads: Sequence[tuple[int, int]], kept: int, method: int
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(zip_reader, "KEPT", kept)
        plain = io.BytesIO(DATA)
        with MemberStream(*archive(Path(folder), method)) as stream:
            for offset, size in reads:
                assert stream.seek(offset) == plain.seek(offset)
                assert stream.read(size) == plain.read(size)
                assert stream.tell() == plain.tell()


def test_seeks_are_relative_to_the_place_and_the_end(tmp_path: Path) -> None:
    with MemberStream(*archive(tmp_path)) as stream:
        assert stream.seek(-4, io.SEEK_END) == len(DATA) - 4
        assert stream.read() == DATA[-4:]
        stream.seek(10)
        stream.seek(5, io.SEEK_CUR)
        assert stream.read(3) == DATA[15:18]


def test_a_damaged_member_is_named(tmp_path: Path) -> None:
    path, info = archive(tmp_path)
    data = bytearray(path.read_bytes())
    data[2_000_000] ^= 0xFF
    path.write_bytes(bytes(data))
    with MemberStream(path, info) as stream, pytest.raises(WheelError, match=r"demo\.zip: member has"):
        stream.read()
