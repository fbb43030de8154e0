"""Clients of S3 by the usual AWS settings: what they connect to, and as whom."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from botocore import UNSIGNED
from botocore import __version__ as botocore_version
from botocore.config import Config
from botocore.exceptions import BotoCoreError, EndpointConnectionError
from botocore.handlers import convert_body_to_file_like_object
from botocore.session import get_session
from botocore.utils import parse_timestamp

from core import console, process
from core.stores.s3_errors import explained

if TYPE_CHECKING:
    from botocore.credentials import Credentials
    from botocore.session import Session
    from types_boto3_s3 import S3Client

# The beginnings of the variables that botocore reads besides its own files.
_SETTINGS = ("AWS_", "BOTO", "HOME", "USERPROFILE", "HTTP", "http", "NO_PROXY", "no_proxy", "ALL_PROXY")

# botocore waits 0.05 s, 0.1 s, … and at most 20 s (where it is told to slow down, from 1 s on), and a random
# share of that: together half a minute on average.
ATTEMPTS = 12
# To a server that was never reached, whose address is probably wrong: 1.6 s on average, which also serves one
# that is just starting.
FIRST_ATTEMPTS = 7
PARTS_IN_MEMORY = 12
# What servers' logs name the client by.
_USER_AGENT = f"rocm-wheels botocore/{botocore_version}"


@dataclass(frozen=True, kw_only=True, eq=False)
class Connection:
    """A client of one S3 service; any thread may use it.

    `part_slots` bounds what uploads have in memory at a time. `buckets` are known to exist, and of
    `warned_buckets` it was said that conditions may be ignored there.
    """

    client: S3Client
    signed: bool = True
    identity: str | None = None
    part_slots: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(PARTS_IN_MEMORY))
    buckets: set[str] = field(default_factory=set)
    warned_buckets: set[str] = field(default_factory=set)
    lock: Lock = field(default_factory=Lock)

    @property
    def endpoint(self) -> str:
        """The service's address."""
        return self.client.meta.endpoint_url

    @property
    def is_amazon(self) -> bool:
        """Whether this is Amazon's own service, whose behaviour is known."""
        return (urlsplit(self.endpoint).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def warn_of_conditions(self, bucket: str) -> None:
        """Say once a bucket and process that conditions of writes may be ignored there."""
        with self.lock:
            is_new = bucket not in self.warned_buckets
            self.warned_buckets.add(bucket)
        if is_new:
            console.say(
                f"{self.endpoint} may ignore conditions of writes. The writers of this machine take turns; "
                f"let no other machine write the same keys of s3://{bucket}."
            )


class FirstContact:
    """Ends the attempts to reach a server early until a client has reached it once."""

    def __init__(self) -> None:
        self.reached = False

    def end_attempts(
        self,
        *,
        attempts: int,
        caught_exception: Exception | None,
        **_event: object,
    ) -> bool | None:
        """Return False, which ends them, or None, and botocore decides; any thread may ask."""
        if not isinstance(caught_exception, EndpointConnectionError):
            self.reached = True
        if self.reached or attempts < FIRST_ATTEMPTS:
            return None
        return False


def shared_connection() -> Connection:
    """Connect by the usual settings, once for the same ones."""
    variables = process.inherited()
    settings = tuple(sorted((name, variables[name]) for name in variables if name.startswith(_SETTINGS)))
    return _connection_for(settings)


@lru_cache(maxsize=32)
def _connection_for(_settings: tuple[tuple[str, str], ...]) -> Connection:
    return connect()


def connect(*, endpoint: str | None = None) -> Connection:
    """Make a client of its own."""
    with explained("the AWS settings"):
        session = get_session()
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=read_time)
        credentials = session.get_credentials()
        config = Config(
            # Without credentials, public buckets can be read.
            signature_version=UNSIGNED if credentials is None else None,
            max_pool_connections=64,
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            connect_timeout=10,
            read_timeout=60,
            tcp_keepalive=True,
            # botocore would compose its own name twice a request, which takes a tenth of a small write.
            user_agent=_USER_AGENT,
            # Digests are SHA-256 and ours. Other checksums fail at servers that answer for part of an object.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            # The signature covers the header with the SHA-256, so that nothing is hashed twice.
            s3={"payload_signing_enabled": False},
        )
        client: Any = session.create_client("s3", endpoint_url=endpoint, config=config)

    # Before botocore's own handler: the first answer that is not None counts.
    client.meta.events.register_first("needs-retry.s3", FirstContact().end_attempts)

    # Bytes are sent as they are, in one write and without waiting for "100 Continue".
    for operation in ("PutObject", "UploadPart"):
        client.meta.events.unregister(
            f"before-parameter-build.s3.{operation}",
            convert_body_to_file_like_object,
        )
    return Connection(
        client=client,
        signed=credentials is not None,
        identity=_describe_identity(session, credentials),
    )


def read_time(text: str) -> datetime:
    """Return the time of an answer: that of a listing as Python reads it, any other as botocore does.

    botocore reads one in a quarter of a millisecond, and a listing has one for each object.
    """
    with suppress(ValueError):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return moment
    return parse_timestamp(text)


def _describe_identity(session: Session, credentials: Credentials | None) -> str | None:
    """Return whose credentials these are, for messages: the end of the access key, never the secret."""
    if credentials is None:
        return None
    access_key = ""
    # If they cannot be loaded, the first request says why.
    with suppress(BotoCoreError):
        access_key = credentials.get_frozen_credentials().access_key or ""
    profile = "" if session.profile in {None, "default"} else f", profile {session.profile}"
    return f"access key …{access_key[-4:]} from {credentials.method}{profile}"
