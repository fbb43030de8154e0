"""Buckets of real S3 servers: what they keep, races, networks that fail, uploads that are killed."""

import os
import subprocess  # noqa: TID251 - to be killed
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from core import files, process
from core.cli.options import ROOT
from core.errors import FatalError, ServiceError, StoreError
from core.parallel import map_in_threads
from core.stores import PutResult, Store, s3_writes
from core.stores.location import open_store
from core.stores.s3 import S3Store
from core.stores.s3_client import connect
from tests.kit import store_contract
from tests.kit.s3_proxy import FAULTS, Fault, Proxy, Request, proxied
from tests.kit.s3_servers import S3Server
from tests.kit.wheels import sha256

# The least that S3 takes for a part that is not the last.
LEAST_PART = 5 * s3_writes.MIB
# A file of three parts.
LARGE = 11 * s3_writes.MIB
KEY = "r/a.whl"
SEEDS = [1, pytest.param(2, marks=pytest.mark.nightly)]

UPLOAD = f"""
import sys
from pathlib import Path
from core.stores import s3_writes
from core.stores.location import open_store

s3_writes.PART = {LEAST_PART}
store = open_store(sys.argv[1], root=Path())
store.put_file({KEY!r}, Path(sys.argv[2]), sha256=sys.argv[3], replace=False)
"""


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_writes, "PART", LEAST_PART)


@pytest.fixture(params=["rclone", "ceph"])
def server(request: pytest.FixtureRequest) -> S3Server:
    """Return each server: one ignores conditions, the other refuses some that hold."""
    server: S3Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def store(server: S3Server, tmp_path: Path) -> Store:
    """Return an empty bucket."""
    return open_store(f"s3://{server.make_bucket()}/run", root=tmp_path)


def open_through(proxy: Proxy, bucket: str) -> S3Store:
    """Return a bucket behind a proxy."""
    return S3Store(connection=connect(endpoint=proxy.endpoint), bucket=bucket, prefix="run")


def write_file(path: Path, size: int) -> Path:
    """Write a file of random bytes."""
    path.write_bytes(os.urandom(size))
    return path


def put(store: Store, key: str, source: Path) -> PutResult:
    """Put a file that is never replaced."""
    return store.put_file(key, source, sha256=files.sha256(source), replace=False)


def test_a_real_server_returns_what_is_put(store: Store, tmp_path: Path) -> None:
    store_contract.hold_to_what_is_put(store, tmp_path)


def test_a_real_server_holds_conditions(store: Store) -> None:
    store_contract.hold_to_conditions(store)


def test_a_real_server_replaces_no_file_unasked(store: Store, tmp_path: Path) -> None:
    store_contract.hold_to_first_bytes(store, tmp_path)


def test_a_real_server_lets_one_of_sixteen_racing_writers_win(store: Store) -> None:
    store_contract.hold_to_one_winner(store, writers=16, races=2)


@pytest.mark.parametrize("size", [0, 1, 16 << 20, (40 << 20) + 1])
def test_objects_of_every_size_are_copied(store: Store, tmp_path: Path, size: int) -> None:
    source = write_file(tmp_path / "a.whl", size)
    digest = files.sha256(source)

    assert put(store, "g/a.whl", source).outcome == "written"
    assert put(store, "g/a.whl", source).outcome == "unchanged"
    assert store.copy("copies/a.whl", store, "g/a.whl", sha256=digest).outcome == "written"

    assert store.read("copies/a.whl") == source.read_bytes()
    assert store.digest("copies/a.whl") == digest


@pytest.mark.parametrize("server", ["rclone"], indirect=True)
def test_a_server_of_files_keeps_no_pages_of_folders(store: Store) -> None:
    store.put_bytes("python/g/a.whl", b"wheel")

    assert not store.keeps_folder_pages("python/g")


# Networks that fail


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.nightly
def test_nothing_is_lost_behind_a_network_that_fails(server: S3Server, tmp_path: Path, seed: int) -> None:
    bucket = server.make_bucket()
    sources = [write_file(tmp_path / f"{number}.whl", number * 40_000) for number in range(40)]
    sources.append(write_file(tmp_path / "large.whl", LARGE))
    keys = [f"python/g/{source.name}" for source in sources]
    contents = [source.read_bytes() for source in sources]

    # At a higher rate, one of some hundred requests fails as often as anybody tries again, once in many runs.
    with proxied(server.endpoint, rate=0.2, seed=seed) as proxy:
        store = open_through(proxy, bucket)

        def put_source(source: Path) -> str:
            return put(store, f"python/g/{source.name}", source).outcome

        def copy_source(source: Path) -> str:
            key = f"python/g/{source.name}"
            return store.copy(f"v2/{key}", store, key, sha256=files.sha256(source)).outcome

        def fetch(key: str) -> bytes:
            return store.fetch(key, tmp_path / "fetched").read_bytes()

        assert set(map_in_threads(put_source, sources)) <= {"written", "unchanged"}
        assert set(map_in_threads(copy_source, sources)) <= {"written", "unchanged"}
        assert map_in_threads(fetch, keys) == contents
        assert map_in_threads(store.read, keys) == contents
        assert [stored_object.key for stored_object in store.list("python")] == sorted(keys)
        page_result = store.put_bytes("python/g/index.html", b"page", if_match="")
        assert page_result.outcome in {"written", "unchanged"}
        require_every_fault(proxy)

    direct = open_store(f"s3://{bucket}/run", root=tmp_path)
    for key, content in zip(keys, contents, strict=True):
        assert direct.read(key) == content
        assert direct.read(f"v2/{key}") == content
    # Where the beginning of an upload was not answered, nobody knows its id: a lifecycle rule ends it.
    known_ids = {request.query.get("uploadId") for request in proxy.requests}
    assert known_ids.isdisjoint(unfinished_uploads(server, bucket).values())


def require_every_fault(proxy: Proxy) -> None:
    """Fail where a proxy has not let requests meet every fault, at about its rate."""
    faults = Counter(request.fault for request in proxy.requests)
    assert set(faults) == {None, *FAULTS}
    assert 0.1 < 1 - faults[None] / faults.total() < 0.3


def unfinished_uploads(server: S3Server, bucket: str) -> dict[str, str]:
    """Return the ids of uploads in parts that nobody has ended, by key."""
    client = server.client()
    # rclone answers with an error where there is none.
    with suppress(client.exceptions.NoSuchUpload):
        uploads = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        return {upload["Key"]: upload["UploadId"] for upload in uploads}
    return {}


@pytest.mark.parametrize("size", [1000, LARGE], ids=["whole", "parts"])
@pytest.mark.parametrize(
    "fault",
    [
        "lost",
        pytest.param("truncated", marks=pytest.mark.nightly),
        pytest.param("reset", marks=pytest.mark.nightly),
        "busy",
    ],
)
def test_an_uploads_answers_may_be_lost(server: S3Server, tmp_path: Path, fault: Fault, size: int) -> None:
    source = write_file(tmp_path / "a.whl", size)
    with proxied(server.endpoint) as proxy:
        store = open_through(proxy, server.make_bucket())
        put(store, "warm.whl", source)
        proxy.clear()
        put(store, "0.whl", source)
        request_count = len(proxy.requests)
        assert request_count >= 2

        for number in range(request_count):
            numbers: list[int] = []
            proxy.choose = partial(fail_at, number, fault, numbers)
            key = f"{fault}-{number}.whl"
            assert put(store, key, source).outcome == "written"
            proxy.choose = never_fail
            assert store.read(key) == source.read_bytes()


def fail_at(number: int, fault: Fault, numbers: list[int], _request: Request) -> Fault | None:
    """Let the request of this number meet a fault; `numbers` are those of the earlier ones."""
    numbers.append(len(numbers))
    return fault if numbers[-1] == number else None


def never_fail(_request: Request) -> None:
    """Let every request pass."""


@pytest.mark.parametrize(
    ("variable", "value", "kind", "words"),
    [
        ("AWS_ACCESS_KEY_ID", "nobody", StoreError, "credentials were refused|permission .* is missing"),
        ("AWS_SECRET_ACCESS_KEY", "wrong-secret", StoreError, "credentials were refused"),
        ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9", ServiceError, "cannot be reached"),
    ],
)
def test_reports_wrong_settings_and_changes_nothing(
    server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    kind: type[FatalError],
    words: str,
) -> None:
    bucket = server.make_bucket()
    monkeypatch.setenv(variable, value)
    store = open_store(f"s3://{bucket}/run", root=tmp_path)

    calls: list[Callable[[], object]] = [
        lambda: store.put_bytes("x", b"x"),
        lambda: store.list(""),
        lambda: store.read("x"),
    ]
    for call in calls:
        with pytest.raises(kind, match=words) as raised:
            call()
        assert raised.value.hint
        assert "wrong-secret" not in str(raised.value)

    assert "Contents" not in server.client().list_objects_v2(Bucket=bucket)


# Uploads that are killed


@pytest.mark.parametrize(
    "part_number",
    [pytest.param("1", marks=pytest.mark.nightly), "2", pytest.param("3", marks=pytest.mark.nightly)],
)
def test_the_next_upload_removes_what_a_killed_one_left(
    server: S3Server, tmp_path: Path, part_number: str
) -> None:
    source = write_file(tmp_path / "a.whl", LARGE)
    bucket = server.make_bucket()
    argv = [sys.executable, "-c", UPLOAD, f"s3://{bucket}", str(source), files.sha256(source)]
    with proxied(server.endpoint) as proxy:
        variables = {**process.inherited(), **server.at(proxy.endpoint).variables}
        uploading = subprocess.Popen(argv, env=variables, cwd=ROOT)

        def kill_at_part(request: Request) -> None:
            if request.query.get("partNumber") == part_number:
                uploading.kill()

        proxy.choose = kill_at_part
        assert uploading.wait(60) == -9
        store = open_store(f"s3://{bucket}", root=tmp_path)
        assert list(store.list("")) == []
        assert list(unfinished_uploads(server, bucket)) == [KEY]

        proxy.choose = never_fail
        process.run(argv, env=variables, cwd=ROOT)

    assert unfinished_uploads(server, bucket) == {}
    assert store.digest(KEY) == files.sha256(source)
    assert sha256(store.read(KEY)) == files.sha256(source)
