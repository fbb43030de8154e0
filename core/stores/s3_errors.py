"""What S3 and botocore say, as one clear message each: what failed, where, and the next action."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from botocore import exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from core.errors import FatalError, MissingInputError, ServiceError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

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
