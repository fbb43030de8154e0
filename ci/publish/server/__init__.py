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

# what a run's wheels lie in; pages of a release index are part of its promotion, and not the server's
RUN_FOLDERS = r"(?:[^/]+/)?[^/]+-(?:linux|windows)/python/[^/]+"
FOLDERS_VARIABLE = "PAGES_FOLDERS"

_RUN = re.compile(r"(?P<run>.+)/python/(?P<group>[^/]+)")
_SHOWN = 200
# folders in parallel: each of them has many requests in parallel
_FOLDERS = 4
_log = logging.getLogger(__name__)
logging.getLogger("ci").setLevel(logging.INFO)


class EventError(ValueError):
    """A message that names no object of a bucket."""


class Place(NamedTuple):
    """An object of a bucket, or a folder of wheels in one."""

    bucket: str
    key: str


class Message(NamedTuple):
    """What one message says; the whole event, where no queue stands between.

    Its objects were put or deleted; which of both does not matter: the bucket is looked at.
    """

    message_id: str
    changes: tuple[Place, ...] = ()
    broken: str = ""


def handler(event: Mapping[str, Any], _context: object) -> Mapping[str, Sequence[Mapping[str, str]]]:
    """Bring the pages up to date with an event's changes: what AWS Lambda calls."""
    return handle(event, open_bucket=lambda name: open_bucket(f"s3://{name}"), folders=_folders())


@functools.cache
def _folders() -> re.Pattern[str]:
    return re.compile(environment().get(FOLDERS_VARIABLE) or RUN_FOLDERS)


def handle(
    event: Mapping[str, Any], *, open_bucket: Callable[[str], Store], folders: re.Pattern[str]
) -> Mapping[str, Sequence[Mapping[str, str]]]:
    """Write the pages of every folder that an event names, each once; return the messages that failed."""
    senders: dict[Place, set[str]] = defaultdict(set)
    failed: set[str] = set()
    for message in messages(event):
        if message.broken:
            _log.error("message %s: %s", message.message_id, message.broken)
            failed.add(message.message_id)
        for folder in filter(None, (folder_of(change, folders) for change in message.changes)):
            senders[folder].add(message.message_id)

    def written(folder: Place) -> Exception | None:
        try:
            _write(open_bucket(folder.bucket), folder)
        except Exception as problem:  # noqa: BLE001 - whatever it is, other folders' messages are not to suffer
            _log.exception("s3://%s/%s", *folder)
            return problem
        return None

    ordered = sorted(senders)
    for folder, problem in zip(
        ordered, parallel.map_in_threads(written, ordered, jobs=_FOLDERS), strict=True
    ):
        if problem is not None and "" in senders[folder]:
            raise problem
        if problem is not None:
            failed |= senders[folder]
    return {"batchItemFailures": [{"itemIdentifier": one} for one in sorted(failed)]}


def _write(store: Store, folder: Place) -> None:
    prefix = folder.key
    update = write_index(store, prefix, UploadedSource(store=store), title=title_of(prefix), strict=False)
    counts = (update.file_count, len(update.written_pages), len(update.removed_pages))
    _log.info("s3://%s/%s: %d files, %d pages written, %d removed", *folder, *counts)
    for held in update.held_files:
        _log.info("%s is not listed: %s", held.key, held.reason)


def folder_of(change: Place, folders: re.Pattern[str]) -> Place | None:
    """Return the folder whose pages follow a change; None for what no page lists, such as a page."""
    prefix, _, name = change.key.rpartition("/")
    if is_page(change.key) or not folders.fullmatch(prefix):
        return None
    if name != YANKS_FILE and not name.removesuffix(SIDECAR_SUFFIX).endswith(DISTRIBUTION_SUFFIXES):
        return None
    return Place(change.bucket, prefix)


def title_of(prefix: str) -> str:
    """Return the flat page's title as the client writes it: group and run, or the folder itself."""
    match = _RUN.fullmatch(prefix)
    return f"{match['group']} ({match['run']})" if match else prefix


def messages(event: Mapping[str, Any]) -> Sequence[Message]:
    """Read an event: each of a queue's messages by itself, so that a broken one spoils no other."""
    records = event.get("Records")
    listed = [one for one in records if isinstance(one, dict)] if isinstance(records, list) else []
    if any(one.get("eventSource") == "aws:sqs" for one in listed):
        return [_message(one) for one in listed]
    return [Message("", tuple(_changes(event)))]


def _message(record: Mapping[str, Any]) -> Message:
    message_id = str(record.get("messageId", ""))
    try:
        return Message(message_id, tuple(_changes(_json(record.get("body")))))
    except EventError as problem:
        return Message(message_id, broken=str(problem))


def _json(text: object) -> Mapping[str, Any]:
    try:
        value = json.loads(text) if isinstance(text, str) else None
    except ValueError as problem:
        raise EventError(f"The message is not JSON: {problem}.") from problem
    if not isinstance(value, dict):
        raise EventError("The message is not a JSON object.")
    return value


def _changes(event: object) -> Iterator[Place]:
    match event:
        case {"Event": "s3:TestEvent"}:
            return
        case {"detail": {"bucket": {"name": bucket}, "object": {"key": key}}}:  # EventBridge's
            yield Place(str(bucket), str(key))
        case {"s3": {"bucket": {"name": bucket}, "object": {"key": key}}}:
            yield Place(str(bucket), unquote_plus(str(key)))
        case {"Message": message} | {"Sns": {"Message": message}}:  # an SNS topic's, through a queue or not
            yield from _changes(_json(message))
        case {"Records": list(records)}:
            for record in records:
                yield from _changes(record)
        case _:
            raise EventError(f"It names no object of a bucket: {json.dumps(event)[:_SHOWN]}.")
