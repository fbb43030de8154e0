import json
import os
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path, PurePosixPath

import boto3
import pytest
from botocore.stub import Stubber

from core.cli.options import Common
from core.http_server import answering
from core.stores import s3_client
from pytorch_build.build import cache_use
from pytorch_build.build.cache import CompilerCache, Storage
from pytorch_build.build.cache_use import answers, in_use, located, s3_access
from tests.kit.servers import Quiet, served

BASE_DIRS = (Path("/co/src/torch"), Path("/co/.nox/env"), Path("/co"))
CCACHE = CompilerCache(kind="ccache", program=PurePosixPath("/usr/bin/ccache"))
SCCACHE = CompilerCache(kind="sccache", program=PurePosixPath("/usr/bin/sccache"))
SECRET = "of-a-test"  # noqa: S105 - of nobody
# A port that nobody listens at.
NOBODY = "http://127.0.0.1:9"
EXTERNAL_STORE = "s3://therock-ci-artifacts-external"


# A cache while a build goes through it


def test_uses_no_cache_that_is_not_trusted() -> None:
    untrusted = replace(SCCACHE, storage=Storage(access="none"))

    with in_use(untrusted, base_dirs=BASE_DIRS, base_env={}) as cache:
        assert cache is None


def test_leads_ccache_to_its_storage_and_cleans_up(tmp_path: Path) -> None:
    folder = Storage(kind="folder", where=str(tmp_path))

    with in_use(replace(CCACHE, storage=folder), base_dirs=BASE_DIRS, base_env={}) as cache:
        assert cache is not None
        env = cache.environment({})
        assert Path(env["CCACHE_STATSLOG"]).parent.is_dir()

    assert env["CCACHE_REMOTE_STORAGE"] == f"file:{tmp_path}"
    assert env["CCACHE_BASEDIR"] == "/co"
    assert not Path(env["CCACHE_STATSLOG"]).parent.exists()


def test_lets_ccache_know_a_developers_own_tree() -> None:
    own_tree = Path("/home/me/torch")

    with in_use(CCACHE, base_dirs=(own_tree, *BASE_DIRS[1:]), base_env={}) as cache:
        assert cache is not None
        assert cache.environment({})["CCACHE_BASEDIR"] == str(own_tree)


@pytest.mark.parametrize(
    ("log", "hits", "misses", "errors"),
    [
        (None, 0, 0, 0),
        ("# a.c\ndirect_cache_hit\n# b.c\ncache_miss\n", 1, 1, 0),
        ("# a.c\ncache_miss\nremote_storage_error\n", 0, 1, 1),
    ],
    ids=["nothing compiled", "hit and miss", "error"],
)
def test_counts_what_ccache_did_for_the_build(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    log: str | None,
    hits: int,
    misses: int,
    errors: int,
) -> None:
    folder = Storage(kind="folder", where=str(tmp_path))

    with in_use(replace(CCACHE, storage=folder), base_dirs=BASE_DIRS, base_env={}) as cache:
        assert cache is not None
        if log is not None:
            Path(cache.environment({})["CCACHE_STATSLOG"]).write_text(log)
        details = cache.details()

    assert details is not None
    assert details.items() >= {"hits": hits, "misses": misses, "errors": errors}.items()
    assert details["storage"] == str(tmp_path)
    assert ("warning: ccache failed" in capsys.readouterr().err) is (errors > 0)


def test_goes_on_without_statistics_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    with in_use(CCACHE, base_dirs=BASE_DIRS, base_env={}) as cache:
        assert cache is not None
        Path(cache.environment({})["CCACHE_STATSLOG"]).write_text("nonsense \0 of something else\n")
        # No build is thrown away for counters.
        assert cache.details() is None

    assert "statistics of ccache" in capsys.readouterr().err


def test_leaves_a_server_of_ccache_out_that_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    web = Storage(kind="http", where=f"{NOBODY}/c|layout=flat", access="read-only")

    with in_use(replace(CCACHE, storage=web), base_dirs=BASE_DIRS, base_env={}) as cache:
        assert cache is not None
        env = cache.environment({})
        details = cache.details() or {}

    assert details["lost"]
    assert "CCACHE_REMOTE_STORAGE" not in env
    assert env["CCACHE_READONLY"] == "true"
    assert f"{NOBODY}/c:" in capsys.readouterr().err


def test_uses_a_server_of_ccache_that_answers(tmp_path: Path) -> None:
    with served(tmp_path) as address:
        web = Storage(kind="http", where=f"{address}/c|layout=flat")

        with in_use(replace(CCACHE, storage=web), base_dirs=BASE_DIRS, base_env={}) as cache:
            assert cache is not None
            env = cache.environment({})

    assert env["CCACHE_REMOTE_STORAGE"] == f"{address}/c|layout=flat"


# Where a run's cache lies


def locate(folder: Path, cache: CompilerCache, env: dict[str, str], *, store: str = "out") -> Storage:
    """Return the storage that a run with a store may use, in an environment."""
    return located(cache, Common(root=folder, store=store), env=env).storage


def test_puts_entries_beside_a_runs_bucket(tmp_path: Path) -> None:
    storage = locate(tmp_path, SCCACHE, {}, store="s3://mine")

    assert str(storage) == "s3://mine/compiler-cache/ci/sccache"


def test_keeps_entries_on_this_machine_without_a_bucket(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert locate(tmp_path, SCCACHE, {}) == Storage()
    assert capsys.readouterr().err == ""


def test_reports_that_ccache_cannot_use_a_bucket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert locate(tmp_path, CCACHE, {}, store="s3://mine") == Storage()
    assert "--compiler-cache-store" in capsys.readouterr().err


def test_lets_a_fork_read_the_main_repositorys_entries(tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"head": {"repo": {"full_name": "me/TheRock"}}}}))
    fork = {"GITHUB_REPOSITORY": "ROCm/TheRock", "GITHUB_EVENT_PATH": str(event)}

    storage = locate(tmp_path, SCCACHE, fork, store=EXTERNAL_STORE)

    assert storage.bucket == "therock-pytorch-sccache-ci"
    assert storage.access == "read-only"


def test_trusts_no_entries_that_other_repositories_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = locate(tmp_path, SCCACHE, {"GITHUB_REPOSITORY": "me/mine"}, store=EXTERNAL_STORE)

    assert storage.access == "none"
    assert EXTERNAL_STORE in capsys.readouterr().err


# Access to S3


@pytest.fixture(autouse=True)
def _no_aws_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide this machine's settings of AWS."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_reads_a_service_anonymously_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000")

    access = s3_access("bucket")

    assert access.anonymous
    assert access.credentials == ""
    assert access.region == "us-east-1"


def test_takes_address_region_and_credentials_of_a_service_from_the_usual_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9000",
        "AWS_REGION": "eu-9",
        "AWS_DEFAULT_REGION": "eu-9",
        "AWS_ACCESS_KEY_ID": "AKIA",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": "token",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)

    access = s3_access("bucket")

    assert access.endpoint == "http://127.0.0.1:9000"
    assert access.region == "eu-9"
    assert not access.anonymous
    assert access.credentials.splitlines() == [
        "[default]",
        "aws_access_key_id = AKIA",
        f"aws_secret_access_key = {SECRET}",
        "aws_session_token = token",
    ]


@pytest.mark.parametrize("is_allowed", [True, False])
def test_asks_amazon_for_the_region_of_a_bucket(monkeypatch: pytest.MonkeyPatch, *, is_allowed: bool) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    client = boto3.client("s3", region_name="us-east-1")
    connection = s3_client.Connection(client=client)
    monkeypatch.setattr(cache_use, "shared_connection", lambda: connection)
    metadata = {"HTTPHeaders": {"x-amz-bucket-region": "eu-west-9"}}

    with Stubber(client) as stub:
        if is_allowed:
            stub.add_response("head_bucket", {"ResponseMetadata": metadata}, {"Bucket": "bucket"})
        else:
            # The answer of a bucket that belongs to others names its region, too.
            stub.add_client_error("head_bucket", "403", http_status_code=403, response_meta=metadata)
        access = s3_access("bucket")

    assert access.endpoint == "https://s3.eu-west-9.amazonaws.com"
    assert access.region == "eu-west-9"


# Whether a service answers


class Redirect(Quiet, BaseHTTPRequestHandler):
    """Sends everybody to a page that does not exist, which nobody may follow."""

    def do_HEAD(self) -> None:
        """Answer."""
        self.send_response(307)
        self.send_header("Location", f"{NOBODY}/")
        self.end_headers()


def does_answer(handler: type[BaseHTTPRequestHandler], path: str = "", *, scheme: str = "http") -> bool:
    """Return whether a service on this machine counts as answering."""
    with answering(handler) as address:
        return answers(f"{address}{path}".replace("http:", f"{scheme}:", 1), seconds=5)


def test_a_service_answers_that_redirects() -> None:
    assert does_answer(Redirect)


@pytest.mark.parametrize("path", ["", "/not-there"])
def test_a_service_answers_whatever_its_status(tmp_path: Path, path: str) -> None:
    with served(tmp_path) as address:
        assert answers(f"{address}{path}", seconds=5)


def test_a_service_answers_whose_certificate_is_not_trusted() -> None:
    # This one does not even have a certificate.
    assert does_answer(Redirect, scheme="https")


@pytest.mark.parametrize("address", [NOBODY, "http://"])
def test_nobody_answers_at_an_address_without_a_service(address: str) -> None:
    assert not answers(address, seconds=5)
