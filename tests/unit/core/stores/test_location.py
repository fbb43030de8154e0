import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from core.cli.options import Common
from core.errors import MissingInputError, StoreError, UsageError
from core.stores import Stored, headers_for, location
from core.stores.directory import DirectoryStore
from core.stores.location import DryRunStore, OverlayStore, open_store
from tests.kit.wheels import sha256

ANSWERS = location.answers  # before the unit tests' own answer takes its place


def test_a_folder_is_a_store_named_from_the_checkout(tmp_path: Path) -> None:
    assert open_store("out", root=tmp_path) == DirectoryStore(tmp_path / "out")
    assert open_store(str(tmp_path / "else"), root=tmp_path / "x") == DirectoryStore(tmp_path / "else")
    assert open_store("out", root=tmp_path, dry_run=True) == DryRunStore(DirectoryStore(tmp_path / "out"))
    with pytest.raises(UsageError, match="'ftp://host/x' is not a store"):
        open_store("ftp://host/x", root=tmp_path)


@pytest.mark.parametrize(
    ("key", "kind", "caching"),
    [
        ("r/python/g/torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl", "application/zip", "immutable"),
        ("r/python/g/rocm-7.1.tar.gz", "application/gzip", "immutable"),
        ("r/python/g/a.whl.metadata", "text/plain; charset=utf-8", "immutable"),
        ("r/blas_lib_gfx942.tar.zst", "application/zstd", "immutable"),
        ("r/x.unknown", "application/octet-stream", "immutable"),
        ("r/python/g/index.html", "text/html; charset=utf-8", "must-revalidate"),
        ("r/python/g/simple/", "text/html; charset=utf-8", "must-revalidate"),
        ("r/manifests/g/build_torch.json", "application/json", "must-revalidate"),
        ("r/logs/g/build.log.gz", "application/gzip", "must-revalidate"),
        ("owner-repo/r/reports/g/x", "application/octet-stream", "must-revalidate"),
    ],
)
def test_files_are_immutable_and_pages_and_records_are_not(key: str, kind: str, caching: str) -> None:
    headers = headers_for(key)
    assert headers["ContentType"] == kind
    assert caching in headers["CacheControl"]


@pytest.fixture(name="behind")
def behind_fixture(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "out")
    store.put_bytes("r/a.json", b"a")
    return store


@pytest.fixture(name="source")
def source_fixture(tmp_path: Path) -> Path:
    path = tmp_path / "b.whl"
    path.write_bytes(b"bbb")
    return path


def test_a_dry_run_prints_writes_that_would_change_something(
    behind: DirectoryStore, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dry = DryRunStore(behind)
    assert dry.put_file("r/b.whl", source, sha256=sha256(b"bbb"), replace=False) == "planned"
    assert dry.put_bytes("r/a.json", b"a") == "unchanged"
    assert dry.put_bytes("r/a.json", b"other") == "planned"
    dry.delete("r/a.json")
    dry.delete("r/never.json")
    assert [(one.key, one.size) for one in behind.list("")] == [("r/a.json", 1)]
    assert capsys.readouterr().err.splitlines() == [
        f"would write {behind.url}/r/b.whl  (3 B, sha256 {sha256(b'bbb')[:12]})",
        f"would write {behind.url}/r/a.json  (5 B)",
        f"would delete {behind.url}/r/a.json",
    ]


def test_what_a_dry_run_would_write_can_be_read(behind: DirectoryStore, source: Path, tmp_path: Path) -> None:
    dry = DryRunStore(behind)
    dry.put_file("r/b.whl", source, sha256=sha256(b"bbb"), replace=False)
    dry.put_bytes("r/deep/c.json", b"c")
    dry.copy("s/b.whl", dry, "r/b.whl", sha256=sha256(b"bbb"))
    assert [one.key for one in dry.list("r")] == ["r/a.json", "r/b.whl", "r/deep/c.json"]
    assert [one.key for one in dry.list("r", recursive=False)] == ["r/a.json", "r/b.whl"]
    assert [one.key for one in dry.list("")] == ["r/a.json", "r/b.whl", "r/deep/c.json", "s/b.whl"]
    assert (dry.folders(""), dry.folders("r")) == (["r", "s"], ["deep"])
    assert (dry.read("r/b.whl"), dry.read("r/deep/c.json"), dry.read("r/a.json")) == (b"bbb", b"c", b"a")
    assert dry.fetch("r/b.whl", tmp_path) == source
    assert dry.fetch("r/a.json", tmp_path) == behind.fetch("r/a.json", tmp_path)
    assert dry.fetch("r/deep/c.json", tmp_path / "new").read_bytes() == b"c"
    assert (dry.digest("s/b.whl"), dry.find("s/b.whl").size) == (sha256(b"bbb"), 3)  # type: ignore[union-attr]
    assert dry.put_bytes("r/deep/c.json", b"c") == "unchanged"
    with pytest.raises(StoreError, match="with other bytes"):
        dry.put_bytes("r/deep/c.json", b"d", replace=False)
    dry.delete("r/deep/c.json")
    assert dry.find("r/deep/c.json") is None
    assert [one.key for one in behind.list("")] == ["r/a.json"]


def test_a_store_that_cannot_be_read_is_an_empty_one_of_that_name() -> None:
    dry = Common(store="s3://bucket", dry_run=True, unread=True).open_store()
    assert (dry.url, dry.list(""), dry.keeps_folder_pages("9-linux")) == ("s3://bucket", [], True)


class Unreachable(DirectoryStore):
    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        raise StoreError(f"No network for {prefix}{recursive}.")


@pytest.fixture(name="both")
def both_fixture(tmp_path: Path) -> OverlayStore:
    first, behind = DirectoryStore(tmp_path / "out"), DirectoryStore(tmp_path / "bucket")
    first.put_bytes("r/own", b"1")
    first.put_bytes("r/shared", b"here")
    behind.put_bytes("r/other", b"2")
    behind.put_bytes("r/shared", b"there")
    return OverlayStore(first, lambda: behind, "the bucket")


def test_what_the_first_store_lacks_is_read_behind_it(both: OverlayStore, tmp_path: Path) -> None:
    assert [one.key for one in both.list("r")] == ["r/other", "r/own", "r/shared"]
    assert [both.read(f"r/{name}") for name in ("own", "other", "shared")] == [b"1", b"2", b"here"]
    assert both.digest("r/other") == sha256(b"2")
    assert both.fetch("r/other", tmp_path / "fetched").read_bytes() == b"2"
    assert both.url_of("r/other") == (tmp_path / "bucket/r/other").as_uri()
    assert both.url_of("r/shared") == (tmp_path / "out/r/shared").as_uri()
    with both.open("r/other") as stream:
        assert stream.read() == b"2"
    assert both.find("r/shared").size == 4  # type: ignore[union-attr]
    assert both.find("r/none") is None
    with pytest.raises(MissingInputError, match=r"r/none is not in .*out"):
        both.read("r/none")
    assert location.holding(both, "r/other") == both.behind
    assert location.holding(both, "r/own") == location.holding(both.store, "r/other") == both.store


def test_only_the_first_store_is_written(both: OverlayStore, tmp_path: Path) -> None:
    before = [(one.key, one.etag) for one in both.behind.list("")]
    both.put_bytes("r/other", b"mine")
    both.put_file("r/file", tmp_path / "out/r/own", sha256=sha256(b"1"), replace=False)
    both.copy("r/copy", both, "r/own", sha256=sha256(b"1"))
    both.delete("r/shared")
    assert [(one.key, one.etag) for one in both.behind.list("")] == before
    assert [one.key for one in both.store.list("")] == ["r/copy", "r/file", "r/other", "r/own"]
    assert both.url == both.store.url


def test_without_the_store_behind_what_is_here_is_used_and_said_so_once(
    both: OverlayStore, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    alone = OverlayStore(both.store, lambda: Unreachable(tmp_path), "a broken one")
    for _ in range(2):
        assert [one.key for one in alone.list("r")] == ["r/own", "r/shared"]
        assert alone.find("r/other") is None
    with pytest.raises(MissingInputError, match=r"r/other is not in .*out"):
        alone.read("r/other")
    assert capsys.readouterr().err.count("No network for r") == 1


def test_nobody_waits_for_a_network_that_is_not_there(
    both: OverlayStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(location, "answers", ANSWERS)
    monkeypatch.setattr("urllib.request.getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        heard = OverlayStore(both.store, lambda: both.behind, "the bucket", f"{address}/a")
        assert heard.read("r/other") == b"2"
    gone = OverlayStore(both.store, pytest.fail, "the bucket", f"{address}/b")
    for _ in range(2):
        assert [one.key for one in gone.list("r")] == ["r/own", "r/shared"]
    assert capsys.readouterr().err.count("cannot be reached") == 1
