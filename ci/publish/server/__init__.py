"""What runs beside a bucket: the function behind its events, and what it is allowed."""

from __future__ import annotations

import functools
import json
import logging
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_plus

from ci.publish.index import YANKED, is_page, write_index
from ci.publish.index.pages import FILES, SIDECAR
from ci.publish.index.sources import Carried
from core import parallel
from core.cli.options import environment
from core.stores.s3 import open_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from core.stores import Store


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


# what a run's wheels lie in; pages of a release index are part of its promotion, and no server's
RUN_FOLDERS = r"(?:[^/]+/)?[^/]+-(?:linux|windows)/python/[^/]+"

_RUN = re.compile(r"(?P<run>.+)/python/(?P<group>[^/]+)")
# folders at once: each of them asks the bucket many things at once
_FOLDERS = 4
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder of wheels in a bucket."""

    bucket: str
    prefix: str


def folder_of(change: Change, folders: re.Pattern[str]) -> Folder | None:
    """Give the folder whose pages follow a change; None for what no page lists, such as a page."""
    prefix, _, name = change.key.rpartition("/")
    if is_page(change.key) or not folders.fullmatch(prefix):
        return None
    if name != YANKED and not name.removesuffix(SIDECAR).endswith(FILES):
        return None
    return Folder(bucket=change.bucket, prefix=prefix)


def title_of(prefix: str) -> str:
    """Head a folder's flat page as the client does: group and run, or the folder itself."""
    match = _RUN.fullmatch(prefix)
    return f"{match['group']} ({match['run']})" if match else prefix


def handle(
    event: Mapping[str, Any], *, open_bucket: Callable[[str], Store], folders: re.Pattern[str]
) -> Mapping[str, Sequence[Mapping[str, str]]]:
    """Write the pages of every folder that an event tells of, each once."""
    told: dict[Folder, set[str]] = defaultdict(set)
    failed: set[str] = set()
    for message in messages(event):
        if message.broken:
            _log.error("message %s: %s", message.message_id, message.broken)
            failed.add(message.message_id)
        for change in message.changes:
            folder = folder_of(change, folders)
            if folder is not None:
                told[folder].add(message.message_id)

    def written(folder: Folder) -> Exception | None:
        try:
            _write(open_bucket(folder.bucket), folder)
        except Exception as problem:  # noqa: BLE001 - whatever it is, other folders' messages are not to suffer
            _log.exception("s3://%s/%s", folder.bucket, folder.prefix)
            return problem
        return None

    ordered = sorted(told, key=lambda folder: (folder.bucket, folder.prefix))
    for folder, problem in zip(ordered, parallel.each(written, ordered, jobs=_FOLDERS), strict=True):
        if problem is not None and "" in told[folder]:
            raise problem
        if problem is not None:
            failed |= told[folder]
    return {"batchItemFailures": [{"itemIdentifier": one} for one in sorted(failed)]}


def _write(store: Store, folder: Folder) -> None:
    done = write_index(
        store, folder.prefix, Carried(store=store), title=title_of(folder.prefix), strict=False
    )
    where = f"s3://{folder.bucket}/{folder.prefix}"
    _log.info(
        "%s: %d files, %d pages written, %d removed", where, done.files, len(done.written), len(done.removed)
    )
    for one in done.held:
        _log.info("%s is not listed: it has no sidecar, or %s", one.stored.key, one.why)


FOLDERS_VARIABLE = "PAGES_FOLDERS"

logging.getLogger("ci").setLevel(logging.INFO)


def handler(event: Mapping[str, Any], _context: object) -> Mapping[str, Sequence[Mapping[str, str]]]:
    """Bring the pages up to date with what an event tells of."""
    return handle(event, open_bucket=_store, folders=_folders())


@functools.cache
def _folders() -> re.Pattern[str]:
    return re.compile(environment().get(FOLDERS_VARIABLE) or RUN_FOLDERS)


def _store(bucket: str) -> Store:
    return open_bucket(f"s3://{bucket}", environment())
