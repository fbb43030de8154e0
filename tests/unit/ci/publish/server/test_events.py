import json
from typing import Any
from urllib.parse import quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.publish.server import EventError, Message, Place, messages

KEY = "17-linux/python/g/torch-2.10.0+rocm7.1 (1)-cp312.whl"
ENCODED = "17-linux/python/g/torch-2.10.0%2Brocm7.1+%281%29-cp312.whl"
CHANGE = Place(bucket="b", key=KEY)


def s3(*keys: str, name: str = "ObjectCreated:Put") -> dict[str, Any]:
    return {
        "Records": [
            {
                "eventSource": "aws:s3",
                "eventName": name,
                "s3": {"bucket": {"name": "b"}, "object": {"key": key, "size": 1, "sequencer": "0"}},
            }
            for key in keys
        ]
    }


def bridge(key: str, kind: str = "Object Created") -> dict[str, Any]:
    return {
        "source": "aws.s3",
        "detail-type": kind,
        "detail": {"bucket": {"name": "b"}, "object": {"key": key}},
    }


def sns(body: dict[str, Any]) -> dict[str, Any]:
    return {"Type": "Notification", "Message": json.dumps(body)}


def sqs(*bodies: Any) -> dict[str, Any]:
    return {
        "Records": [
            {
                "eventSource": "aws:sqs",
                "messageId": f"m{number}",
                "body": body if isinstance(body, str) else json.dumps(body),
            }
            for number, body in enumerate(bodies)
        ]
    }


@pytest.mark.parametrize(
    "event",
    [
        s3(ENCODED),
        s3(ENCODED, name="ObjectRemoved:DeleteMarkerCreated"),
        bridge(KEY),
        bridge(KEY, "Object Deleted"),
        {"Records": [{"EventSource": "aws:sns", "Sns": {"Message": json.dumps(s3(ENCODED))}}]},
    ],
)
def test_every_form_gives_the_key_as_it_is(event: dict[str, Any]) -> None:
    assert messages(event) == [Message(message_id="", changes=(CHANGE,))]


def test_a_queue_gives_each_message_by_itself_whatever_it_wraps() -> None:
    event = sqs(s3(ENCODED, "a"), bridge(KEY), sns(s3(ENCODED)), {"Event": "s3:TestEvent"}, s3(ENCODED))
    assert messages(event) == [
        Message(message_id="m0", changes=(CHANGE, Place(bucket="b", key="a"))),
        Message(message_id="m1", changes=(CHANGE,)),
        Message(message_id="m2", changes=(CHANGE,)),
        Message(message_id="m3"),
        Message(message_id="m4", changes=(CHANGE,)),
    ]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "a bucket: {}"),
        ({"Records": [{"eventSource": "aws:s3"}]}, "aws:s3"),
        ({"Records": [{"eventSource": "aws:dynamodb"}]}, "aws:dynamodb"),
        ({"Records": ["x"]}, 'a bucket: "x"'),
        ({"detail": {"bucket": "x"}}, "names no object"),
        ({"detail": []}, "names no object"),
        (sns({"x": 1}), 'a bucket: {"x": 1}'),
    ],
)
def test_a_broken_message_is_told_apart_and_spoils_no_other(body: Any, says: str) -> None:
    broken, whole = messages(sqs(body, s3(ENCODED)))
    assert says in broken.broken
    assert broken.changes == ()
    assert whole == Message(message_id="m1", changes=(CHANGE,))


@pytest.mark.parametrize("event", [{"x": 1}, {}, {"Records": ["x"]}])
def test_an_event_without_a_queue_that_tells_nothing_is_an_error(event: dict[str, Any]) -> None:
    with pytest.raises(EventError, match="names no object of a bucket"):
        messages(event)


@given(st.text(min_size=1, max_size=40))
def test_any_key_survives_s3s_own_encoding(key: str) -> None:
    try:
        encoded = quote_plus(key)
    except UnicodeEncodeError:  # S3's keys are UTF-8
        return
    assert messages(sqs(s3(encoded)))[0].changes == (Place(bucket="b", key=key),)
    assert messages(bridge(key))[0].changes == (Place(bucket="b", key=key),)
