"""Uploads into a run's outputs: what is there is kept, what may not be replaced refused, the rest sent.

Artifacts, logs, reports and build manifests are uploaded here; wheels in `ci.publish.wheels`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from ci.publish.folders import Digests, Item, items_of, pack, walked
from core import console, files, temporary
from core.errors import ArtifactError, DataError, MissingInputError, StoreError
from core.parallel import JOBS, map_in_threads, transfer
from core.run import BUILD_MANIFEST
from core.stores import Store, Stored, refuse_other_bytes
from core.stores.directory import DirectoryStore
from core.stores.dry_run import DryRunStore

if TYPE_CHECKING:
    from core.cli.options import Common
    from core.packages.candidates import Candidate
    from core.run.records import FileRecord

UPLOAD = "upload-"
# files that are not distributions are named in a record's details: an index is of its `files`
_OBJECTS = "objects"
_NAMED = 5


class Sent(NamedTuple):
    """Items that an upload sent, and how many were there already."""

    items: Sequence[Item]
    same: int


def listing(store: Store, prefixes: Iterable[str]) -> dict[str, Stored]:
    """List folders of a store, by key."""
    found = map_in_threads(store.list, sorted(set(prefixes)))
    return {stored.key: stored for folder in found for stored in folder}


def put(
    store: Store,
    items: Sequence[Item],
    listed: Mapping[str, Stored],
    known: Mapping[str, frozenset[str]],
    *,
    title: str,
) -> Sent:
    """Send what does not exist yet, after refusing what would replace other bytes of an immutable run.

    Sizes come from the listing, digests from records; the store is queried, one request a file, only for
    those that no record names.
    """

    def same_size(item: Item) -> bool:
        return item.key in listed and listed[item.key].size == item.size

    unclear = [one.key for one in items if same_size(one) and one.sha256 not in known.get(one.key, ())]
    queried = dict(zip(unclear, map_in_threads(store.digest, unclear), strict=True))
    same = {one.key for one in items if same_size(one) and queried.get(one.key, one.sha256) == one.sha256}
    refused = [one.key for one in items if one.key in listed and one.key not in same and not one.replace]
    if refused:
        raise _refusal(store, refused)
    missing = [one for one in items if one.key not in same]
    _send(store, missing, listed, title=title)
    return Sent(missing, len(items) - len(missing))


def _refusal(store: Store, keys: Sequence[str]) -> StoreError:
    if len(keys) == 1:
        return refuse_other_bytes(keys[0], store.url)
    named = "".join(f"\n  {key}" for key in keys[:_NAMED])
    more = f"\n  and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return StoreError(
        f"{len(keys)} keys exist in {store.url} with other bytes; nothing was uploaded:{named}{more}",
        hint="A run other than 'local' is immutable: use a run id of its own.",
    )


def _send(store: Store, items: Sequence[Item], listed: Mapping[str, Stored], *, title: str) -> None:
    """Put files into a store in parallel, the largest first."""
    if not items:
        return
    total = sum(one.size for one in items)
    shown_title = f"Uploading {title}: {len(items)} files, {console.size(total)}, to {store.url}"
    with transfer(shown_title, size=total) as shown:

        def send(item: Item) -> None:
            with _source(store, item) as path:
                store.put_file(
                    item.key,
                    path,
                    sha256=item.sha256,
                    replace=item.replace,
                    is_known_absent=item.key not in listed,
                )
            shown.advance(item.size)
            shown.finish(PurePosixPath(item.key).name, item.size)

        map_in_threads(send, sorted(items, key=lambda one: (-one.size, one.key)), jobs=_jobs(store))


@contextmanager
def _source(store: Store, item: Item) -> Iterator[Path]:
    """Yield the file to put: a copy where the store would link a file that others may write to."""
    parts = store.partial_files if isinstance(store, DirectoryStore) else None
    if not item.packed and (item.owned or not parts):
        yield item.path
        return
    with files.workspace(parts) if parts else temporary.folder("upload") as folder:
        mine = folder / PurePosixPath(item.key).name
        (pack if item.packed else files.copy)(item.path, mine)
        if (mine.stat().st_size, item.path.stat().st_mtime_ns) != (item.size, item.changed):
            raise StoreError(f"{item.path} changed during the upload.", hint="Upload it when it is complete.")
        yield mine


def put_small(
    store: Store, objects: Mapping[str, bytes], listed: Mapping[str, Stored], *, replace: bool
) -> None:
    """Put small objects into a store in parallel."""
    map_in_threads(
        lambda one: store.put_bytes(one[0], one[1], replace=replace, is_known_absent=one[0] not in listed),
        sorted(objects.items()),
        jobs=_jobs(store),
    )


def _jobs(store: Store) -> int:
    return 1 if isinstance(store, DryRunStore) else 2 * JOBS  # a dry run is printed in order


def absent(sidecars: Mapping[str, bytes], listed: Mapping[str, Stored]) -> dict[str, bytes]:
    """Leave out the sidecars that are there: they follow from their wheels, and so from their size."""
    return {key: data for key, data in sidecars.items() if key not in listed or listed[key].size != len(data)}


def changed(store: Store, new: Mapping[str, bytes], listed: Mapping[str, Stored]) -> dict[str, bytes]:
    """Leave out the small objects that are unchanged: one request for each of the right size."""
    likely = [key for key, data in new.items() if key in listed and listed[key].size == len(data)]
    digests = dict(zip(likely, map_in_threads(store.digest, likely), strict=True))
    return {key: data for key, data in new.items() if digests.get(key) != hashlib.sha256(data).hexdigest()}


def recorded(store: Store, listed: Mapping[str, Stored], prefix: str) -> Mapping[str, frozenset[str]]:
    """Read the digests that records of earlier uploads name, by key."""
    found: dict[str, frozenset[str]] = {}
    keys = [key for key in listed if key.startswith(prefix) and key.endswith(".json")]
    for pairs in map_in_threads(lambda key: _digests(store.read(key), key), keys):
        for key, sha256 in pairs:
            found[key] = found.get(key, frozenset()) | {sha256}
    return found


def _digests(text: bytes, where: str) -> Sequence[tuple[str, str]]:
    # without the record's schema: thousands of files are read in a moment so
    try:
        record = json.loads(text)
        named = [(str(one["key"]), str(one["sha256"])) for one in record["files"]]
        objects = record["details"].get(_OBJECTS, {})
        return [*named, *((key, str(one["sha256"])) for key, one in objects.items())]
    except (ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DataError(f"{where} is not an upload's record.", hint="Delete it; upload again.") from problem


def write_record(
    common: Common,
    kind: str,
    artifact_group: str,
    *,
    named: Sequence[FileRecord] = (),
    objects: Mapping[str, object] | None = None,
) -> None:
    """Record an upload under a name made from its keys: another upload has another record."""
    # a record's schema takes as long to import as thousands of files to compare
    from core.cell import GroupCell
    from core.run import records
    from core.run.records import Record

    store, outputs = common.open_store(), common.outputs
    keys = sorted(objects or (one.key for one in named))
    name = files.sha256_text("\n".join(keys))[:16]
    record = Record(
        stage=f"{UPLOAD}{kind}{name}",
        run_id=outputs.run_id,
        platform=outputs.platform,
        cell=GroupCell(gpu_family=artifact_group),
        started=records.now(),
        seconds=0,
        files=tuple(named),
        details={_OBJECTS: objects} if objects else {},
    )
    records.write(store, outputs, artifact_group, record)


def show(found: Iterable[FileRecord | Candidate]) -> None:
    """Print files with their sizes and digests."""
    rows = [(file.name, console.size(file.size or 0), (file.sha256 or "")[:12]) for file in found]
    console.table(("file", "size", "sha256"), rows)


def done(common: Common, prefix: str, sent: Sent) -> None:
    """Print the upload's result."""
    where, count = f"{common.open_store().url}/{prefix}", len(sent.items)
    if not count:
        console.done(f"upload: unchanged, {sent.same} files in {where}")
        return
    verb = "would be put" if common.dry_run else "are"
    kept = f" ({sent.same} of them were)" if sent.same else ""
    console.done(f"upload: {count + sent.same} files {verb} in {where}{kept}")


def upload_tree(common: Common, items: Sequence[Item], kind: str, artifact_group: str) -> None:
    """Put logs or reports into the run; those of an earlier attempt are replaced.

    A record keeps their digests, so that the next upload need not query them. It has no `files`: an index
    is of wheels.
    """
    store, outputs = common.open_store(), common.outputs
    manifests = outputs.manifests_prefix(artifact_group)
    prefix = f"{outputs.prefix}/{kind}/{artifact_group}"
    listed = listing(store, [prefix, manifests])
    found = recorded(store, listed, f"{manifests}/{UPLOAD}{kind}-")
    # of a file in several records, it is not known which came last
    known = {key: digests for key, digests in found.items() if len(digests) == 1}
    sent = put(store, items, listed, known, title=f"{kind} of {artifact_group}")
    if sent.items or any(one.sha256 not in known.get(one.key, ()) for one in items):
        objects = {one.key: {"size": one.size, "sha256": one.sha256} for one in items}
        write_record(common, f"{kind}-", artifact_group, objects=objects)
    done(common, prefix, sent)


def upload_manifest(common: Common, path: Path, artifact_group: str, digests: Digests) -> None:
    """Put the manifest of a ROCm build into the run."""
    if not path.is_file() or path.name != BUILD_MANIFEST:
        what = f"--manifest {path} is not a build's {BUILD_MANIFEST}."
        raise MissingInputError(what, hint="Name that file; records are uploaded with their run.")
    store, folder = common.open_store(), common.outputs.manifests_prefix(artifact_group)
    items = items_of([path], [f"{folder}/{BUILD_MANIFEST}"], digests, replace=True)
    _send(store, items, listing(store, [folder]), title="the manifest")
    done(common, items[0].key, Sent(items, 0))


def upload_artifacts(common: Common, folder: Path, digests: Digests) -> None:
    """Put a folder's artifacts into the run, each with its digest beside it."""
    from rocm_packaging import archives

    store, outputs = common.open_store(), common.outputs
    paths = [path for path in walked(folder) if path.parent == folder and archives.is_archive(path.name)]
    if not paths:
        raise MissingInputError(
            f"{folder} holds no artifact.", hint="Artifacts are named {name}_{component}_{target}.tar.zst."
        )
    for path in paths:
        archives.parse_name(path.name)
    keys = [f"{outputs.prefix}/{path.name}" for path in paths]
    items = items_of(paths, keys, digests, replace=not outputs.immutable)
    sidecars = {f"{one.key}{archives.SIDECAR}": _artifact_sidecar(one) for one in items}
    listed = {one.key: one for one in store.list(outputs.prefix, recursive=False)}
    sent = put(store, items, listed, {}, title="artifacts")
    fresh = {one.key for one in sent.items}
    kept = {key: one for key, one in listed.items() if key.removesuffix(archives.SIDECAR) not in fresh}
    put_small(store, absent(sidecars, kept), listed, replace=not outputs.immutable)
    done(common, outputs.prefix, sent)


def _artifact_sidecar(item: Item) -> bytes:
    """Return the digest file's bytes; one that lies beside the artifact must match it."""
    from rocm_packaging import archives

    beside = item.path.with_name(f"{item.path.name}{archives.SIDECAR}")
    if not beside.is_file():
        return f"{item.sha256}\n".encode()
    stated = archives.parse_sidecar(beside.read_text(encoding="utf-8", errors="replace"), where=beside.name)
    if stated != item.sha256:
        raise ArtifactError(
            f"{item.path} has the digest {item.sha256}, and {beside.name} says {stated}.",
            hint="Pack the artifact again.",
        )
    return beside.read_bytes()
