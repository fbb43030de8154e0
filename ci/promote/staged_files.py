"""The files of a run that are put up for testing, and the record of what they came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from packaging.utils import canonicalize_name

from ci.promote import documents
from ci.promote.documents import DocumentDigest, StagedFile, StagedLock, StagingRecord, digest_document
from core import parallel
from core.data import parse_json
from core.errors import ConflictError, MissingInputError, StoreError, UsageError, nearest
from core.families import CPU
from core.packages.candidates import candidate_named
from core.run import RunOutputs, records
from core.stores import Store, etag_of
from core.wheel import parse_wheel_name
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.refs.torch_refs import is_for_rehearsals
from rocm_packaging.packages.layouts import is_rocm

if TYPE_CHECKING:
    from ci.promote.facts import RecordedGroup
    from pytorch_build.lock.source_lock import LockedProject
    from pytorch_build.refs.torch_refs import TorchRef

Kind = Literal["all", "rocm", "pytorch"]
MOST_ATTEMPTS = 5


# Wheels of the sample


def require_samples(store: Store) -> None:
    """Refuse a store that hands out anything but the sample: it is no place for a rehearsal."""
    for key in documents.released_and_staged_keys(store):
        candidate = candidate_named(key.rpartition("/")[2], url=key)
        if candidate is not None and not is_for_rehearsals(candidate.version):
            raise UsageError(
                f"{store.url} has {key}, which is not the sample's, so no rehearsal may write there.",
                hint="Leave --distribution-store out, for a folder below out/, or name an empty store.",
            )


def _require_kind_of_release(
    files: Sequence[StagedFile],
    *,
    samples: bool,
) -> None:
    """Refuse wheels of the sample, or in a rehearsal all others."""
    misplaced_files = [file.name for file in files if is_for_rehearsals(file.version) != samples]
    if not misplaced_files:
        return

    if samples:
        problem = "A rehearsal is of the sample's wheels alone"
        hint = "Name the release type of these: --release-type."
    else:
        problem = "Wheels of the sample are never published"
        hint = "Rehearse (release type rehearsal), or build another ref."
    raise UsageError(f"{problem}:\n" + "\n".join(misplaced_files), hint=hint)


# Choosing


def choose_files(
    group: RecordedGroup,
    kind: Kind = "all",
    packages: Sequence[str] = (),
    *,
    samples: bool = False,
) -> tuple[StagedFile, ...]:
    """Return the files of a group that are staged, by name: the sample's alone, or none of these."""
    group_words = f"run {group.outputs.run_id}, group {group.artifact_group}"
    group_files = _files_of_kind(group, kind)
    if not group_files:
        kind_words = "wheel or sdist" if kind == "all" else f"{kind} wheel or sdist"
        raise MissingInputError(
            f"No record of {group_words}, names a {kind_words}.",
            hint="Build and upload something first, or name another run with --run-id.",
        )

    distributions = {file.distribution for file in group_files.values()}
    requested = {canonicalize_name(name) for name in packages} or distributions
    unknown = sorted(requested - distributions)
    if unknown:
        raise UsageError(
            f"--packages: {group_words}, has no {unknown[0]}.", hint=nearest(unknown[0], distributions)
        )

    files = [group_files[name] for name in sorted(group_files) if group_files[name].distribution in requested]
    _require_kind_of_release(files, samples=samples)
    return tuple(files)


def _files_of_kind(
    group: RecordedGroup,
    kind: Kind,
) -> Mapping[str, StagedFile]:
    """Return the files that a group's records name, by name."""
    prefix = f"{group.outputs.python_prefix(group.artifact_group)}/"
    files: dict[str, StagedFile] = {}
    for stored_record in group.records:
        for file in stored_record.files:
            is_of_kind = kind == "all" or is_rocm(file.distribution) == (kind == "rocm")
            if not is_of_kind or not file.key.startswith(prefix):
                continue

            # ROCm's packages are the same for every torch ref and Python.
            is_of_rocm = is_rocm(file.distribution)
            staged_file = StagedFile(
                **file.model_dump(exclude={"key"}),
                key=f"{documents.folder(documents.STAGING, group.artifact_group)}/{file.name}",
                source_key=file.key,
                torch_ref=None if is_of_rocm else stored_record.record.cell.torch_ref,
                python=None if is_of_rocm else python_tag_of_file(file.name),
            )
            # An upload's record knows no torch ref; the builder's does.
            if staged_file.torch_ref is not None or file.name not in files:
                files[file.name] = staged_file
    return files


def python_tag_of_file(filename: str) -> str | None:
    """Return which Python a wheel is for by its ABI tag (``cp312``); None for several, or an sdist."""
    if not filename.endswith(".whl"):
        return None
    abi_tags = {tag.abi for tag in parse_wheel_name(filename).tags}
    if abi_tags & {"none", "abi3"}:
        return None
    return min(abi_tags)


def read_locks(
    run_store: Store, outputs: RunOutputs, keys: Sequence[str]
) -> Sequence[tuple[SourceLock, DocumentDigest]]:
    """Read the source locks among the keys of a run's documents."""
    locks: list[tuple[SourceLock, DocumentDigest]] = []
    for key in filter(outputs.is_source_lock, keys):
        content = run_store.read(key)
        lock = parse_json(content.decode(errors="replace"), SourceLock, where=key)
        locks.append((lock, digest_document(key, content)))
    return locks


def stage_locks(
    run_store: Store,
    outputs: RunOutputs,
    artifact_group: str,
    refs: Mapping[str, TorchRef],
) -> tuple[StagedLock, ...]:
    """Read a run's source locks, and what each promises to a cell of an artifact group."""
    keys = documents.list_keys(run_store, outputs.source_locks_prefix, recursive=False)
    locks = read_locks(run_store, outputs, keys)
    return tuple(_staged_lock(lock, document, artifact_group, refs) for lock, document in locks)


def _staged_lock(
    lock: SourceLock,
    document: DocumentDigest,
    artifact_group: str,
    refs: Mapping[str, TorchRef],
) -> StagedLock:
    components = refs[lock.torch_ref].components if lock.torch_ref in refs else lock.projects
    has_gpu = artifact_group != CPU

    built_projects: dict[str, LockedProject] = {}
    commits: dict[str, str] = {}
    for name, project in lock.projects.items():
        if name in components and not project.prebuilt:
            built_projects[name] = project
            commits[name] = project.commit
    return StagedLock(
        torch_ref=lock.torch_ref,
        document=document,
        release_type=lock.release_type,
        rocm_version=lock.rocm_version if has_gpu else "",
        commits=commits,
        promised=dict(lock.wheel_versions(built_projects, gpu=has_gpu)),
    )


# Staging


def plan_staging(
    run_store: Store,
    group: RecordedGroup,
    files: Sequence[StagedFile],
    locks: Sequence[StagedLock],
) -> StagingRecord:
    """Return the record of what is staged of a run for a family: which run, commits, records and reports."""
    source_keys = {file.source_key for file in files}
    record_digests: list[DocumentDigest] = []
    for stored_record in group.records:
        record_keys = documents.keys_of(stored_record.record.files)
        if stored_record.record.stage.startswith("test_") or source_keys & record_keys:
            record_digests.append(stored_record.document)

    return StagingRecord(
        family=group.artifact_group,
        run_id=group.outputs.run_id,
        platform=group.outputs.platform,
        store=run_store.url,
        prefix=group.outputs.prefix,
        artifact_group=group.artifact_group,
        staged=records.now(),
        files=tuple(files),
        records=tuple(record_digests),
        reports=group.reports,
        locks=tuple(locks),
    )


def stage_group(
    run_store: Store,
    distribution_store: Store,
    record: StagingRecord,
    *,
    jobs: int = parallel.JOBS,
) -> int:
    """Copy wheels, sidecars, then the staging record; return how many were new. Pages are the caller's."""
    source_keys = {file: file.source_key for file in record.files}
    new_count = documents.copy_files(source_keys, source=run_store, target=distribution_store, jobs=jobs)
    _write_staging_record(distribution_store, record)
    return new_count


def _write_staging_record(
    store: Store,
    record: StagingRecord,
) -> None:
    """Write the staging record, with what another job has staged of the run meanwhile."""
    key = documents.staging_record_key(record.artifact_group, record.prefix)
    for _attempt in range(MOST_ATTEMPTS):
        stored_object = store.find(key)
        merged_record = record
        if stored_object is not None:
            merged_record = merge_staging_records(documents.read(store, key, StagingRecord), record)
        try:
            store.put_bytes(key, documents.serialized(merged_record), if_match=etag_of(stored_object))
        except ConflictError:
            continue
        return
    raise StoreError(
        f"{key} in {store.url} was written by others {MOST_ATTEMPTS} times.", hint="Try again later."
    )


def merge_staging_records(
    old: StagingRecord,
    new: StagingRecord,
) -> StagingRecord:
    """Add what was staged of the same run before; the old record itself where nothing is new."""
    files = {file.name: file for file in old.files}
    for file in new.files:
        if file.name in files and files[file.name].sha256 != file.sha256:
            raise StoreError(
                f"{file.key} was staged with other bytes before: {files[file.name].sha256[:12]}.",
                hint="A name stands for the same bytes forever: build under another version.",
            )
        files[file.name] = file

    record = new.model_copy(
        update={
            "files": tuple(files[name] for name in sorted(files)),
            "records": _merge_digests(old.records, new.records),
            "reports": _merge_digests(old.reports, new.reports),
        }
    )
    is_unchanged = record.model_copy(update={"staged": old.staged}) == old
    return old if is_unchanged else record


def _merge_digests(
    old: Sequence[DocumentDigest], new: Sequence[DocumentDigest]
) -> tuple[DocumentDigest, ...]:
    """Return all documents, each as it was read last, sorted by key."""
    digests = {document.key: document for document in (*old, *new)}
    return tuple(digests[key] for key in sorted(digests))
