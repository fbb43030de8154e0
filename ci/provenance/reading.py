"""A run's manifests, read for provenance: every record and source lock, with the digest of its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.promotion.documents import document
from ci.promotion.run_records import Recorded
from ci.provenance.facts import LockFile, RunRecords
from core import data, parallel, records
from core.errors import MissingInputError
from core.outputs import is_record
from pytorch_build.lock.source_lock import SourceLock

if TYPE_CHECKING:
    from core.outputs import RunOutputs
    from core.stores import Store

_LOCK = "source-lock-"


def read_run(store: Store, outputs: RunOutputs) -> RunRecords:
    """Read a run's records and source locks.

    Raises:
        MissingInputError: It has no records.
        DataError: One of them is none, or of another schema.
    """
    prefix = f"{outputs.prefix}/manifests"
    groups: dict[str, list[str]] = {}
    locks = []
    for key in (stored.key for stored in store.list(prefix)):
        group, slash, name = key.removeprefix(f"{prefix}/").partition("/")
        if slash and is_record(key) and "/" not in name:
            groups.setdefault(group, []).append(key)
        elif not slash and group.startswith(_LOCK) and group.endswith(".json"):
            locks.append(key)
    if not groups:
        raise MissingInputError(
            f"Run {outputs.run_id} has no records in {store.url}/{prefix}.",
            hint="Build something first (nox -s build_torch), or name another run with --run-id.",
        )

    def recorded(key: str) -> Recorded:
        content = store.read(key)
        return Recorded(record=records.parse(content, where=key), document=document(key, content))

    found = parallel.each(recorded, [key for keys in groups.values() for key in keys])
    by_key = {one.document.key: one for one in found}
    return RunRecords(
        prefix=outputs.prefix,
        groups={group: tuple(by_key[key] for key in keys) for group, keys in groups.items()},
        locks=tuple(_lock(store, key) for key in locks),
    )


def _lock(store: Store, key: str) -> LockFile:
    content = store.read(key)
    lock = data.parse_json(content.decode(errors="replace"), SourceLock, where=key)
    return LockFile(lock=lock, document=document(key, content))
