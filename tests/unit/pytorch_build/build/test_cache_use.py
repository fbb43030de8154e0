import json
import os
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path, PurePosixPath
from typing import Any

import boto3
import pytest
from botocore.exceptions import SSLError
from botocore.httpsession import URLLib3Session
from botocore.stub import Stubber

from core.cli.options import Common
from core.http import answering
from core.stores import s3_client
from pytorch_build.build import cache_use
from pytorch_build.build.cache import CompilerCache, Storage
from pytorch_build.build.cache_use import answers, in_use, located, s3_access
from tests.kit.servers import served

DIRS = (Path("/co/src/torch"), Path("/co/.nox/env"), Path("/co"))
CCACHE = CompilerCache(kind="ccache", program=PurePosixPath("/usr/bin/ccache"))
SCCACHE = CompilerCache(kind="sccache", program=PurePosixPath("/usr/bin/sccache"))
SECRET = "of-a-test"  # noqa: S105 - of nobody


def test_a_cache_that_is_not_trusted_is_none() -> None:
    with in_use(replace(SCCACHE, storage=Storage(access="none")), base_dirs=DIRS, base_env={}) as found:
        assert found is None


def test_ccaches_statistics_are_the_builds_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        log.write_text("# a.c\ncache_miss\nremote_storage_error\n")
        assert (found.details() or {})["errors"] == 1
        assert f"ccache failed 1 times to read or store an entry in {tmp_path}" in capsys.readouterr().err
        # no build is thrown away for counters
        log.write_text("nonsense \0 of something else\n")
        assert found.details() is None
        assert "No statistics of ccache: " in capsys.readouterr().err
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
    def place(cache: CompilerCache, env: dict[str, str], **common: Any) -> Storage:
        run = Common(root=tmp_path, **common)
        return located(cache, run, env=env).storage

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
