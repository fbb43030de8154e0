"""Which changes of a bucket an event tells of, in whichever envelope it comes."""

import json
import re
from typing import Any, NoReturn
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.publish.server import RUN_FOLDERS, BucketKey, EventError, Message, handle, messages

KEY = "17-linux/python/g/torch-2.10.0+rocm7.1 (1)-cp312.whl"
ENCODED_KEY = "17-linux/python/g/torch-2.10.0%2Brocm7.1+%281%29-cp312.whl"
CHANGE = BucketKey(bucket="b", key=KEY)


def s3_event(*keys: str, name: str = "ObjectCreated:Put") -> dict[str, Any]:
    """Return what S3 tells of changed objects, whose keys it encodes."""
    records: list[dict[str, Any]] = []
    for key in keys:
        changed_object = {"key": key, "size": 1, "sequencer": "0"}
        change = {"bucket": {"name": "b"}, "object": changed_object}
        records.append({"eventSource": "aws:s3", "eventName": name, "s3": change})
    return {"Records": records}


def bridge_event(key: str, kind: str = "Object Created") -> dict[str, Any]:
    """Return what EventBridge tells of a changed object, whose key is as it is."""
    return {
        "source": "aws.s3",
        "detail-type": kind,
        "detail": {"bucket": {"name": "b"}, "object": {"key": key}},
    }


def sns_notification(body: dict[str, Any]) -> dict[str, Any]:
    """Wrap an event as SNS does where it sends it to a queue."""
    return {"Type": "Notification", "Message": json.dumps(body)}


def sqs_event(*bodies: Any) -> dict[str, Any]:
    """Return what a queue delivers: a message for each body, which is text or an event."""
    records: list[dict[str, Any]] = []
    for number, body in enumerate(bodies):
        text = body if isinstance(body, str) else json.dumps(body)
        records.append({"eventSource": "aws:sqs", "messageId": f"m{number}", "body": text})
    return {"Records": records}


@pytest.mark.parametrize(
    "event",
    [
        s3_event(ENCODED_KEY),
        s3_event(ENCODED_KEY, name="ObjectRemoved:DeleteMarkerCreated"),
        bridge_event(KEY),
        bridge_event(KEY, "Object Deleted"),
        {"Records": [{"EventSource": "aws:sns", "Sns": {"Message": json.dumps(s3_event(ENCODED_KEY))}}]},
    ],
    ids=["S3, created", "S3, removed", "EventBridge, created", "EventBridge, deleted", "SNS"],
)
def test_reads_the_key_from_every_envelope(event: dict[str, Any]) -> None:
    assert messages(event) == [Message(message_id="", changed_objects=(CHANGE,))]


def test_reads_each_message_of_a_queue_by_itself() -> None:
    event = sqs_event(
        s3_event(ENCODED_KEY, "a"),
        bridge_event(KEY),
        sns_notification(s3_event(ENCODED_KEY)),
        {"Event": "s3:TestEvent"},
        s3_event(ENCODED_KEY),
    )

    assert messages(event) == [
        Message(message_id="m0", changed_objects=(CHANGE, BucketKey(bucket="b", key="a"))),
        Message(message_id="m1", changed_objects=(CHANGE,)),
        Message(message_id="m2", changed_objects=(CHANGE,)),
        Message(message_id="m3"),
        Message(message_id="m4", changed_objects=(CHANGE,)),
    ]


@pytest.mark.parametrize(
    ("body", "mention"),
    [
        ("{", "JSON"),
        ("[]", "object"),
        ("{}", "{}"),
        ({"Records": [{"eventSource": "aws:s3"}]}, "aws:s3"),
        ({"Records": [{"eventSource": "aws:dynamodb"}]}, "aws:dynamodb"),
        ({"Records": ["x"]}, '"x"'),
        ({"detail": {"bucket": "x"}}, "no object"),
        ({"detail": []}, "no object"),
        (sns_notification({"x": 1}), '{"x": 1}'),
    ],
    ids=[
        "no JSON",
        "a list",
        "empty",
        "S3 without an object",
        "another service",
        "text as a record",
        "EventBridge without an object",
        "EventBridge without a bucket",
        "SNS with something else",
    ],
)
def test_a_broken_message_spoils_no_other(body: Any, mention: str) -> None:
    broken, intact = messages(sqs_event(body, s3_event(ENCODED_KEY)))

    assert mention in str(broken.problem)
    assert broken.changed_objects == ()
    assert intact == Message(message_id="m1", changed_objects=(CHANGE,))


@pytest.mark.parametrize("event", [{"x": 1}, {}, {"Records": ["x"]}], ids=["unknown", "empty", "text"])
def test_rejects_an_event_without_a_queue_that_names_no_object(event: dict[str, Any]) -> None:
    with pytest.raises(EventError):
        messages(event)


# S3's keys are UTF-8, which not every text of Python is.
@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=40))
def test_reads_any_key_that_s3_encodes(key: str) -> None:
    changes = (BucketKey(bucket="b", key=key),)

    assert messages(sqs_event(s3_event(quote_plus(key))))[0].changed_objects == changes
    assert messages(bridge_event(key))[0].changed_objects == changes


# What is ignored


def refuse_to_open(bucket: str) -> NoReturn:
    """Fail, because no bucket may be opened for these events."""
    raise AssertionError(bucket)


@pytest.mark.parametrize("name", ["notes.txt", "torch-2.10.0.zip", "index.html"])
def test_files_that_are_neither_wheels_nor_sdists_are_ignored(name: str) -> None:
    detail = {"bucket": {"name": "bucket"}, "object": {"key": f"17-linux/python/gfx94X-dcgpu/{name}"}}

    failures = handle({"detail": detail}, open_bucket=refuse_to_open, folders=re.compile(RUN_FOLDERS))

    assert failures == {"batchItemFailures": []}


def test_wheels_are_not_ignored() -> None:
    name = "torch-2.10.0-cp312-cp312-linux_x86_64.whl"
    detail = {"bucket": {"name": "bucket"}, "object": {"key": f"17-linux/python/gfx94X-dcgpu/{name}"}}

    with pytest.raises(AssertionError, match="bucket"):
        handle({"detail": detail}, open_bucket=refuse_to_open, folders=re.compile(RUN_FOLDERS))
