from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.stub import Stubber

from core.cli.options import environment
from core.packages.pages import answering
from core.stores import s3_client
from pytorch_build.build import compiler_cache_s3
from pytorch_build.build.compiler_cache_s3 import answers, s3_access
from tests.folders import served

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "of-a-test"  # noqa: S105 - of nobody


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
    aws.setenv("AWS_REGION", "eu-9")
    aws.setenv("AWS_DEFAULT_REGION", "eu-9")
    aws.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    aws.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    aws.setenv("AWS_SESSION_TOKEN", "token")
    found = s3_access("bucket")
    assert (found.endpoint, found.region) == ("http://127.0.0.1:9000", "eu-9")
    assert (found.access_key, found.secret_key, found.token) == ("AKIA", SECRET, "token")
    assert not found.anonymous


def test_without_credentials_what_is_public_is_read(aws: pytest.MonkeyPatch) -> None:
    aws.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000")
    found = s3_access("bucket")
    assert (found.access_key, found.anonymous, found.region) == ("", True, "us-east-1")


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
        aws.setattr(compiler_cache_s3, "shared_connection", lambda: connection)
        found = s3_access("bucket")
    assert (found.endpoint, found.region) == ("https://s3.eu-west-9.amazonaws.com", "eu-west-9")


class Redirects(BaseHTTPRequestHandler):
    """Sends everybody to a page that is not there."""

    def do_HEAD(self) -> None:
        self.send_response(307)
        self.send_header("Location", "http://127.0.0.1:9/")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_redirection_is_an_answer_and_is_not_followed() -> None:
    with answering(Redirects) as url:
        assert answers(url, seconds=5)


@pytest.mark.parametrize(("reason", "told"), [(ssl.SSLError("self-signed"), True), (OSError("gone"), False)])
def test_a_certificate_of_nobody_known_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, reason: OSError, *, told: bool
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise urllib.error.URLError(reason)

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", fails)
    assert answers("https://127.0.0.1:9", seconds=1) is told


def test_a_service_that_says_no_answers_all_the_same(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        assert answers(url, seconds=5)
        assert answers(f"{url}/not-there", seconds=5)
    assert not answers(url, seconds=5)
    assert not answers("http://", seconds=5)
