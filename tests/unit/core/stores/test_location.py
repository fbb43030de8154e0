import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from core.cli.options import Common
from core.errors import MissingInputError, StoreError, UsageError
from core.stores import Store, Stored, headers_for, location
from core.stores.directory import DirectoryStore
from core.stores.location import DryRunStore, OverlayStore, open_store
from tests.kit.wheels import sha256

ANSWERS = location.answers  # before the unit tests' own answer takes its place


def list_keys(store: Store, prefix: str = "", *, recursive: bool = True) -> list[str]:
    """Return the keys of the objects in a folder."""
    return [stored_object.key for stored_object in store.list(prefix, recursive=recursive)]


def find_object(store: Store, key: str) -> Stored:
    """Return an object, which is there."""
    stored_object = store.find(key)
    assert stored_object is not None
    return stored_object


# Places


def test_a_folder_is_named_from_the_checkout(tmp_path: Path) -> None:
    assert open_store("out", root=tmp_path) == DirectoryStore(tmp_path / "out")


def test_a_folder_may_lie_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"

    assert open_store(str(folder), root=tmp_path / "x") == DirectoryStore(folder)


def test_a_dry_run_opens_a_store_that_is_only_read(tmp_path: Path) -> None:
    assert open_store("out", root=tmp_path, dry_run=True) == DryRunStore(DirectoryStore(tmp_path / "out"))


def test_rejects_an_address_that_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'ftp://host/x'"):
        open_store("ftp://host/x", root=tmp_path)


IMMUTABLE = "immutable"
REVALIDATED = "must-revalidate"


@pytest.mark.parametrize(
    ("key", "content_type", "caching"),
    [
        ("r/python/g/torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl", "application/zip", IMMUTABLE),
        ("r/python/g/rocm-7.1.tar.gz", "application/gzip", IMMUTABLE),
        ("r/python/g/a.whl.metadata", "text/plain; charset=utf-8", IMMUTABLE),
        ("r/blas_lib_gfx942.tar.zst", "application/zstd", IMMUTABLE),
        ("r/x.unknown", "application/octet-stream", IMMUTABLE),
        ("r/python/g/index.html", "text/html; charset=utf-8", REVALIDATED),
        ("r/python/g/simple/", "text/html; charset=utf-8", REVALIDATED),
        ("r/manifests/g/build_torch.json", "application/json", REVALIDATED),
        ("r/logs/g/build.log.gz", "application/gzip", REVALIDATED),
        ("owner-repo/r/reports/g/x", "application/octet-stream", REVALIDATED),
    ],
)
def test_browsers_keep_files_and_ask_again_for_pages_and_records(
    key: str, content_type: str, caching: str
) -> None:
    headers = headers_for(key)

    assert headers["ContentType"] == content_type
    assert caching in headers["CacheControl"]


# Dry runs


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """Return a store with one object."""
    store = DirectoryStore(tmp_path / "out")
    store.put_bytes("r/a.json", b"a")
    return store


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Return a file to put into a store."""
    path = tmp_path / "b.whl"
    path.write_bytes(b"bbb")
    return path


@pytest.fixture
def dry_run(store: DirectoryStore, wheel: Path) -> DryRunStore:
    """Return a dry run that would have put a file, copied it, and written a small object."""
    dry_run = DryRunStore(store)
    assert dry_run.put_file("r/b.whl", wheel, sha256=sha256(b"bbb"), replace=False) == "planned"
    assert dry_run.put_bytes("r/deep/c.json", b"c") == "planned"
    assert dry_run.copy("s/b.whl", dry_run, "r/b.whl", sha256=sha256(b"bbb")) == "planned"
    return dry_run


def test_a_dry_run_writes_nothing(dry_run: DryRunStore, store: DirectoryStore) -> None:
    dry_run.delete("r/a.json")

    assert list_keys(store) == ["r/a.json"]


def test_a_dry_run_prints_what_it_would_write(
    store: DirectoryStore, wheel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dry_run = DryRunStore(store)

    dry_run.put_file("r/b.whl", wheel, sha256=sha256(b"bbb"), replace=False)
    dry_run.put_bytes("r/a.json", b"other")
    dry_run.delete("r/a.json")

    assert capsys.readouterr().err.splitlines() == [
        f"would write {store.url}/r/b.whl  (3 B, sha256 {sha256(b'bbb')[:12]})",
        f"would write {store.url}/r/a.json  (5 B)",
        f"would delete {store.url}/r/a.json",
    ]


def test_a_dry_run_prints_nothing_that_would_change_nothing(
    store: DirectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    dry_run = DryRunStore(store)

    assert dry_run.put_bytes("r/a.json", b"a") == "unchanged"
    dry_run.delete("r/never.json")

    assert capsys.readouterr().err == ""


def test_a_dry_run_lists_what_it_would_have_written(dry_run: DryRunStore) -> None:
    assert list_keys(dry_run) == ["r/a.json", "r/b.whl", "r/deep/c.json", "s/b.whl"]
    assert list_keys(dry_run, "r") == ["r/a.json", "r/b.whl", "r/deep/c.json"]
    assert list_keys(dry_run, "r", recursive=False) == ["r/a.json", "r/b.whl"]
    assert dry_run.folders("") == ["r", "s"]
    assert dry_run.folders("r") == ["deep"]


@pytest.mark.parametrize(
    ("key", "content"), [("r/b.whl", b"bbb"), ("r/deep/c.json", b"c"), ("r/a.json", b"a")]
)
def test_a_dry_run_reads_what_it_would_have_written(
    dry_run: DryRunStore, tmp_path: Path, key: str, content: bytes
) -> None:
    assert dry_run.read(key) == content
    assert dry_run.fetch(key, tmp_path / "fetched").read_bytes() == content


def test_a_dry_run_knows_the_digest_and_size_of_a_copy(dry_run: DryRunStore) -> None:
    assert dry_run.digest("s/b.whl") == sha256(b"bbb")
    assert find_object(dry_run, "s/b.whl").size == 3


def test_a_dry_run_refuses_other_bytes_of_what_it_would_have_written(dry_run: DryRunStore) -> None:
    assert dry_run.put_bytes("r/deep/c.json", b"c") == "unchanged"
    with pytest.raises(StoreError, match=r"r/deep/c\.json"):
        dry_run.put_bytes("r/deep/c.json", b"d", replace=False)


def test_a_dry_run_deletes_what_it_would_have_written(dry_run: DryRunStore) -> None:
    dry_run.delete("r/deep/c.json")

    assert dry_run.find("r/deep/c.json") is None


def test_a_dry_run_takes_a_store_that_cannot_be_read_for_empty() -> None:
    store = Common(store="s3://bucket", dry_run=True, unread=True).open_store()

    assert store.url == "s3://bucket"
    assert store.list("") == []
    assert store.keeps_folder_pages("9-linux")


# One store over another


@pytest.fixture
def front(tmp_path: Path) -> DirectoryStore:
    """Return the store that is written to."""
    front = DirectoryStore(tmp_path / "front")
    front.put_bytes("r/own", b"1")
    front.put_bytes("r/shared", b"here")
    return front


@pytest.fixture
def behind(tmp_path: Path) -> DirectoryStore:
    """Return the store that is only read."""
    behind = DirectoryStore(tmp_path / "behind")
    behind.put_bytes("r/other", b"2")
    behind.put_bytes("r/shared", b"there")
    return behind


@pytest.fixture
def overlay(front: DirectoryStore, behind: DirectoryStore) -> OverlayStore:
    """Return the one over the other."""
    return OverlayStore(front, lambda: behind, "the bucket")


def test_lists_both_stores(overlay: OverlayStore) -> None:
    assert list_keys(overlay, "r") == ["r/other", "r/own", "r/shared"]
    assert find_object(overlay, "r/shared").size == len(b"here")


@pytest.mark.parametrize(("key", "content"), [("r/own", b"1"), ("r/other", b"2"), ("r/shared", b"here")])
def test_reads_what_either_store_has(overlay: OverlayStore, tmp_path: Path, key: str, content: bytes) -> None:
    assert overlay.read(key) == content
    assert overlay.digest(key) == sha256(content)
    assert overlay.fetch(key, tmp_path / "fetched").read_bytes() == content
    with overlay.open(key) as stream:
        assert stream.read() == content


@pytest.mark.parametrize(
    ("key", "folder"), [("r/own", "front"), ("r/other", "behind"), ("r/shared", "front")]
)
def test_the_address_of_a_key_is_that_of_the_store_that_has_it(
    overlay: OverlayStore, tmp_path: Path, key: str, folder: str
) -> None:
    assert overlay.url_of(key) == (tmp_path / folder / key).as_uri()


def test_names_an_object_that_neither_store_has(overlay: OverlayStore) -> None:
    assert overlay.find("r/none") is None
    with pytest.raises(MissingInputError) as raised:
        overlay.read("r/none")

    assert "r/none" in raised.value.message
    assert overlay.store.url in raised.value.message


def test_tells_which_store_holds_a_key(
    overlay: OverlayStore, front: DirectoryStore, behind: DirectoryStore
) -> None:
    assert location.holding(overlay, "r/other") == behind
    assert location.holding(overlay, "r/own") == front
    assert location.holding(front, "r/other") == front


def test_writes_to_the_first_store_alone(
    overlay: OverlayStore, front: DirectoryStore, behind: DirectoryStore, tmp_path: Path
) -> None:
    before = [(stored_object.key, stored_object.etag) for stored_object in behind.list("")]

    overlay.put_bytes("r/other", b"mine")
    overlay.put_file("r/file", tmp_path / "front" / "r" / "own", sha256=sha256(b"1"), replace=False)
    overlay.copy("r/copy", overlay, "r/own", sha256=sha256(b"1"))
    overlay.delete("r/shared")

    assert [(stored_object.key, stored_object.etag) for stored_object in behind.list("")] == before
    assert list_keys(front) == ["r/copy", "r/file", "r/other", "r/own"]
    assert overlay.url == front.url


class UnreachableStore(DirectoryStore):
    """A store that no network leads to."""

    def list(self, prefix: str, *, recursive: bool = True) -> Sequence[Stored]:
        """Fail."""
        raise StoreError(f"No network for {prefix}{recursive}.")


def test_uses_the_first_store_alone_where_the_one_behind_fails_and_says_so_once(
    front: DirectoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overlay = OverlayStore(front, lambda: UnreachableStore(tmp_path), "a broken one")

    for _time in range(2):
        assert list_keys(overlay, "r") == ["r/own", "r/shared"]
        assert overlay.find("r/other") is None

    assert capsys.readouterr().err.count("No network for r") == 1


@pytest.fixture
def _asked_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers be asked whether they are there, which unit tests leave out otherwise."""
    monkeypatch.setattr(location, "answers", ANSWERS)
    monkeypatch.setattr("urllib.request.getproxies", dict)


@pytest.mark.usefixtures("_asked_servers")
def test_reads_the_store_behind_where_its_server_is_there(
    front: DirectoryStore, behind: DirectoryStore
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/a"
        overlay = OverlayStore(front, lambda: behind, "the bucket", address)

        assert overlay.read("r/other") == b"2"


@pytest.mark.usefixtures("_asked_servers")
def test_waits_for_no_server_that_is_not_there(
    front: DirectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/b"
    # Nobody listens there any more; opening the store behind fails the test.
    overlay = OverlayStore(front, pytest.fail, "the bucket", address)

    for _time in range(2):
        assert list_keys(overlay, "r") == ["r/own", "r/shared"]

    assert capsys.readouterr().err.count("cannot be reached") == 1
