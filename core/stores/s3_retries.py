"""Which requests to S3 are made again, and when: what a busy service or a broken connection ended.

botocore's own modes stop asking when too many requests of a client failed (a quota); an upload of a
run has to come through a bad hour, so the only limit here is that of each request.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from botocore import exceptions as boto

if TYPE_CHECKING:
    from collections.abc import Mapping

    from types_boto3_s3 import S3Client

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
