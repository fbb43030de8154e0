from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import SSLError
from botocore.httpsession import URLLib3Session
from botocore.stub import Stubber

from core import process
from core.cli.options import Common, environment
from core.errors import StoreError
from core.http import answering
from core.stores import s3_client
from pytorch_build.build import cache_use
from pytorch_build.build.cache import CompilerCache, S3Access, Storage
from pytorch_build.build.cache_use import answers, in_use, located, s3_access
from tests.folders import served

if TYPE_CHECKING:
    from collections.abc import Mapping

processes = pytest.mark.processes

DIRS = (Path("/co/src/torch"), Path("/co/.nox/env"), Path("/co"))
CCACHE = CompilerCache(kind="ccache", program=PurePosixPath("/usr/bin/ccache"))
SCCACHE = CompilerCache(kind="sccache", program=PurePosixPath("/usr/bin/sccache"))
SECRET = "of-a-test"  # noqa: S105 - of nobody
KEYS = S3Access(
    endpoint="http://127.0.0.1:1", region="us-east-1", credentials=f"aws_access_key_id = AKIA {SECRET}"
)
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
if os.environ.get("CCACHE_SAYS"):
    sys.exit(print("nonsense") or (os.environ["CCACHE_SAYS"] == "failure"))
none = {{"counts": {{}}}}
count = {{"counts": {{"C/C++": len(notes.read_text().splitlines())}}}}
names = ("requests_not_cacheable requests_not_compile requests_unsupported_compiler cache_timeouts "
         "non_cacheable_compilations cache_read_errors cache_write_errors cache_writes").split()
print(json.dumps({{"stats": dict.fromkeys(names, 0) | {{"cache_read_errors": {errors},
    "cache_hits": count, "cache_misses": none, "cache_errors": none}}}}))
"""


class Shop:
    """A fake program, and what its servers were started with."""

    def __init__(self, folder: Path) -> None:
        self.notes, self.program = folder / "notes", folder / "sccache"
        self.write()

    def write(self, errors: int = 0) -> None:
        self.program.write_text(FAKE.format(python=sys.executable, notes=str(self.notes), errors=errors))
        self.program.chmod(0o755)

    def used(self, bucket: str = "", access: Any = "read-write", **env: str) -> Any:
        place: dict[str, Any] = {"kind": "s3", "where": f"{bucket}/cc"} if bucket else {}
        cache = replace(SCCACHE, program=self.program, storage=Storage(access=access, **place))
        return in_use(cache, base_dirs=DIRS, base_env=process.inherited(**env))

    @property
    def starts(self) -> list[Mapping[str, str]]:
        return [json.loads(line) for line in self.notes.read_text().splitlines()]

    def wait(self, starts: int) -> None:
        end = time.monotonic() + 10
        while len(self.starts) < starts and time.monotonic() < end:
            time.sleep(0.01)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(cache_use, "s3_access", lambda *_: KEYS)
    return Shop(tmp_path)


@processes
def test_a_build_has_a_server_of_its_own_which_is_gone_afterwards(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    places = []

    def fails() -> None:
        with shop.used() as server:
            places.append(Path(server.environment({})["SCCACHE_SERVER_UDS"]))
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert not places[0].exists(), "it is stopped when the build fails"
    shop.notes.unlink()
    with shop.used("bucket", "read-only") as server:
        place = Path(server.environment({})["SCCACHE_SERVER_UDS"])
        assert place.is_socket()
        assert place.parent.stat().st_mode & 0o777 == 0o700, "no other user may send it compilations"
        assert not (place.parent / "credentials").exists(), "no compiler may find them"
        counts = {"kind": "sccache", "hits": 1, "misses": 0, "uncacheable": 0, "errors": 0, "hit_rate": 1.0}
        where = {"storage": "s3://bucket/cc", "access": "read-only", "lost": ""}
        assert server.details() == counts | where
    said = capsys.readouterr().err
    assert "sccache: 1 hits, 0 misses (100%) in s3://bucket/cc, read-only" in said
    assert "failed" not in said
    assert not place.parent.exists()
    (env,) = shop.starts
    assert env["SCCACHE_BUCKET"] == "bucket"
    assert (env["mode"], "aws_access_key_id = AKIA" in env["text"]) == ("0o100600", True)
    assert int(env["SCCACHE_IDLE_TIMEOUT"]) > 0, "it ends by itself, should nothing stop it"
    assert env["SCCACHE_BASEDIRS"] == "/co/src/torch:/co/.nox/env:/co"


@processes
def test_a_storage_that_is_not_there_is_replaced_by_a_local_cache(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with shop.used("absent", "read-only") as server:
        assert server.storage == Storage(access="read-only")
        assert (server.details() or {})["lost"] == "no such bucket."
    said = capsys.readouterr().err
    assert "sccache cannot use s3://absent/cc: no such bucket. This build uses a local cache instead." in said
    assert "(100%) in a local cache, read-only" in said
    first, second = shop.starts
    assert "SCCACHE_BUCKET" in first
    assert not {"SCCACHE_BUCKET", "SCCACHE_REGION"} & second.keys()
    assert second["SCCACHE_LOCAL_RW_MODE"] == "READ_ONLY"

    def fails(*_: Any) -> S3Access:
        raise StoreError("There is no profile 'mine'.")

    monkeypatch.setattr(cache_use, "s3_access", fails)
    with shop.used("bucket") as server:
        assert server.lost == "There is no profile 'mine'."
    # what cannot even be local is left out
    with shop.used(SCCACHE_DIR="broken") as server:
        assert server is None
    said = capsys.readouterr().err
    assert "sccache does not start: no such bucket. This build runs without a cache." in said


@processes
def test_a_storage_that_stops_answering_is_given_up(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks = iter([True, False, True, False, False])
    asked: list[tuple[str, float]] = []

    def looked(endpoint: str, *, seconds: float) -> bool:
        asked.append((endpoint, seconds))
        return next(looks)

    for name, value in {"answers": looked, "EVERY": 0.01, "SILENT": 2, "ANSWER": 0.5}.items():
        monkeypatch.setattr(cache_use, name, value)
    with shop.used("bucket") as server:
        shop.wait(2)
        place = Path(server.environment({})["SCCACHE_SERVER_UDS"])
        while not server.lost or not place.is_socket():
            time.sleep(0.01)
        time.sleep(0.1)
        # the first counted one start, the second two
        details = server.details() or {}
        assert (details["hits"], details["errors"]) == (3, 0)
    assert not place.exists()
    # once silent is no reason
    assert asked == [("http://127.0.0.1:1", 0.5)] * 5
    assert server.storage == Storage()
    said = capsys.readouterr().err
    assert "s3://bucket/cc does not answer: the build continues with a local cache" in said
    assert "SCCACHE_BUCKET" not in shop.starts[1]


@processes
def test_errors_are_counted_and_no_build_is_thrown_away_for_counters(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.write(errors=2)
    with shop.used() as server:
        assert (server.details() or {})["errors"] == 2
    assert "sccache failed 2 times to read or store an entry in local" in capsys.readouterr().err
    for says in ("failure", "nonsense"):
        with shop.used(CCACHE_SAYS=says) as server:
            assert server.details() is None
        assert "No statistics of sccache: " in capsys.readouterr().err


def test_a_cache_that_is_not_trusted_is_none() -> None:
    with in_use(replace(SCCACHE, storage=Storage(access="none")), base_dirs=DIRS, base_env={}) as found:
        assert found is None


def test_ccaches_statistics_are_the_builds_own(tmp_path: Path) -> None:
    folder = Storage(kind="folder", where=str(tmp_path))
    with in_use(replace(CCACHE, storage=folder), base_dirs=DIRS, base_env={}) as found:
        assert found is not None
        env = found.environment({})
        log = Path(env["CCACHE_STATSLOG"])
        nothing = found.details() or {}
        assert (nothing["hits"], nothing["misses"], nothing["hit_rate"]) == (0, 0, 0)
        log.write_text("# a.c\ndirect_cache_hit\n# b.c\ncache_miss\n")
        some = found.details() or {}
        assert (some["hits"], some["misses"], some["storage"]) == (1, 1, str(tmp_path))
    assert env["CCACHE_REMOTE_STORAGE"] == f"file:{tmp_path}"
    assert env["CCACHE_BASEDIR"] == "/co"
    assert not log.parent.exists()
    with in_use(CCACHE, base_dirs=(Path("/home/me/torch"), *DIRS[1:]), base_env={}) as own:
        assert own is not None
        assert own.environment({})["CCACHE_BASEDIR"] == "/home/me/torch", "a developer's own tree is outside"


def test_ccaches_server_that_does_not_answer_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def looked(url: str, **_: float) -> bool:
        asked.append(url)
        return False

    monkeypatch.setattr(cache_use, "answers", looked)
    web = Storage(kind="http", where="http://host/c|layout=flat", access="read-only")
    with in_use(replace(CCACHE, storage=web), base_dirs=DIRS, base_env={}) as found:
        assert found is not None
        env = found.environment({})
        assert (found.details() or {})["lost"] == "it did not answer."
    assert asked == ["http://host/c"]
    assert "CCACHE_REMOTE_STORAGE" not in env
    assert env["CCACHE_READONLY"] == "true"
    assert "ccache cannot use http://host/c: it did not answer." in capsys.readouterr().err


def test_a_run_places_its_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def place(cache: CompilerCache, env: dict[str, str], *, location: str = "", **common: Any) -> Storage:
        run = Common(root=tmp_path, **common)
        return located(cache, run, location=location, read_only=False, env=env).storage

    assert str(place(SCCACHE, {}, store="s3://mine")) == "s3://mine/compiler-cache/ci/sccache"
    assert place(SCCACHE, {}) == Storage()
    assert not capsys.readouterr().err
    assert place(CCACHE, {}, store="s3://mine") == Storage()
    assert "ccache does not speak S3: entries stay on this machine" in capsys.readouterr().err
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"head": {"repo": {"full_name": "me/TheRock"}}}}))
    fork = {"GITHUB_REPOSITORY": "ROCm/TheRock", "GITHUB_EVENT_PATH": str(event)}
    found = place(SCCACHE, fork, store="s3://therock-ci-artifacts-external")
    assert (found.bucket, found.access) == ("therock-pytorch-sccache-ci", "read-only")
    other = {"GITHUB_REPOSITORY": "me/mine"}
    assert place(SCCACHE, other, store="s3://therock-ci-artifacts-external").access == "none"
    assert "No compiler cache: other repositories write to" in capsys.readouterr().err


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Leave no settings of this machine's."""
    for name in [name for name in environment() if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return monkeypatch


def test_the_usual_settings_lead_to_a_service(aws: pytest.MonkeyPatch) -> None:
    aws.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000")
    public = s3_access("bucket")
    assert (public.credentials, public.anonymous, public.region) == ("", True, "us-east-1")
    aws.setenv("AWS_REGION", "eu-9")
    aws.setenv("AWS_DEFAULT_REGION", "eu-9")
    aws.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    aws.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    aws.setenv("AWS_SESSION_TOKEN", "token")
    found = s3_access("bucket")
    assert (found.endpoint, found.region) == ("http://127.0.0.1:9000", "eu-9")
    keys = f"aws_access_key_id = AKIA\naws_secret_access_key = {SECRET}\naws_session_token = token\n"
    assert found.credentials == f"[default]\n{keys}"
    assert not found.anonymous


@pytest.mark.parametrize("allowed", [True, False])
def test_amazons_bucket_says_where_it_lies(aws: pytest.MonkeyPatch, *, allowed: bool) -> None:
    aws.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    aws.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    client = boto3.client("s3", region_name="us-east-1")
    headers = {"ResponseMetadata": {"HTTPHeaders": {"x-amz-bucket-region": "eu-west-9"}}}
    with Stubber(client) as stub:
        if allowed:
            stub.add_response("head_bucket", headers, {"Bucket": "bucket"})
        else:
            stub.add_client_error(
                "head_bucket", "403", http_status_code=403, response_meta=headers["ResponseMetadata"]
            )
        connection = s3_client.Connection(client=client)
        aws.setattr(cache_use, "shared_connection", lambda: connection)
        found = s3_access("bucket")
    assert (found.endpoint, found.region) == ("https://s3.eu-west-9.amazonaws.com", "eu-west-9")


class Redirects(BaseHTTPRequestHandler):
    """Sends everybody to a page that does not exist, which nobody may follow."""

    def do_HEAD(self) -> None:
        self.send_response(307)
        self.send_header("Location", "http://127.0.0.1:9/")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_service_answers_whatever_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(Redirects) as url:
        assert answers(url, seconds=5)
    with served(tmp_path) as url:
        assert answers(url, seconds=5)
        assert answers(f"{url}/not-there", seconds=5)
    assert not answers(url, seconds=5)
    assert not answers("http://", seconds=5)

    def fails(*_: object) -> None:
        raise SSLError(endpoint_url="https://127.0.0.1:9", error=OSError("self-signed"))

    monkeypatch.setattr(URLLib3Session, "send", fails)
    assert answers("https://127.0.0.1:9", seconds=1), "an untrusted certificate is an answer"
