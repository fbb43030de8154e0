"""Artifacts of a ROCm build, put at a run's root, each with its digest beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.publish import telling
from ci.publish.folders import items_of, walked
from ci.publish.transferring import Item, absent, plan, send, send_small
from core.errors import ArtifactError, MissingInputError
from rocm_packaging.archives import SIDECAR, is_archive, parse_name, parse_sidecar

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ci.publish.digests import Digests
    from core.cli.options import Common
    from core.run.outputs import RunOutputs


@dataclass(frozen=True, kw_only=True)
class Archive:
    """An artifact's archive and the digest that lies beside it."""

    item: Item
    sidecar: bytes


def upload_artifacts(common: Common, folder: Path, digests: Digests) -> None:
    """Put a folder's artifacts into the run, each with its digest beside it."""
    store, outputs = common.open_store(), common.outputs
    found = archives(folder, outputs, digests)
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


def archives(folder: Path, outputs: RunOutputs, digests: Digests) -> Sequence[Archive]:
    """Describe a folder's artifacts, each held against the digest beside it, where there is one."""
    paths = [path for path in walked(folder) if path.parent == folder and is_archive(path.name)]
    if not paths:
        raise MissingInputError(
            f"{folder} holds no artifact.", hint="Artifacts are named {name}_{component}_{target}.tar.zst."
        )
    for path in paths:
        parse_name(path.name)
    keys = [f"{outputs.prefix}/{path.name}" for path in paths]
    found = items_of(paths, keys, digests, replace=not outputs.immutable)
    return [Archive(item=one, sidecar=_sidecar(one)) for one in found]


def _sidecar(item: Item) -> bytes:
    beside = item.path.with_name(f"{item.path.name}{SIDECAR}")
    if beside.is_file():
        said = parse_sidecar(beside.read_text(encoding="utf-8", errors="replace"), where=beside.name)
        if said != item.sha256:
            raise ArtifactError(
                f"{item.path} has the digest {item.sha256}, and {beside.name} says {said}.",
                hint="Pack the artifact again.",
            )
        return beside.read_bytes()
    return f"{item.sha256}\n".encode()
