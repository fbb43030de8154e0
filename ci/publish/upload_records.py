"""Records of uploads: which bytes were put under which keys, so that the next upload need not query them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ci.publish.batches import Document
from core import files
from core.errors import DataError
from core.parallel import map_in_threads
from core.run import RunOutputs
from core.stores import Store, Stored

if TYPE_CHECKING:
    from ci.publish.local_files import LocalFile
    from core.run.records import FileRecord

_STEP_PREFIX = "upload-"
# Files that are no distributions are named in a record's details, as an index is of its `files`.
_OBJECTS = "objects"


def record_of_wheels(
    outputs: RunOutputs,
    artifact_group: str,
    wheels: Sequence[FileRecord],
) -> Document:
    """Return the record of wheels and sdists that were uploaded from a folder."""
    keys = [wheel.key for wheel in wheels]
    return _record(outputs, artifact_group, _step_name(keys), wheels=wheels, details={})


def record_of_files(
    outputs: RunOutputs,
    artifact_group: str,
    kind: str,
    local_files: Sequence[LocalFile],
) -> Document:
    """Return the record of logs or reports, which `kind` says."""
    objects: dict[str, object] = {}
    for file in local_files:
        objects[file.key] = {"size": file.size, "sha256": file.sha256}
    step_name = _step_name(objects, kind=kind)
    return _record(outputs, artifact_group, step_name, wheels=(), details={_OBJECTS: objects})


def _step_name(keys: Iterable[str], *, kind: str | None = None) -> str:
    """Name an upload after its keys, so that another upload has another record."""
    prefix = _STEP_PREFIX if kind is None else f"{_STEP_PREFIX}{kind}-"
    digest = files.sha256_text("\n".join(sorted(keys)))
    return f"{prefix}{digest[:16]}"


def _record(
    outputs: RunOutputs,
    artifact_group: str,
    step_name: str,
    *,
    wheels: Sequence[FileRecord],
    details: Mapping[str, object],
) -> Document:
    # A record's schema takes as long to import as thousands of files to compare.
    from core.cell import GroupCell
    from core.run import records
    from core.run.records import Record

    record = Record(
        stage=step_name,
        run_id=outputs.run_id,
        platform=outputs.platform,
        cell=GroupCell(gpu_family=artifact_group),
        started=records.now(),
        seconds=0,
        files=tuple(wheels),
        details=dict(details),
    )
    key = outputs.record_key(artifact_group, record.name)
    return Document(key, records.serialize(record), may_replace=True)


def read_digests(
    store: Store,
    listing: Mapping[str, Stored],
    outputs: RunOutputs,
    artifact_group: str,
    *,
    kind: str | None = None,
) -> Mapping[str, frozenset[str]]:
    """Return the digests that records of earlier uploads name, by key; of one kind alone, or of all."""
    prefix = f"{outputs.manifests_prefix(artifact_group)}/{_STEP_PREFIX}"
    if kind is not None:
        prefix = f"{prefix}{kind}-"
    keys = [key for key in listing if key.startswith(prefix) and key.endswith(".json")]

    digests: dict[str, frozenset[str]] = {}
    for digests_of_record in map_in_threads(partial(_read_record, store), keys):
        for key, sha256 in digests_of_record.items():
            digests[key] = digests.get(key, frozenset()) | {sha256}
    return digests


def _read_record(store: Store, record_key: str) -> Mapping[str, str]:
    # Without the record's schema thousands of files are read in a moment.
    try:
        record = json.loads(store.read(record_key))
        digests: dict[str, str] = {}
        for file in record["files"]:
            digests[str(file["key"])] = str(file["sha256"])
        objects = record["details"].get(_OBJECTS, {})
        for key in objects:
            digests[key] = str(objects[key]["sha256"])
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DataError(
            f"{record_key} is not an upload's record.", hint="Delete it; upload again."
        ) from problem
    return digests
