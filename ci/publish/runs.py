"""A run that lies in ``out/``, put into another store as it is: each file held against its record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.publish import artifacts, telling, trees
from ci.publish.folders import is_temporary, items_of
from ci.publish.transferring import Item, absent, changed, listing, plan, send, send_small
from core import console
from core.errors import MissingInputError, StoreError
from core.parallel import each
from core.run import records
from core.run.outputs import BUILD_MANIFEST, artifact_groups, is_record
from core.wheel import distributions
from core.wheel.distributions import SIDECAR
from rocm_packaging.archives import is_archive

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ci.publish.digests import Digests
    from core.cli.options import Common
    from core.run.outputs import RunOutputs
    from core.run.records import FileRecord, Record
    from core.stores import Store, Stored

_FAILED = ".failed.json"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a run lies."""

    store: Store
    outputs: RunOutputs


def upload_run(
    common: Common, source: Source, kinds: Sequence[str], artifact_group: str, digests: Digests
) -> Mapping[str, Sequence[FileRecord]]:
    """Put what a run left in a store into the chosen one."""
    put: dict[str, Sequence[FileRecord]] = {}
    if "wheels" in kinds:
        for group in artifact_groups(source.store, source.outputs, artifact_group):
            put[group] = upload_group(common, source, group)
    found = len(put)
    if source.store.url != common.open_store().url:
        for kind in (one for one in ("logs", "reports") if one in kinds):
            found += _upload_trees(common, source, kind, artifact_group, digests)
        found += len(upload_manifests(common, source)) if "manifests" in kinds else 0
        found += _upload_archives(common, source, digests) if "artifacts" in kinds else 0
    if not found:
        raise MissingInputError(
            f"Run {common.run_id} has no {' or '.join(kinds)} in {source.store.url} to upload.",
            hint="Name another run with --run-id, or a folder: --input-dir, --logs-dir, --artifacts-dir.",
        )
    return put


def upload_group(common: Common, source: Source, artifact_group: str) -> Sequence[FileRecord]:
    """Put the wheels of one group of a run into the chosen store, with their records."""
    store, outputs, before = common.open_store(), common.outputs, source.outputs
    found = [one for one in records.read_all(source.store, before, artifact_group) if one.status == "ok"]
    if not records.promised(found):
        raise MissingInputError(
            f"No record of group {artifact_group} names a wheel.", hint="Build something first."
        )
    paths = {key: _held(common, source.store, key, said) for key, said in records.promised(found).items()}
    prefix = outputs.python_prefix(artifact_group)
    if source.store.url == store.url:
        console.done(f"upload: unchanged, {len(paths)} files in {store.url}/{prefix} are as recorded")
        return [_described(key, *paths[key]).record for key in sorted(paths)]
    distributions.require_platform([path.name for path, _ in paths.values()], outputs)
    moved = {f"{outputs.prefix}{key.removeprefix(before.prefix)}": held for key, held in paths.items()}
    listed = listing(store, [prefix, outputs.manifests_prefix(artifact_group)])
    ours = [_moved(one, before, outputs) for one in found]
    settled = first_stands(store, ours, listed) if outputs.immutable else ours
    promised = records.promised(settled)
    described = [
        _described(key, *moved[key]) for key in sorted(moved) if moved[key][1] in promised.get(key, ())
    ]
    documents = {outputs.record_key(artifact_group, one.name): one for one in settled}
    written = {key: records.serialize(record) for key, record in documents.items()}
    fresh = changed(store, written, listed)
    planned = plan(
        store,
        [_item(one.record, moved[one.record.key][0], outputs) for one in described],
        listed,
        records.promised([record for key, record in documents.items() if key not in fresh]),
    )
    send(store, planned.send, listed, title=f"wheels of {artifact_group}")
    sidecars = {f"{one.record.key}{SIDECAR}": one.sidecar for one in described if one.sidecar is not None}
    send_small(store, absent(sidecars, listed), listed, replace=not outputs.immutable)
    for key, record in sorted(documents.items()):
        if key in fresh:
            records.write(store, outputs, artifact_group, record)
    stands = {one.key: one for record in settled for one in record.files}
    put = [one for _, one in sorted((stands | {one.record.key: one.record for one in described}).items())]
    telling.table(put)
    telling.done(store, prefix, sent=len(planned.send), same=len(planned.same), dry_run=common.dry_run)
    return put


def first_stands(store: Store, ours: Sequence[Record], listed: Mapping[str, Stored]) -> Sequence[Record]:
    """Take what a run holds already in the place of what was made from the same inputs.

    Another attempt of a job, or another torch ref with the same triton, makes the same wheel, if not
    the same bytes; a run keeps the first that it got.
    """
    if not any(one.input_digest and file.key in listed for one in ours for file in one.files):
        return ours
    keys = [key for key in listed if is_record(key) and "/manifests/" in key]
    there = each(lambda key: records.parse(store.read(key), where=key), keys)
    return [_first(one, there, listed) for one in ours]


def _first(record: Record, there: Sequence[Record], listed: Mapping[str, Stored]) -> Record:
    names = {one.key for one in record.files}
    alike = [
        one
        for one in there
        if (one.status, one.stage, one.input_digest) == ("ok", record.stage, record.input_digest)
        and {file.key for file in one.files} == names
        and all(file.key in listed and listed[file.key].size == file.size for file in one.files)
    ]
    first = next((one for one in alike if one.name == record.name), alike[0] if alike else record)
    if not record.input_digest or first.files == record.files:
        return record
    console.say(f"{record.name}: the run has it, made from the same inputs by {first.name}; that stays")
    return first if first.name == record.name else record.model_copy(update={"files": first.files})


def _held(common: Common, source: Store, key: str, promised: frozenset[str]) -> tuple[Path, str]:
    path, digest = source.fetch(key, common.cache / "fetched"), source.digest(key)
    if digest not in promised:
        raise StoreError(
            f"{path} is not the file that its record names.", hint="Build it again with --force."
        )
    return path, digest


def _described(key: str, path: Path, sha256: str) -> distributions.Described:
    return distributions.describe(path, key=key, sha256=sha256)


def _item(one: FileRecord, path: Path, outputs: RunOutputs) -> Item:
    return Item(
        key=one.key, path=path, size=one.size, sha256=one.sha256, replace=not outputs.immutable, owned=True
    )


def _moved(record: Record, before: RunOutputs, after: RunOutputs) -> Record:
    """Name the keys that a record's files get; where the run's folder is the same, it stays as it is."""
    if before.prefix == after.prefix:
        return record
    files = tuple(
        one.model_copy(update={"key": f"{after.prefix}{one.key.removeprefix(before.prefix)}"})
        for one in record.files
    )
    return record.model_copy(update={"files": files})


def upload_manifests(common: Common, source: Source) -> Sequence[str]:
    """Put the run's plan and source locks into the store, which stages there take commits and versions from.

    Manifests of ROCm builds go with them, records of what failed, and those of tests, which have no files.
    """
    store, outputs, before = common.open_store(), common.outputs, source.outputs
    keys = [stored.key for stored in source.store.list(f"{before.prefix}/manifests")]
    locks = [
        key for key in keys if key.rpartition("/")[2].startswith("source-lock-") or key == before.plan_key
    ]
    builds = [key for key in keys if key.endswith((f"/{BUILD_MANIFEST}", _FAILED))]
    tests = [key for key in keys if key not in builds and _is_of_a_test(key)]
    listed = listing(store, [f"{outputs.prefix}/manifests"])
    for chosen, may_replace in ((locks, not outputs.immutable), ([*builds, *tests], True)):
        documents = {
            f"{outputs.prefix}{key.removeprefix(before.prefix)}": source.store.read(key) for key in chosen
        }
        fresh = changed(store, documents, listed)
        send_small(store, fresh, listed, replace=may_replace)
    for key in tests:
        # a success takes the place of the failure before it, as where the stage itself writes both
        failed = f"{outputs.prefix}{key.removeprefix(before.prefix)}".removesuffix(".json") + _FAILED
        if failed in listed:
            store.delete(failed)
    return [*locks, *builds, *tests]


def _is_of_a_test(key: str) -> bool:
    name = key.rpartition("/")[2]
    return name.startswith("test_") and name.endswith(".json")


def _upload_trees(common: Common, source: Source, kind: str, artifact_group: str, digests: Digests) -> int:
    before = source.outputs
    prefix = f"{before.prefix}/{kind}"
    groups: dict[str, list[Stored]] = {}
    for stored in source.store.list(prefix):
        group, slash, name = stored.key.removeprefix(f"{prefix}/").partition("/")
        if slash and artifact_group in {"", group} and not is_temporary(name.rpartition("/")[2]):
            groups.setdefault(group, []).append(stored)
    for group, found in groups.items():
        paths = [source.store.fetch(one.key, common.cache / "fetched") for one in found]
        keys = [f"{common.outputs.prefix}{one.key.removeprefix(before.prefix)}" for one in found]
        items = items_of(paths, keys, digests, replace=True, pack=True, owned=True)
        trees.upload_tree(common, items, kind, group)
    return len(groups)


def _upload_archives(common: Common, source: Source, digests: Digests) -> int:
    found = [
        source.store.fetch(one.key, common.cache / "fetched")
        for one in source.store.list(source.outputs.prefix, recursive=False)
        if is_archive(one.key)
    ]
    for folder in {path.parent for path in found}:
        artifacts.upload_artifacts(common, folder, digests)
    return len(found)
