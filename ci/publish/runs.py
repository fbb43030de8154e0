"""What is uploaded of a run that lies in another store: files and records as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ci.publish import batches, kinds
from ci.publish.batches import Batch, Document
from ci.publish.local_files import Digests, LocalFile, is_temporary, read_logs, require_addressable
from core import console
from core.errors import MissingInputError, StoreError
from core.parallel import map_in_threads
from core.run import BUILD_MANIFEST, RunOutputs, artifact_groups, is_record, records
from core.stores import Store, Stored

if TYPE_CHECKING:
    from ci.publish.kinds import LogKind
    from core.cli.options import Common
    from core.run.records import FileRecord, Record

_FAILURE_SUFFIX = ".failed.json"
_TEST_PREFIX = "test_"
_LOG_KINDS: tuple[LogKind, ...] = ("logs", "reports")


@dataclass(frozen=True, kw_only=True)
class SourceRun:
    """A run that is uploaded.

    Attributes:
        store: Where it lies.
        outputs: Its keys there.
        cache: A folder for the files of a store that is not on this machine.
        digests: What is remembered of its files.
    """

    store: Store
    outputs: RunOutputs
    cache: Path
    digests: Digests

    def keys(self, folder: str) -> Sequence[str]:
        """Return the keys of a folder of the run."""
        return [stored_object.key for stored_object in self.store.list(f"{self.outputs.prefix}/{folder}")]

    def key_in(self, outputs: RunOutputs, key: str) -> str:
        """Return the key that a file of the run gets in other outputs."""
        return f"{outputs.prefix}{key.removeprefix(self.outputs.prefix)}"

    def fetch(self, key: str) -> Path:
        """Return a file of the run. Files of one name in several folders are kept apart."""
        return self.store.fetch(key, self.cache / PurePosixPath(key).parent)

    def fetch_all(
        self,
        outputs: RunOutputs,
        keys: Sequence[str],
    ) -> Mapping[str, Path]:
        """Return files of the run by the keys that they get in other outputs."""
        paths: dict[str, Path] = {}
        for key in keys:
            paths[self.key_in(outputs, key)] = self.fetch(key)
        return paths


def compare_run(
    common: Common,
    source: SourceRun,
    chosen_kinds: Collection[str],
    artifact_group: str,
) -> Sequence[Batch]:
    """Return what the store that is written to lacks of a run; of one artifact group, or with "" of all."""
    compared: list[Batch] = []
    if "wheels" in chosen_kinds:
        for group in artifact_groups(source.store, source.outputs, artifact_group):
            batch = compare_wheels(common, source, group)
            compared.append(batch)
    if source.store.url != common.open_store().url:
        for kind in _LOG_KINDS:
            if kind in chosen_kinds:
                compared += _compare_logs(common, source, kind, artifact_group)
        compared += _compare_manifests(common, source, chosen_kinds, artifact_group)
        if "artifacts" in chosen_kinds:
            compared += _compare_artifacts(common, source)

    if not compared:
        raise MissingInputError(
            f"Run {common.run_id} has no {' or '.join(chosen_kinds)} in {source.store.url} to upload.",
            hint="Name another run with --run-id, or a folder: --input-dir, --logs-dir, --artifacts-dir.",
        )
    return compared


# --- Wheels ----------------------------------------------------------------------------------


def compare_wheels(
    common: Common,
    source: SourceRun,
    artifact_group: str,
) -> Batch:
    """Compare a group's wheels, and the records that name them, with what the run has there."""
    store = common.open_store()
    outputs = common.outputs
    source_records = _read_build_records(source, artifact_group)
    local_files = _fetch_wheels(source, outputs, source_records.values())
    if not local_files:
        raise MissingInputError(f"No record of group {artifact_group} names a wheel.", hint="Build it first.")
    wheels, sidecars = kinds.describe_wheels(local_files)

    prefix = outputs.python_prefix(artifact_group)
    title = f"wheels of {artifact_group}"
    if source.store.url == store.url:
        return Batch(
            title=title,
            prefix=prefix,
            listing={},
            unchanged_count=len(wheels),
            artifact_group=artifact_group,
            wheels=wheels,
        )

    kinds.require_wheels(outputs, local_files)
    listing = batches.list_folders(store, [prefix, outputs.manifests_prefix(artifact_group)])
    build_records = _prefer_earlier_builds(
        store,
        outputs,
        [_move_record(record, source, outputs) for record in source_records.values()],
        listing,
    )
    # Of what was built twice, the run may have the other one.
    promised_digests = records.promised(build_records)
    local_files = [file for file in local_files if file.sha256 in promised_digests.get(file.key, ())]
    documents = _documents_of(outputs, artifact_group, source_records, build_records)
    changed_documents = batches.missing_objects(store, documents.values(), listing)
    # The digests of files need not be asked for where their records are there already.
    unchanged_records = [
        record for record in build_records if documents[record.name] not in changed_documents
    ]
    recorded_digests = records.promised(unchanged_records)
    batch = batches.compare(
        store,
        title,
        prefix,
        listing,
        local_files,
        recorded_digests=recorded_digests,
        sidecars=sidecars,
    )
    return replace(
        batch,
        documents=changed_documents,
        outdated_keys=_outdated_failures(
            source,
            outputs,
            [document.key for document in documents.values()],
            listing,
        ),
        artifact_group=artifact_group,
        wheels=_wheels_of(build_records, local_files, wheels),
    )


def _read_build_records(source: SourceRun, artifact_group: str) -> Mapping[bytes, Record]:
    """Return a group's records of builds that succeeded, by the documents that they were read from.

    What a build hands over says nothing of tests.
    """
    build_records: dict[bytes, Record] = {}
    for key in filter(is_record, source.keys(f"manifests/{artifact_group}")):
        document = source.store.read(key)
        record = records.parse(document, where=key)
        if record.status == "ok" and not record.stage.startswith(_TEST_PREFIX):
            build_records[document] = record
    return build_records


def _fetch_wheels(
    source: SourceRun,
    outputs: RunOutputs,
    build_records: Iterable[Record],
) -> Sequence[LocalFile]:
    """Return the wheels that records name, each compared with its record."""
    local_files: list[LocalFile] = []
    digests_by_key = records.promised([*build_records])
    for key in sorted(digests_by_key):
        path = source.fetch(key)
        sha256 = source.store.digest(key)
        if sha256 not in digests_by_key[key]:
            raise StoreError(
                f"{path} is not the file that its record names.", hint="Build it again: --force."
            )
        local_files.append(
            LocalFile(
                key=source.key_in(outputs, key),
                path=path,
                size=path.stat().st_size,
                sha256=sha256,
                may_replace=not outputs.immutable,
                is_in_our_store=True,
            )
        )
    return local_files


def _move_record(record: Record, source: SourceRun, outputs: RunOutputs) -> Record:
    """Return a record with the keys that its files get in other outputs."""
    moved_files = [file.model_copy(update={"key": source.key_in(outputs, file.key)}) for file in record.files]
    return record.model_copy(update={"files": tuple(moved_files)})


def _prefer_earlier_builds(
    store: Store,
    outputs: RunOutputs,
    build_records: Sequence[Record],
    listing: Mapping[str, Stored],
) -> Sequence[Record]:
    """Return records with what the run has already in the place of what was built from the same inputs.

    Another attempt of a job, or another torch ref with the same triton, builds the same wheel, if not the
    same bytes. A run keeps the first that it got, unless its files may be replaced.
    """
    keys_of_builds = {file.key for record in build_records for file in record.files}
    if not outputs.immutable or keys_of_builds.isdisjoint(listing):
        return build_records
    keys = [key for key in listing if is_record(key) and "/manifests/" in key]
    earlier_records = map_in_threads(partial(_read_record, store), keys)
    return [_prefer_earlier_build(record, earlier_records, listing) for record in build_records]


def _read_record(store: Store, key: str) -> Record:
    return records.parse(store.read(key), where=key)


def _prefer_earlier_build(
    record: Record,
    earlier_records: Iterable[Record],
    listing: Mapping[str, Stored],
) -> Record:
    same_build: Record | None = None
    for earlier_record in earlier_records:
        is_whole = all(
            file.key in listing and listing[file.key].size == file.size for file in earlier_record.files
        )
        if not is_whole or not _is_same_build(earlier_record, record):
            continue
        # The record that the run has under the same name comes first.
        if same_build is None or earlier_record.name == record.name:
            same_build = earlier_record

    if same_build is None or same_build.files == record.files:
        return record
    console.say(f"{record.name}: the run has it, made from the same inputs by {same_build.name}; that stays")
    if same_build.name == record.name:
        return same_build
    return record.model_copy(update={"files": same_build.files})


def _is_same_build(earlier_record: Record, record: Record) -> bool:
    """Return whether a build that succeeded has made files of the same names from the same inputs."""
    if earlier_record.status != "ok" or earlier_record.stage != record.stage:
        return False
    if not record.input_digest or earlier_record.input_digest != record.input_digest:
        return False
    return {file.key for file in earlier_record.files} == {file.key for file in record.files}


def _documents_of(
    outputs: RunOutputs,
    artifact_group: str,
    source_records: Mapping[bytes, Record],
    build_records: Sequence[Record],
) -> Mapping[str, Document]:
    """Return the documents of records by their names; what the source has goes as it is."""
    source_documents = {record.name: document for document, record in source_records.items()}
    documents: dict[str, Document] = {}
    for record in build_records:
        content = source_documents.get(record.name)
        if content is None or source_records[content] != record:
            content = records.serialize(record)
        key = outputs.record_key(artifact_group, record.name)
        documents[record.name] = Document(key, content, may_replace=True)
    return documents


def _wheels_of(
    build_records: Sequence[Record],
    local_files: Sequence[LocalFile],
    wheels: Sequence[FileRecord],
) -> Sequence[FileRecord]:
    """Return what the run has of a group afterwards: the files that are uploaded, and earlier ones."""
    wheels_by_key: dict[str, FileRecord] = {}
    for record in build_records:
        for wheel in record.files:
            wheels_by_key[wheel.key] = wheel

    uploaded_keys = {file.key for file in local_files}
    for wheel in wheels:
        if wheel.key in uploaded_keys:
            wheels_by_key[wheel.key] = wheel
    return sorted(wheels_by_key.values(), key=attrgetter("key"))


def _outdated_failures(
    source: SourceRun,
    outputs: RunOutputs,
    record_keys: Iterable[str],
    listing: Mapping[str, Stored],
) -> Sequence[str]:
    """Return the failures that lie beside records there, and do so in the source no more."""
    source_keys = {source.key_in(outputs, key) for key in source.keys("manifests")}
    outdated_keys: list[str] = []
    for record_key in record_keys:
        failure_key = f"{record_key.removesuffix('.json')}{_FAILURE_SUFFIX}"
        if failure_key in listing and failure_key not in source_keys:
            outdated_keys.append(failure_key)
    return outdated_keys


# --- Logs, manifests, artifacts --------------------------------------------------------------


def _compare_logs(
    common: Common,
    source: SourceRun,
    kind: LogKind,
    artifact_group: str,
) -> Sequence[Batch]:
    """Compare a run's logs or reports with what is there, group by group."""
    prefix = f"{source.outputs.prefix}/{kind}/"
    keys_by_group: dict[str, list[str]] = {}
    for key in source.keys(kind):
        group, slash, path = key.removeprefix(prefix).partition("/")
        if not slash or artifact_group not in {"", group}:
            continue
        if not is_temporary(PurePosixPath(path).name):
            keys_by_group.setdefault(group, []).append(key)
    for keys in keys_by_group.values():
        require_addressable(f"The {kind} of the run", keys)

    compared: list[Batch] = []
    for group, keys in keys_by_group.items():
        paths = source.fetch_all(common.outputs, keys)
        local_files = read_logs(paths, source.digests, is_in_our_store=True)
        compared.append(kinds.log_batch(common.open_store(), common.outputs, group, kind, local_files))
    return compared


def _compare_manifests(
    common: Common,
    source: SourceRun,
    chosen_kinds: Collection[str],
    artifact_group: str,
) -> Sequence[Batch]:
    """Compare the run's plan and source locks, from which stages there take commits and versions.

    Manifests of ROCm builds and records of failures go with them. Records of tests, which have no files, are
    a kind of their own. Of a group that is named, nothing goes to another one.
    """
    permanent_keys: list[str] = []
    replaceable_keys: list[str] = []
    test_keys: list[str] = []
    for key in source.keys("manifests"):
        group, _, name = key.removeprefix(f"{source.outputs.prefix}/manifests/").rpartition("/")
        if group and artifact_group not in {"", group}:
            continue
        if name.startswith(_TEST_PREFIX) and name.endswith(".json"):
            if "tests" in chosen_kinds:
                test_keys.append(key)
        elif "manifests" not in chosen_kinds:
            continue
        elif source.outputs.is_source_lock(key) or key == source.outputs.plan_key:
            permanent_keys.append(key)
        elif name == BUILD_MANIFEST or key.endswith(_FAILURE_SUFFIX):
            replaceable_keys.append(key)
    if not (permanent_keys or replaceable_keys or test_keys):
        return []

    outputs = common.outputs
    permanent_files = source.digests.read_files(
        source.fetch_all(outputs, permanent_keys),
        may_replace=not outputs.immutable,
    )
    replaceable_files = source.digests.read_files(
        source.fetch_all(outputs, [*replaceable_keys, *test_keys]),
        may_replace=True,
    )
    store = common.open_store()
    prefix = f"{outputs.prefix}/manifests"
    listing = batches.list_folders(store, [prefix])
    test_record_keys = [source.key_in(outputs, key) for key in test_keys]
    batch = batches.compare(store, "manifests", prefix, listing, [*permanent_files, *replaceable_files])
    outdated_keys = _outdated_failures(source, outputs, test_record_keys, listing)
    return [replace(batch, outdated_keys=outdated_keys)]


def _compare_artifacts(common: Common, source: SourceRun) -> Sequence[Batch]:
    from rocm_packaging import archives

    outputs = common.outputs
    stored_objects = source.store.list(source.outputs.prefix, recursive=False)
    source_keys = {stored_object.key for stored_object in stored_objects}
    archive_keys = sorted(filter(archives.is_archive, source_keys))
    if not archive_keys:
        return []

    digest_files: dict[str, bytes] = {}
    for key in archive_keys:
        digest_key = f"{key}{archives.SIDECAR}"
        if digest_key in source_keys:
            digest_files[source.key_in(outputs, key)] = source.store.read(digest_key)
    local_files = source.digests.read_files(
        source.fetch_all(outputs, archive_keys),
        may_replace=not outputs.immutable,
        is_in_our_store=True,
    )
    return [kinds.artifact_batch(common.open_store(), outputs, local_files, digest_files)]
