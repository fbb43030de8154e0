"""What S3 and botocore report, as our errors: they name store, object and identity, and the next action."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from botocore import exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError

from core.errors import FatalError, ServiceError, StoreError
from core.stores import absent_error

ABSENT = frozenset({"404", "NoSuchKey", "NotFound"})
# The condition of a write does not hold, or S3 is busy with another conditional write of the key.
REFUSED_CONDITIONS = frozenset({"412", "PreconditionFailed", "409", "ConditionalRequestConflict"})

_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = 500
_NOT_IMPLEMENTED = 501
_LOGIN = "Set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run 'aws sso login'."
_RUN_AGAIN = "Run the same command again; what is done stays done."
_CHECK_NETWORK = "Check AWS_ENDPOINT_URL_S3 and the network, then run the same command again."


class Explanation(NamedTuple):
    """What the codes of a refusal mean, and what to do; `{…}` are filled in."""

    codes: frozenset[str]
    message: str
    hint: str


_EXPLANATIONS = (
    Explanation(
        frozenset({"NoSuchBucket"}),
        "There is no bucket {bucket!r} ({address}).",
        "Check --store and AWS_ENDPOINT_URL_S3, or create the bucket.",
    ),
    Explanation(
        frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}),
        "{address}: the AWS credentials have expired{owner}.",
        f"Get new ones. {_LOGIN}",
    ),
    Explanation(
        frozenset({"InvalidAccessKeyId", "InvalidSecurity", "InvalidToken"}),
        "{address}: the AWS credentials were refused{owner}: unknown access key.",
        _LOGIN,
    ),
    Explanation(
        frozenset({"SignatureDoesNotMatch"}),
        "{address}: the AWS credentials were refused{owner}: their secret is wrong.",
        _LOGIN,
    ),
    Explanation(
        frozenset({"RequestTimeTooSkewed"}),
        "{address}: this machine's clock is wrong.",
        "Set the clock.",
    ),
    Explanation(
        frozenset({"BadDigest", "IncompleteBody", "InvalidDigest", "XAmzContentSHA256Mismatch"}),
        "{address}: the bytes were damaged on their way to the server.",
        _RUN_AGAIN,
    ),
)
_DENIALS = frozenset({"403", "AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden"})
_OTHER_REGION = frozenset(
    {
        "301",
        "PermanentRedirect",
        "IncorrectEndpoint",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
    }
)
_BUSY = frozenset({"SlowDown", "Throttling", "RequestLimitExceeded", "OperationAborted", "RequestTimeout"})

# What each operation needs; others need s3:PutObject.
_PERMISSIONS = {
    "HeadBucket": "s3:ListBucket",
    "ListObjectsV2": "s3:ListBucket",
    "HeadObject": "s3:GetObject (and s3:ListBucket, to learn what is absent)",
    "GetObject": "s3:GetObject",
    "DeleteObject": "s3:DeleteObject",
    "CopyObject": "s3:PutObject (and s3:GetObject on the source)",
    "UploadPartCopy": "s3:PutObject (and s3:GetObject on the source)",
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
}


def code_of(problem: ClientError) -> str:
    """Return the code of S3's answer, such as ``NoSuchKey``; a number where the answer had no body."""
    return str(problem.response.get("Error", {}).get("Code", ""))


def is_not_implemented(problem: ClientError) -> bool:
    """Return whether a server does not know the operation, or a header of it."""
    return code_of(problem) in {"NotImplemented", "501"} or _status_of(problem) == _NOT_IMPLEMENTED


def no_credentials(url: str) -> StoreError:
    """Return the error of a write without credentials."""
    return StoreError(f"Writing to {url} needs AWS credentials, and there are none.", hint=_LOGIN)


@contextmanager
def explained(url: str, *, key: str | None = None, identity: str | None = None) -> Iterator[None]:
    """Turn what botocore raises within into our errors, which name store, object and identity if known."""
    address = url if key is None else f"{url}/{key}"
    try:
        yield
    except ClientError as problem:
        if key is not None and code_of(problem) in ABSENT:
            raise absent_error(key, url) from problem
        raise _explain_answer(problem, url, address, identity) from problem
    except BotoCoreError as problem:
        raise _explain_failure(problem, url, address) from problem
    except (HTTPError, ResponseParserError) as problem:
        raise ServiceError(f"{address}: the answer broke off.", hint=_RUN_AGAIN) from problem


def _explain_answer(problem: ClientError, url: str, address: str, identity: str | None) -> FatalError:
    code = code_of(problem)
    status = _status_of(problem)
    bucket = url.removeprefix("s3://").partition("/")[0]

    for explanation in _EXPLANATIONS:
        if code in explanation.codes:
            owner = "" if identity is None else f" ({identity})"
            message = explanation.message.format(address=address, bucket=bucket, owner=owner)
            return StoreError(message, hint=explanation.hint)
    if code in _DENIALS:
        return _explain_denial(problem, address, identity)
    if code in _OTHER_REGION:
        return _explain_region(problem, address, bucket)
    if status >= _SERVER_ERRORS or status == _TOO_MANY_REQUESTS or code in _BUSY:
        return ServiceError(f"{address}: the server kept answering {status} {code}.", hint=_RUN_AGAIN)

    message = f"{address}: {problem.operation_name} was refused: {code} {_message_of(problem)}".rstrip(". ")
    return StoreError(f"{message}.", hint=f"No credentials were given. {_LOGIN}" if identity is None else "")


def _explain_denial(problem: ClientError, address: str, identity: str | None) -> StoreError:
    """Name the permission that is missing and who needs it, by Amazon's words where it says them."""
    message = _message_of(problem)
    permission = _PERMISSIONS.get(problem.operation_name, "s3:PutObject")
    if match := re.search(r"not authorized to perform: (s3:\w+)", message):
        permission = match[1]

    user = identity
    if match := re.search(r"User: (arn:\S+)", message):
        user = match[1]
    owner = ", without credentials" if user is None else f" for {user}"
    return StoreError(
        f"{address}: permission {permission} is missing{owner}.",
        hint="Ask the bucket's owner for it, or use other credentials (AWS_PROFILE, a role of the job).",
    )


def _explain_region(problem: ClientError, address: str, bucket: str) -> StoreError:
    error: Mapping[str, Any] = problem.response.get("Error", {})
    headers = problem.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = headers.get("x-amz-bucket-region") or error.get("Region")
    return StoreError(
        f"The bucket {bucket!r} is in another region ({address}).",
        hint=f"Set AWS_REGION={region}." if region else "Set AWS_REGION to the bucket's region.",
    )


def _explain_failure(problem: BotoCoreError, url: str, address: str) -> FatalError:  # noqa: PLR0911 - a table
    """Return the error of a request that was not sent, or that nobody answered."""
    reason = " ".join(str(problem).split())
    match problem:
        case boto.NoCredentialsError():
            return no_credentials(url)
        case boto.ProfileNotFound():
            return StoreError(f"{reason}.".replace("..", "."), hint="Check AWS_PROFILE and ~/.aws/config.")
        case boto.PartialCredentialsError() | boto.CredentialRetrievalError() | boto.TokenRetrievalError():
            return StoreError(f"{address}: could not load the AWS credentials: {reason}", hint=_LOGIN)
        case boto.SSOError() | boto.UnauthorizedSSOTokenError():
            return StoreError(f"{address}: the AWS login has expired.", hint="Run 'aws sso login'.")
        case boto.SSLError() | boto.ProxyConnectionError() | boto.EndpointConnectionError():
            return ServiceError(f"{address} cannot be reached: {reason}", hint=_CHECK_NETWORK)
        case boto.ConnectionError() | boto.HTTPClientError():
            return ServiceError(f"{address}: the connection broke: {reason}", hint=_CHECK_NETWORK)
    return StoreError(f"{address}: {reason}", hint="Check --store and AWS_REGION.")


def _status_of(problem: ClientError) -> int:
    return int(problem.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _message_of(problem: ClientError) -> str:
    return str(problem.response.get("Error", {}).get("Message") or "")
