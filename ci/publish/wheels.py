"""Wheels and sdists of a person's folder, put into a run with a record that names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.publish import telling
from ci.publish.folders import is_temporary, items_of
from ci.publish.recorded import UPLOAD, record_stage, recorded
from ci.publish.transferring import absent, listing, plan, send, send_small
from core.errors import MissingInputError
from core.parallel import each
from core.run import records
from core.run.records import Cell, FileRecord, Record
from core.wheel import distributions
from core.wheel.distributions import SIDECAR

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ci.publish.digests import Digests
    from core.cli.options import Common
    from core.run.outputs import RunOutputs
    from core.stores import Store


def upload_folder(
    common: Common, folder: Path, artifact_group: str, digests: Digests
) -> Sequence[FileRecord]:
    """Put a folder's wheels and sdists into the run.

    Everything is read, hashed and held against the run before anything is written.
    """
    store, outputs = common.open_store(), common.outputs
    prefix, replace = outputs.python_prefix(artifact_group), not outputs.immutable
    paths = wheel_paths(folder)
    distributions.require_platform([path.name for path in paths], outputs)
    keys = [f"{prefix}/{path.name}" for path in paths]
    items = items_of(paths, keys, digests, replace=replace)
    described = each(lambda one: distributions.describe(one.path, key=one.key, sha256=one.sha256), items)
    manifests = outputs.manifests_prefix(artifact_group)
    listed = listing(store, [prefix, manifests])
    known = recorded(store, listed, f"{manifests}/{UPLOAD}")
    planned = plan(store, items, listed, known)
    send(store, planned.send, listed, title=f"wheels of {artifact_group}")
    sidecars = {f"{one.record.key}{SIDECAR}": one.sidecar for one in described if one.sidecar is not None}
    send_small(store, absent(sidecars, listed), listed, replace=replace)
    put = [one.record for one in described]
    _record(store, outputs, artifact_group, [one for one in put if one.sha256 not in known.get(one.key, ())])
    telling.table(put)
    telling.done(store, prefix, sent=len(planned.send), same=len(planned.same), dry_run=common.dry_run)
    return put


def wheel_paths(folder: Path) -> Sequence[Path]:
    """List the wheels and sdists of a folder, or of its ``dist`` where there is one."""
    place = folder / "dist" if (folder / "dist").is_dir() else folder
    names = sorted(path for path in place.glob("*") if distributions.is_distribution(path.name))
    found = [path for path in names if not is_temporary(path.name) and path.is_file()]
    if not found:
        raise MissingInputError(
            f"{place} holds no wheel or sdist.", hint="Give a folder that does with --input-dir."
        )
    return found


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
