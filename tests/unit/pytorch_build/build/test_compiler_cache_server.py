from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from core import process
from core.errors import ProcessError, StoreError
from pytorch_build.build import compiler_cache_s3
from pytorch_build.build.compiler_cache import CompilerCache, S3Access
from pytorch_build.build.compiler_cache_server import Patience, sccache_server
from pytorch_build.build.compiler_cache_storage import Storage

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = pytest.mark.processes

# A server that listens like sccache's, and notes with what it was started; its statistics count starts.
FAKE = """#!{python} -IS
import json, os, pathlib, socket, sys
notes = pathlib.Path({notes!r})
place = os.environ["SCCACHE_SERVER_UDS"]
if os.environ.get("SCCACHE_START_SERVER"):
    with notes.open("a") as stream:
        secret = pathlib.Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "-"))
        found = dict(mode=oct(secret.stat().st_mode), text=secret.read_text()) if secret.is_file() else {{}}
        stream.write(json.dumps(dict(os.environ) | found) + chr(10))
    if os.environ.get("SCCACHE_BUCKET") == "absent" or os.environ.get("SCCACHE_DIR") == "broken":
        sys.exit("sccache: error: no such bucket")
    pathlib.Path(place).unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(place)
        server.listen()
        while True:
            client, _ = server.accept()
            if client.recv(4) == b"stop":
                sys.exit()
with socket.socket(socket.AF_UNIX) as client:
    client.connect(place)
    if sys.argv[1] == "--stop-server":
        client.send(b"stop")
        client.recv(1)
none = {{"counts": {{}}}}
count = {{"counts": {{"C/C++": len(notes.read_text().splitlines())}}}}
names = ("requests_not_cacheable requests_not_compile requests_unsupported_compiler cache_timeouts "
         "non_cacheable_compilations cache_read_errors cache_write_errors cache_writes").split()
print(json.dumps({{"stats": dict.fromkeys(names, 0) | {{
    "cache_hits": count, "cache_misses": none, "cache_errors": none}}}}))
"""
KEYS = S3Access(endpoint="http://127.0.0.1:1", region="us-east-1", access_key="AKIA", secret_key="s")  # noqa: S106 - of nobody


class Shop:
    """A fake program, and what its servers were started with."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "notes"
        self.program = folder / "sccache"
        self.program.write_text(FAKE.format(python=sys.executable, notes=str(self.notes)))
        self.program.chmod(0o755)

    def cache(self, bucket: str = "", access: Any = "read-write") -> CompilerCache:
        storage = (
            Storage(kind="s3", where=f"{bucket}/cc", access=access) if bucket else Storage(access=access)
        )
        return CompilerCache(kind="sccache", program=self.program, storage=storage)

    @property
    def starts(self) -> list[Mapping[str, str]]:
        return [json.loads(line) for line in self.notes.read_text().splitlines()]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(compiler_cache_s3, "s3_access", lambda *_: KEYS)
    return Shop(tmp_path)


def started(cache: CompilerCache, patience: Patience | None = None, **env: str) -> Any:
    base_env = process.inherited(**env)
    return sccache_server(cache, base_dirs=("/co",), base_env=base_env, patience=patience or Patience())


def test_a_build_has_a_server_of_its_own_which_is_gone_afterwards(shop: Shop) -> None:
    with started(shop.cache("bucket")) as server:
        place = Path(server.environment({})["SCCACHE_SERVER_UDS"])
        assert place.is_socket()
        assert place.parent.stat().st_mode & 0o777 == 0o700, "nobody else may send it compilations"
        assert server.statistics().hits == 1
        assert not (place.parent / "credentials").exists(), "no compiler may find them"
    assert not place.parent.exists()
    (env,) = shop.starts
    assert env["SCCACHE_BUCKET"] == "bucket"
    assert (env["mode"], "aws_access_key_id = AKIA" in env["text"]) == ("0o100600", True)
    assert int(env["SCCACHE_IDLE_TIMEOUT"]) > 0, "it ends by itself, should nobody stop it"
    assert (str(server.storage), server.lost) == ("s3://bucket/cc", "")


def test_it_is_stopped_when_the_build_fails(shop: Shop) -> None:
    places = []

    def fails() -> None:
        with started(shop.cache()) as server:
            places.append(Path(server.environment({})["SCCACHE_SERVER_UDS"]))
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert len(shop.starts) == 1
    assert not places[0].exists()


def test_a_storage_that_is_not_there_is_told_and_a_local_cache_taken(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(shop.cache("absent", "read-only")) as server:
        assert server.storage == Storage(access="read-only")
        assert server.lost == "no such bucket."
    said = capsys.readouterr().err
    assert "sccache cannot use s3://absent/cc: no such bucket. This build goes on with a local cache." in said
    first, second = shop.starts
    assert "SCCACHE_BUCKET" in first
    assert not {"SCCACHE_BUCKET", "SCCACHE_REGION"} & second.keys()
    assert second["SCCACHE_LOCAL_RW_MODE"] == "READ_ONLY"


def test_settings_that_cannot_be_meant_are_no_reason_to_build_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> S3Access:
        raise StoreError("There is no profile 'mine'.")

    monkeypatch.setattr(compiler_cache_s3, "s3_access", fails)
    with started(shop.cache("bucket")) as server:
        assert server.lost == "There is no profile 'mine'."


def test_a_server_that_cannot_even_be_local_is_an_error(shop: Shop) -> None:
    with (
        pytest.raises(ProcessError, match="no such bucket"),
        started(shop.cache(), SCCACHE_DIR="broken"),
    ):
        pytest.fail("there is no server")


def test_a_storage_that_stops_to_answer_is_given_up(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter([True, False, True, False, False])
    asked: list[tuple[str, float]] = []

    def answers(endpoint: str, *, seconds: float) -> bool:
        asked.append((endpoint, seconds))
        return next(looks)

    monkeypatch.setattr(compiler_cache_s3, "answers", answers)
    with started(shop.cache("bucket"), Patience(every=0.01, silent=2, answer=0.5)) as server:
        end = time.monotonic() + 10
        while len(shop.starts) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        while not server.lost or not Path(server.environment({})["SCCACHE_SERVER_UDS"]).is_socket():
            time.sleep(0.01)
        place = Path(server.environment({})["SCCACHE_SERVER_UDS"])
    assert not place.exists()
    # once silent is no reason
    assert asked == [("http://127.0.0.1:1", 0.5)] * 5
    assert server.storage == Storage()
    assert "s3://bucket/cc does not answer: the build goes on with a local cache" in capsys.readouterr().err
    assert "SCCACHE_BUCKET" not in shop.starts[1]


def test_what_both_servers_did_is_added_up(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler_cache_s3, "answers", lambda *_, **__: False)
    with started(shop.cache("bucket"), Patience(every=0.05, silent=1)) as server:
        end = time.monotonic() + 10
        while len(shop.starts) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.1)
        # the first counted one start, the second two
        assert server.statistics().hits == 3
