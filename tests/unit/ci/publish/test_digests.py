from __future__ import annotations

import gzip
import hashlib
import os
import time
from typing import TYPE_CHECKING

import pytest

from ci.publish import folders
from ci.publish.folders import Digests, pack
from core import files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(name="path")
def path_fixture(tmp_path: Path) -> Path:
    path = tmp_path / "file.log"
    path.write_bytes(b"line\n" * 1000)
    past = time.time() - 60
    os.utime(path, (past, past))
    return path


def content(data: bytes) -> tuple[int, str]:
    return len(data), hashlib.sha256(data).hexdigest()


def found(known: Digests, path: Path, *, packed: bool = False) -> tuple[int, str]:
    one = known.content(path, packed=packed)
    assert one.changed == path.stat().st_mtime_ns
    return one.size, one.sha256


def test_a_file_is_hashed_once_until_it_changes(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = tmp_path / "memory.json"
    assert found(Digests(memory=memory), path) == content(path.read_bytes())
    with monkeypatch.context() as patch:
        patch.setattr(folders, "sha256", pytest.fail)
        assert found(Digests(memory=memory), path) == content(path.read_bytes())
    path.write_bytes(b"other")
    assert found(Digests(memory=memory), path) == content(b"other")


def test_a_file_written_in_this_moment_is_not_remembered(path: Path) -> None:
    path.write_bytes(b"1")
    known = Digests()
    assert found(known, path) == content(b"1")
    assert known.known == {}


def test_the_gzip_form_is_the_same_each_time_and_remembered_for_itself(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = Digests()
    packed = found(known, path, packed=True)
    pack(path, tmp_path / "a.gz")
    assert packed == content((tmp_path / "a.gz").read_bytes())
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == path.read_bytes()
    assert found(known, path) == content(path.read_bytes())
    monkeypatch.setattr(folders, "packed_content", pytest.fail)
    assert found(known, path, packed=True) == packed


@pytest.mark.parametrize("text", ["{", '"x"', '{"/x": 5}'])
def test_a_broken_memory_is_none(text: str, path: Path, tmp_path: Path) -> None:
    (tmp_path / "memory.json").write_text(text.replace("/x", str(path)))
    assert found(Digests(memory=tmp_path / "memory.json"), path) == content(path.read_bytes())
