"""A bucket as only it can behave: objects of other tools, refusals, races, other servers' habits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from core.errors import ConflictError, StoreError
from core.stores.location import open_store
from tests.kit.aws import imitate_server, refusal
from tests.kit.wheels import sha256

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from types_boto3_s3 import S3Client

    from core.stores.s3 import S3Store
    from tests.kit.aws import Operation, SetSubstitute


# Objects of other tools


@pytest.mark.parametrize("name", ["sha256", "Sha256", "SHA256"])
def test_finds_a_digest_in_any_spelling(
    bucket: S3Store, s3: S3Client, substitute: SetSubstitute, name: str
) -> None:
    s3.put_object(Bucket="bucket", Key="a", Body=b"a")

    substitute("head_object", lambda real, **arguments: {**real(**arguments), "Metadata": {name: "digest"}})

    assert bucket.digest("a") == "digest"


def test_reads_an_object_of_others_for_its_digest(bucket: S3Store, s3: S3Client) -> None:
    s3.put_object(Bucket="bucket", Key="a", Body=b"a")

    assert bucket.digest("a") == sha256(b"a")


def test_rejects_an_object_without_the_digest_that_it_carries(
    bucket: S3Store, s3: S3Client, tmp_path: Path
) -> None:
    digest = sha256(b"meant")
    s3.put_object(Bucket="bucket", Key="b.whl", Body=b"is", Metadata={"sha256": digest})

    with pytest.raises(StoreError, match=digest):
        bucket.read("b.whl")
    with pytest.raises(StoreError, match=digest):
        bucket.fetch("b.whl", tmp_path / "wheels")

    assert list((tmp_path / "wheels").iterdir()) == []


def test_lists_every_page_of_a_listing(
    bucket: S3Store, s3: S3Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    keys = [f"r/{number:04}.whl" for number in range(8)]
    for key in keys:
        s3.put_object(Bucket="bucket", Key=key, Body=b"")

    assert [stored_object.key for stored_object in bucket.list("r")] == keys


@pytest.mark.parametrize("key", ["r/", "r/.hidden/a", "r/.b", "other/a"])
def test_lists_nothing_but_outputs(bucket: S3Store, s3: S3Client, key: str) -> None:
    s3.put_object(Bucket="bucket", Key=key, Body=b"")

    assert list(bucket.list("r")) == []


# Refusals


@pytest.mark.usefixtures("s3")
def test_every_operation_names_an_absent_bucket(tmp_path: Path) -> None:
    bucket = open_store("s3://nowhere/run", root=tmp_path)
    calls: list[Callable[[], object]] = [
        lambda: bucket.list("x"),
        lambda: bucket.find("x"),
        lambda: bucket.read("x"),
        lambda: bucket.digest("x"),
        lambda: bucket.put_bytes("x", b""),
    ]
    for call in calls:
        with pytest.raises(StoreError, match="'nowhere'"):
            call()


def test_asks_for_the_reason_of_a_refusal_where_answers_have_words(
    bucket: S3Store, substitute: SetSubstitute
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
        bucket.find("a")


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
    """Return what happens around each write of the bucket."""
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
def test_a_write_that_met_its_own_first_attempt_succeeds(bucket: S3Store, writes: Writes, code: str) -> None:
    # The answer to the attempt was lost, and the client has repeated it.
    writes.after = refuse_with(code)

    assert bucket.put_bytes("x.html", b"ours", if_match="").outcome == "written"

    assert writes.conditions == [{"IfNoneMatch": "*"}]


def test_a_conditional_write_that_met_another_one_has_lost(bucket: S3Store, writes: Writes) -> None:
    writes.before = write_theirs

    with pytest.raises(ConflictError):
        bucket.put_bytes("x.html", b"ours", if_match="")

    assert bucket.read("x.html") == b"theirs"


def test_a_write_that_replaces_nothing_does_not_replace_one_that_came_first(
    bucket: S3Store, writes: Writes
) -> None:
    writes.before = write_theirs

    with pytest.raises(StoreError, match=r"a\.whl") as raised:
        bucket.put_bytes("a.whl", b"ours", replace=False)

    assert not isinstance(raised.value, ConflictError)
    assert bucket.read("a.whl") == b"theirs"


def test_repeats_a_write_where_the_server_is_busy_with_the_key(bucket: S3Store, writes: Writes) -> None:
    def be_busy_twice(_put_object: Operation, number: int) -> None:
        if number < 3:
            raise refusal("ConditionalRequestConflict")

    writes.before = be_busy_twice

    assert bucket.put_bytes("x.html", b"ours", if_match="").outcome == "written"

    assert len(writes.conditions) == 3


@pytest.mark.parametrize("is_present", [False, True], ids=["new", "replaced"])
def test_notices_an_overwrite_where_the_server_holds_no_conditions(
    bucket: S3Store,
    writes: Writes,
    s3: S3Client,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_present: bool,
) -> None:
    if is_present:
        bucket.put_bytes("x.html", b"before")
    seen_object = bucket.find("x.html")
    writes.conditions.clear()
    imitate_server(s3, monkeypatch, "ignores")
    writes.after = write_theirs

    with pytest.raises(ConflictError):
        bucket.put_bytes("x.html", b"ours", if_match=seen_object.etag if seen_object else "")

    assert bucket.read("x.html") == b"theirs"


def test_takes_no_missing_permission_for_a_lost_race(bucket: S3Store, writes: Writes) -> None:
    writes.before = refuse_with("AccessDenied")

    with pytest.raises(StoreError, match="s3:PutObject"):
        bucket.put_bytes("x.html", b"ours", if_match="")

    assert len(writes.conditions) == 1


def test_says_once_that_a_server_may_ignore_conditions(
    bucket: S3Store, s3: S3Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    imitate_server(s3, monkeypatch, "ignores")

    for number in range(3):
        bucket.put_bytes(f"{number}.html", b"page", if_match="")

    assert capsys.readouterr().err.count("may ignore conditions") == 1


@pytest.mark.usefixtures("aws")
def test_says_nothing_of_conditions_at_amazon(bucket: S3Store, capsys: pytest.CaptureFixture[str]) -> None:
    bucket.put_bytes("x.html", b"page", if_match="")

    assert capsys.readouterr().err == ""


# Pages of folders


def test_a_server_that_keeps_objects_as_files_keeps_no_pages_of_folders(
    bucket: S3Store, substitute: SetSubstitute, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.put_bytes("r/a.whl", b"wheel")
    monkeypatch.setattr(type(bucket.connection), "is_amazon", False)

    def find_file(real: Operation, **arguments: Any) -> Any:
        return real(**{**arguments, "Key": arguments["Key"].rstrip("/")})

    substitute("head_object", find_file)

    assert not bucket.keeps_folder_pages("r")
