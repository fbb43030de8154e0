from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from ci.provenance.places import RunPlace, ServedRun, StoredRun, locate
from core.cli.options import Common
from core.errors import MissingInputError, ServiceError, UsageError
from core.packages.pages import answering
from core.stores.directory import DirectoryStore
from tests.folders import served

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl"
KEY = f"down-stream/123-linux/python/gfx94X-dcgpu/{NAME}"


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "store")
    store.put_bytes(KEY, b"wheel")
    store.put_bytes("down-stream/123-linux/manifests/gfx94X-dcgpu/x.json", b"{}")
    return store


@pytest.fixture(name="common")
def common_fixture(tmp_path: Path) -> Common:
    return Common(root=tmp_path, run_id="9", gpu_family="gfx110X-all")


def test_a_path_in_a_run_is_of_that_run_unless_another_is_named(
    store: DirectoryStore, common: Common, tmp_path: Path
) -> None:
    path = str(store.root / KEY)
    found = locate(path, common, tmp_path, named=False)
    assert (found.path, found.group) == (Path(path), "gfx94X-dcgpu")
    assert found.run.paths("manifests") == ["manifests/gfx94X-dcgpu/x.json"]
    assert (found.run.read("manifests/gfx94X-dcgpu/x.json"), found.run.read("gone")) == (b"{}", None)
    other = locate(path, common, tmp_path, named=True)
    assert (other.run.url, other.group) == (f"{tmp_path}/out/9-linux", "gfx110X-all")


def test_a_path_elsewhere_is_asked_of_the_options_run(
    store: DirectoryStore, common: Common, tmp_path: Path
) -> None:
    store.delete("down-stream/123-linux/manifests/gfx94X-dcgpu/x.json")
    (store.root / "down-stream/123-linux/manifests/gfx94X-dcgpu").rmdir()
    (store.root / "down-stream/123-linux/manifests").rmdir()
    found = locate(str(store.root / KEY), common, tmp_path, named=False)
    assert isinstance(found.run, StoredRun)
    assert found.run.prefix == "9-linux"


def test_an_address_in_a_run_is_of_that_run(store: DirectoryStore, common: Common, tmp_path: Path) -> None:
    with served(store.root) as address:
        found = locate(f"{address}/{quote(KEY)}?x=1", common, tmp_path / "here", named=False)
        assert found.path.read_bytes() == b"wheel"
        assert found.path.name == NAME
        run: RunPlace = found.run
        assert run.url == ServedRun(url=f"{address}/down-stream/123-linux").url
        assert run.paths("manifests") is None
        assert (found.run.read("manifests/gfx94X-dcgpu/x.json"), found.run.read("gone")) == (b"{}", None)
        with pytest.raises(MissingInputError, match="There is no http"):
            locate(f"{address}/gone.whl", common, tmp_path, named=False)
        with pytest.raises(UsageError, match="is not the address of a file"):
            locate(f"{address}/", common, tmp_path, named=False)


@pytest.mark.parametrize(("uri", "error"), [("s3://bucket", UsageError), ("/no/such.whl", MissingInputError)])
def test_what_is_no_file(uri: str, error: type[Exception], common: Common, tmp_path: Path) -> None:
    with pytest.raises(error):
        locate(uri, common, tmp_path, named=False)


def handler(answer: Callable[[BaseHTTPRequestHandler], None]) -> type[BaseHTTPRequestHandler]:
    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_arguments: object) -> None:
            pass

    return Answering


def cut(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "1000")
    request.end_headers()
    request.wfile.write(b"half")


def broken(request: BaseHTTPRequestHandler) -> None:
    request.send_error(500, "Oops")


@pytest.mark.parametrize(
    ("answer", "said"), [(cut, "broke off after 4 of 1000 bytes"), (broken, "answers 500 Oops")]
)
def test_a_server_that_fails_leaves_nothing(
    answer: Callable[[BaseHTTPRequestHandler], None], said: str, common: Common, tmp_path: Path
) -> None:
    with answering(handler(answer)) as address, pytest.raises(ServiceError, match=said):
        locate(f"{address}/{NAME}", common, tmp_path / "here", named=False)
    assert threading.active_count() < 20


def test_a_file_in_a_bucket_is_of_the_run_there(
    store: DirectoryStore, common: Common, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def open_store(location: str, **_options: object) -> DirectoryStore:
        asked.append(location)
        return store

    monkeypatch.setattr("ci.provenance.places.open_store", open_store)
    found = locate(f"s3://bucket/{KEY}", common, tmp_path, named=False)
    assert "s3://bucket" in asked
    assert isinstance(found.run, StoredRun)
    assert (found.run.prefix, found.group) == ("down-stream/123-linux", "gfx94X-dcgpu")
    assert found.path.read_bytes() == b"wheel"
