"""From changed keys to the folders whose pages follow them, and those pages."""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.publish.indexing import YANKED, is_page, write_index
from ci.publish.indexing.names import FILES, SIDECAR
from ci.publish.server.carried import Carried
from ci.publish.server.events import messages
from core import parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from ci.publish.server.events import Change
    from core.stores import Store

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
