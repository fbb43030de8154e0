"""Clients of S3 by the usual AWS settings: what they connect to, repeat, and say where S3 refuses."""

from __future__ import annotations

import getpass
import json
import os
import pkgutil
import queue
import random
import re
import shutil
import tempfile
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from botocore import UNSIGNED
from botocore import exceptions as boto
from botocore.awsrequest import AWSResponse, create_request_object
from botocore.compat import HTTPHeaders
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.handlers import convert_body_to_file_like_object
from botocore.parsers import ResponseParserError
from botocore.session import get_session
from urllib3.exceptions import HTTPError
from urllib3.util.connection import is_connection_dropped

from core import files, process
from core.errors import FatalError, ServiceError, StoreError
from core.stores import absent_error

if TYPE_CHECKING:
    from types_boto3_s3 import S3Client

# what botocore reads besides its own files
_SETTINGS = ("AWS_", "BOTO", "HOME", "USERPROFILE", "HTTP", "http", "NO_PROXY", "no_proxy", "ALL_PROXY")

ATTEMPTS = 8
_ATTEMPTS_TO_CONNECT = 4  # a wrong address should not keep the user waiting
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 20.0
_BROKEN = (boto.ConnectionError, boto.HTTPClientError, boto.IncompleteReadError)
_UNREACHABLE = (boto.EndpointConnectionError, boto.ConnectTimeoutError)
_NEVER = (boto.SSLError, boto.ProxyConnectionError)
_TOO_MANY, _NOT_IMPLEMENTED, _SERVER_FAILS = 429, 501, 500
# the bytes changed on their way
_CHANGED = frozenset({"BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch"})
_BUSY = _CHANGED.union(
    ("SlowDown", "Throttling", "ThrottlingException", "RequestThrottled", "RequestLimitExceeded"),
    ("BandwidthLimitExceeded", "PriorRequestNotComplete", "OperationAborted"),
    ("RequestTimeout", "RequestTimeoutException"),
)

ABSENT = frozenset({"404", "NoSuchKey", "NotFound"})
# a conditional write that did not happen, because the condition did not hold
LOST = frozenset({"412", "PreconditionFailed", "409", "ConditionalRequestConflict"})
_AGAIN = "Run the same command again; what is done stays done."
_REACH = "Check AWS_ENDPOINT_URL_S3 and the network, then run the same command again."
_LOGIN = "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run 'aws sso login'."


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Which conditional writes a service supports: Amazon's all, others ignore them, or refuse right ones.

    Where they hold, S3 itself lets one of several racing writers win. Where they do not, a writer
    compares before and verifies after its write, and the writers of one machine take turns. That is less:
    of writers on different machines, one whose object was overwritten before it verified learns it, and
    one whose object was overwritten later does not.
    """

    if_none_match: bool = False
    if_match: bool = False
    completion: bool = False

    def hold(self, etag: str, *, whole: bool) -> bool:
        """Return whether it checks a write over that ETag ("" for over nothing), in one PUT or in parts."""
        return (self.if_match if etag else self.if_none_match) and (whole or self.completion)


AMAZON = Conditions(if_none_match=True, if_match=True, completion=True)
# the name of the small objects that find it out; listings leave them out
PROBE = "conditional-write-probe-"
_NOTE = "begun.json"
_UNKNOWN = frozenset({"NotImplemented", "501", "InvalidArgument", "InvalidRequest"})


@dataclass(frozen=True, kw_only=True, eq=False)
class Connection:
    """A client of one S3 service; any thread may use it."""

    client: S3Client
    signed: bool = True
    identity: str = ""
    parts: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(12))  # in memory
    conditions: dict[str, Conditions] = field(default_factory=dict)
    folder_pages: dict[str, bool] = field(default_factory=dict)
    buckets: set[str] = field(default_factory=set)
    lock: Lock = field(default_factory=Lock)

    @property
    def endpoint(self) -> str:
        """The service's address."""
        return self.client.meta.endpoint_url

    @property
    def is_amazon(self) -> bool:
        """Whether this is Amazon's own service, whose behaviour is known."""
        return (urlsplit(self.endpoint).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))


def moment(value: str | float) -> datetime:
    """Read a time as S3 writes it: in listings ISO 8601, in headers HTTP's form, rarely a number.

    botocore's own parser, which knows every form there is, takes most of the time of a long listing.
    """
    if isinstance(value, str) and value[:1].isdigit() and "-" in value:
        return datetime.fromisoformat(value)
    if isinstance(value, str) and value[:1].isalpha():
        return parsedate_to_datetime(value)
    return datetime.fromtimestamp(float(value), UTC)


def shared_connection() -> Connection:
    """Connect by the usual settings, once for the same ones."""
    return _connected(
        tuple(sorted(one for one in process.inherited().items() if one[0].startswith(_SETTINGS)))
    )


@lru_cache(maxsize=32)
def _connected(_settings: tuple[tuple[str, str], ...]) -> Connection:
    connection = connect()
    files.sweep(_machine_folder(connection.endpoint), partial(_take_away, connection))
    return connection


@contextmanager
def noted(connection: Connection, **begun: object) -> Iterator[None]:
    """Note what this process, killed, would leave at a service: an upload in parts, else an object.

    The next one of this machine takes it away.
    """
    with files.workspace(_machine_folder(connection.endpoint)) as folder:
        files.write_json(folder / _NOTE, begun)
        yield


def _take_away(connection: Connection, folder: Path) -> None:
    begun = json.loads((folder / _NOTE).read_bytes()) if (folder / _NOTE).exists() else {}
    try:
        if "UploadId" in begun:
            connection.client.abort_multipart_upload(**begun)
        elif PROBE in begun.get("Key", ""):
            connection.client.delete_object(**begun)
    except (ClientError, BotoCoreError) as problem:
        code = code_of(problem) if isinstance(problem, ClientError) else ""
        if code not in {*ABSENT, "NoSuchUpload", "NoSuchBucket"}:
            raise OSError(code) from problem  # perhaps the next process has other credentials
    shutil.rmtree(folder)


def connect(*, endpoint: str | None = None) -> Connection:
    """Make a client of its own."""
    with explained("the AWS settings"):
        session = get_session()
        session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=moment)
        credentials = session.get_credentials()
        config = Config(
            signature_version=None if credentials else UNSIGNED,
            max_pool_connections=64,
            retries={"mode": "standard", "total_max_attempts": 1},  # `delay` decides
            connect_timeout=10,
            read_timeout=60,
            tcp_keepalive=True,
            # digests are SHA-256 and ours; other checksums fail at servers that answer for part of an object
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            # the signature covers the SHA-256 header: nothing is hashed twice
            s3={"payload_signing_enabled": False},
            user_agent=session.user_agent(),  # the usual one is made anew for every request
        )
        client: Any = session.create_client("s3", endpoint_url=endpoint, config=config)
    events, http = client.meta.events, client._endpoint.http_session  # noqa: SLF001 - nothing else has what is open
    events.register("needs-retry.s3", delay)
    for name in ("PutObject", "UploadPart"):  # bytes would go as a stream, in thousands of little writes
        events.unregister(f"before-parameter-build.s3.{name}", convert_body_to_file_like_object)
    if credentials is not None and not http._proxy_config.proxy_url_for(client.meta.endpoint_url):  # noqa: SLF001
        events.register("before-call.s3.PutObject", partial(_put_at_once, http))
    identity = ""
    if credentials is not None:
        key = ""
        with suppress(BotoCoreError):  # the first request says what is wrong with them
            key = credentials.get_frozen_credentials().access_key or ""
        profile = f", profile {session.profile}" if session.profile not in {None, "default"} else ""
        identity = f"access key …{key[-4:]} from {credentials.method}{profile}"
    return Connection(client=client, signed=credentials is not None, identity=identity)


def _put_at_once(http: Any, params: dict[str, Any], request_signer: Any, **_event: object) -> Any:  # noqa: ANN401 - botocore's
    """Put an object in one write over a connection that botocore has open; None leaves it to botocore.

    So does every answer but the usual one: botocore asks again, and knows what else may come. Its own way
    takes twice as long.
    """
    request, url, answer, connection = create_request_object(params), params["url"], None, None
    request_signer.sign("PutObject", request)
    scheme, _, host, path = url.split("/", 3)
    lines = [f"PUT /{path} HTTP/1.1", f"Host: {host.removesuffix(':80' if scheme == 'http:' else ':443')}"]
    lines += (f"{name}: {one}" for name, one in request.prepare().headers.items() if name != "Expect")
    pool = http._manager.connection_from_url(url)  # noqa: SLF001
    try:
        with suppress(queue.Empty, OSError, ValueError):
            connection = pool.pool.get_nowait()
            if connection is not None and not is_connection_dropped(connection):
                connection.sock.sendall("\r\n".join((*lines, "", "")).encode() + params["body"])
                said = connection.sock.recv(1 << 16).decode("latin-1")
                fields = HTTPHeaders.from_pairs(line.split(": ", 1) for line in said.split("\r\n")[1:-2])
                if (said[:13], said[-4:], fields["Content-Length"]) == ("HTTP/1.1 200 ", "\r\n\r\n", "0"):
                    answer = AWSResponse(url, 200, fields, None), {"ETag": fields["ETag"]}
    finally:
        if connection is not None and answer is None:
            connection.close()
        pool._put_conn(connection)  # noqa: SLF001
    return answer


def known_conditions(connection: Connection, bucket: str) -> Conditions | None:
    """Return what a service supports as far as that is known without a request."""
    return AMAZON if connection.is_amazon else connection.conditions.get(bucket)


def conditions_of(connection: Connection, bucket: str, folder: str) -> Conditions:
    """Find out what a service supports; one that is not Amazon's is tried, once a bucket and process."""
    with connection.lock:
        known = known_conditions(connection, bucket)
        if known is None:
            place = {"Bucket": bucket, "Key": f"{folder}{PROBE}{uuid.uuid4().hex}"}
            with noted(connection, **place):
                known = connection.conditions[bucket] = _try_conditions(connection.client, place)
    return known


def _try_conditions(client: S3Client, place: dict[str, Any]) -> Conditions:
    def writes(**condition: str) -> bool:
        try:
            client.put_object(**place, Body=b"1", **condition)  # type: ignore[arg-type]
        except ClientError as problem:
            if code_of(problem) in LOST:
                return False
            raise
        return True

    first = client.put_object(**place, Body=b"1")
    try:
        if_none_match = not writes(IfNoneMatch="*")
        # one that refuses what holds, too, is as useless as one that does not look
        if_match = not writes(IfMatch='"0"') and writes(IfMatch=first["ETag"])
    except ClientError as problem:
        if code_of(problem) not in _UNKNOWN:
            raise
        return Conditions()
    finally:
        _remove(client, place)
    return Conditions(if_none_match=if_none_match, if_match=if_match)


def keeps_folders(connection: Connection, bucket: str, folder: str) -> bool:
    """Return whether a service keeps objects under keys that end with a slash, as Amazon's does."""
    if connection.is_amazon:
        return True
    with connection.lock:
        if bucket not in connection.folder_pages:
            place = {"Bucket": bucket, "Key": f"{folder}{PROBE}{uuid.uuid4().hex}/"}
            with noted(connection, **place):
                connection.folder_pages[bucket] = _try_folder(connection.client, place)
    return connection.folder_pages[bucket]


def _try_folder(client: S3Client, place: dict[str, Any]) -> bool:
    """Try an object of a folder's name: where files stand for objects, it is found without its slash."""
    file = {**place, "Key": place["Key"].rstrip("/")}
    try:
        client.put_object(**place, Body=b"1")
        if client.head_object(**place)["ContentLength"] != 1:
            return False
        client.head_object(**file)
    except ClientError as problem:
        return code_of(problem) in ABSENT
    else:
        return False
    finally:
        _remove(client, place)
        _remove(client, file)


def _remove(client: S3Client, place: dict[str, Any]) -> None:
    with suppress(ClientError, BotoCoreError):
        client.delete_object(**place)


def machine_lock(what: str) -> AbstractContextManager[None]:
    """Let the writers of one object take turns, those of this user on this machine."""
    return files.locked(_machine_folder() / f"{files.sha256_text(what)[:32]}.lock", what=what)


def _machine_folder(endpoint: str = "") -> Path:
    user = getattr(os, "getuid", getpass.getuser)
    folder = Path(tempfile.gettempdir()) / f"s3-writes-{user()}"
    return folder / files.sha256_text(endpoint)[:16] if endpoint else folder


def delay(
    attempts: int,
    response: tuple[object, Mapping[str, Any]] | None = None,
    caught_exception: Exception | None = None,
    *,
    share: float | None = None,
    **_other: object,
) -> float | None:
    """Return the seconds before a request is repeated; None if it is not.

    botocore's own modes stop repeating when too many requests of a client failed; an upload of a run has to
    survive a bad hour, so the only limit here is that of each request.
    """
    problem, answer = caught_exception, response[1] if response else {}
    if problem is not None:
        passes = isinstance(problem, _BROKEN) and not isinstance(problem, _NEVER)
    else:
        status, code = _status(answer), answer.get("Error", {}).get("Code", "")
        failing = status >= _SERVER_FAILS and status != _NOT_IMPLEMENTED
        passes = failing or status == _TOO_MANY or code in _BUSY
    limit = _ATTEMPTS_TO_CONNECT if isinstance(problem, _UNREACHABLE) else ATTEMPTS
    if attempts >= limit or not passes:
        return None
    share = random.random() if share is None else share  # noqa: S311 - spreads clients
    return share * min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0 ** (attempts - 1))


def code_of(problem: ClientError) -> str:
    """Return the code of S3's answer, such as ``NoSuchKey``; a number where the answer had no body."""
    return str(problem.response.get("Error", {}).get("Code", ""))


def _status(answer: Mapping[str, Any]) -> int:
    return int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def no_credentials(url: str) -> StoreError:
    """Return the error of a write without credentials."""
    return StoreError(f"Writing to {url} needs AWS credentials, and there are none.", hint=_LOGIN)


@contextmanager
def explained(url: str, *, key: str = "", identity: str = "") -> Iterator[None]:
    """Turn what botocore raises within into our errors, which name store, object and identity if known."""
    where = f"{url}/{key}" if key else url
    try:
        yield
    except ClientError as problem:
        raise _answered(problem, url, key, identity) from problem
    except BotoCoreError as problem:
        raise _unanswered(problem, url, where) from problem
    except (HTTPError, ResponseParserError) as problem:
        raise ServiceError(f"{where}: the answer broke off.", hint=_AGAIN) from problem


def _answered(problem: ClientError, url: str, key: str, identity: str) -> FatalError:
    error: Mapping[str, Any] = problem.response.get("Error", {})
    code, status, said = code_of(problem), _status(problem.response), str(error.get("Message") or "")
    where, bucket = f"{url}/{key}" if key else url, url.removeprefix("s3://").partition("/")[0]
    if code in ABSENT:
        return absent_error(key, url)
    data = tomllib.loads((pkgutil.get_data(__name__, "s3_refusals.toml") or b"").decode())
    for one in data["refusals"]:
        if code in one["codes"]:
            whose = f" ({identity})" if identity else ""
            return StoreError(one["words"].format(where=where, bucket=bucket, whose=whose), hint=one["hint"])
    if code in data["denied"]:
        found = re.search(r"not authorized to perform: (s3:\w+)", said)
        permission = found[1] if found else data["permissions"].get(problem.operation_name, "s3:PutObject")
        user = re.search(r"User: (arn:\S+)", said)
        who = f" for {user[1] if user else identity}" if user or identity else ", without credentials"
        return StoreError(
            f"{where}: permission {permission} is missing{who}.",
            hint="Ask the bucket's owner for it, or use other credentials (AWS_PROFILE, a role of the job).",
        )
    if code in data["elsewhere"]:
        headers = problem.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        region = headers.get("x-amz-bucket-region") or error.get("Region")
        hint = f"Set AWS_REGION={region}." if region else "Set AWS_REGION to the bucket's region."
        return StoreError(f"The bucket {bucket!r} is in another region ({where}).", hint=hint)
    if status >= _SERVER_FAILS or code in _BUSY:
        return ServiceError(f"{where}: the server kept answering {status} {code}.", hint=_AGAIN)
    told = f"{where}: {problem.operation_name} was refused: {code} {said}".rstrip(". ")
    return StoreError(f"{told}.", hint="" if identity else f"No credentials were given. {_LOGIN}")


def _unanswered(problem: BotoCoreError, url: str, where: str) -> FatalError:  # noqa: PLR0911 - a table
    words = " ".join(str(problem).split())
    match problem:
        case boto.NoCredentialsError():
            return no_credentials(url)
        case boto.ProfileNotFound():
            return StoreError(f"{words}.".replace("..", "."), hint="Check AWS_PROFILE and ~/.aws/config.")
        case boto.PartialCredentialsError() | boto.CredentialRetrievalError() | boto.TokenRetrievalError():
            return StoreError(f"{where}: could not load the AWS credentials: {words}", hint=_LOGIN)
        case boto.SSOError() | boto.UnauthorizedSSOTokenError():
            return StoreError(f"{where}: the AWS login has expired.", hint="Run 'aws sso login'.")
        case boto.SSLError() | boto.ProxyConnectionError() | boto.EndpointConnectionError():
            return ServiceError(f"{where} cannot be reached: {words}", hint=_REACH)
        case boto.ConnectionError() | boto.HTTPClientError():
            return ServiceError(f"{where}: the connection broke: {words}", hint=_REACH)
    return StoreError(f"{where}: {words}", hint="Check --store and AWS_REGION.")
