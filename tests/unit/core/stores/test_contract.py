"""What every store does, whatever it is: callers must not be able to tell."""

from collections.abc import Callable
from pathlib import Path

import pytest

from core.errors import MissingInputError, StoreError, UsageError
from core.stores import Store
from core.stores.dry_run import DryRunStore
from core.stores.location import open_store
from tests.kit import store_contract
from tests.kit.aws import ServerBehaviour, imitate_server
from tests.kit.store_contract import put_file
from tests.kit.wheels import sha256

FOLDER = "out"
BUCKET = "s3://bucket/a/prefix"
# Servers other than Amazon's, by what they do with the conditions of writes.
SERVERS: dict[str, ServerBehaviour] = {
    "s3://bucket/holds": "holds",
    "s3://bucket/ignores": "ignores",
    "s3://bucket/refuses": "refuses",
    "s3://bucket/unknown": "unknown",
}
KINDS = [FOLDER, BUCKET, "s3://bucket/ignores"]
ON_EVERY_SERVER = pytest.mark.parametrize("store", [FOLDER, BUCKET, *SERVERS], indirect=True)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return an empty store of each kind; what lies beside it in the bucket is another's."""
    location: str = request.param
    if location == FOLDER:
        return open_store(location, root=tmp_path)
    client = request.getfixturevalue("s3")
    client.put_object(Bucket="bucket", Key="a/prefix-of-another/x.whl", Body=b"x")
    if location in SERVERS:
        imitate_server(client, monkeypatch, SERVERS[location])
    return open_store(f"{location}/within", root=tmp_path)


# Objects


def test_returns_what_is_put(store: Store, tmp_path: Path) -> None:
    store_contract.hold_to_what_is_put(store, tmp_path)


@ON_EVERY_SERVER
def test_the_same_bytes_are_no_write(store: Store, tmp_path: Path) -> None:
    assert put_file(store, tmp_path, "r/a.whl", b"a").outcome == "written"
    before = store.find("r/a.whl")

    assert put_file(store, tmp_path, "r/a.whl", b"a").outcome == "unchanged"
    assert put_file(store, tmp_path, "r/a.whl", b"a", replace=True).outcome == "unchanged"
    assert store.put_bytes("r/a.whl", b"a", replace=False).outcome == "unchanged"
    assert store.put_bytes("r/a.whl", b"a", if_match="other").outcome == "unchanged"
    assert store.find("r/a.whl") == before


@ON_EVERY_SERVER
def test_replaces_no_bytes_unasked(store: Store, tmp_path: Path) -> None:
    store_contract.hold_to_first_bytes(store, tmp_path)


@ON_EVERY_SERVER
def test_small_objects_are_replaced_by_default(store: Store) -> None:
    store.put_bytes("r/a.json", b"a")

    assert store.put_bytes("r/a.json", b"b").outcome == "written"

    assert store.read("r/a.json") == b"b"
    assert store.digest("r/a.json") == sha256(b"b")


@ON_EVERY_SERVER
def test_conditional_writes_need_the_object_that_was_seen(store: Store) -> None:
    store_contract.hold_to_conditions(store)


KEYS = ["r/g/a.whl", "r/g/deep/b.whl", "r/g.html", "r/g-debug/a.whl", "s/x"]


@pytest.fixture
def filled_store(store: Store) -> Store:
    """Return a store with some empty objects."""
    for key in KEYS:
        store.put_bytes(key, b"")
    return store


@pytest.mark.parametrize("prefix", ["r/g", "r/g/"])
def test_lists_the_objects_of_a_folder(filled_store: Store, prefix: str) -> None:
    assert [stored_object.key for stored_object in filled_store.list(prefix)] == [
        "r/g/a.whl",
        "r/g/deep/b.whl",
    ]
    assert [stored_object.key for stored_object in filled_store.list(prefix, recursive=False)] == [
        "r/g/a.whl"
    ]


def test_lists_objects_in_the_order_of_their_keys(filled_store: Store) -> None:
    assert [stored_object.key for stored_object in filled_store.list("r")] == sorted(KEYS[:-1])
    assert [stored_object.key for stored_object in filled_store.list("r", recursive=False)] == ["r/g.html"]


def test_lists_nothing_of_a_folder_that_is_not_there(filled_store: Store) -> None:
    assert list(filled_store.list("absent")) == []
    assert list(filled_store.list("", recursive=False)) == []


@pytest.mark.parametrize(
    ("prefix", "folders"),
    [("", ["r", "s"]), ("r", ["g", "g-debug"]), ("r/", ["g", "g-debug"]), ("r/g/deep", []), ("absent", [])],
)
def test_names_the_folders_of_a_folder(filled_store: Store, prefix: str, folders: list[str]) -> None:
    assert filled_store.folders(prefix) == folders


# Refusals


@pytest.mark.parametrize("key", ["../x", "/etc/passwd", "a/../../x", ".digests/a", "a/.hidden/b"])
def test_no_key_leaves_the_store(store: Store, tmp_path: Path, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put_bytes(key, b""),
        lambda: put_file(store, tmp_path, key, b""),
        lambda: store.read(key),
        lambda: store.find(key),
        lambda: store.list(key),
        lambda: store.delete(key),
    ]
    for call in calls:
        with pytest.raises(UsageError, match=key):
            call()


def test_names_an_object_that_is_not_there(store: Store, tmp_path: Path) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.read("a/b.whl"),
        lambda: store.open("a/b.whl"),
        lambda: store.digest("a/b.whl"),
        lambda: store.fetch("a/b.whl", tmp_path),
        lambda: store.copy("c.whl", store, "a/b.whl", sha256=sha256(b"")),
    ]
    for call in calls:
        with pytest.raises(MissingInputError, match=r"a/b\.whl"):
            call()

    assert store.find("a/b.whl") is None
    assert list(store.list("")) == []


# Writers at the same time

RACING = pytest.mark.parametrize("store", [FOLDER, BUCKET, "s3://bucket/ignores"], indirect=True)


def count_races(store: Store) -> int:
    """Return how often to race: in a folder often, as not every race is close; moto takes its time."""
    return 1 if "s3://" in store.url else 10


@RACING
@pytest.mark.parametrize("first", [None, b"before"], ids=["new page", "page"])
def test_one_of_racing_writers_of_a_page_wins(store: Store, first: bytes | None) -> None:
    store_contract.hold_to_one_winner(store, races=count_races(store), first=first)


@RACING
def test_one_of_racing_writers_of_a_file_wins(store: Store, tmp_path: Path) -> None:
    store_contract.hold_to_one_file(store, tmp_path, races=count_races(store))


# Copies


@pytest.fixture(params=["itself", "folder", "s3://other/x"])
def source(request: pytest.FixtureRequest, store: Store, tmp_path: Path) -> Store:
    """Return a store with an object to copy."""
    location: str = request.param
    if location.startswith("s3:"):
        request.getfixturevalue("s3")
    source = store if location == "itself" else open_store(location, root=tmp_path)
    source.put_bytes("staging/a.whl", b"a")
    return source


def test_copies_an_object_once(store: Store, source: Store) -> None:
    assert store.copy("v2/a.whl", source, "staging/a.whl", sha256=sha256(b"a")).outcome == "written"
    assert store.copy("v2/a.whl", source, "staging/a.whl", sha256=sha256(b"a")).outcome == "unchanged"

    assert store.read("v2/a.whl") == b"a"
    assert store.digest("v2/a.whl") == sha256(b"a")


def test_copies_no_object_with_another_digest_than_was_meant(store: Store, source: Store) -> None:
    with pytest.raises(StoreError) as raised:
        store.copy("v2/a.whl", source, "staging/a.whl", sha256=sha256(b"b"))

    assert sha256(b"a") in raised.value.message
    assert sha256(b"b") in raised.value.message
    assert store.find("v2/a.whl") is None


def test_copies_over_no_other_object(store: Store, source: Store) -> None:
    store.put_bytes("v2/a.whl", b"other")

    with pytest.raises(StoreError, match=r"v2/a\.whl"):
        store.copy("v2/a.whl", source, "staging/a.whl", sha256=sha256(b"a"))

    assert store.read("v2/a.whl") == b"other"


# Pages of folders


def test_knows_whether_it_keeps_pages_of_folders(store: Store) -> None:
    store.put_bytes("9-linux/python/a.whl", b"")

    assert store.keeps_folder_pages("9-linux/python") == ("://" in store.url)


@pytest.mark.parametrize("store", [BUCKET, "s3://bucket/ignores"], indirect=True)
def test_a_bucket_keeps_pages_of_folders(store: Store) -> None:
    assert store.put_bytes("9-linux/python/simple/", b"a page", if_match="").outcome == "written"
    assert store.put_bytes("9-linux/python/simple/x/index.html", b"another").outcome == "written"

    assert store.read("9-linux/python/simple/") == b"a page"
    keys = [stored_object.key for stored_object in store.list("9-linux/python")]
    assert keys == ["9-linux/python/simple/", "9-linux/python/simple/x/index.html"]


@pytest.mark.parametrize("store", [BUCKET], indirect=True)
def test_a_dry_run_knows_that_a_bucket_keeps_pages_of_folders(store: Store) -> None:
    store.put_bytes("9-linux/python/a.whl", b"")

    assert DryRunStore(store).keeps_folder_pages("9-linux/python")


@pytest.mark.parametrize("store", [FOLDER], indirect=True)
def test_a_dry_run_knows_that_a_folder_keeps_no_pages_of_folders(store: Store) -> None:
    assert not DryRunStore(store).keeps_folder_pages("9-linux/python")
