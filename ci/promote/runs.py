"""A run's artifact group as promotion sees it: records, reports, tests and locks; and its way to staging."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Literal

from packaging.utils import canonicalize_name

from ci.promote import documents
from ci.promote.documents import Document, Evidence, Lock, StagedFile, StagingRecord, document
from core import parallel
from core.cell import GroupCell
from core.data import parse_json
from core.errors import ConflictError, MissingInputError, StoreError, UsageError, nearest
from core.families import CPU, families, group_families
from core.packages.candidates import candidate_named
from core.run import RunOutputs, is_record, key_name, records
from core.run.records import FileRecord, Record
from core.stores import PutResult, Store
from core.wheel import parse_wheel_name
from core.wheel.distributions import SIDECAR
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.refs.torch_refs import rehearsal_labels
from pytorch_build.test.record import (
    TestDetails,
    parse_record,
    read_details,
    read_inputs,
    why_impossible,
    why_incomplete,
    why_report_differs,
)
from rocm_packaging.packages.layouts import is_rocm

if TYPE_CHECKING:
    from pytorch_build.refs.torch_refs import TorchRef

Kind = Literal["all", "rocm", "pytorch"]
_TRIES = 5


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A record, and where it was read."""

    record: Record
    document: Document

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The files that it names, if the stage was successful."""
        return self.record.files if self.record.status == "ok" else ()


def recorded(key: str, content: bytes) -> Recorded:
    """Parse a record that was read."""
    return Recorded(record=parse_record(content, where=key), document=document(key, content))


@dataclass(frozen=True, kw_only=True)
class RunGroup:
    """One artifact group of a run, as the run's store has it now."""

    outputs: RunOutputs
    artifact_group: str
    records: tuple[Recorded, ...]
    reports: tuple[Document, ...]

    @property
    def promised(self) -> Mapping[str, frozenset[str]]:
        """The digests that successful stages recorded, by key."""
        return records.promised([one.record for one in self.records])

    @property
    def tests(self) -> Iterator[Test]:
        """The records of its tests."""
        return (_test(one, self) for one in self.records if one.record.stage.startswith("test_"))


@dataclass(frozen=True, kw_only=True)
class Test:
    """The record of a test."""

    cell: GroupCell
    torch_ref: str | None
    outcome: str
    why: str
    files: Mapping[str, str]
    targets: tuple[str, ...] = ()
    evidence: Evidence


def read_group(store: Store, outputs: RunOutputs, artifact_group: str) -> RunGroup:
    """Read a group's records and reports."""
    # a ROCm build's own manifest lies among the records
    manifests = filter(is_record, (one.key for one in store.list(outputs.manifests_prefix(artifact_group))))
    below = (one.key for one in store.list(outputs.reports_prefix(artifact_group)))
    reports = (key for key in below if key.endswith(".xml"))
    return RunGroup(
        outputs=outputs,
        artifact_group=artifact_group,
        records=tuple(parallel.map_in_threads(lambda key: recorded(key, store.read(key)), manifests)),
        reports=tuple(parallel.map_in_threads(lambda key: document(key, store.read(key)), reports)),
    )


def read_locks(
    store: Store, outputs: RunOutputs, artifact_group: str, refs: Mapping[str, TorchRef]
) -> tuple[Lock, ...]:
    """Read a run's source locks, and what each promises to a cell of an artifact group."""
    listed = store.list(f"{outputs.prefix}/manifests", recursive=False)
    keys = [one.key for one in listed if one.key.rpartition("/")[2].startswith("source-lock-")]
    return tuple(_lock(key, store.read(key), artifact_group, refs) for key in keys)


def lock_of(locks: Sequence[Lock], torch_ref: str | None) -> Lock | None:
    """Find a torch ref's lock."""
    if torch_ref is None:
        return None
    return next((lock for lock in locks if key_name(lock.torch_ref) == key_name(torch_ref)), None)


def _lock(key: str, content: bytes, artifact_group: str, refs: Mapping[str, TorchRef]) -> Lock:
    lock = parse_json(content.decode(), SourceLock, where=key)
    of_ref = refs[lock.torch_ref].components if lock.torch_ref in refs else lock.projects
    built = {name: one for name, one in lock.projects.items() if not one.prebuilt and name in of_ref}
    return Lock(
        torch_ref=lock.torch_ref,
        document=document(key, content),
        release_type=lock.release_type,
        rocm_version="" if artifact_group == CPU else lock.rocm_version,
        commits={name: one.commit for name, one in built.items()},
        promised=dict(lock.wheel_versions(built, gpu=artifact_group != CPU)),
    )


def _test(recorded_test: Recorded, group: RunGroup) -> Test:
    record = recorded_test.record
    key = recorded_test.document.key
    inputs = read_inputs(record, where=key)
    details = read_details(record, where=key)
    outcome, why = _outcome(recorded_test, details, group)
    report = details.report
    return Test(
        cell=GroupCell(
            artifact_group=group.artifact_group,
            platform=group.outputs.platform,
            python=record.cell.python,
        ),
        torch_ref=record.cell.torch_ref,
        outcome=outcome,
        why=why,
        files=inputs.tested_files,
        targets=_targets_of(record, group.artifact_group),
        evidence=Evidence(
            stage=record.stage,
            run_id=record.run_id,
            python=record.cell.python_tag,
            record=recorded_test.document,
            report=None if report is None else Document(key=report.key, sha256=report.sha256),
        ),
    )


def _targets_of(record: Record, artifact_group: str) -> tuple[str, ...]:
    """Return the gfx targets of the GPU families that a test ran for."""
    gpu_families = (record.cell.gpu_family or group_families(artifact_group)).split(";")
    known_families = families()
    targets: list[str] = []
    for gpu_family in gpu_families:
        if gpu_family in known_families:
            targets += known_families[gpu_family].targets
    return tuple(targets)


def _outcome(recorded_test: Recorded, details: TestDetails, group: RunGroup) -> tuple[str, str]:
    """Return whether a test passed, failed, or counts for nothing, and why."""
    record = recorded_test.record
    if record.status != "ok":
        return "failed", record.error or "no error message"

    # `rocm-sdk test` counts checks.
    totals = details.tests or details.checks
    if totals is None:
        return "void", "its record holds no totals"
    if totals.failed:
        return "failed", f"{totals.failed} tests failed"

    why_void = _why_void(recorded_test, details, group)
    if why_void:
        return "void", why_void
    if not totals.passed:
        return "void", "no test passed"
    return "passed", ""


def _why_void(recorded_test: Recorded, details: TestDetails, group: RunGroup) -> str:
    """Return why a release cannot rest on a test that passed; "" where it can."""
    record = recorded_test.record
    inputs = read_inputs(record, where=recorded_test.document.key)
    if not inputs.installed:
        return "it tested what an environment held already"
    if details.tests is not None:
        incomplete = why_incomplete(details)
        if incomplete:
            return incomplete
    if inputs.arguments:
        return f"it ran with {' '.join(inputs.arguments)}"

    impossible = why_impossible(
        record,
        run_id=group.outputs.run_id,
        artifact_group=group.artifact_group,
        targets=_targets_of(record, group.artifact_group),
        now=datetime.now(UTC),
    )
    if impossible:
        return f"{recorded_test.document.key}: {impossible}: run the test again"

    digests = {report.key.rpartition("/")[2]: report.sha256 for report in group.reports}
    return why_report_differs(details, digests.get)


def is_sample(version: str) -> bool:
    """Return whether a wheel is of a ref for rehearsals alone, such as the sample, by its local version."""
    local_version = version.partition("+")[2]
    return not rehearsal_labels().isdisjoint(re.split(r"[._-]", local_version))


def require_samples(store: Store) -> None:
    """Refuse a store that hands out anything but the sample: it is no place for a rehearsal."""
    for key in (one.key for area in documents.AREAS for one in store.list(f"{area}/")):
        candidate = candidate_named(key.rpartition("/")[2], url=key)
        if candidate is not None and not is_sample(candidate.version):
            raise UsageError(
                f"{store.url} has {key}, which is not the sample's, so no rehearsal may write there.",
                hint="Leave --distribution-store out, for a folder below out/, or name an empty store.",
            )


def chosen_files(
    group: RunGroup, kind: Kind = "all", packages: Sequence[str] = (), *, samples: bool = False
) -> tuple[StagedFile, ...]:
    """Choose the files of a group that are staged, by name: the sample's alone, or none of these."""
    prefix = f"{group.outputs.python_prefix(group.artifact_group)}/"
    where = f"run {group.outputs.run_id}, group {group.artifact_group}"
    found: dict[str, StagedFile] = {}
    for one in group.records:
        for file in one.files:
            of_kind = kind == "all" or is_rocm(file.distribution) == (kind == "rocm")
            if file.key.startswith(prefix) and of_kind:
                staged = _staged(file, group.artifact_group, one.record.cell.torch_ref)
                # an upload's record knows no ref: the builder's does
                found[file.name] = staged if staged.torch_ref else found.get(file.name, staged)
    if not found:
        what = "wheel or sdist" if kind == "all" else f"{kind} wheel or sdist"
        raise MissingInputError(
            f"No record of {where}, names a {what}.",
            hint="Build and upload something first, or name another run with --run-id.",
        )
    names = {file.distribution for file in found.values()}
    wanted = {canonicalize_name(name) for name in packages} or names
    if unknown := sorted(wanted - names):
        raise UsageError(f"--packages: {where}, has no {unknown[0]}.", hint=nearest(unknown[0], names))
    files = tuple(found[name] for name in sorted(found) if found[name].distribution in wanted)
    if other := [file.name for file in files if is_sample(file.version) != samples]:
        said = "Wheels of the sample are never published"
        hint = "Rehearse (release type rehearsal), or build another ref."
        if samples:
            said = "A rehearsal is of the sample's wheels alone"
            hint = "Name the release type of these: --release-type."
        raise UsageError(f"{said}:\n" + "\n".join(other), hint=hint)
    return files


def stage_group(source: Store, target: Store, planned: StagingRecord, *, jobs: int = parallel.JOBS) -> int:
    """Copy wheels, sidecars, then the staging record; return how many were new. Pages are the caller's."""

    def copied(file: StagedFile, suffix: str = "") -> PutResult:
        sha256 = file.metadata_sha256 if suffix else file.sha256
        return target.copy(f"{file.key}{suffix}", source, f"{file.source_key}{suffix}", sha256=sha256)

    results = parallel.map_in_threads(copied, planned.files, jobs=jobs)
    with_sidecar = [file for file in planned.files if file.metadata_sha256]
    parallel.map_in_threads(partial(copied, suffix=SIDECAR), with_sidecar, jobs=jobs)
    _record(target, planned)
    return sum(result.outcome != "unchanged" for result in results)


def planned_record(
    store: Store, group: RunGroup, files: Sequence[StagedFile], locks: Sequence[Lock]
) -> StagingRecord:
    """Write down what is staged of a run for a family: which run, commits, records and reports."""
    named = {file.source_key for file in files}
    return StagingRecord(
        family=group.artifact_group,
        run_id=group.outputs.run_id,
        platform=group.outputs.platform,
        store=store.url,
        prefix=group.outputs.prefix,
        artifact_group=group.artifact_group,
        staged=records.now(),
        files=tuple(files),
        records=tuple(
            one.document
            for one in group.records
            if one.record.stage.startswith("test_") or named & {file.key for file in one.record.files}
        ),
        reports=group.reports,
        locks=tuple(locks),
    )


def merged(old: StagingRecord, new: StagingRecord) -> StagingRecord:
    """Add what was staged of the same run before; the old record itself where nothing is new."""
    before = {file.name: file for file in old.files}
    for file in new.files:
        if file.name in before and before[file.name].sha256 != file.sha256:
            raise StoreError(
                f"{file.key} was staged with other bytes before: {before[file.name].sha256[:12]}.",
                hint="A name stands for the same bytes forever: build under another version.",
            )
    files = {**before, **{file.name: file for file in new.files}}

    def together(*documents: Document) -> tuple[Document, ...]:
        by_key = {one.key: one for one in documents}
        return tuple(by_key[key] for key in sorted(by_key))

    whole = new.model_copy(
        update={
            "files": tuple(files[name] for name in sorted(files)),
            "records": together(*old.records, *new.records),
            "reports": together(*old.reports, *new.reports),
        }
    )
    return old if whole.model_copy(update={"staged": old.staged}) == old else whole


def _record(target: Store, planned: StagingRecord) -> None:
    """Write the staging record, with what another job has staged of the run meanwhile."""
    key = documents.staging_record(planned.family, planned.prefix)
    for _ in range(_TRIES):
        found = target.find(key)
        whole = merged(documents.read(target, key, StagingRecord), planned) if found else planned
        try:
            target.put_bytes(key, documents.serialized(whole), if_match=found.etag if found else "")
        except ConflictError:
            continue
        return
    raise StoreError(f"{key} in {target.url} was written by others {_TRIES} times.", hint="Try again later.")


def _staged(file: FileRecord, artifact_group: str, torch_ref: str | None) -> StagedFile:
    # ROCm's packages are the same for every torch ref and Python.
    is_of_rocm = is_rocm(file.distribution)
    return StagedFile(
        **file.model_dump(exclude={"key"}),
        key=f"{documents.folder(documents.STAGING, artifact_group)}/{file.name}",
        source_key=file.key,
        torch_ref=None if is_of_rocm else torch_ref,
        python=None if is_of_rocm else python_of(file.name),
    )


def python_of(filename: str) -> str | None:
    """Return which Python a wheel is for by its ABI tag (``cp312``); None for several, or an sdist."""
    if not filename.endswith(".whl"):
        return None
    abis = {tag.abi for tag in parse_wheel_name(filename).tags}
    return None if abis & {"none", "abi3"} else min(abis)
