"""What a Lambda function is told of a bucket, as one list of changed keys.

S3 tells of changes directly, through SQS (with SNS between or not), or through EventBridge; a
batch may hold all of these, many times over, in any order. Formats: the S3 user guide's "Event
message structure" (keys are URL-encoded, a space as ``+``) and "EventBridge event message
structure" (keys are as they are).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SQS, _SNS, _S3 = "aws:sqs", "aws:sns", "aws:s3"


class EventError(ValueError):
    """A message that tells nothing of a bucket."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """An object that was put or deleted. Which of both does not matter: the bucket is looked at."""

    bucket: str
    key: str


@dataclass(frozen=True, kw_only=True)
class Message:
    """What one message says; the whole event, where no queue stands between."""

    message_id: str
    changes: tuple[Change, ...] = ()
    broken: str = ""


def messages(event: Mapping[str, Any]) -> Sequence[Message]:
    """Read an event: each of a queue's messages by itself, so that a broken one spoils no other."""
    records = event.get("Records")
    if isinstance(records, list) and any(_source(record) == _SQS for record in records):
        return [_message(record) for record in records]
    return [Message(message_id="", changes=tuple(_changes(event)))]


def _source(record: object) -> str:
    if not isinstance(record, dict):
        return ""
    return str(record.get("eventSource") or record.get("EventSource") or "")


def _message(record: Mapping[str, Any]) -> Message:
    message_id = str(record.get("messageId", ""))
    try:
        return Message(message_id=message_id, changes=tuple(_changes(_json(record.get("body")))))
    except EventError as problem:
        return Message(message_id=message_id, broken=str(problem))


def _json(text: object) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except ValueError as problem:
        raise EventError(f"The message is no JSON: {problem}.") from problem
    if not isinstance(value, dict):
        raise EventError("The message is no JSON object.")
    return value


def _changes(event: Mapping[str, Any]) -> Iterator[Change]:
    if event.get("Event") == "s3:TestEvent":
        return
    if "detail" in event:
        yield _of_eventbridge(event)
    elif isinstance(event.get("Message"), str):  # an SNS topic's, as a queue gets it
        yield from _changes(_json(event["Message"]))
    elif isinstance(event.get("Records"), list):
        for record in event["Records"]:
            yield from _of_record(record)
    else:
        raise EventError(
            f"The event tells nothing of a bucket; it has {', '.join(sorted(event)) or 'nothing'}."
        )


def _of_eventbridge(event: Mapping[str, Any]) -> Change:
    try:
        detail = event["detail"]
        return Change(bucket=str(detail["bucket"]["name"]), key=str(detail["object"]["key"]))
    except (KeyError, TypeError) as problem:
        raise EventError("The event of EventBridge names no bucket or no object.") from problem


def _of_record(record: Mapping[str, Any]) -> Iterator[Change]:
    source = _source(record)
    try:
        if source == _SNS:
            yield from _changes(_json(record["Sns"]["Message"]))
        elif source == _S3:
            told = record["s3"]
            yield Change(bucket=str(told["bucket"]["name"]), key=unquote_plus(str(told["object"]["key"])))
        else:
            raise EventError(f"A record of {source or 'no source'} tells nothing of a bucket.")
    except (KeyError, TypeError) as problem:
        raise EventError("A record names no bucket or no object.") from problem
