from __future__ import annotations

from typing import Any

import pytest
from botocore import exceptions as boto

from core.stores.s3_client import ATTEMPTS, delay


def answer(status: int, code: str = "") -> dict[str, Any]:
    return {"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code}}


@pytest.mark.parametrize(
    "busy",
    [
        answer(500, "InternalError"),
        answer(502),
        answer(503, "SlowDown"),
        answer(429),
        answer(400, "RequestTimeout"),
        answer(400, "BadDigest"),
        boto.ConnectionClosedError(endpoint_url="x"),
        boto.ReadTimeoutError(endpoint_url="x"),
        boto.IncompleteReadError(actual_bytes=1, expected_bytes=2),
    ],
)
def test_what_passes_is_asked_again_later_and_later_and_not_for_ever(busy: Any) -> None:
    said = (busy, None) if isinstance(busy, dict) else ({}, busy)
    waits = [delay(attempts, *said, share=1.0) for attempts in range(1, ATTEMPTS + 1)]
    assert waits[-1] is None
    known = [wait for wait in waits if wait is not None]
    assert len(known) == ATTEMPTS - 1
    assert known == sorted(known)
    assert known[0] <= 0.2
    assert known[-1] <= 20
    assert delay(3, *said, share=0.25) == known[2] / 4


@pytest.mark.parametrize(
    "refusal",
    [
        answer(200),
        answer(403, "AccessDenied"),
        answer(400, "ExpiredToken"),
        answer(403, "SignatureDoesNotMatch"),
        answer(404, "NoSuchKey"),
        answer(412, "PreconditionFailed"),
        answer(501, "NotImplemented"),
        boto.SSLError(endpoint_url="x", error=ValueError("certificate")),
        boto.NoCredentialsError(),
        ValueError("ours"),
    ],
)
def test_a_refusal_stands(refusal: Any) -> None:
    said = (refusal, None) if isinstance(refusal, dict) else ({}, refusal)
    assert delay(1, *said, share=1.0) is None


def test_where_nobody_is_nobody_waits_long() -> None:
    nobody = boto.EndpointConnectionError(endpoint_url="x")
    waits = [delay(attempts, {}, nobody, share=1.0) for attempts in range(1, ATTEMPTS)]
    assert sum(wait or 0 for wait in waits) < 2
    assert waits[0] is not None
