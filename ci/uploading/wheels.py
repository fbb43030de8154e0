"""Wheels and sdists of a person's folder, put into a run with a record that names them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from ci.uploading import folders, telling
from ci.uploading.transferring import listing, plan, send, send_small
from core import distributions, records
from core.distributions import SIDECAR
from core.parallel import each
from core.records import Cell, FileRecord, Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ci.uploading.digests import Digests
    from core.options import Common
    from core.outputs import RunOutputs
    from core.stores import Store, Stored

UPLOAD = "upload-"


def upload_folder(
    common: Common, folder: Path, artifact_group: str, digests: Digests
) -> Sequence[FileRecord]:
    """Put a folder's wheels and sdists into the run.

    Everything is read, hashed and held against the run before anything is written.

    Raises:
        MissingInputError: The folder holds none.
        WheelError: One of them is named otherwise than its metadata says.
        StoreError: A name is taken by other bytes in an immutable run; nothing is written.
    """
    store, outputs = common.open_store(), common.outputs
    prefix, replace = outputs.python_prefix(artifact_group), not outputs.immutable
    paths = folders.wheel_paths(folder)
    keys = [f"{prefix}/{path.name}" for path in paths]
    items = folders.items_of(paths, keys, digests, replace=replace)
    described = each(lambda one: distributions.describe(one.path, key=one.key, sha256=one.sha256), items)
    manifests = outputs.manifests_prefix(artifact_group)
    listed = listing(store, [prefix, manifests])
    known = promised(store, listed, manifests)
    planned = plan(store, items, listed, known)
    send(store, planned.send, listed, title=f"wheels of {artifact_group}")
    sidecars = {f"{one.record.key}{SIDECAR}": one.sidecar for one in described if one.sidecar is not None}
    send_small(store, absent(sidecars, listed), listed, replace=replace)
    put = [one.record for one in described]
    _record(store, outputs, artifact_group, [one for one in put if one.sha256 not in known.get(one.key, ())])
    telling.table(put)
    telling.done(store, prefix, sent=len(planned.send), same=len(planned.same), dry_run=common.dry_run)
    return put


def promised(store: Store, listed: Mapping[str, Stored], manifests: str) -> Mapping[str, frozenset[str]]:
    """Read what earlier uploads recorded: digests by key."""
    keys = [key for key in listed if key.startswith(f"{manifests}/{UPLOAD}")]
    return records.promised(each(lambda key: records.parse(store.read(key), where=key), keys))


def absent(sidecars: Mapping[str, bytes], listed: Mapping[str, Stored]) -> dict[str, bytes]:
    """Leave out the sidecars that are there: they follow from their wheels, and so from their size."""
    return {key: data for key, data in sidecars.items() if key not in listed or listed[key].size != len(data)}


def record_stage(keys: Sequence[str]) -> str:
    """Name an upload by what it uploads: another one has another record, the same one again the same."""
    return f"{UPLOAD}{hashlib.sha256(chr(10).join(sorted(keys)).encode()).hexdigest()[:16]}"


def _record(store: Store, outputs: RunOutputs, artifact_group: str, put: Sequence[FileRecord]) -> None:
    if not put:
        return
    record = Record(
        stage=record_stage([one.key for one in put]),
        run_id=outputs.run_id,
        platform=outputs.platform,
        cell=Cell(gpu_family=artifact_group),
        started=records.now(),
        seconds=0,
        files=tuple(put),
    )
    records.write(store, outputs, artifact_group, record)
