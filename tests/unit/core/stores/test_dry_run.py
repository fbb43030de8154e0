from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core import files
from core.errors import StoreError
from core.stores.directory import DirectoryStore
from core.stores.location import DryRunStore, unread

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(name="behind")
def behind_fixture(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "out")
    store.put_bytes("r/a.json", b"a")
    return store


def test_reads_pass_through(behind: DirectoryStore, tmp_path: Path) -> None:
    dry = DryRunStore(behind)
    assert dry.url == behind.url
    assert dry.list("r") == behind.list("r")
    assert dry.find("r/a.json") == behind.find("r/a.json")
    assert dry.read("r/a.json") == b"a"
    assert dry.digest("r/a.json") == behind.digest("r/a.json")
    assert dry.fetch("r/a.json", tmp_path) == behind.fetch("r/a.json", tmp_path)


def test_writes_are_told_and_not_done(
    behind: DirectoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dry = DryRunStore(behind)
    source = tmp_path / "b.whl"
    source.write_bytes(b"bbb")
    digest = files.sha256(source)
    assert dry.put_file("r/b.whl", source, sha256=digest, replace=False) == "planned"
    assert dry.put_bytes("r/a.json", b"other") == "planned"
    dry.delete("r/a.json")
    dry.delete("r/never.json")
    assert [(one.key, one.size) for one in behind.list("")] == [("r/a.json", 1)]
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"would write {behind.url}/r/b.whl  (3 B, sha256 {digest[:12]})",
        f"would write {behind.url}/r/a.json  (5 B)",
        f"would delete {behind.url}/r/a.json",
    ]


def test_what_would_not_change_is_not_told(
    behind: DirectoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dry = DryRunStore(behind)
    source = tmp_path / "a"
    source.write_bytes(b"a")
    assert dry.put_bytes("r/a.json", b"a") == "unchanged"
    assert dry.put_file("r/a.json", source, sha256=files.sha256(source), replace=False) == "unchanged"
    assert capsys.readouterr().err == ""


def test_what_the_store_would_refuse_is_refused(behind: DirectoryStore, tmp_path: Path) -> None:
    dry = DryRunStore(behind)
    source = tmp_path / "a"
    source.write_bytes(b"b")
    with pytest.raises(StoreError, match="with other bytes"):
        dry.put_bytes("r/a.json", b"b", replace=False)
    with pytest.raises(StoreError, match="with other bytes"):
        dry.put_file("r/a.json", source, sha256=files.sha256(source), replace=False)


def test_what_would_be_written_is_there_for_who_asks_next(behind: DirectoryStore, tmp_path: Path) -> None:
    dry = DryRunStore(behind)
    source = tmp_path / "b.whl"
    source.write_bytes(b"bbb")
    dry.put_file("r/b.whl", source, sha256=files.sha256(source), replace=False)
    dry.put_bytes("r/deep/c.json", b"c")
    dry.copy("s/b.whl", dry, "r/b.whl", sha256=files.sha256(source), replace=False)
    assert [one.key for one in dry.list("r")] == ["r/a.json", "r/b.whl", "r/deep/c.json"]
    assert [one.key for one in dry.list("r", recursive=False)] == ["r/a.json", "r/b.whl"]
    assert [one.key for one in dry.list("")] == ["r/a.json", "r/b.whl", "r/deep/c.json", "s/b.whl"]
    assert (dry.folders(""), dry.folders("r")) == (["r", "s"], ["deep"])
    assert (dry.read("r/b.whl"), dry.read("r/deep/c.json")) == (b"bbb", b"c")
    assert dry.fetch("r/b.whl", tmp_path) == source
    assert dry.fetch("r/deep/c.json", tmp_path / "new").read_bytes() == b"c"
    assert (dry.digest("s/b.whl"), dry.find("s/b.whl").size) == (files.sha256(source), 3)  # type: ignore[union-attr]
    assert dry.put_bytes("r/deep/c.json", b"c") == "unchanged"
    with pytest.raises(StoreError, match="with other bytes"):
        dry.put_bytes("r/deep/c.json", b"d", replace=False)
    dry.delete("r/deep/c.json")
    assert dry.find("r/deep/c.json") is None
    assert [one.key for one in behind.list("")] == ["r/a.json"]


def test_a_store_that_cannot_be_read_is_an_empty_one_of_that_name() -> None:
    dry = unread("s3://bucket")
    assert (dry.url, dry.list(""), dry.keeps_folder_pages("9-linux")) == ("s3://bucket", [], True)
