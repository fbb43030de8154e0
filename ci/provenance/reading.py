"""A run's manifests, read for provenance: every record and source lock, with the digest of its bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.promote.documents import document
from ci.promote.run_records import Recorded
from ci.provenance.facts import LockFile, RunRecords
from core import data, parallel
from core.errors import DataError, MissingInputError
from core.run import records
from core.run.outputs import is_record
from pytorch_build.lock.source_lock import SourceLock

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from core.run.outputs import RunOutputs
    from core.stores import Store

_LOCK = "source-lock-"


def read_run(
    store: Store,
    outputs: RunOutputs,
    known: MutableMapping[tuple[str, str], Recorded] | None = None,
    group: str = "",
) -> RunRecords:
    """Read a run's records and source locks."""
    prefix = f"{outputs.prefix}/manifests"
    known = {} if known is None else known
    groups: dict[str, list[tuple[str, str]]] = {}
    locks = []
    for stored in store.list(prefix):
        first, slash, name = stored.key.removeprefix(f"{prefix}/").partition("/")
        if slash and is_record(stored.key) and "/" not in name:
            groups.setdefault(first, []).append((stored.key, stored.etag))
        elif not slash and first.startswith(_LOCK) and first.endswith(".json"):
            locks.append(stored.key)
    if not groups:
        raise MissingInputError(
            f"Run {outputs.run_id} has no records in {store.url}/{prefix}.",
            hint="Build something first (nox -s build_torch), or name another run with --run-id.",
        )

    def recorded(version: tuple[str, str]) -> Recorded | DataError | None:
        key, _etag = version
        try:
            content = store.read(key)
            return Recorded(record=records.parse(content, where=key), document=document(key, content))
        except MissingInputError:
            # a failure's record goes when its stage succeeds
            return None
        except DataError as problem:
            if group in {"", key.removeprefix(f"{prefix}/").partition("/")[0]}:
                raise
            return problem

    new = [version for versions in groups.values() for version in versions if version not in known]
    read = dict(zip(new, parallel.each(recorded, new), strict=True))
    known.update({version: one for version, one in read.items() if isinstance(one, Recorded)})
    return RunRecords(
        prefix=outputs.prefix,
        groups={
            name: tuple(known[one] for one in versions if one in known) for name, versions in groups.items()
        },
        locks=tuple(_lock(store, key) for key in locks),
        unreadable=tuple(one for one in read.values() if isinstance(one, DataError)),
    )


def _lock(store: Store, key: str) -> LockFile:
    content = store.read(key)
    lock = data.parse_json(content.decode(errors="replace"), SourceLock, where=key)
    return LockFile(lock=lock, document=document(key, content))
