from __future__ import annotations

from typing import Any

import pytest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from urllib3 import HTTPHeaderDict
from urllib3.exceptions import ProtocolError

from core.stores import s3_wire
from core.stores.s3_client import code_of
from core.stores.s3_wire import Wire, wire_for

CREDENTIALS = Credentials("access", "secret", "token")
PLACE = {"Bucket": "bucket", "Key": "r/a b+c.whl"}
HEADERS = {
    "Content-Length": "3",
    "ETag": '"etag"',
    "Last-Modified": "Sat, 21 Nov 2026 17:42:16 GMT",
    "X-Amz-Meta-Sha256": "digest",
}
COPIED = b'<?xml version="1.0"?><CopyObjectResult><ETag>&quot;copied&quot;</ETag></CopyObjectResult>'


class Answer:
    def __init__(self, status: int, headers: dict[str, str] | None = None, data: bytes = b"") -> None:
        self.status, self.headers, self.data = status, HTTPHeaderDict(headers or {}), data


def wire(monkeypatch: pytest.MonkeyPatch, answer: Answer | Exception) -> tuple[Wire, list[dict[str, Any]]]:
    made = wire_for("http://127.0.0.1:1", CREDENTIALS, "us-east-1", connections=1)
    assert made is not None
    asked: list[dict[str, Any]] = []

    def urlopen(method: str, path: str, **options: Any) -> Any:
        asked.append({"method": method, "path": path, **options})
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(made._pool, "urlopen", urlopen)
    return made, asked


def test_a_head_gives_what_botocores_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = wire(monkeypatch, Answer(200, {**HEADERS, "x-amz-checksum-sha256": "sum"}))
    head = made.head(PLACE)
    assert head is not None
    assert head["ContentLength"] == 3
    assert head["ETag"] == '"etag"'
    assert head["LastModified"].isoformat() == "2026-11-21T17:42:16+00:00"
    assert {name.lower(): value for name, value in head["Metadata"].items()} == {"sha256": "digest"}
    assert (head["ChecksumSHA256"], head["ChecksumType"]) == ("sum", "FULL_OBJECT")
    assert asked[0]["path"] == "/bucket/r/a%20b%2Bc.whl"
    signed = asked[0]["headers"]
    assert signed["Authorization"].startswith("AWS4-HMAC-SHA256 Credential=access/")
    assert signed["X-Amz-Security-Token"] == "token"
    assert "secret" not in repr(signed)


def test_a_put_carries_headers_digest_and_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = wire(monkeypatch, Answer(200))
    said = {"ContentType": "application/zip", "CacheControl": "no-cache", "Metadata": {"sha256": "hex"}}
    assert made.put(PLACE, {**said, "IfNoneMatch": "*"}, b"data", "sum")
    assert asked[0]["body"] == b"data"
    expected = {
        "content-type": "application/zip",
        "cache-control": "no-cache",
        "x-amz-meta-sha256": "hex",
        "if-none-match": "*",
        "x-amz-checksum-sha256": "sum",
    }
    sent = {name.lower(): value for name, value in asked[0]["headers"].items()}
    assert expected.items() <= sent.items()
    for name in ("x-amz-meta-sha256", "x-amz-checksum-sha256"):
        assert name in sent["authorization"], "what is said of the bytes is signed"


def test_a_copy_names_its_source_and_gives_its_etag(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = wire(monkeypatch, Answer(200, {}, COPIED))
    said = {
        "CopySource": PLACE,
        "CopySourceIfMatch": '"etag"',
        "MetadataDirective": "REPLACE",
        "Metadata": {},
    }
    assert made.copy({"Bucket": "other", "Key": "x"}, said) == "copied"
    sent = {name.lower(): value for name, value in asked[0]["headers"].items()}
    assert sent["x-amz-copy-source"] == "bucket/r/a%20b%2Bc.whl"
    assert sent["x-amz-copy-source-if-match"] == '"etag"'
    assert sent["x-amz-metadata-directive"] == "REPLACE"


@pytest.mark.parametrize(
    "answer", [Answer(500), Answer(503), Answer(403), Answer(301), ProtocolError("reset"), Answer(200)]
)
def test_with_any_other_answer_botocore_is_asked(
    answer: Answer | Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = wire(monkeypatch, answer)
    assert made.head(PLACE) is None
    assert made.copy(PLACE, {"CopySource": PLACE}) is None
    if not (isinstance(answer, Answer) and answer.status == 200):
        assert not made.put(PLACE, {}, b"", "sum")


def test_plain_refusals_are_botocores(monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = wire(monkeypatch, Answer(404))
    with pytest.raises(ClientError) as caught:
        made.head(PLACE)
    assert code_of(caught.value) == "404"
    made, _ = wire(monkeypatch, Answer(412))
    for call in (lambda: made.put(PLACE, {}, b"", "sum"), lambda: made.copy(PLACE, {"CopySource": PLACE})):
        with pytest.raises(ClientError) as caught:
            call()
        assert code_of(caught.value) == "412"


@pytest.mark.parametrize(
    ("endpoint", "credentials", "proxies"),
    [
        ("https://s3.example", CREDENTIALS, {}),
        ("http://s3.example", None, {}),
        ("http://s3.example", CREDENTIALS, {"http": "http://proxy"}),
    ],
)
def test_what_is_encrypted_unsigned_or_behind_a_proxy_is_left_to_botocore(
    endpoint: str, credentials: Credentials | None, proxies: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_wire, "getproxies", lambda: proxies)
    monkeypatch.setattr(s3_wire, "proxy_bypass", lambda _host: False)
    assert wire_for(endpoint, credentials, "us-east-1", connections=1) is None
