"""What is uploaded of a run that lies in another store: files and records as they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from ci.publish import batches, kinds
from ci.publish.batches import Batch, Document
from ci.publish.local_files import Digests, LocalFile, is_temporary, read_files, read_logs
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

    def fetch_all(self, outputs: RunOutputs, keys: Sequence[str]) -> Mapping[str, Path]:
        """Return files of the run by the keys that they get in other outputs."""
        return {self.key_in(outputs, key): self.fetch(key) for key in keys}


class RecordFile(NamedTuple):
    """A record and the document that it was read from."""

    record: Record
    document: bytes


def compare_run(
    common: Common, source: SourceRun, chosen_kinds: Collection[str], artifact_group: str
) -> Sequence[Batch]:
    """Return what the store that is written to lacks of a run; of one artifact group, or with "" of all."""
    compared: list[Batch] = []
    if "wheels" in chosen_kinds:
        groups = artifact_groups(source.store, source.outputs, artifact_group)
        compared += [compare_wheels(common, source, group) for group in groups]
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


def compare_wheels(common: Common, source: SourceRun, artifact_group: str) -> Batch:
    """Compare a group's wheels, and the records that name them, with what the run has there."""
    store = common.open_store()
    outputs = common.outputs
    source_records = _read_build_records(source, artifact_group)
    local_files = _fetch_wheels(source, outputs, [record_file.record for record_file in source_records])
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

    kinds.require_wheels(outputs, [wheel.name for wheel in wheels])
    listing = batches.list_folders(store, [prefix, outputs.manifests_prefix(artifact_group)])
    moved_records = [_move_record(record_file, source, outputs) for record_file in source_records]
    record_files = _prefer_earlier_builds(store, outputs, moved_records, listing)
    build_records = [record_file.record for record_file in record_files]
    digests = records.promised(build_records)
    local_files = [file for file in local_files if file.sha256 in digests.get(file.key, frozenset())]

    documents = _documents_of(outputs, artifact_group, record_files)
    changed_documents = batches.changed_documents(store, documents, listing)
    changed_keys = {document.key for document in changed_documents}
    unchanged_records = [
        record
        for record in build_records
        if outputs.record_key(artifact_group, record.name) not in changed_keys
    ]
    missing = batches.missing_files(store, local_files, listing, records.promised(unchanged_records))

    return Batch(
        title=title,
        prefix=prefix,
        listing=listing,
        files=missing,
        unchanged_count=len(local_files) - len(missing),
        sidecars=batches.missing_sidecars(
            {file.key: sidecars[file.key] for file in local_files if file.key in sidecars}, missing, listing
        ),
        documents=changed_documents,
        outdated_keys=_outdated_failures(source, outputs, [document.key for document in documents], listing),
        artifact_group=artifact_group,
        wheels=_wheels_of(build_records, local_files, wheels),
    )


def _read_build_records(source: SourceRun, artifact_group: str) -> Sequence[RecordFile]:
    """Return a group's records of builds that succeeded; what a build hands over says nothing of tests."""
    record_files: list[RecordFile] = []
    for key in source.keys(f"manifests/{artifact_group}"):
        if not is_record(key):
            continue
        document = source.store.read(key)
        record = records.parse(document, where=key)
        if record.status == "ok" and not record.stage.startswith(_TEST_PREFIX):
            record_files.append(RecordFile(record, document))
    return record_files


def _fetch_wheels(
    source: SourceRun, outputs: RunOutputs, build_records: Sequence[Record]
) -> Sequence[LocalFile]:
    """Return the wheels that records name, each compared with its record."""
    local_files: list[LocalFile] = []
    for key, digests in sorted(records.promised(build_records).items()):
        path = source.fetch(key)
        sha256 = source.store.digest(key)
        if sha256 not in digests:
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
                is_ours=True,
            )
        )
    return local_files


def _move_record(record_file: RecordFile, source: SourceRun, outputs: RunOutputs) -> RecordFile:
    """Return a record with the keys that its files get in other outputs; mostly as it is."""
    record = record_file.record
    moved_files = [file.model_copy(update={"key": source.key_in(outputs, file.key)}) for file in record.files]
    return _with_files(record_file, moved_files)


def _with_files(record_file: RecordFile, wheels: Sequence[FileRecord]) -> RecordFile:
    """Return a record with other files, written anew; or as it is, where they are its own."""
    if tuple(wheels) == record_file.record.files:
        return record_file
    record = record_file.record.model_copy(update={"files": tuple(wheels)})
    return RecordFile(record, records.serialize(record))


def _prefer_earlier_builds(
    store: Store,
    outputs: RunOutputs,
    record_files: Sequence[RecordFile],
    listing: Mapping[str, Stored],
) -> Sequence[RecordFile]:
    """Return records with what the run has already in the place of what was built from the same inputs.

    Another attempt of a job, or another torch ref with the same triton, builds the same wheel, if not the
    same bytes. A run keeps the first that it got, unless its files may be replaced.
    """
    if not outputs.immutable:
        return record_files
    may_be_there = False
    for record, _document in record_files:
        if record.input_digest and any(file.key in listing for file in record.files):
            may_be_there = True
    if not may_be_there:
        return record_files

    keys = [key for key in listing if is_record(key) and "/manifests/" in key]
    documents = map_in_threads(store.read, keys)
    earlier_files = [
        RecordFile(records.parse(document, where=key), document)
        for key, document in zip(keys, documents, strict=True)
    ]
    return [_prefer_earlier_build(record_file, earlier_files, listing) for record_file in record_files]


def _prefer_earlier_build(
    record_file: RecordFile, earlier_files: Sequence[RecordFile], listing: Mapping[str, Stored]
) -> RecordFile:
    record = record_file.record
    if not record.input_digest:
        return record_file
    same_builds = [
        earlier_file
        for earlier_file in earlier_files
        if _is_same_build(earlier_file.record, record) and _has_all_files(listing, earlier_file.record)
    ]
    if not same_builds:
        return record_file

    # A record that the run has under the same name comes first.
    same_builds.sort(key=lambda earlier_file: earlier_file.record.name != record.name)
    earlier_file = same_builds[0]
    if earlier_file.record.files == record.files:
        return record_file
    earlier_name = earlier_file.record.name
    console.say(f"{record.name}: the run has it, made from the same inputs by {earlier_name}; that stays")
    if earlier_name == record.name:
        return earlier_file
    return _with_files(record_file, earlier_file.record.files)


def _is_same_build(earlier_record: Record, record: Record) -> bool:
    """Return whether a build that succeeded has made files of the same names from the same inputs."""
    if earlier_record.status != "ok" or earlier_record.stage != record.stage:
        return False
    if earlier_record.input_digest != record.input_digest:
        return False
    return {file.key for file in earlier_record.files} == {file.key for file in record.files}


def _has_all_files(listing: Mapping[str, Stored], record: Record) -> bool:
    return all(file.key in listing and listing[file.key].size == file.size for file in record.files)


def _documents_of(
    outputs: RunOutputs, artifact_group: str, record_files: Sequence[RecordFile]
) -> Sequence[Document]:
    documents: list[Document] = []
    for record, document in record_files:
        key = outputs.record_key(artifact_group, record.name)
        documents.append(Document(key, document, may_replace=True))
    return sorted(documents)


def _wheels_of(
    build_records: Sequence[Record], local_files: Sequence[LocalFile], wheels: Sequence[FileRecord]
) -> Sequence[FileRecord]:
    """Return what the run has of a group afterwards: the files that are uploaded, and earlier ones."""
    wheels_by_key = {wheel.key: wheel for record in build_records for wheel in record.files}
    uploaded_keys = {file.key for file in local_files}
    for wheel in wheels:
        if wheel.key in uploaded_keys:
            wheels_by_key[wheel.key] = wheel
    return [wheels_by_key[key] for key in sorted(wheels_by_key)]


def _outdated_failures(
    source: SourceRun, outputs: RunOutputs, record_keys: Sequence[str], listing: Mapping[str, Stored]
) -> Sequence[str]:
    """Return the failures that lie beside records there, and do so in the source no more."""
    source_keys = {source.key_in(outputs, key) for key in source.keys("manifests")}
    failure_keys = [f"{key.removesuffix('.json')}{_FAILURE_SUFFIX}" for key in record_keys]
    return [key for key in failure_keys if key in listing and key not in source_keys]


# --- Logs, manifests, artifacts --------------------------------------------------------------


def _compare_logs(common: Common, source: SourceRun, kind: LogKind, artifact_group: str) -> Sequence[Batch]:
    """Compare a run's logs or reports with what is there, group by group."""
    prefix = f"{source.outputs.prefix}/{kind}/"
    keys_by_group: dict[str, list[str]] = {}
    for key in source.keys(kind):
        group, slash, path = key.removeprefix(prefix).partition("/")
        if not slash or artifact_group not in {"", group}:
            continue
        if not is_temporary(PurePosixPath(path).name):
            keys_by_group.setdefault(group, []).append(key)

    compared: list[Batch] = []
    for group, keys in keys_by_group.items():
        paths = source.fetch_all(common.outputs, keys)
        local_files = read_logs(paths, source.digests, is_ours=True)
        compared.append(kinds.log_batch(common.open_store(), common.outputs, group, kind, local_files))
    return compared


def _compare_manifests(
    common: Common, source: SourceRun, chosen_kinds: Collection[str], artifact_group: str
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
        elif name.startswith("source-lock-") or key == source.outputs.plan_key:
            permanent_keys.append(key)
        elif name == BUILD_MANIFEST or key.endswith(_FAILURE_SUFFIX):
            replaceable_keys.append(key)
    if not (permanent_keys or replaceable_keys or test_keys):
        return []

    outputs = common.outputs
    permanent_files = read_files(
        source.fetch_all(outputs, permanent_keys), source.digests, may_replace=not outputs.immutable
    )
    replaceable_files = read_files(
        source.fetch_all(outputs, [*replaceable_keys, *test_keys]), source.digests, may_replace=True
    )
    store = common.open_store()
    prefix = f"{outputs.prefix}/manifests"
    listing = batches.list_folders(store, [prefix])
    test_record_keys = [source.key_in(outputs, key) for key in test_keys]
    batch = kinds.manifest_batch(
        store,
        prefix,
        [*permanent_files, *replaceable_files],
        listing,
        outdated_keys=_outdated_failures(source, outputs, test_record_keys, listing),
    )
    return [batch]


def _compare_artifacts(common: Common, source: SourceRun) -> Sequence[Batch]:
    from rocm_packaging import archives

    outputs = common.outputs
    stored_objects = source.store.list(source.outputs.prefix, recursive=False)
    source_keys = {stored_object.key for stored_object in stored_objects}
    archive_keys = [key for key in sorted(source_keys) if archives.is_archive(key)]
    if not archive_keys:
        return []

    digest_files: dict[str, bytes] = {}
    for key in archive_keys:
        digest_key = f"{key}{archives.SIDECAR}"
        if digest_key in source_keys:
            digest_files[source.key_in(outputs, key)] = source.store.read(digest_key)
    local_files = read_files(
        source.fetch_all(outputs, archive_keys),
        source.digests,
        may_replace=not outputs.immutable,
        is_ours=True,
    )
    return [kinds.artifact_batch(common.open_store(), outputs, local_files, digest_files)]
