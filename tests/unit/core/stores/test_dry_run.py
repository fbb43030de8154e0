from pathlib import Path

import pytest

from core.cli.options import Common
from core.errors import StoreError
from core.stores.directory import DirectoryStore
from core.stores.dry_run import DryRunStore
from tests.kit.stores import find_object, list_keys
from tests.kit.wheels import sha256


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
    assert dry_run.put_file("r/b.whl", wheel, sha256=sha256(b"bbb"), replace=False).outcome == "planned"
    assert dry_run.put_bytes("r/deep/c.json", b"c").outcome == "planned"
    assert dry_run.copy("s/b.whl", dry_run, "r/b.whl", sha256=sha256(b"bbb")).outcome == "planned"
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

    assert dry_run.put_bytes("r/a.json", b"a").outcome == "unchanged"
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
    assert dry_run.put_bytes("r/deep/c.json", b"c").outcome == "unchanged"
    with pytest.raises(StoreError, match=r"r/deep/c\.json"):
        dry_run.put_bytes("r/deep/c.json", b"d", replace=False)


def test_a_dry_run_deletes_what_it_would_have_written(dry_run: DryRunStore) -> None:
    dry_run.delete("r/deep/c.json")

    assert dry_run.find("r/deep/c.json") is None


def test_a_dry_run_takes_a_store_that_cannot_be_read_for_empty() -> None:
    store = Common(store="s3://bucket", dry_run=True, takes_store_as_empty=True).open_store()

    assert store.url == "s3://bucket"
    assert store.list("") == []
    assert store.keeps_folder_pages("9-linux")
