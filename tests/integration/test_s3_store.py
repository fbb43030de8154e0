import os
import subprocess  # noqa: TID251 - to be killed
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from core import files, process
from core.cli.options import ROOT
from core.errors import FatalError, ServiceError, StoreError
from core.parallel import each
from core.stores import Store, s3_transfer
from core.stores.location import open_store
from core.stores.s3 import S3Store
from core.stores.s3_client import PROBE, connect
from tests.kit import store_contract
from tests.kit.s3_proxy import FAULTS, Fault, Proxy, Request, proxied
from tests.kit.s3_servers import S3Server
from tests.kit.wheels import sha256


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    # the least that S3 takes for a part that is not the last
    monkeypatch.setattr(s3_transfer, "PART", 5 * s3_transfer.MIB)


@pytest.fixture(name="server", params=["rclone", "ceph"])
def server_fixture(request: pytest.FixtureRequest) -> S3Server:
    server: S3Server = request.getfixturevalue(request.param)
    return server


def open_through(proxy: Proxy, bucket: str) -> S3Store:
    return S3Store(connection=connect(endpoint=proxy.endpoint), bucket=bucket, prefix="run")


@pytest.fixture(name="store")
def store_fixture(server: S3Server, tmp_path: Path) -> Store:
    return open_store(f"s3://{server.make_bucket()}/run", root=tmp_path)


@pytest.fixture(name="put")
def put_fixture(store: Store, tmp_path: Path) -> Callable[..., str]:
    return partial(store_contract.put_file, store, tmp_path)


def test_a_real_server_returns_what_is_put(store: Store, tmp_path: Path) -> None:
    store_contract.hold_to_what_is_put(store, tmp_path)


def test_a_real_server_holds_conditions(store: Store) -> None:
    store_contract.hold_to_conditions(store)


def test_a_real_server_replaces_no_file_unasked(store: Store, tmp_path: Path) -> None:
    store_contract.hold_to_first_bytes(store, tmp_path)


def test_a_real_server_lets_one_of_racing_writers_win(store: Store) -> None:
    store_contract.hold_to_one_winner(store, writers=6, races=2)


@pytest.mark.parametrize("size", [0, 1, 16 << 20, (40 << 20) + 1])
def test_objects_of_every_size_are_copied(store: Store, put: Callable[..., str], size: int) -> None:
    data = os.urandom(size)
    assert [put("g/a.whl", data), put("g/a.whl", data)] == ["written", "unchanged"]
    assert store.copy("copies/a.whl", store, "g/a.whl", sha256=sha256(data)) == "written"
    assert (store.read("copies/a.whl"), store.digest("copies/a.whl")) == (data, sha256(data))


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_nothing_is_lost_behind_a_network_that_fails(server: S3Server, tmp_path: Path, seed: int) -> None:
    bucket = server.make_bucket()
    objects = {f"python/g/{number}.whl": os.urandom(number * 40_000) for number in range(40)}
    objects["python/g/large.whl"] = os.urandom(11 * s3_transfer.MIB)
    for key, data in objects.items():
        (tmp_path / key.rpartition("/")[2]).write_bytes(data)
    # At a higher rate, one of some hundred requests fails as often as anybody tries again, once in many runs.
    with proxied(server.endpoint, rate=0.2, seed=seed) as proxy:
        store = open_through(proxy, bucket)

        def put(key: str) -> str:
            source = tmp_path / key.rpartition("/")[2]
            return store.put_file(key, source, sha256=sha256(objects[key]), replace=False)

        def copy(key: str) -> str:
            return store.copy(f"v2/{key}", store, key, sha256=sha256(objects[key]))

        def fetch(key: str) -> bytes:
            return store.fetch(key, tmp_path / "fetched").read_bytes()

        assert set(each(put, objects)) <= {"written", "unchanged"}
        assert set(each(copy, objects)) <= {"written", "unchanged"}
        assert each(fetch, objects) == list(objects.values())
        assert each(store.read, objects) == list(objects.values())
        assert [one.key for one in store.list("python")] == sorted(objects)
        assert store.put_bytes("python/g/index.html", b"page", if_match="") in {"written", "unchanged"}
        faults = Counter(request.fault for request in proxy.requests)
        assert set(faults) == {None, *FAULTS}
        assert 0.1 < 1 - faults[None] / faults.total() < 0.3
    direct = open_store(f"s3://{bucket}/run", root=tmp_path)
    for key, data in objects.items():
        assert direct.read(key) == direct.read(f"v2/{key}") == data
    # of an upload whose beginning was not answered nobody knows the name; a lifecycle rule ends it
    known = {request.query.get("uploadId") for request in proxy.requests}
    unfinished = server.client().list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    assert known.isdisjoint(upload["UploadId"] for upload in unfinished)


@pytest.mark.parametrize("size", [1000, 11 * s3_transfer.MIB], ids=["whole", "parts"])
@pytest.mark.parametrize("fault", ["lost", "truncated", "reset", "busy"])
def test_an_uploads_answers_may_be_lost(server: S3Server, tmp_path: Path, fault: Fault, size: int) -> None:
    data = os.urandom(size)
    source = tmp_path / "a.whl"
    source.write_bytes(data)
    bucket = server.make_bucket()
    with proxied(server.endpoint) as proxy:
        store = open_through(proxy, bucket)
        assert store.put_file("warm.whl", source, sha256=sha256(data), replace=False) == "written"
        asked: list[object] = []
        proxy.choose = asked.append
        assert store.put_file("0.whl", source, sha256=sha256(data), replace=False) == "written"
        requests = len(asked)
        assert requests >= 2
        for number in range(requests):
            counter = count()
            proxy.choose = lambda _request, number=number, counter=counter: (  # type: ignore[misc]
                fault if next(counter) == number else None
            )
            key = f"{fault}-{number}.whl"
            assert store.put_file(key, source, sha256=sha256(data), replace=False) == "written"
            proxy.choose = lambda _request: None
            assert store.read(key) == data


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"AWS_ACCESS_KEY_ID": "nobody"}, StoreError, "credentials were refused|permission .* is missing"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, StoreError, "credentials were refused"),
        ({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}, ServiceError, "cannot be reached"),
    ],
)
def test_reports_wrong_settings_once_and_changes_nothing(
    server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, str],
    kind: type[FatalError],
    words: str,
) -> None:
    bucket = server.make_bucket()
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://{bucket}/run", root=tmp_path)
    for call in (lambda: store.put_bytes("x", b"x"), lambda: store.list(""), lambda: store.read("x")):
        with pytest.raises(kind, match=words) as caught:
            call()
        assert "wrong" not in str(caught.value).replace("secret is wrong", "")
        assert caught.value.hint
    assert "Contents" not in server.client().list_objects_v2(Bucket=bucket)


def test_a_killed_upload_leaves_nothing_behind_the_next_run(server: S3Server, tmp_path: Path) -> None:
    source = tmp_path / "a.whl"
    source.write_bytes(os.urandom(11 * s3_transfer.MIB))
    digest = files.sha256(source)
    bucket, client = server.make_bucket(), server.client()

    def left() -> list[str]:
        uploads: list[Any] = []
        with suppress(client.exceptions.NoSuchUpload):  # what rclone answers where there is none
            uploads = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
        objects = client.list_objects_v2(Bucket=bucket).get("Contents", [])
        return [one["Key"] for one in (*uploads, *objects)]

    with proxied(server.endpoint) as proxy:
        code = (
            "import sys; from pathlib import Path; from core.stores.location import open_store;"
            "from core.stores import s3_transfer; s3_transfer.PART = 5 << 20;"
            "store = open_store(sys.argv[1], root=Path());"
            "store.put_file('r/a.whl', Path(sys.argv[2]), sha256=sys.argv[3], replace=False)"
        )
        argv: list[str | Path] = [sys.executable, "-c", code, f"s3://{bucket}", source, digest]
        variables = {**process.inherited(), **server.at(proxy.endpoint).variables}
        store = open_store(f"s3://{bucket}", root=tmp_path)
        probed = count()
        for moment in ("second probe", "1", "2", "3"):
            running = subprocess.Popen(argv, env=variables, cwd=ROOT)

            def kill(request: Request, running: Any = running, moment: str = moment) -> None:
                second = PROBE in request.path and next(probed) == 1
                if moment == request.query.get("partNumber", "second probe" if second else ""):
                    running.kill()

            proxy.choose = kill
            assert running.wait(60) == -9
            assert list(store.list("")) == []
            assert len(left()) == 1
        proxy.choose = lambda _request: None
        process.run(argv, env=variables, cwd=ROOT)
    assert left() == ["r/a.whl"]
    assert store.digest("r/a.whl") == digest
    assert sha256(store.read("r/a.whl")) == digest
