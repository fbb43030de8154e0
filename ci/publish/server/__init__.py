"""The function behind a bucket's events, `handler`, which brings the pages of changed folders up to date.

S3 reports changes directly, through SQS (with SNS between or not), or through EventBridge; a batch may
hold all of these, many times over, in any order. Formats: the S3 user guide's "Event message structure"
(keys are URL-encoded, a space as ``+``) and "EventBridge event message structure" (keys are as they are).
The settings are the function's environment variables.
"""

import functools
import json
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

from ci.publish.index import YANKS_FILE, UploadedSource, is_page, write_index
from ci.publish.index.names import DISTRIBUTION_SUFFIXES, SIDECAR_SUFFIX
from core import parallel
from core.cli.options import environment
from core.stores import Store
from core.stores.s3 import open_bucket

# What a run's wheels lie in. The pages of a release index are part of its promotion, and not the server's.
RUN_FOLDERS = r"(?:[^/]+/)?[^/]+-(?:linux|windows)/python/[^/]+"
FOLDERS_VARIABLE = "PAGES_FOLDERS"

_RUN_GROUP = re.compile(r"(?P<run>.+)/python/(?P<group>[^/]+)")
_MOST_CHARACTERS = 200  # of an event, in an error
# Each folder has many requests in parallel.
_FOLDERS_AT_ONCE = 4
_log = logging.getLogger(__name__)
logging.getLogger("ci").setLevel(logging.INFO)


class EventError(ValueError):
    """A message that names no object of a bucket."""


class BucketKey(NamedTuple):
    """An object of a bucket, or a folder of wheels in one."""

    bucket: str
    key: str


class Message(NamedTuple):
    """What one message says; the whole event, where no queue stands between.

    Its objects were put or deleted. Which of both does not matter: the bucket is looked at.

    Attributes:
        message_id: The queue's name for it; "" for an event without a queue.
        changed_objects: What it says that was changed.
        problem: Why it cannot be read; None for one that can.
    """

    message_id: str
    changed_objects: tuple[BucketKey, ...] = ()
    problem: str | None = None


def handler(event: Mapping[str, Any], _context: object) -> Mapping[str, Sequence[Mapping[str, str]]]:
    """Bring the pages up to date with an event's changes: what AWS Lambda calls."""
    return handle(event, open_bucket=lambda name: open_bucket(f"s3://{name}"), folders=_folder_pattern())


@functools.cache
def _folder_pattern() -> re.Pattern[str]:
    return re.compile(environment().get(FOLDERS_VARIABLE) or RUN_FOLDERS)


def handle(
    event: Mapping[str, Any],
    *,
    open_bucket: Callable[[str], Store],
    folders: re.Pattern[str],
) -> Mapping[str, Sequence[Mapping[str, str]]]:
    """Write the pages of every folder that an event names, each once; return the messages that failed."""
    message_ids_by_folder: dict[BucketKey, set[str]] = defaultdict(set)
    failed_ids: set[str] = set()
    for message in messages(event):
        if message.problem is not None:
            _log.error("message %s: %s", message.message_id, message.problem)
            failed_ids.add(message.message_id)
        for changed_object in message.changed_objects:
            folder = folder_of(changed_object, folders)
            if folder is not None:
                message_ids_by_folder[folder].add(message.message_id)

    folder_names = sorted(message_ids_by_folder)
    problems = parallel.map_in_threads(
        functools.partial(_try_to_write_pages, open_bucket),
        folder_names,
        jobs=_FOLDERS_AT_ONCE,
    )
    for folder, problem in zip(folder_names, problems, strict=True):
        if problem is None:
            continue
        if "" in message_ids_by_folder[folder]:
            # No queue would deliver the event again.
            raise problem
        failed_ids |= message_ids_by_folder[folder]
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in sorted(failed_ids)]}


def _try_to_write_pages(open_bucket: Callable[[str], Store], folder: BucketKey) -> Exception | None:
    """Write a folder's pages; return the problem, from which other folders' messages are not to suffer."""
    try:
        _write_pages(open_bucket(folder.bucket), folder)
    except Exception as problem:  # noqa: BLE001 - whatever it is
        _log.exception("s3://%s/%s", folder.bucket, folder.key)
        return problem
    return None


def _write_pages(store: Store, folder: BucketKey) -> None:
    source = UploadedSource(store=store)
    update = write_index(store, folder.key, source, title=title_of(folder.key), strict=False)
    _log.info(
        "s3://%s/%s: %d files, %d pages written, %d removed",
        folder.bucket,
        folder.key,
        update.file_count,
        len(update.written_pages),
        len(update.removed_pages),
    )
    for key, reason in update.held_back_files.items():
        _log.info("%s is not listed: %s", key, reason)


def folder_of(changed_object: BucketKey, folders: re.Pattern[str]) -> BucketKey | None:
    """Return the folder whose pages follow a change; None for what no page lists, such as a page."""
    folder, _slash, name = changed_object.key.rpartition("/")
    if is_page(changed_object.key) or not folders.fullmatch(folder):
        return None
    is_listed = name.removesuffix(SIDECAR_SUFFIX).endswith(DISTRIBUTION_SUFFIXES)
    if not is_listed and name != YANKS_FILE:
        return None
    return BucketKey(changed_object.bucket, folder)


def title_of(folder: str) -> str:
    """Return the flat page's title as the client writes it: group and run, or the folder itself."""
    match = _RUN_GROUP.fullmatch(folder)
    if match is None:
        return folder
    return f"{match['group']} ({match['run']})"


# --- Events ----------------------------------------------------------------------------------


def messages(event: Mapping[str, Any]) -> Sequence[Message]:
    """Return an event's messages: each of a queue's by itself, so that a broken one spoils no other."""
    records = event.get("Records")
    if not isinstance(records, list):
        records = []
    queue_records = [record for record in records if isinstance(record, dict)]
    if any(record.get("eventSource") == "aws:sqs" for record in queue_records):
        return [_read_message(record) for record in queue_records]
    return [Message(message_id="", changed_objects=tuple(_changed_objects(event)))]


def _read_message(record: Mapping[str, Any]) -> Message:
    message_id = str(record.get("messageId", ""))
    try:
        changed_objects = tuple(_changed_objects(_parse(record.get("body"))))
    except EventError as problem:
        return Message(message_id, problem=str(problem))
    return Message(message_id, changed_objects)


def _parse(text: object) -> Mapping[str, Any]:
    if not isinstance(text, str):
        raise EventError("The message has no text.")
    try:
        document = json.loads(text)
    except ValueError as problem:
        raise EventError(f"The message is not JSON: {problem}.") from problem
    if not isinstance(document, dict):
        raise EventError("The message is not a JSON object.")
    return document


def _changed_objects(event: object) -> Iterator[BucketKey]:
    match event:
        case {"Event": "s3:TestEvent"}:
            return
        # EventBridge's
        case {"detail": {"bucket": {"name": bucket}, "object": {"key": key}}}:
            yield BucketKey(str(bucket), str(key))
        case {"s3": {"bucket": {"name": bucket}, "object": {"key": key}}}:
            yield BucketKey(str(bucket), unquote_plus(str(key)))
        # An SNS topic's, through a queue or not
        case {"Message": message} | {"Sns": {"Message": message}}:
            yield from _changed_objects(_parse(message))
        case {"Records": list(records)}:
            for record in records:
                yield from _changed_objects(record)
        case _:
            text = json.dumps(event)
            raise EventError(f"It names no object of a bucket: {text[:_MOST_CHARACTERS]}.")
