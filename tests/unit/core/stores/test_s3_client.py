from __future__ import annotations

import time
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

import botocore
import pytest
from botocore.utils import parse_timestamp

from core import process
from core.errors import ServiceError, StoreError, UsageError
from core.http_server import answering
from core.stores import s3_client
from core.stores.location import open_store
from core.stores.s3 import S3Store
from core.stores.s3_client import connect, read_time, shared_connection
from tests.kit.aws import SETTINGS
from tests.kit.servers import Quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from types_boto3_s3 import S3Client

    OpenBucket = Callable[[str], S3Store]

CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@pytest.fixture
def open_bucket(aws: S3Client, tmp_path: Path) -> OpenBucket:
    """Return the function that opens a bucket as a store."""
    assert aws.list_buckets()["Buckets"] is not None

    def open_bucket(location: str) -> S3Store:
        store = open_store(location, root=tmp_path)
        assert isinstance(store, S3Store)
        return store

    return open_bucket


# Answers


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-28T20:34:08.500Z",
        "2026-11-28T21:34:08.500+01:00",
        "Sat, 28 Nov 2026 20:34:08 GMT",
        "1795898048",
        # a date without a zone, which botocore reads as a number
        "20261128",
    ],
)
def test_reads_times_as_botocore_does(text: str) -> None:
    assert read_time(text) == parse_timestamp(text)


@pytest.mark.usefixtures("s3")
def test_a_listing_has_the_time_of_the_object(open_bucket: OpenBucket) -> None:
    store = open_bucket("s3://bucket/times")
    store.put_bytes("a", b"a")

    (listed_object,) = store.list("")

    found_object = store.find("a")
    assert found_object is not None
    assert listed_object.modified == found_object.modified
    assert abs(listed_object.modified - time.time()) < 100


# Settings


@pytest.mark.usefixtures("aws")
def test_the_same_settings_share_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = shared_connection()

    monkeypatch.setenv("UNRELATED", "x")

    assert shared_connection() is connection


@pytest.mark.usefixtures("aws")
def test_other_settings_have_another_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = shared_connection()

    monkeypatch.setenv("AWS_REGION", "eu-west-1")

    assert shared_connection() is not connection


def test_addresses_another_server_by_path(open_bucket: OpenBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://s3.example:9")

    store = open_bucket("s3://bucket/run")

    assert not store.connection.is_amazon
    assert store.url == "s3://bucket/run"
    assert store.url_of("a+b/x.whl") == "http://s3.example:9/bucket/run/a%2Bb/x.whl"
    signed = store.connection.client.generate_presigned_url("get_object", Params=store.place("x"))
    assert signed.startswith("http://s3.example:9/bucket/run/x?")


@pytest.mark.usefixtures("aws")
def test_reads_endpoint_and_style_from_a_profile(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        "[profile mine]\nendpoint_url = http://s3.example:9\ns3 =\n  addressing_style = virtual\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_PROFILE", "mine")

    connection = connect()

    assert connection.endpoint == "http://s3.example:9"
    signed = connection.client.generate_presigned_url("get_object", Params={"Bucket": "bkt", "Key": "x"})
    assert signed.startswith("http://bkt.s3.example:9/x?")


def test_a_bucket_of_amazon_has_an_address_of_its_own(open_bucket: OpenBucket) -> None:
    assert open_bucket("s3://bkt").url_of("a b") == "https://bkt.s3.amazonaws.com/a%20b"


def test_addresses_a_bucket_with_dots_by_path(open_bucket: OpenBucket) -> None:
    # A certificate is for one name before the dot.
    assert open_bucket("s3://b.k.t").url_of("a").endswith(".amazonaws.com/b.k.t/a")


def test_names_an_unknown_profile(open_bucket: OpenBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")

    with pytest.raises(StoreError, match="nobody") as raised:
        open_bucket("s3://bucket")

    assert "AWS_PROFILE" in raised.value.hint


@pytest.mark.parametrize("location", ["s3://", "s3:///x", "s3://bucket//x", "s3://bucket/../x"])
def test_rejects_what_names_no_bucket(location: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        open_store(location, root=tmp_path)

    assert location in raised.value.message


# Credentials


@pytest.fixture
def anonymous_store(s3: S3Client, open_bucket: OpenBucket, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """Return a bucket with a public object, opened without credentials."""
    s3.put_object(Bucket="bucket", Key="a", Body=b"public", ACL="public-read")
    for name in CREDENTIALS:
        monkeypatch.delenv(name, raising=False)
    return open_bucket("s3://bucket")


def test_reads_public_objects_without_credentials(anonymous_store: S3Store) -> None:
    assert not anonymous_store.connection.signed
    assert anonymous_store.read("a") == b"public"


def test_writes_nothing_without_credentials(anonymous_store: S3Store, s3: S3Client) -> None:
    writes: list[Callable[[], object]] = [
        lambda: anonymous_store.put_bytes("b", b""),
        lambda: anonymous_store.delete("a"),
    ]
    for write in writes:
        with pytest.raises(StoreError, match="s3://bucket") as raised:
            write()
        assert "AWS_PROFILE" in raised.value.hint

    keys = [content["Key"] for content in s3.list_objects_v2(Bucket="bucket")["Contents"]]
    assert keys == ["a"]


def test_knows_its_identity_without_a_secret(open_bucket: OpenBucket) -> None:
    store = open_bucket("s3://bucket")

    # moto has set its own ones.
    variables = process.inherited()
    assert store.connection.identity == f"access key …{variables['AWS_ACCESS_KEY_ID'][-4:]} from env"
    assert variables["AWS_SECRET_ACCESS_KEY"] not in repr(store)


# Repeated requests

PAGE = b"page"


class FailingServer(Quiet):
    """A server whose first answers are refusals, and then an object."""

    statuses: list[int]
    requests: list[str]
    user_agents: list[str]

    def do_GET(self) -> None:  # noqa: N802 - the base class's name
        """Refuse, or answer with the object."""
        self.requests.append(self.path)
        self.user_agents.append(self.headers["User-Agent"])
        status = self.statuses.pop(0) if self.statuses else HTTPStatus.OK
        content = PAGE if status == HTTPStatus.OK else b""
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", '"etag"')
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def bucket_with_answers(monkeypatch: pytest.MonkeyPatch, statuses: list[int]) -> Iterator[S3Store]:
    """Yield a bucket of a server that answers with these statuses, and then with an object."""
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(FailingServer, "statuses", statuses, raising=False)
    monkeypatch.setattr(FailingServer, "requests", [], raising=False)
    monkeypatch.setattr(FailingServer, "user_agents", [], raising=False)
    with answering(FailingServer) as address:
        yield S3Store(connection=connect(endpoint=address), bucket="bucket")


def test_names_the_project_to_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with bucket_with_answers(monkeypatch, []) as bucket:
        bucket.read("a.html")

    (user_agent,) = FailingServer.user_agents
    assert user_agent == f"rocm-wheels botocore/{botocore.__version__}"


def test_repeats_a_request_that_a_busy_server_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with bucket_with_answers(monkeypatch, [500, 503]) as bucket:
        assert bucket.read("a.html") == PAGE

    assert len(FailingServer.requests) == 3


def test_gives_up_on_a_server_that_keeps_failing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_client, "ATTEMPTS", 3)
    with bucket_with_answers(monkeypatch, [500] * 5) as bucket, pytest.raises(ServiceError) as raised:
        bucket.read("a.html")

    assert "500" in raised.value.message
    assert len(FailingServer.requests) == 3


@pytest.mark.parametrize("status", [400, 403, 412, 501])
def test_repeats_no_request_that_was_refused(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    with bucket_with_answers(monkeypatch, [status]) as bucket, pytest.raises((StoreError, ServiceError)):
        bucket.read("a.html")

    assert len(FailingServer.requests) == 1


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds that botocore would have waited between attempts; it does not."""
    waits: list[float] = []
    monkeypatch.setattr("botocore.endpoint.time.sleep", waits.append)
    return waits


def test_a_server_that_was_never_there_is_reported_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
    waits: list[float],
) -> None:
    with bucket_with_answers(monkeypatch, []) as bucket:
        address = bucket.connection.endpoint
    # Nothing listens there any more, and this store has never reached it.

    with pytest.raises(ServiceError) as raised:
        bucket.read("a.html")

    assert address in raised.value.message
    assert "AWS_ENDPOINT_URL_S3" in raised.value.hint
    # It may be starting, so it is tried more than once.
    assert waits
    assert sum(waits) < 4


def test_a_server_that_went_away_is_waited_for(monkeypatch: pytest.MonkeyPatch, waits: list[float]) -> None:
    with bucket_with_answers(monkeypatch, []) as bucket:
        bucket.read("a.html")

    with pytest.raises(ServiceError):
        bucket.read("a.html")

    assert len(waits) == s3_client.ATTEMPTS - 1
