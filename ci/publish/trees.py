"""Logs and reports of a run, and the manifest of a ROCm build."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.publish import telling
from ci.publish.folders import items_of
from ci.publish.recorded import OBJECTS, UPLOAD, record_stage, recorded
from ci.publish.transferring import listing, plan, send
from core.errors import MissingInputError, UsageError
from core.run.outputs import BUILD_MANIFEST

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ci.publish.digests import Digests
    from ci.publish.transferring import Item
    from core.cli.options import Common
    from core.run.outputs import RunOutputs


def upload_tree(common: Common, items: Sequence[Item], kind: str, artifact_group: str) -> None:
    """Put logs or reports into the run; those of an earlier attempt are replaced.

    A record keeps their digests, so that nothing is asked about them the next time. It names no
    file of its own: an index is of wheels.
    """
    store, outputs = common.open_store(), common.outputs
    manifests = outputs.manifests_prefix(artifact_group)
    prefix = f"{outputs.prefix}/{kind}/{artifact_group}"
    listed = listing(store, [prefix, manifests])
    found = recorded(store, listed, f"{manifests}/{UPLOAD}{kind}-")
    # of a file in several records, nobody knows which came last
    known = {key: digests for key, digests in found.items() if len(digests) == 1}
    planned = plan(store, items, listed, known)
    send(store, planned.send, listed, title=f"{kind} of {artifact_group}")
    if planned.send or any(one.sha256 not in known.get(one.key, ()) for one in items):
        _record_tree(common, items, kind, artifact_group)
    telling.done(store, prefix, sent=len(planned.send), same=len(planned.same), dry_run=common.dry_run)


def _record_tree(common: Common, items: Sequence[Item], kind: str, artifact_group: str) -> None:
    # a record's schema takes as long to import as thousands of files to compare
    from core.run import records
    from core.run.records import Cell, Record

    store, outputs = common.open_store(), common.outputs
    record = Record(
        stage=f"{UPLOAD}{kind}-{record_stage([one.key for one in items]).removeprefix(UPLOAD)}",
        run_id=outputs.run_id,
        platform=outputs.platform,
        cell=Cell(gpu_family=artifact_group),
        started=records.now(),
        seconds=0,
        details={OBJECTS: {one.key: {"size": one.size, "sha256": one.sha256} for one in items}},
    )
    records.write(store, outputs, artifact_group, record)


def upload_manifest(common: Common, path: Path, artifact_group: str, digests: Digests) -> None:
    """Put the manifest of a ROCm build into the run."""
    store = common.open_store()
    item = manifest_item(path, common.outputs, artifact_group, digests)
    send(store, [item], listing(store, [item.key.rpartition("/")[0]]), title="the manifest")
    telling.done(store, item.key, sent=1, same=0, dry_run=common.dry_run)


def manifest_item(path: Path, outputs: RunOutputs, artifact_group: str, digests: Digests) -> Item:
    """Describe the manifest of a ROCm build."""
    if not path.is_file():
        raise MissingInputError(
            f"{path} is no file.", hint=f"Name the build's {BUILD_MANIFEST} with --manifest."
        )
    if path.name != BUILD_MANIFEST:
        raise UsageError(
            f"{path} is not named {BUILD_MANIFEST}.", hint="Records are uploaded with their run."
        )
    key = f"{outputs.manifests_prefix(artifact_group)}/{BUILD_MANIFEST}"
    (item,) = items_of([path], [key], digests, replace=True)
    return item
