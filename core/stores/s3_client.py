"""Clients of S3 by the usual AWS settings: endpoint, profile, region, credentials, or none at all."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from core.stores import s3_retries
from core.stores.s3_errors import explained
from core.stores.s3_wire import wire_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from types_boto3_s3 import S3Client

    from core.stores.s3_wire import Wire

CONNECTIONS = 64
# parts that are in memory at once, over all uploads of a process
PARTS = 12
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
# what botocore reads besides its own files
_SETTINGS = ("AWS_", "BOTO", "HOME", "USERPROFILE", "HTTP", "http", "NO_PROXY", "no_proxy", "ALL_PROXY")


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a service holds to."""

    if_none_match: bool
    if_match: bool
    completion: bool

    def hold(self, etag: str, *, whole: bool) -> bool:
        """Say whether a write over that ETag ("" for over nothing), in one PUT or not, can be left to it."""
        return (self.if_match if etag else self.if_none_match) and (whole or self.completion)


AMAZON = Conditions(if_none_match=True, if_match=True, completion=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Connection:
    """A client of one S3 service; any thread may use it."""

    client: S3Client
    signed: bool = True
    identity: str = ""
    parts: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(PARTS))
    wire: Wire | None = None
    conditional: dict[str, Conditions] = field(default_factory=dict)
    folders: dict[str, bool] = field(default_factory=dict)
    buckets: set[str] = field(default_factory=set)
    lock: Lock = field(default_factory=Lock)

    @property
    def endpoint(self) -> str:
        """The service's address."""
        return self.client.meta.endpoint_url

    @property
    def is_amazon(self) -> bool:
        """Whether this is Amazon's own service, whose behaviour is known."""
        return is_amazon(self.endpoint)

    def head(self, place: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask for an object's headers: ``head_object``."""
        found = self.wire.head(place) if self.wire else None
        return found or self.client.head_object(**place, ChecksumMode="ENABLED")

    def put(self, place: Mapping[str, Any], said: Mapping[str, Any], data: bytes, sha256: str) -> None:
        """Upload an object: ``put_object``, with its SHA-256 as S3's headers write it."""
        if self.wire is None or not self.wire.put(place, said, data, sha256):
            checksum: dict[str, Any] = {"ChecksumAlgorithm": "SHA256", "ChecksumSHA256": sha256}
            self.client.put_object(**place, **said, **checksum, Body=data)

    def copy(self, place: Mapping[str, Any], said: Mapping[str, Any]) -> str:
        """Copy an object on the server: ``copy_object``, for the copy's ETag."""
        etag = self.wire.copy(place, said) if self.wire else None
        if etag is None:
            etag = self.client.copy_object(**place, **said)["CopyObjectResult"].get("ETag", "")
        return etag.strip('"')


def is_amazon(endpoint: str) -> bool:
    """Tell Amazon's own service from one that speaks like it."""
    return (urlsplit(endpoint).hostname or "").endswith(_AMAZON)


def moment(value: str | float) -> datetime:
    """Read a time as S3 writes it: in listings ISO 8601, in headers HTTP's form, rarely a number.

    botocore's own reader, which knows every form there is, takes most of the time of a long listing.
    """
    if isinstance(value, str) and value[:1].isdigit() and "-" in value:
        return datetime.fromisoformat(value)
    if isinstance(value, str) and value[:1].isalpha():
        return parsedate_to_datetime(value)
    return datetime.fromtimestamp(float(value), UTC)


def is_number(endpoint: str) -> bool:
    """Say whether a host is given by its number."""
    try:
        ipaddress.ip_address(urlsplit(endpoint).hostname or "")
    except ValueError:
        return False
    return True


def connection_for(environment: Mapping[str, str]) -> Connection:
    """Connect by the usual settings, once for the same ones.

    Args:
        environment: This process's variables (``AWS_PROFILE``, ``AWS_ENDPOINT_URL_S3``, …), which
            botocore reads, too: they say whether a connection that was made still fits.

    Raises:
        StoreError: A profile is not there, or a setting cannot be meant.
    """
    return _connected(
        tuple(sorted(one for one in environment.items() if one[0].startswith(_SETTINGS))),
    )


@lru_cache(maxsize=32)
def _connected(_settings: tuple[tuple[str, str], ...]) -> Connection:
    return connect()


def connect(*, endpoint: str | None = None) -> Connection:
    """Make a client of its own."""
    with explained("the AWS settings"):
        session = boto3.session.Session()
        core = session._session  # noqa: SLF001 - boto3 shows no other way to what botocore knows
        core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=moment)
        credentials = session.get_credentials()
        settings = Config(
            signature_version=None if credentials else UNSIGNED,
            max_pool_connections=CONNECTIONS,
            # s3_retries decides
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=10,
            read_timeout=60,
            tcp_keepalive=True,
            # digests are SHA-256 and ours; other checksums fail at servers that answer for part of an object
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            # the signature covers the SHA-256 header: nothing is hashed twice
            s3={"payload_signing_enabled": False},
        )
        client: S3Client = session.client("s3", endpoint_url=endpoint, config=settings)
        address = client.meta.endpoint_url
        style = (core.get_scoped_config().get("s3") or {}).get("addressing_style")
        by_path = style == "path" or (style is None and not is_amazon(address))
        # a bucket cannot be a part of a number's name: botocore knows that much
        if by_path and style is None and not is_number(address):
            named = Config(s3={"payload_signing_enabled": False, "addressing_style": "path"})
            client = session.client("s3", endpoint_url=endpoint, config=settings.merge(named))
    s3_retries.register(client)
    identity = ""
    if credentials is not None:
        try:
            key = credentials.get_frozen_credentials().access_key or ""
        except BotoCoreError:
            key = ""  # the first request says what is wrong with them
        profile = f", profile {session.profile_name}" if session.profile_name != "default" else ""
        identity = f"access key …{key[-4:]} from {credentials.method}{profile}"
    near = None
    if by_path and not is_amazon(address):
        near = wire_for(address, credentials, client.meta.region_name, connections=CONNECTIONS)
    return Connection(client=client, signed=credentials is not None, identity=identity, wire=near)
