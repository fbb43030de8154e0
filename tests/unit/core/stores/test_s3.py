"""A bucket as only it can behave: parts, conditions, races, broken connections, other servers' habits."""

from __future__ import annotations

import dataclasses
import io
import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from botocore import exceptions as boto
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from core import errors
from core.errors import ConflictError, InterruptedStageError, ServiceError, StoreError
from core.stores import s3_client, s3_transfer
from core.stores.location import open_store
from core.stores.s3 import S3Store
from core.stores.s3_client import PROBE, Conditions, conditions_of
from core.stores.s3_transfer import MAX_PARTS, MIB, PART, part_size
from tests.kit.wheels import sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from types_boto3_s3 import S3Client

    Call = Callable[..., Any]

DATA = os.urandom(MIB) * 12
# the least that S3 takes for a part that is not the last
IN_PARTS = {"PART": 5 * MIB, "COPY_WHOLE": MIB, "COPY_PART": 5 * MIB, "COPY_LIMIT": 6 * MIB}


SHA = sha256(DATA)


@pytest.fixture(name="store")
def store_fixture(s3: S3Client, tmp_path: Path) -> S3Store:
    assert s3.list_buckets()["Buckets"]
    store = open_store("s3://bucket", root=tmp_path)
    assert isinstance(store, S3Store)
    return store


@pytest.fixture(name="around")
def around_fixture(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Let a function answer for an operation of the client; it gets the real one and the arguments."""

    def replace(operation: str, answer: Call) -> None:
        client: Any = store.connection.client
        real: Call = getattr(client, operation)
        monkeypatch.setattr(client, operation, lambda **asked: answer(real, **asked))

    return replace


def refusal(code: str, operation: str = "PutObject") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": ""}}, operation)


def unfinished(s3: S3Client, bucket: str = "bucket") -> list[Any]:
    return list(s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []))


@pytest.mark.parametrize("name", ["sha256", "Sha256", "SHA256"])
def test_a_digest_is_found_in_any_spelling(store: S3Store, s3: S3Client, around: Call, name: str) -> None:
    s3.put_object(Bucket="bucket", Key="a", Body=b"a")
    around("head_object", lambda real, **asked: {**real(**asked), "Metadata": {name: "digest"}})
    assert store.digest("a") == "digest"


def test_what_others_uploaded_is_read_for_its_digest(store: S3Store, s3: S3Client) -> None:
    s3.put_object(Bucket="bucket", Key="a", Body=b"a")
    assert store.digest("a") == sha256(b"a")


def test_a_listing_is_whole_of_outputs(store: S3Store, s3: S3Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "10")
    keys = [f"r/{number:04}.whl" for number in range(25)]
    for key in ("r/", "r/.hidden/a", f"r/{PROBE}0", "r/.b", "other/a", *keys):
        s3.put_object(Bucket="bucket", Key=key, Body=b"")
    assert [one.key for one in store.list("r")] == keys


@pytest.mark.usefixtures("s3")
def test_an_absent_bucket_is_named_by_every_operation(tmp_path: Path) -> None:
    store = open_store("s3://nowhere/run", root=tmp_path)
    calls: list[Callable[[], object]] = [
        lambda: store.list("x"),
        lambda: store.find("x"),
        lambda: store.read("x"),
        lambda: store.digest("x"),
        lambda: store.put_bytes("x", b""),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="There is no bucket 'nowhere'"):
            call()


def test_the_reason_of_a_refusal_is_requested_where_answers_have_words(store: S3Store, around: Call) -> None:
    def get_object(_real: Call, **asked: Any) -> Any:
        assert asked["Range"] == "bytes=0-0"
        raise refusal("ExpiredToken", "GetObject")

    def head_object(_real: Call, **_asked: Any) -> Any:
        raise refusal("400", "HeadObject")

    around("head_object", head_object)
    around("get_object", get_object)
    with pytest.raises(StoreError, match="credentials have expired"):
        store.find("a")


@given(st.integers(0, 50 << 40))
def test_there_are_never_too_many_parts(size: int) -> None:
    part = part_size(size, PART)
    assert part >= PART
    assert part % MIB == 0
    assert -(-size // part) <= MAX_PARTS
    assert part == PART or part - MIB < size / MAX_PARTS


@pytest.fixture(name="in_parts", params=[False, True], ids=["whole", "parts"])
def in_parts_fixture(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    for name, value in IN_PARTS.items() if request.param else ():
        monkeypatch.setattr(s3_transfer, name, value)
    return bool(request.param)


@pytest.fixture(name="large")
def large_fixture(tmp_path: Path) -> Path:
    path = tmp_path / "large.whl"
    path.write_bytes(DATA)
    return path


def test_a_file_goes_whole_or_in_parts(store: S3Store, s3: S3Client, large: Path, *, in_parts: bool) -> None:
    assert store.put_file("r/large.whl", large, sha256=SHA, replace=False) == "written"
    head = s3.head_object(Bucket="bucket", Key="r/large.whl")
    assert head["ETag"].endswith('-3"') == in_parts
    assert head["Metadata"] == {"sha256": SHA}
    assert head["ContentType"] == "application/zip"
    assert "immutable" in head["CacheControl"]
    assert store.read("r/large.whl") == DATA
    assert store.put_file("r/large.whl", large, sha256=SHA, replace=False) == "unchanged"
    assert unfinished(s3) == []


@pytest.mark.usefixtures("in_parts")
def test_a_file_with_another_digest_is_never_seen(store: S3Store, s3: S3Client, large: Path) -> None:
    with pytest.raises(StoreError, match=r"large\.whl does not have the digest"):
        store.put_file("r/large.whl", large, sha256=sha256(b"other"), replace=False)
    assert store.find("r/large.whl") is None
    assert unfinished(s3) == []


@pytest.mark.parametrize("operation", ["upload_part", "complete_multipart_upload"])
@pytest.mark.parametrize("kind", [ClientError, KeyboardInterrupt])
def test_an_upload_that_fails_leaves_nothing(
    store: S3Store,
    s3: S3Client,
    large: Path,
    around: Call,
    operation: str,
    kind: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(s3_transfer, "PART", IN_PARTS["PART"])

    def fail(real: Call, **asked: Any) -> Any:
        if asked.get("PartNumber", 2) == 2:
            raise kind({"Error": {"Code": "AccessDenied"}}, "UploadPart")
        return real(**asked)

    around(operation, fail)
    with pytest.raises(StoreError if kind is ClientError else kind):
        store.put_file("r/large.whl", large, sha256=SHA, replace=False)
    assert store.find("r/large.whl") is None
    assert unfinished(s3) == []
    # nothing is left that would keep the next uploads waiting
    for _ in range(20):
        assert store.connection.parts.acquire(timeout=1)
        store.connection.parts.release()


def test_an_interrupted_process_sends_and_reads_no_more_of_a_file(
    store: S3Store, s3: S3Client, large: Path, around: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_transfer, "PART", IN_PARTS["PART"])
    store.put_file("r/small.whl", large, sha256=SHA, replace=False)
    sent = []

    def part(real: Call, **asked: Any) -> Any:
        errors.STOPPING.set()
        sent.append(asked["PartNumber"])
        return real(**asked)

    around("upload_part", part)
    with store.open("r/small.whl") as stream:
        try:
            with pytest.raises(InterruptedStageError):
                store.put_file("r/large.whl", large, sha256=SHA, replace=False)
            with pytest.raises(InterruptedStageError):
                stream.read()
        finally:
            errors.STOPPING.clear()
    assert sent
    assert (store.find("r/large.whl"), unfinished(s3)) == (None, [])


@pytest.fixture(name="stores")
def stores_fixture(store: S3Store, *, in_parts: bool) -> tuple[S3Store, S3Store]:  # noqa: ARG001 - of both kinds
    source = dataclasses.replace(store, prefix="run")
    source.put_bytes("staging/a.whl", DATA)
    return source, dataclasses.replace(source, bucket="other")


def test_a_copy_has_headers_metadata_and_digest_at_every_size(
    stores: tuple[S3Store, S3Store], s3: S3Client, monkeypatch: pytest.MonkeyPatch, *, in_parts: bool
) -> None:
    source, target = stores
    with monkeypatch.context() as patch:
        for operation in ("get_object", "put_object", "upload_part"):  # not a byte comes through here
            patch.setattr(source.connection.client, operation, None)
        assert target.copy("v2/a.whl", source, "staging/a.whl", sha256=SHA) == "written"
    head = s3.head_object(Bucket="other", Key="run/v2/a.whl")
    assert head["ContentType"] == "application/zip"
    assert "immutable" in head["CacheControl"]
    assert head["Metadata"] == {"sha256": SHA}
    assert head["ContentLength"] == len(DATA)
    assert ('-3"' in head["ETag"]) == in_parts
    assert target.read("v2/a.whl") == DATA


@pytest.mark.parametrize("careless", [False, True], ids=["amazon", "a server that ignores the condition"])
def test_an_object_that_is_replaced_between_check_and_copy_is_refused(
    stores: tuple[S3Store, S3Store],
    s3: S3Client,
    around: Call,
    monkeypatch: pytest.MonkeyPatch,
    *,
    careless: bool,
) -> None:
    source, target = stores
    once = threading.Lock()

    def replaced(real: Call, **asked: Any) -> Any:
        if once.acquire(blocking=False):
            s3.put_object(Bucket="bucket", Key="run/staging/a.whl", Body=DATA[::-1], Metadata={"sha256": SHA})
        if careless:
            del asked["CopySourceIfMatch"]
        return real(**asked)

    if careless:
        monkeypatch.setattr(s3_client.Connection, "is_amazon", False)
    for operation in ("upload_part_copy", "copy_object"):
        around(operation, replaced)
    with pytest.raises(StoreError, match=r"a\.whl in s3://bucket/run was replaced while it was copied"):
        target.copy("v2/a.whl", source, "staging/a.whl", sha256=SHA)
    assert target.find("v2/a.whl") is None
    assert unfinished(s3, "other") == []


def test_another_service_is_relayed(stores: tuple[S3Store, S3Store], monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = stores
    elsewhere = dataclasses.replace(source, connection=s3_client.connect())
    monkeypatch.setattr(target.connection.client, "copy_object", None)
    assert target.copy("v2/a.whl", elsewhere, "staging/a.whl", sha256=SHA) == "written"
    assert target.read("v2/a.whl") == DATA


@pytest.fixture(name="put_object")
def put_object_fixture(around: Call) -> Call:
    """Let something happen around every PUT."""

    def happening(before: Call = lambda *_: None, after: Call = lambda *_: None) -> list[Any]:
        asked: list[Any] = []

        def put_object(real: Call, **arguments: Any) -> Any:
            asked.append({name: arguments[name] for name in ("IfMatch", "IfNoneMatch") if name in arguments})
            before(real, len(asked))
            answer = real(**arguments)
            after(real, len(asked))
            return answer

        around("put_object", put_object)
        return asked

    return happening


def refuse(code: str) -> Call:
    def raise_(*_: object) -> None:
        raise refusal(code)

    return raise_


def theirs(real: Call, _count: int) -> None:
    for key in ("x.html", "a.whl"):
        real(Bucket="bucket", Key=key, Body=b"theirs")


@pytest.mark.parametrize("code", ["PreconditionFailed", "412", "ConditionalRequestConflict"])
def test_a_write_that_met_its_first_attempt_succeeds(store: S3Store, put_object: Call, code: str) -> None:
    asked = put_object(after=refuse(code))
    assert store.put_bytes("x.html", b"ours", if_match="") == "written"
    assert asked == [{"IfNoneMatch": "*"}]


def test_a_write_that_met_another_one_has_not(store: S3Store, put_object: Call) -> None:
    put_object(before=theirs)
    with pytest.raises(ConflictError):
        store.put_bytes("x.html", b"ours", if_match="")
    with pytest.raises(StoreError, match="with other bytes") as caught:
        store.put_bytes("a.whl", b"ours", replace=False)
    assert not isinstance(caught.value, ConflictError)
    assert store.read("x.html") == store.read("a.whl") == b"theirs"


def test_where_s3_is_busy_with_the_key_the_write_is_made_again(store: S3Store, put_object: Call) -> None:
    def busy(_: object, count: int) -> None:
        if count < 3:
            raise refusal("ConditionalRequestConflict")

    asked = put_object(before=busy)
    assert store.put_bytes("x.html", b"ours", if_match="") == "written"
    assert len(asked) == 3


@pytest.mark.parametrize("present", [False, True])
def test_where_conditions_are_ignored_an_overwrite_before_the_verification_is_noticed(
    store: S3Store, put_object: Call, monkeypatch: pytest.MonkeyPatch, *, present: bool
) -> None:
    if present:
        store.put_bytes("x.html", b"before")
    seen = store.find("x.html")
    monkeypatch.setattr(s3_client, "AMAZON", Conditions())
    asked = put_object(after=theirs)
    with pytest.raises(ConflictError):
        store.put_bytes("x.html", b"ours", if_match=seen.etag if seen else "")
    assert asked == [{}], "a condition that is refused though it holds is not sent"
    assert store.read("x.html") == b"theirs"


def test_access_errors_are_not_taken_for_lost_races(store: S3Store, put_object: Call) -> None:
    asked = put_object(before=refuse("AccessDenied"))
    with pytest.raises(StoreError, match=r"permission s3:PutObject is missing"):
        store.put_bytes("x.html", b"ours", if_match="")
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("behaviour", "expected"),
    [
        (lambda _: "", Conditions(if_none_match=True, if_match=True)),
        (lambda _: "ignore", Conditions()),
        (lambda asked: "412" if "IfMatch" in asked else "", Conditions(if_none_match=True)),
        (lambda asked: "ignore" if "IfMatch" in asked else "", Conditions(if_none_match=True)),
        (lambda _: "NotImplemented", Conditions()),
        (lambda _: "501", Conditions()),
    ],
    ids=["held", "ignored", "refused though right", "half", "unknown", "unknown by number"],
)
def test_what_a_server_supports_is_found_out_once_and_without_a_trace(
    store: S3Store,
    s3: S3Client,
    around: Call,
    behaviour: Callable[[Mapping[str, Any]], str],
    expected: Conditions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(s3_client.Connection, "is_amazon", False)

    def put_object(real: Call, **asked: Any) -> Any:
        what = behaviour(asked)
        conditions = {name: asked.pop(name) for name in ("IfMatch", "IfNoneMatch") if name in asked}
        if what not in {"", "ignore"} and conditions:
            raise refusal(what)
        return real(**asked, **({} if what == "ignore" else conditions))

    around("put_object", put_object)
    found = conditions_of(store.connection, "bucket", "run/")
    assert found == expected
    assert "Contents" not in s3.list_objects_v2(Bucket="bucket")
    monkeypatch.setattr(store.connection.client, "put_object", None)
    assert conditions_of(store.connection, "bucket", "other/") is found


class Breaking(io.BytesIO):
    """A body that gives no more than some bytes, then what a broken connection gives."""

    def __init__(self, data: bytes, after: int, problem: BaseException | None) -> None:
        super().__init__(data[:after])
        self.problem = problem

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if not data and self.problem is not None:
            raise self.problem
        return data


READ = DATA[:3_000_000]


@pytest.fixture(name="break_reads")
def break_reads_fixture(store: S3Store, around: Call) -> Call:
    """Let every read of ``a.whl`` end after some bytes; returns the ranges that are requested."""
    store.put_bytes("a.whl", READ)

    def breaking(after: int, problem: BaseException | None = None) -> list[str]:
        asked = []

        def get_object(real: Call, **arguments: Any) -> Any:
            asked.append(arguments.get("Range", ""))
            answer = real(**arguments)
            return {**answer, "Body": Breaking(answer["Body"].read(), after, problem)}

        around("get_object", get_object)
        return asked

    return breaking


def test_a_read_that_gains_nothing_is_an_error(store: S3Store, break_reads: Call) -> None:
    break_reads(0, boto.IncompleteReadError(actual_bytes=1, expected_bytes=2))
    with pytest.raises(ServiceError, match=r"s3://bucket/a\.whl: reading broke off at byte 0 of 3000000"):
        store.read("a.whl")


def test_an_object_that_is_replaced_while_it_is_read_is_noticed(store: S3Store, break_reads: Call) -> None:
    break_reads(1_000_000)
    with store.open("a.whl") as stream:
        assert stream.read(10) == READ[:10]
        store.put_bytes("a.whl", READ[::-1])
        with pytest.raises(StoreError, match="was replaced while it was read"):
            stream.read()


def test_servers_that_ignore_ranges_and_conditions_are_read_right_too(store: S3Store, around: Call) -> None:
    store.put_bytes("a.whl", READ)
    around("get_object", lambda real, **asked: real(Bucket=asked["Bucket"], Key=asked["Key"]))
    seen = store.find("a.whl")
    assert seen is not None
    with store.stream("a.whl", start=2_500_000, etag=seen.etag) as stream:
        assert stream.read() == READ[2_500_000:]
    store.put_bytes("a.whl", b"other")
    with pytest.raises(StoreError, match="was replaced while it was read"):
        store.stream("a.whl", start=2, etag=seen.etag)


def test_a_download_is_resumed(
    store: S3Store, tmp_path: Path, break_reads: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_reads(1_200_000, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        store.fetch("a.whl", tmp_path / "wheels")
    assert not (tmp_path / "wheels/a.whl").exists()
    monkeypatch.undo()
    asked = break_reads(len(READ))
    path = store.fetch("a.whl", tmp_path / "wheels")
    assert path == tmp_path / "wheels/a.whl"
    assert path.read_bytes() == READ
    assert asked == ["bytes=1200000-"]
    assert [one.name for one in path.parent.iterdir()] == ["a.whl"]
    assert store.fetch("a.whl", tmp_path / "wheels") == path
    assert len(asked) == 1, "what is there is not fetched again"


def test_what_does_not_have_its_digest_is_refused(store: S3Store, s3: S3Client, tmp_path: Path) -> None:
    digest = sha256(b"meant")
    s3.put_object(Bucket="bucket", Key="b.whl", Body=b"is", Metadata={"sha256": digest})
    for read in (lambda: store.read("b.whl"), lambda: store.fetch("b.whl", tmp_path / "wheels")):
        with pytest.raises(StoreError, match=f"does not have the digest that it carries .{digest}"):
            read()
    assert list((tmp_path / "wheels").iterdir()) == []
