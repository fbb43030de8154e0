"""Uploads of wheels and sdists: of a local folder, or of a run in another store with its records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ci.publish import upload
from ci.publish.folders import Digests, Item, is_temporary, items_of
from ci.publish.index.names import require_names
from core import console, files
from core.errors import MissingInputError, StoreError
from core.parallel import judge_in_threads, map_in_threads
from core.run import BUILD_MANIFEST, RunOutputs, artifact_groups, is_record, records
from core.stores import Store, Stored
from core.wheel import distributions
from core.wheel.distributions import SIDECAR
from rocm_packaging.archives import is_archive

if TYPE_CHECKING:
    from core.cli.options import Common
    from core.run.records import FileRecord, Record

_FAILED = ".failed.json"
_TEST = "test_"


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a run lies."""

    store: Store
    outputs: RunOutputs

    def keys(self, folder: str) -> Sequence[str]:
        """List a folder of the run."""
        return [stored.key for stored in self.store.list(f"{self.outputs.prefix}/{folder}")]

    def key_in(self, after: RunOutputs, key: str) -> str:
        """Return the key that a file gets in other outputs."""
        return f"{after.prefix}{key.removeprefix(self.outputs.prefix)}"


def upload_folder(
    common: Common, folder: Path, artifact_group: str, digests: Digests
) -> Sequence[FileRecord]:
    """Put a folder's wheels and sdists into the run; all are read and compared before any is written."""
    store, outputs = common.open_store(), common.outputs
    prefix, manifests = outputs.python_prefix(artifact_group), outputs.manifests_prefix(artifact_group)
    paths = wheel_paths(folder)
    distributions.require_platform([path.name for path in paths], outputs)
    keys = [f"{prefix}/{path.name}" for path in paths]
    items = items_of(paths, keys, digests, replace=not outputs.immutable)
    described = judge_in_threads(
        lambda one: distributions.describe(one.path, key=one.key, sha256=one.sha256), items
    )
    listed = upload.listing(store, [prefix, manifests])
    known = upload.recorded(store, listed, f"{manifests}/{upload.UPLOAD}")
    sent = upload.put(store, items, listed, known, title=f"wheels of {artifact_group}")
    _put_sidecars(common, described, listed)
    found = [record for record, _ in described]
    fresh = [one for one in found if one.sha256 not in known.get(one.key, ())]
    if fresh:
        upload.write_record(common, "", artifact_group, named=fresh)
    if not common.dry_run:  # which has named each
        upload.show(found)
    upload.done(common, prefix, sent)
    return found


def wheel_paths(folder: Path) -> Sequence[Path]:
    """List the wheels and sdists of a folder, or of its ``dist`` where there is one."""
    place = folder / "dist" if (folder / "dist").is_dir() else folder
    names = sorted(path for path in place.glob("*") if distributions.is_distribution(path.name))
    found = [path for path in names if not is_temporary(path.name)]
    if not found:
        raise MissingInputError(f"{place} holds no wheel or sdist.", hint="Name another one: --input-dir.")
    judge_in_threads(files.require_regular, found)
    # What no page could list is refused before a byte is written.
    require_names(path.name for path in found)
    return found


def upload_run(
    common: Common, source: Source, kinds: Sequence[str], artifact_group: str, digests: Digests
) -> Mapping[str, Sequence[FileRecord]]:
    """Put what a run left in a store into the chosen one."""
    uploaded: dict[str, Sequence[FileRecord]] = {}
    if "wheels" in kinds:
        for group in artifact_groups(source.store, source.outputs, artifact_group):
            uploaded[group] = upload_group(common, source, group)
    found = len(uploaded)
    if source.store.url != common.open_store().url:
        for kind in (one for one in ("logs", "reports") if one in kinds):
            found += _upload_trees(common, source, kind, artifact_group, digests)
        found += _upload_manifests(common, source, kinds, artifact_group)
        found += _upload_archives(common, source, digests) if "artifacts" in kinds else 0
    if not found:
        raise MissingInputError(
            f"Run {common.run_id} has no {' or '.join(kinds)} in {source.store.url} to upload.",
            hint="Name another run with --run-id, or a folder: --input-dir, --logs-dir, --artifacts-dir.",
        )
    return uploaded


def upload_group(common: Common, source: Source, artifact_group: str) -> Sequence[FileRecord]:
    """Put the wheels of one group of a run into the chosen store, with their records."""
    store, outputs = common.open_store(), common.outputs
    found = [
        one
        for one in records.read_all(source.store, source.outputs, artifact_group)
        # what a build hands over says nothing of tests
        if one.status == "ok" and not one.stage.startswith(_TEST)
    ]
    built = records.promised(found)
    if not built:
        raise MissingInputError(f"No record of group {artifact_group} names a wheel.", hint="Build it first.")
    found_at = {
        source.key_in(outputs, key): _verified(common, source.store, key, built[key]) for key in sorted(built)
    }
    made = [distributions.describe(path, key=key, sha256=sha256) for key, (path, sha256) in found_at.items()]
    prefix = outputs.python_prefix(artifact_group)
    if source.store.url == store.url:
        count = console.counted(len(made), "file")
        console.done(f"upload: unchanged, {count} in {store.url}/{prefix} as recorded")
        return [record for record, _ in made]
    distributions.require_platform([record.name for record, _ in made], outputs)
    require_names(record.name for record, _ in made)
    listed = upload.listing(store, [prefix, outputs.manifests_prefix(artifact_group)])
    ours = [_moved(one, source, outputs) for one in found]
    settled = _first_of_each(store, ours, listed) if outputs.immutable else ours
    promised = records.promised(settled)
    described = [one for one in made if one[0].sha256 in promised.get(one[0].key, ())]
    documents = {outputs.record_key(artifact_group, one.name): one for one in settled}
    fresh = upload.changed(store, {key: records.serialize(one) for key, one in documents.items()}, listed)
    items = [
        Item(
            path=found_at[one.key][0],
            replace=not outputs.immutable,
            owned=True,
            **one.model_dump(include={"key", "size", "sha256"}),
        )
        for one, _ in described
    ]
    known = records.promised([record for key, record in documents.items() if key not in fresh])
    sent = upload.put(store, items, listed, known, title=f"wheels of {artifact_group}")
    _put_sidecars(common, described, listed)
    for key in sorted(fresh):
        records.write(store, outputs, artifact_group, documents[key])
    stands = {one.key: one for record in settled for one in record.files}
    held = [one for _, one in sorted((stands | {one.key: one for one, _ in described}).items())]
    if not common.dry_run:
        upload.show(held)
    upload.done(common, prefix, sent)
    return held


def _verified(common: Common, source: Store, key: str, promised: frozenset[str]) -> tuple[Path, str]:
    path, digest = source.fetch(key, common.cache / "fetched"), source.digest(key)
    if digest not in promised:
        raise StoreError(f"{path} is not the file that its record names.", hint="Build it again: --force.")
    return path, digest


def _moved(record: Record, source: Source, after: RunOutputs) -> Record:
    """Rename the keys of a record's files, which lie in a folder of another run or in the same."""
    moved = tuple(one.model_copy(update={"key": source.key_in(after, one.key)}) for one in record.files)
    return record.model_copy(update={"files": moved})


def _first_of_each(store: Store, ours: Sequence[Record], listed: Mapping[str, Stored]) -> Sequence[Record]:
    """Take what a run holds already in the place of what was made from the same inputs.

    Another attempt of a job, or another torch ref with the same triton, makes the same wheel, if not
    the same bytes; a run keeps the first that it got.
    """
    if not any(one.input_digest and file.key in listed for one in ours for file in one.files):
        return ours
    keys = [key for key in listed if is_record(key) and "/manifests/" in key]
    there = map_in_threads(lambda key: records.parse(store.read(key), where=key), keys)
    return [_first(one, there, listed) for one in ours]


def _first(record: Record, there: Iterable[Record], listed: Mapping[str, Stored]) -> Record:
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


def _put_sidecars(
    common: Common, described: Iterable[tuple[FileRecord, bytes | None]], listed: Mapping[str, Stored]
) -> None:
    sidecars = {f"{one.key}{SIDECAR}": sidecar for one, sidecar in described if sidecar is not None}
    new, replace = upload.absent(sidecars, listed), not common.outputs.immutable
    upload.put_small(common.open_store(), new, listed, replace=replace)


def _upload_manifests(common: Common, source: Source, kinds: Sequence[str], artifact_group: str) -> int:
    """Put the run's plan and source locks into the store, which stages there take commits and versions from.

    Manifests of ROCm builds and records of failures go with them; records of tests, which have no files, are
    a kind of their own. Of a group that is named, nothing goes to another one.
    """
    store, outputs = common.open_store(), common.outputs
    locks, builds, tests = [], [], []
    for key in source.keys("manifests"):
        group, _, name = key.removeprefix(f"{source.outputs.prefix}/manifests/").rpartition("/")
        if group and artifact_group not in {"", group}:
            continue
        if name.startswith(_TEST) and name.endswith(".json"):
            tests.append(key)
        elif name.startswith("source-lock-") or key == source.outputs.plan_key:
            locks.append(key)
        elif name == BUILD_MANIFEST or key.endswith(_FAILED):
            builds.append(key)
    locks, builds = (locks, builds) if "manifests" in kinds else ([], [])
    tests = tests if "tests" in kinds else []
    listed = upload.listing(store, [f"{outputs.prefix}/manifests"])
    for chosen, may_replace in ((locks, not outputs.immutable), ([*builds, *tests], True)):
        documents = {source.key_in(outputs, key): source.store.read(key) for key in chosen}
        upload.put_small(store, upload.changed(store, documents, listed), listed, replace=may_replace)
    for key in tests:
        # a success takes the place of the failure before it, as where the stage itself writes both
        failed = source.key_in(outputs, key).removesuffix(".json") + _FAILED
        if failed in listed:
            store.delete(failed)
    return len(locks) + len(builds) + len(tests)


def _upload_trees(common: Common, source: Source, kind: str, artifact_group: str, digests: Digests) -> int:
    prefix = f"{source.outputs.prefix}/{kind}/"
    groups: dict[str, list[str]] = {}
    for key in source.keys(kind):
        group, slash, name = key.removeprefix(prefix).partition("/")
        if slash and artifact_group in {"", group} and not is_temporary(name.rpartition("/")[2]):
            groups.setdefault(group, []).append(key)
    for group, found in groups.items():
        paths = [source.store.fetch(key, common.cache / "fetched") for key in found]
        keys = [source.key_in(common.outputs, key) for key in found]
        items = items_of(paths, keys, digests, replace=True, pack=True, owned=True)
        upload.upload_tree(common, items, kind, group)
    return len(groups)


def _upload_archives(common: Common, source: Source, digests: Digests) -> int:
    found = [
        source.store.fetch(one.key, common.cache / "fetched")
        for one in source.store.list(source.outputs.prefix, recursive=False)
        if is_archive(one.key)
    ]
    for folder in {path.parent for path in found}:
        upload.upload_artifacts(common, folder, digests)
    return len(found)
