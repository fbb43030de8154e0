import os
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from core.http_server import answering
from pytorch_build.build.cache_use import BucketAccess, bucket_access, does_answer
from tests.kit.servers import Quiet, served

SECRET = "of-a-test"  # noqa: S105 - of nobody
ENDPOINT = "http://127.0.0.1:9000"
# A port that nobody listens at.
NOBODY = "http://127.0.0.1:9"
CREDENTIALS_FILE = Path("/run/s/credentials")


@pytest.fixture(autouse=True)
def _no_aws_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide this machine's settings of AWS."""
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def access_with(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> BucketAccess:
    """Return how a server reaches a bucket in this process, with settings of AWS and of sccache."""
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    env = {**settings, "PATH": "/usr/bin", "SCCACHE_BUCKET": "bucket"}
    return bucket_access(env, credentials_file=CREDENTIALS_FILE)


# The credentials


SIGNED = {
    "AWS_ENDPOINT_URL_S3": ENDPOINT,
    "AWS_REGION": "eu-9",
    "AWS_DEFAULT_REGION": "eu-9",
    "AWS_ACCESS_KEY_ID": "AKIA",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_SESSION_TOKEN": "token",
}


def test_gives_a_server_credentials_in_a_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    access = access_with(monkeypatch, SIGNED)

    assert access.credentials is not None
    assert access.credentials.splitlines() == [
        "[default]",
        "aws_access_key_id = AKIA",
        f"aws_secret_access_key = {SECRET}",
        "aws_session_token = token",
    ]
    assert access.variables["AWS_SHARED_CREDENTIALS_FILE"] == str(CREDENTIALS_FILE)
    # Compilers are tried out with these variables.
    assert SECRET not in access.variables.values()
    assert SECRET not in repr(access)


def test_only_reads_a_service_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    access = access_with(monkeypatch, {"AWS_ENDPOINT_URL_S3": ENDPOINT})

    assert access.is_anonymous
    assert access.variables["SCCACHE_S3_NO_CREDENTIALS"] == "true"
    assert access.variables["SCCACHE_S3_RW_MODE"] == "READ_ONLY"
    assert access.credentials is None


# The service


def test_takes_the_address_and_region_of_a_service_from_the_usual_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    access = access_with(monkeypatch, SIGNED)

    assert access.endpoint == ENDPOINT
    assert access.variables["SCCACHE_ENDPOINT"] == ENDPOINT
    assert access.variables["SCCACHE_S3_USE_SSL"] == "false"
    assert access.variables["SCCACHE_REGION"] == "eu-9"


def test_prefers_the_users_settings_of_sccache(monkeypatch: pytest.MonkeyPatch) -> None:
    access = access_with(monkeypatch, {**SIGNED, "SCCACHE_REGION": "auto"})

    assert access.variables["SCCACHE_REGION"] == "auto"


def test_leaves_the_address_of_amazons_own_service_to_sccache(monkeypatch: pytest.MonkeyPatch) -> None:
    access = access_with(monkeypatch, {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": SECRET})

    assert "SCCACHE_ENDPOINT" not in access.variables
    assert access.variables["SCCACHE_REGION"] == "us-east-1"


# Whether a service answers


class Redirect(Quiet, BaseHTTPRequestHandler):
    """Sends everybody to a page that does not exist, which nobody may follow."""

    def do_HEAD(self) -> None:
        """Answer."""
        self.send_response(307)
        self.send_header("Location", f"{NOBODY}/")
        self.end_headers()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_service_answers_that_redirects_or_is_not_trusted(scheme: str) -> None:
    with answering(Redirect) as address:
        # This one does not even have a certificate.
        assert does_answer(address.replace("http:", f"{scheme}:", 1), seconds=5)


@pytest.mark.parametrize("path", ["", "/not-there"])
def test_a_service_answers_whatever_its_status(tmp_path: Path, path: str) -> None:
    with served(tmp_path) as address:
        assert does_answer(f"{address}{path}", seconds=5)


@pytest.mark.parametrize("address", [NOBODY, "http://"])
def test_nobody_answers_at_an_address_without_a_service(address: str) -> None:
    assert not does_answer(address, seconds=5)
