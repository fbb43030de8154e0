"""What a run leaves besides wheels: logs and reports, artifacts, manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.uploading import folders, telling
from ci.uploading.transferring import listing, plan, send, send_small
from ci.uploading.wheels import UPLOAD, absent, record_stage
from core import records
from core.parallel import each
from core.records import Cell, Record
from rocm_packaging.archives import SIDECAR

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ci.uploading.digests import Digests
    from ci.uploading.transferring import Item
    from core.options import Common
    from core.stores import Store, Stored

_OBJECTS = "objects"


def upload_tree(common: Common, items: Sequence[Item], kind: str, artifact_group: str) -> None:
    """Put logs or reports into the run; those of an earlier attempt are replaced.

    A record keeps their digests, so that nothing is asked about them the next time. It names no
    file of its own: an index is of wheels.

    Args:
        common: The run and the store.
        items: The files.
        kind: ``logs`` or ``reports``.
        artifact_group: The group.

    Raises:
        StoreError: The store refused.
    """
    store, outputs = common.open_store(), common.outputs
    manifests = outputs.manifests_prefix(artifact_group)
    prefix = f"{outputs.prefix}/{kind}/{artifact_group}"
    listed = listing(store, [prefix, manifests])
    known = _recorded(store, listed, f"{manifests}/{UPLOAD}{kind}-")
    planned = plan(store, items, listed, known)
    send(store, planned.send, listed, title=f"{kind} of {artifact_group}")
    if planned.send or any(one.sha256 not in known.get(one.key, ()) for one in items):
        name = record_stage([one.key for one in items]).removeprefix(UPLOAD)
        record = Record(
            stage=f"{UPLOAD}{kind}-{name}",
            run_id=outputs.run_id,
            platform=outputs.platform,
            cell=Cell(gpu_family=artifact_group),
            started=records.now(),
            seconds=0,
            details={_OBJECTS: {one.key: {"size": one.size, "sha256": one.sha256} for one in items}},
        )
        records.write(store, outputs, artifact_group, record)
    telling.done(store, prefix, sent=len(planned.send), same=len(planned.same), dry_run=common.dry_run)


def _recorded(store: Store, listed: Mapping[str, Stored], prefix: str) -> Mapping[str, frozenset[str]]:
    """Read what earlier uploads recorded; of a key in several, nobody knows which came last."""
    keys = [key for key in listed if key.startswith(prefix)]
    found: dict[str, frozenset[str]] = {}
    for record in each(lambda key: records.parse(store.read(key), where=key), keys):
        for key, said in record.details.get(_OBJECTS, {}).items():
            found[key] = found.get(key, frozenset()) | {said["sha256"]}
    return {key: digests for key, digests in found.items() if len(digests) == 1}


def upload_artifacts(common: Common, folder: Path, digests: Digests) -> None:
    """Put a folder's artifacts into the run, each with its digest beside it.

    Raises:
        MissingInputError: The folder holds none.
        ArtifactError: One is named otherwise, or is not what its digest says.
        StoreError: A name is taken by other bytes in an immutable run; nothing is written.
    """
    store, outputs = common.open_store(), common.outputs
    found = folders.archives(folder, outputs, digests)
    listed = {one.key: one for one in store.list(outputs.prefix, recursive=False)}
    planned = plan(store, [one.item for one in found], listed, {})
    send(store, planned.send, listed, title="artifacts")
    sent = {one.key for one in planned.send}
    sidecars = {f"{one.item.key}{SIDECAR}": one.sidecar for one in found}
    kept = absent(
        sidecars, {key: one for key, one in listed.items() if key.removesuffix(SIDECAR) not in sent}
    )
    send_small(store, kept, listed, replace=not outputs.immutable)
    telling.done(
        store, outputs.prefix, sent=len(planned.send), same=len(planned.same), dry_run=common.dry_run
    )


def upload_manifest(common: Common, path: Path, artifact_group: str, digests: Digests) -> None:
    """Put the manifest of a ROCm build into the run.

    Raises:
        MissingInputError: There is no such file.
        UsageError: It is named otherwise.
    """
    store = common.open_store()
    item = folders.manifest(path, common.outputs, artifact_group, digests)
    send(store, [item], listing(store, [item.key.rpartition("/")[0]]), title="the manifest")
    telling.done(store, item.key, sent=1, same=0, dry_run=common.dry_run)
