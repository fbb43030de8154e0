"""A bucket as only it can behave: parts, conditions, races, broken connections, other servers' habits."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import threading
from typing import TYPE_CHECKING, Any

import pytest
from botocore import exceptions as boto
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st
from moto.s3 import models as moto_models

from core import errors
from core.errors import ConflictError, InterruptedStageError, ServiceError, StoreError
from core.stores import s3_client, s3_transfer
from core.stores.location import open_store
from core.stores.s3 import S3Store
from core.stores.s3_client import PROBE, Conditions, conditions_of
from core.stores.s3_transfer import MAX_PARTS, MIB, PART, part_size
from tests.kit.wheels import sha256

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from types_boto3_s3 import S3Client

    # An operation of the client, and what stands in for one: it gets the real operation, and the arguments.
    Operation = Callable[..., Any]
    SetSubstitute = Callable[[str, Operation], None]
    # Lets reads end after some bytes with an error; returns the ranges that are asked for.
    BreakReads = Callable[[int, BaseException | None], list[str]]

# Three parts. Parts of more than a MiB wait for their turn.
SMALL_PART = 5 * MIB // 4
CONTENT = hashlib.shake_256(b"content").digest(3 * MIB)
CONTENT_SHA256 = sha256(CONTENT)


@pytest.fixture
def store(s3: S3Client, tmp_path: Path) -> S3Store:
    """Return an empty bucket."""
    assert s3.list_buckets()["Buckets"]
    store = open_store("s3://bucket", root=tmp_path)
    assert isinstance(store, S3Store)
    return store


@pytest.fixture
def substitute(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> SetSubstitute:
    """Return the function that lets another one answer for an operation of the store's client."""

    def substitute(operation: str, stand_in: Operation) -> None:
        client: Any = store.connection.client
        real: Operation = getattr(client, operation)
        monkeypatch.setattr(client, operation, lambda **arguments: stand_in(real, **arguments))

    return substitute


def refusal(code: str, operation: str = "PutObject") -> ClientError:
    """Return the error of a request that a server refused."""
    return ClientError({"Error": {"Code": code, "Message": ""}}, operation)


def unfinished_uploads(s3: S3Client, bucket: str = "bucket") -> list[Any]:
    """Return uploads in parts that nobody has ended."""
    return list(s3.list_multipart_uploads(Bucket=bucket).get("Uploads", []))


# Objects of other tools


@pytest.mark.parametrize("name", ["sha256", "Sha256", "SHA256"])
def test_finds_a_digest_in_any_spelling(
    store: S3Store, s3: S3Client, substitute: SetSubstitute, name: str
) -> None:
    s3.put_object(Bucket="bucket", Key="a", Body=b"a")

    substitute("head_object", lambda real, **arguments: {**real(**arguments), "Metadata": {name: "digest"}})

    assert store.digest("a") == "digest"


def test_reads_an_object_of_others_for_its_digest(store: S3Store, s3: S3Client) -> None:
    s3.put_object(Bucket="bucket", Key="a", Body=b"a")

    assert store.digest("a") == sha256(b"a")


def test_rejects_an_object_without_the_digest_that_it_carries(
    store: S3Store, s3: S3Client, tmp_path: Path
) -> None:
    digest = sha256(b"meant")
    s3.put_object(Bucket="bucket", Key="b.whl", Body=b"is", Metadata={"sha256": digest})

    with pytest.raises(StoreError, match=digest):
        store.read("b.whl")
    with pytest.raises(StoreError, match=digest):
        store.fetch("b.whl", tmp_path / "wheels")

    assert list((tmp_path / "wheels").iterdir()) == []


def test_lists_every_page_of_a_listing(store: S3Store, s3: S3Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    keys = [f"r/{number:04}.whl" for number in range(8)]
    for key in keys:
        s3.put_object(Bucket="bucket", Key=key, Body=b"")

    assert [stored_object.key for stored_object in store.list("r")] == keys


@pytest.mark.parametrize("key", ["r/", "r/.hidden/a", f"r/{PROBE}0", "r/.b", "other/a"])
def test_lists_nothing_but_outputs(store: S3Store, s3: S3Client, key: str) -> None:
    s3.put_object(Bucket="bucket", Key=key, Body=b"")

    assert list(store.list("r")) == []


# Refusals


@pytest.mark.usefixtures("s3")
def test_every_operation_names_an_absent_bucket(tmp_path: Path) -> None:
    store = open_store("s3://nowhere/run", root=tmp_path)
    calls: list[Callable[[], object]] = [
        lambda: store.list("x"),
        lambda: store.find("x"),
        lambda: store.read("x"),
        lambda: store.digest("x"),
        lambda: store.put_bytes("x", b""),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="'nowhere'"):
            call()


def test_asks_for_the_reason_of_a_refusal_where_answers_have_words(
    store: S3Store, substitute: SetSubstitute
) -> None:
    # The answer to HEAD has no body, so that of one byte is asked for.
    def get_object(_real: Operation, **arguments: Any) -> Any:
        assert arguments["Range"] == "bytes=0-0"
        raise refusal("ExpiredToken", "GetObject")

    def head_object(_real: Operation, **_arguments: Any) -> Any:
        raise refusal("400", "HeadObject")

    substitute("head_object", head_object)
    substitute("get_object", get_object)

    with pytest.raises(StoreError, match="expired"):
        store.find("a")


# Uploads


@given(st.integers(0, 50 << 40))
def test_an_upload_has_never_too_many_parts(size: int) -> None:
    part = part_size(size, PART)

    assert part >= PART
    assert part % MIB == 0
    assert -(-size // part) <= MAX_PARTS
    assert part == PART or part - MIB < size / MAX_PARTS


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files of a few MiB go in parts."""
    monkeypatch.setattr(moto_models, "S3_UPLOAD_PART_MIN_SIZE", SMALL_PART)
    monkeypatch.setattr(s3_transfer, "PART", SMALL_PART)
    monkeypatch.setattr(s3_transfer, "COPY_WHOLE", MIB)
    monkeypatch.setattr(s3_transfer, "COPY_PART", SMALL_PART)
    monkeypatch.setattr(s3_transfer, "COPY_LIMIT", 2 * MIB)


@pytest.fixture(params=[False, True], ids=["whole", "parts"])
def in_parts(request: pytest.FixtureRequest) -> bool:
    """Return whether a file goes in parts."""
    in_parts: bool = request.param
    if in_parts:
        request.getfixturevalue("small_parts")
    return in_parts


@pytest.fixture
def large_file(tmp_path: Path) -> Path:
    """Return a file to upload."""
    path = tmp_path / "large.whl"
    path.write_bytes(CONTENT)
    return path


def test_uploads_a_file_whole_or_in_parts(
    store: S3Store, s3: S3Client, large_file: Path, *, in_parts: bool
) -> None:
    assert store.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False) == "written"

    head = s3.head_object(Bucket="bucket", Key="r/large.whl")
    assert head["ETag"].endswith('-3"') == in_parts
    assert store.read("r/large.whl") == CONTENT
    assert unfinished_uploads(s3) == []


@pytest.mark.usefixtures("in_parts")
def test_an_uploaded_file_has_its_digest_and_headers(store: S3Store, s3: S3Client, large_file: Path) -> None:
    store.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False)

    head = s3.head_object(Bucket="bucket", Key="r/large.whl")
    assert head["Metadata"] == {"sha256": CONTENT_SHA256}
    assert head["ContentType"] == "application/zip"
    assert "immutable" in head["CacheControl"]


@pytest.mark.usefixtures("in_parts")
def test_uploads_a_file_once(store: S3Store, large_file: Path) -> None:
    store.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False)

    assert store.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False) == "unchanged"


@pytest.mark.usefixtures("in_parts")
def test_a_file_with_another_digest_is_never_seen(store: S3Store, s3: S3Client, large_file: Path) -> None:
    with pytest.raises(StoreError, match=r"large\.whl"):
        store.put_file("r/large.whl", large_file, sha256=sha256(b"other"), replace=False)

    assert store.find("r/large.whl") is None
    assert unfinished_uploads(s3) == []


@pytest.fixture(params=["upload_part", "complete_multipart_upload"])
def failing_operation(request: pytest.FixtureRequest) -> str:
    """Return an operation of an upload in parts."""
    operation: str = request.param
    return operation


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("problem", "error"),
    [(refusal("AccessDenied", "UploadPart"), StoreError), (KeyboardInterrupt(), KeyboardInterrupt)],
    ids=["refused", "Ctrl-C"],
)
def test_an_upload_that_fails_leaves_nothing(
    store: S3Store,
    s3: S3Client,
    large_file: Path,
    substitute: SetSubstitute,
    failing_operation: str,
    problem: BaseException,
    error: type[BaseException],
) -> None:
    def fail_at_second_part(real: Operation, **arguments: Any) -> Any:
        if arguments.get("PartNumber", 2) == 2:
            raise problem
        return real(**arguments)

    substitute(failing_operation, fail_at_second_part)
    with pytest.raises(error):
        store.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False)

    assert store.find("r/large.whl") is None
    assert unfinished_uploads(s3) == []


@pytest.mark.usefixtures("small_parts")
def test_an_upload_that_fails_keeps_no_other_one_waiting(
    store: S3Store, large_file: Path, substitute: SetSubstitute
) -> None:
    def fail(_real: Operation, **_arguments: Any) -> Any:
        raise refusal("AccessDenied", "UploadPart")

    substitute("upload_part", fail)
    with pytest.raises(StoreError):
        store.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False)

    for _part in range(20):
        assert store.connection.parts.acquire(timeout=1)
        store.connection.parts.release()


@pytest.fixture
def stopping() -> Iterator[threading.Event]:
    """Return the event that tells all threads to stop, and clear it after the test."""
    yield errors.STOPPING
    errors.STOPPING.clear()


@pytest.mark.usefixtures("small_parts")
def test_an_interrupted_process_sends_no_more_of_a_file(
    store: S3Store,
    s3: S3Client,
    large_file: Path,
    substitute: SetSubstitute,
    stopping: threading.Event,
) -> None:
    sent_parts: list[int] = []

    def stop_and_send(real: Operation, **arguments: Any) -> Any:
        stopping.set()
        sent_parts.append(arguments["PartNumber"])
        return real(**arguments)

    substitute("upload_part", stop_and_send)
    with pytest.raises(InterruptedStageError):
        store.put_file("r/large.whl", large_file, sha256=CONTENT_SHA256, replace=False)

    stopping.clear()
    assert sent_parts
    assert store.find("r/large.whl") is None
    assert unfinished_uploads(s3) == []


def test_an_interrupted_process_reads_no_more_of_a_file(store: S3Store, stopping: threading.Event) -> None:
    store.put_bytes("r/a.whl", CONTENT)

    with store.open("r/a.whl") as stream:
        stopping.set()
        with pytest.raises(InterruptedStageError):
            stream.read()


# Copies


@pytest.fixture
def source(store: S3Store) -> S3Store:
    """Return a folder of a bucket with an object to copy."""
    source = dataclasses.replace(store, prefix="run")
    source.put_bytes("staging/a.whl", CONTENT)
    return source


@pytest.fixture
def target(source: S3Store) -> S3Store:
    """Return the same folder of another bucket."""
    return dataclasses.replace(source, bucket="other")


def copy_object(target: S3Store, source: S3Store) -> str:
    """Copy the object."""
    return target.copy("v2/a.whl", source, "staging/a.whl", sha256=CONTENT_SHA256)


def test_a_copy_has_the_content_digest_and_headers(
    source: S3Store, target: S3Store, s3: S3Client, *, in_parts: bool
) -> None:
    assert copy_object(target, source) == "written"

    head = s3.head_object(Bucket="other", Key="run/v2/a.whl")
    assert head["ContentType"] == "application/zip"
    assert "immutable" in head["CacheControl"]
    assert head["Metadata"] == {"sha256": CONTENT_SHA256}
    assert ('-3"' in head["ETag"]) == in_parts
    assert target.read("v2/a.whl") == CONTENT


@pytest.mark.usefixtures("in_parts")
def test_the_server_copies_by_itself(
    source: S3Store, target: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever calls one of these fails.
    for operation in ("get_object", "put_object", "upload_part"):
        monkeypatch.setattr(source.connection.client, operation, None)

    assert copy_object(target, source) == "written"


@pytest.mark.usefixtures("in_parts")
@pytest.mark.parametrize("is_careless", [False, True], ids=["Amazon", "server without conditions"])
def test_rejects_an_object_that_is_replaced_while_it_is_copied(
    source: S3Store,
    target: S3Store,
    s3: S3Client,
    substitute: SetSubstitute,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_careless: bool,
) -> None:
    replacement = CONTENT[::-1]
    first_call = threading.Lock()

    def replace_and_copy(real: Operation, **arguments: Any) -> Any:
        if first_call.acquire(blocking=False):
            metadata = {"sha256": CONTENT_SHA256}
            s3.put_object(Bucket="bucket", Key="run/staging/a.whl", Body=replacement, Metadata=metadata)
        if is_careless:
            del arguments["CopySourceIfMatch"]
        return real(**arguments)

    if is_careless:
        monkeypatch.setattr(s3_client.Connection, "is_amazon", False)
    substitute("upload_part_copy", replace_and_copy)
    substitute("copy_object", replace_and_copy)
    with pytest.raises(StoreError, match=r"a\.whl in s3://bucket/run"):
        copy_object(target, source)

    assert target.find("v2/a.whl") is None
    assert unfinished_uploads(s3, "other") == []


@pytest.mark.usefixtures("in_parts")
def test_passes_objects_of_another_service_on(
    source: S3Store, target: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = dataclasses.replace(source, connection=s3_client.connect())
    monkeypatch.setattr(target.connection.client, "copy_object", None)  # which one server cannot do

    assert copy_object(target, elsewhere) == "written"

    assert target.read("v2/a.whl") == CONTENT


# Conditional writes


def do_nothing(_put_object: Operation, _number: int) -> None:
    """Let a write pass."""


class Writes:
    """The writes of a store: their conditions, and what happens before and after each."""

    def __init__(self) -> None:
        self.conditions: list[dict[str, str]] = []
        self.before: Callable[[Operation, int], None] = do_nothing
        self.after: Callable[[Operation, int], None] = do_nothing

    def put_object(self, real: Operation, **arguments: Any) -> Any:
        """Write an object."""
        names = ("IfMatch", "IfNoneMatch")
        self.conditions.append({name: arguments[name] for name in names if name in arguments})
        number = len(self.conditions)
        self.before(real, number)
        response = real(**arguments)
        self.after(real, number)
        return response


@pytest.fixture
def writes(substitute: SetSubstitute) -> Writes:
    """Return what happens around each write of the store."""
    writes = Writes()
    substitute("put_object", writes.put_object)
    return writes


def refuse_with(code: str) -> Callable[[Operation, int], None]:
    """Return what refuses every write."""

    def refuse(_put_object: Operation, _number: int) -> None:
        raise refusal(code)

    return refuse


def write_theirs(put_object: Operation, _number: int) -> None:
    """Let another process write the same objects."""
    for key in ("x.html", "a.whl"):
        put_object(Bucket="bucket", Key=key, Body=b"theirs")


@pytest.mark.parametrize("code", ["PreconditionFailed", "412", "ConditionalRequestConflict"])
def test_a_write_that_met_its_own_first_attempt_succeeds(store: S3Store, writes: Writes, code: str) -> None:
    # The answer to the attempt was lost, and the client has repeated it.
    writes.after = refuse_with(code)

    assert store.put_bytes("x.html", b"ours", if_match="") == "written"

    assert writes.conditions == [{"IfNoneMatch": "*"}]


def test_a_conditional_write_that_met_another_one_has_lost(store: S3Store, writes: Writes) -> None:
    writes.before = write_theirs

    with pytest.raises(ConflictError):
        store.put_bytes("x.html", b"ours", if_match="")

    assert store.read("x.html") == b"theirs"


def test_a_write_that_replaces_nothing_does_not_replace_one_that_came_first(
    store: S3Store, writes: Writes
) -> None:
    writes.before = write_theirs

    with pytest.raises(StoreError, match=r"a\.whl") as raised:
        store.put_bytes("a.whl", b"ours", replace=False)

    assert not isinstance(raised.value, ConflictError)
    assert store.read("a.whl") == b"theirs"


def test_repeats_a_write_where_the_server_is_busy_with_the_key(store: S3Store, writes: Writes) -> None:
    def be_busy_twice(_put_object: Operation, number: int) -> None:
        if number < 3:
            raise refusal("ConditionalRequestConflict")

    writes.before = be_busy_twice

    assert store.put_bytes("x.html", b"ours", if_match="") == "written"

    assert len(writes.conditions) == 3


@pytest.mark.parametrize("is_present", [False, True], ids=["new", "replaced"])
def test_notices_an_overwrite_where_the_server_holds_no_conditions(
    store: S3Store, writes: Writes, monkeypatch: pytest.MonkeyPatch, *, is_present: bool
) -> None:
    if is_present:
        store.put_bytes("x.html", b"before")
    seen_object = store.find("x.html")
    writes.conditions.clear()
    monkeypatch.setattr(s3_client, "AMAZON", Conditions())
    writes.after = write_theirs

    with pytest.raises(ConflictError):
        store.put_bytes("x.html", b"ours", if_match=seen_object.etag if seen_object else "")

    assert writes.conditions == [{}], "a condition that is refused though it holds is not sent"
    assert store.read("x.html") == b"theirs"


def test_takes_no_missing_permission_for_a_lost_race(store: S3Store, writes: Writes) -> None:
    writes.before = refuse_with("AccessDenied")

    with pytest.raises(StoreError, match="s3:PutObject"):
        store.put_bytes("x.html", b"ours", if_match="")

    assert len(writes.conditions) == 1


# What a server supports


class Server:
    """A server that holds conditions, ignores them, or refuses them with a code."""

    def __init__(self, behaviour: Callable[[Mapping[str, Any]], str]) -> None:
        self.behaviour = behaviour

    def put_object(self, real: Operation, **arguments: Any) -> Any:
        """Write an object as this server does."""
        behaviour = self.behaviour(arguments)
        names = ("IfMatch", "IfNoneMatch")
        conditions = {name: arguments.pop(name) for name in names if name in arguments}
        if behaviour == "ignores":
            return real(**arguments)
        if behaviour != "holds" and conditions:
            raise refusal(behaviour)
        return real(**arguments, **conditions)


def with_if_match(behaviour: str) -> Callable[[Mapping[str, Any]], str]:
    """Return how a server behaves that holds one condition alone."""
    return lambda arguments: behaviour if "IfMatch" in arguments else "holds"


@pytest.mark.parametrize(
    ("behaviour", "conditions"),
    [
        (lambda _arguments: "holds", Conditions(if_none_match=True, if_match=True)),
        (lambda _arguments: "ignores", Conditions()),
        (with_if_match("412"), Conditions(if_none_match=True)),
        (with_if_match("ignores"), Conditions(if_none_match=True)),
        (lambda _arguments: "NotImplemented", Conditions()),
        (lambda _arguments: "501", Conditions()),
    ],
    ids=["holds", "ignores", "refuses though it holds", "holds one", "unknown", "unknown by number"],
)
def test_finds_out_which_conditions_a_server_holds(
    store: S3Store,
    s3: S3Client,
    substitute: SetSubstitute,
    behaviour: Callable[[Mapping[str, Any]], str],
    conditions: Conditions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(s3_client.Connection, "is_amazon", False)
    substitute("put_object", Server(behaviour).put_object)

    assert conditions_of(store.connection, "bucket", "run/") == conditions

    assert "Contents" not in s3.list_objects_v2(Bucket="bucket"), "the probes are gone"


def test_finds_out_once_which_conditions_a_server_holds(
    store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_client.Connection, "is_amazon", False)
    conditions = conditions_of(store.connection, "bucket", "run/")

    monkeypatch.setattr(store.connection.client, "put_object", None)

    assert conditions_of(store.connection, "bucket", "other/") is conditions


# Reads

READ = CONTENT[:2_000_000]


class BreakingBody(io.BytesIO):
    """A body that gives no more than some bytes, then what a broken connection gives."""

    def __init__(self, content: bytes, problem: BaseException | None) -> None:
        super().__init__(content)
        self.problem = problem

    def read(self, size: int | None = -1, /) -> bytes:
        """Read, or fail."""
        content = super().read(size)
        if not content and self.problem is not None:
            raise self.problem
        return content


@pytest.fixture
def readable(store: S3Store) -> S3Store:
    """Return a bucket with an object to read."""
    store.put_bytes("a.whl", READ)
    return store


@pytest.fixture
def break_reads(readable: S3Store, substitute: SetSubstitute) -> BreakReads:
    """Return the function that lets reads end after some bytes; it returns the ranges that are asked for."""

    def break_reads(length: int, problem: BaseException | None = None) -> list[str]:
        assert readable.find("a.whl") is not None
        ranges: list[str] = []

        def get_object(real: Operation, **arguments: Any) -> Any:
            ranges.append(arguments.get("Range", ""))
            response = real(**arguments)
            return {
                **response,
                "Body": BreakingBody(response["Body"].read()[:length], problem),
            }

        substitute("get_object", get_object)
        return ranges

    return break_reads


def test_a_read_that_gains_nothing_is_an_error(readable: S3Store, break_reads: BreakReads) -> None:
    break_reads(0, boto.IncompleteReadError(actual_bytes=1, expected_bytes=2))

    with pytest.raises(ServiceError) as raised:
        readable.read("a.whl")

    assert "s3://bucket/a.whl" in raised.value.message
    assert f"byte 0 of {len(READ)}" in raised.value.message


def test_notices_an_object_that_is_replaced_while_it_is_read(
    readable: S3Store, break_reads: BreakReads
) -> None:
    break_reads(1_000_000, None)

    with readable.open("a.whl") as stream:
        assert stream.read(10) == READ[:10]
        readable.put_bytes("a.whl", READ[::-1])
        with pytest.raises(StoreError, match="replaced"):
            stream.read()


def ignore_ranges(real: Operation, **arguments: Any) -> Any:
    """Answer with all of an object, whatever is asked of it."""
    return real(Bucket=arguments["Bucket"], Key=arguments["Key"])


def test_reads_from_a_place_where_the_server_ignores_ranges(
    readable: S3Store, substitute: SetSubstitute
) -> None:
    substitute("get_object", ignore_ranges)

    with readable.stream("a.whl", start=1_500_000) as stream:
        assert stream.read() == READ[1_500_000:]


def test_notices_another_object_where_the_server_ignores_conditions(
    readable: S3Store, substitute: SetSubstitute
) -> None:
    seen_object = readable.find("a.whl")
    assert seen_object is not None
    substitute("get_object", ignore_ranges)
    readable.put_bytes("a.whl", b"other")

    with pytest.raises(StoreError, match="replaced"):
        readable.stream("a.whl", start=2, etag=seen_object.etag)


@pytest.fixture
def interrupted_download(
    readable: S3Store,
    break_reads: BreakReads,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Return the folder into which an object was fetched when the user pressed Ctrl-C."""
    folder = tmp_path / "wheels"
    break_reads(1_200_000, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        readable.fetch("a.whl", folder)
    monkeypatch.undo()
    return folder


def test_an_interrupted_download_leaves_no_file(interrupted_download: Path) -> None:
    assert not (interrupted_download / "a.whl").exists()


def test_goes_on_with_an_interrupted_download(
    readable: S3Store,
    interrupted_download: Path,
    break_reads: BreakReads,
) -> None:
    ranges = break_reads(len(READ), None)

    path = readable.fetch("a.whl", interrupted_download)

    assert path == interrupted_download / "a.whl"
    assert path.read_bytes() == READ
    assert ranges == ["bytes=1200000-"]
    assert list(interrupted_download.iterdir()) == [path]


def test_fetches_no_file_that_is_there(
    readable: S3Store,
    break_reads: BreakReads,
    tmp_path: Path,
) -> None:
    path = readable.fetch("a.whl", tmp_path / "wheels")
    ranges = break_reads(len(READ), None)

    assert readable.fetch("a.whl", tmp_path / "wheels") == path

    assert ranges == []
