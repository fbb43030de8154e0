"""Logs and reports of a run, and the manifest of a ROCm build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ci.publish import summary
from ci.publish.folders import is_temporary, items_of, walked
from ci.publish.transfer import (
    OBJECTS,
    UPLOAD,
    Item,
    absent,
    changed,
    listing,
    plan,
    record_stage,
    recorded,
    send,
    send_small,
)
from core import console
from core.errors import ArtifactError, MissingInputError, StoreError, UsageError
from core.parallel import each
from core.run import records
from core.run.groups import artifact_groups
from core.run.outputs import BUILD_MANIFEST, is_record
from core.run.records import Cell, FileRecord, Record
from core.wheel import distributions
from core.wheel.distributions import SIDECAR
from rocm_packaging.artifacts.archives import SIDECAR, is_archive, parse_name, parse_sidecar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ci.publish.folders import Digests
    from core.cli.options import Common
    from core.run.outputs import RunOutputs
    from core.stores import Store, Stored


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
    summary.done(store, prefix, sent=len(planned.send), same=len(planned.same), dry_run=common.dry_run)


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
    summary.done(store, item.key, sent=1, same=0, dry_run=common.dry_run)


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
    summary.done(
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
    summary.table(put)
    summary.done(store, prefix, sent=len(planned.send), same=len(planned.same), dry_run=common.dry_run)
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
    summary.table(put)
    summary.done(store, prefix, sent=len(planned.send), same=len(planned.same), dry_run=common.dry_run)
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
        upload_tree(common, items, kind, group)
    return len(groups)


def _upload_archives(common: Common, source: Source, digests: Digests) -> int:
    found = [
        source.store.fetch(one.key, common.cache / "fetched")
        for one in source.store.list(source.outputs.prefix, recursive=False)
        if is_archive(one.key)
    ]
    for folder in {path.parent for path in found}:
        upload_artifacts(common, folder, digests)
    return len(found)
