"""Clients of S3 by the usual AWS settings: endpoint, profile, region, credentials, or none at all."""

from __future__ import annotations

import ipaddress
import random
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import boto3
from botocore import UNSIGNED
from botocore import exceptions as boto
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from core.errors import FatalError, MissingInputError, ServiceError, StoreError
from core.stores.s3_wire import wire_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

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
    register(client)
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


ATTEMPTS = 8
# nobody is there: an address that is wrong should not keep a person waiting
_ATTEMPTS_TO_CONNECT = 4
_BASE, _LONGEST = 0.1, 20.0

_BROKEN = (
    boto.ConnectionError,
    boto.HTTPClientError,
    boto.IncompleteReadError,
)
_NOBODY = (boto.EndpointConnectionError, boto.ConnectTimeoutError)
_NEVER = (boto.SSLError, boto.ProxyConnectionError)
_BUSY = frozenset(
    {
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "RequestThrottled",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
        "PriorRequestNotComplete",
        "RequestTimeout",
        "RequestTimeoutException",
        "OperationAborted",
        # the bytes changed on their way
        "BadDigest",
        "IncompleteBody",
        "XAmzContentSHA256Mismatch",
    }
)
_TOO_MANY, _NOT_IMPLEMENTED, _FAILING = 429, 501, 500


def register(client: S3Client) -> None:
    """Let a client ask here whether a request is made again."""
    # botocore takes what handlers return, whatever its stubs say
    client.meta.events.register("needs-retry.s3", _handle)  # type: ignore[arg-type]


def _handle(
    attempts: int,
    response: tuple[object, Mapping[str, Any]] | None = None,
    caught_exception: Exception | None = None,
    **_other: object,
) -> float | None:
    answer = response[1] if response else {}
    return delay(attempts, answer, caught_exception, share=random.random())  # noqa: S311 - spreads clients


def delay(
    attempts: int, answer: Mapping[str, Any], problem: Exception | None, *, share: float
) -> float | None:
    """Choose when a request is made again."""
    limit = _ATTEMPTS_TO_CONNECT if isinstance(problem, _NOBODY) else ATTEMPTS
    if attempts >= limit or not _passes(answer, problem):
        return None
    return share * min(_LONGEST, _BASE * 2.0**attempts)


def _passes(answer: Mapping[str, Any], problem: Exception | None) -> bool:
    if problem is not None:
        return isinstance(problem, _BROKEN) and not isinstance(problem, _NEVER)
    status: int = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code: str = answer.get("Error", {}).get("Code", "")
    failing = status >= _FAILING and status != _NOT_IMPLEMENTED
    return failing or status == _TOO_MANY or code in _BUSY


ABSENT = frozenset({"404", "NoSuchKey", "NotFound"})
# a conditional write that did not happen, because the condition did not hold
LOST = frozenset({"412", "PreconditionFailed", "409", "ConditionalRequestConflict"})

_DENIED = frozenset({"403", "AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden"})
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
_WRONG = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity"})
_ELSEWHERE = frozenset(
    {
        "301",
        "PermanentRedirect",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
        "IncorrectEndpoint",
    }
)
_CHANGED = frozenset({"BadDigest", "XAmzContentSHA256Mismatch", "InvalidDigest", "IncompleteBody"})
_SERVER_FAILS = 500
_PERMISSIONS = {
    "HeadBucket": "s3:ListBucket",
    "ListObjectsV2": "s3:ListBucket",
    "HeadObject": "s3:GetObject (and s3:ListBucket, to be told what is not there)",
    "GetObject": "s3:GetObject",
    "DeleteObject": "s3:DeleteObject",
    "CopyObject": "s3:PutObject (and s3:GetObject on what is copied)",
    "UploadPartCopy": "s3:PutObject (and s3:GetObject on what is copied)",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
}
_LOGIN = "Give them by AWS_PROFILE, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or 'aws sso login'."


def code_of(problem: ClientError) -> str:
    """Give the code of S3's answer, such as ``NoSuchKey``; a number where the answer had no body."""
    return str(problem.response.get("Error", {}).get("Code", ""))


def status_of(problem: ClientError) -> int:
    """Give the HTTP status of S3's answer."""
    return int(problem.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def missing(key: str, url: str) -> MissingInputError:
    """Write the error of an object that is not there."""
    return MissingInputError(f"{key} is not in the store {url}.")


def no_credentials(url: str) -> StoreError:
    """Write the error of a write without credentials."""
    return StoreError(f"Writing to {url} needs AWS credentials, and there are none.", hint=_LOGIN)


@contextmanager
def explained(url: str, *, key: str = "", identity: str = "") -> Iterator[None]:
    """Turn what botocore raises within into our errors.

    Args:
        url: The store, for people.
        key: The object, if it is one.
        identity: Whose credentials are used, if that is known.

    Raises:
        MissingInputError: There is no such object.
        StoreError: The store refused: permission, credentials, bucket, region, request.
        ServiceError: It could not be reached, or went on failing.
    """
    try:
        yield
    except ClientError as problem:
        raise _answered(problem, url, key, identity) from problem
    except BotoCoreError as problem:
        raise _unanswered(problem, url, key) from problem
    except (HTTPError, ResponseParserError) as problem:
        raise ServiceError(f"{_at(url, key)}: the answer broke off.", hint=_AGAIN) from problem


_AGAIN = "Run the same command again; what is done stays done."


def _at(url: str, key: str) -> str:
    return f"{url}/{key}" if key else url


def _answered(problem: ClientError, url: str, key: str, identity: str) -> FatalError:  # noqa: PLR0911 - a table
    code, status = code_of(problem), status_of(problem)
    said = str(problem.response.get("Error", {}).get("Message") or "")
    where, bucket = _at(url, key), url.removeprefix("s3://").partition("/")[0]
    if code == "NoSuchBucket":
        return StoreError(
            f"There is no bucket {bucket!r} ({where}).",
            hint="Check --store and AWS_ENDPOINT_URL_S3, or make the bucket.",
        )
    if code in ABSENT:
        return missing(key, url)
    refused = _credentials(code, where, identity)
    if refused is not None:
        return refused
    if code in _DENIED:
        return _denied(problem.operation_name, said, where, identity)
    if code in _ELSEWHERE:
        return _elsewhere(problem, bucket, where)
    if code in _CHANGED:
        return StoreError(f"{where}: the bytes that arrived were not those that were sent.", hint=_AGAIN)
    if status >= _SERVER_FAILS or code in {"SlowDown", "RequestTimeout", "Throttling"}:
        return ServiceError(f"{where}: the server went on answering {status} {code}.", hint=_AGAIN)
    return StoreError(f"{where}: {problem.operation_name} was refused: {code} {said}".rstrip(". ") + ".")


def _credentials(code: str, where: str, identity: str) -> StoreError | None:
    whose = f" ({identity})" if identity else ""
    if code in _EXPIRED:
        return StoreError(
            f"{where}: the AWS credentials have expired{whose}.", hint="Get new ones. " + _LOGIN
        )
    if code in _WRONG:
        wrong = "their secret is wrong" if code == "SignatureDoesNotMatch" else "they are not known there"
        return StoreError(f"{where}: the AWS credentials were refused{whose}: {wrong}.", hint=_LOGIN)
    if code == "RequestTimeTooSkewed":
        return StoreError(f"{where}: this machine's clock is wrong.", hint="Set the clock.")
    return None


def _denied(operation: str, said: str, where: str, identity: str) -> StoreError:
    found = re.search(r"not authorized to perform: (s3:\w+)", said)
    permission = found[1] if found else _PERMISSIONS.get(operation, "s3:PutObject")
    user = re.search(r"User: (arn:\S+)", said)
    who = user[1] if user else identity
    return StoreError(
        f"{where}: permission {permission} is missing"
        + (f" for {who}." if who else ", without credentials."),
        hint="Ask the bucket's owner for it, or use other credentials (AWS_PROFILE, a role of the job).",
    )


def _elsewhere(problem: ClientError, bucket: str, where: str) -> StoreError:
    headers = problem.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    error: dict[str, object] = {**problem.response.get("Error", {})}
    region = headers.get("x-amz-bucket-region") or error.get("Region") or ""
    hint = f"Set AWS_REGION={region}." if region else "Set AWS_REGION to the bucket's region."
    return StoreError(f"The bucket {bucket!r} is in another region ({where}).", hint=hint)


def _unanswered(problem: BotoCoreError, url: str, key: str) -> FatalError:  # noqa: PLR0911 - a table
    where = _at(url, key)
    match problem:
        case boto.NoCredentialsError():
            return no_credentials(url)
        case boto.ProfileNotFound():
            return StoreError(f"{problem}.".replace("..", "."), hint="Check AWS_PROFILE and ~/.aws/config.")
        case boto.PartialCredentialsError() | boto.CredentialRetrievalError() | boto.TokenRetrievalError():
            return StoreError(f"{where}: the AWS credentials cannot be had: {problem}", hint=_LOGIN)
        case boto.SSOError() | boto.UnauthorizedSSOTokenError():
            return StoreError(f"{where}: the AWS login has expired.", hint="Run 'aws sso login'.")
        case boto.ParamValidationError() | boto.NoRegionError() | boto.UnknownRegionError():
            return StoreError(
                f"{where}: {' '.join(str(problem).split())}", hint="Check --store and AWS_REGION."
            )
        case boto.SSLError() | boto.ProxyConnectionError() | boto.EndpointConnectionError():
            return ServiceError(f"{where} cannot be reached: {problem}", hint=_REACH)
        case boto.ConnectTimeoutError() | boto.ConnectionError() | boto.HTTPClientError():
            return ServiceError(f"{where}: the connection broke: {problem}", hint=_REACH)
        case _:
            return StoreError(f"{where}: {' '.join(str(problem).split())}")


_REACH = "Check AWS_ENDPOINT_URL_S3 and the network, then run the same command again."
