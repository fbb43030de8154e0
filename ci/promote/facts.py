"""What a decision follows from: staging records, staged objects, and what the runs say of them now."""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal, NoReturn

from ci.github import first_line
from ci.promote import documents
from ci.promote.documents import (
    DocumentDigest,
    Evidence,
    Reason,
    StagedFile,
    StagedLock,
    StagingRecord,
    StoredRecord,
    digest_document,
    list_keys,
    parse_stored_record,
)
from core import parallel
from core.cell import GroupCell, python_of_tag
from core.errors import MissingInputError, nearest
from core.families import families, group_families
from core.packages.candidates import candidate_named, requirements_in
from core.run import Platform, RunOutputs, is_record, key_name, records
from core.run.records import Record
from core.stores import Store
from core.wheel.distributions import SIDECAR
from pytorch_build.lock.versions import without_edit_marks
from pytorch_build.test.record import TestDetails, read_details, read_inputs
from pytorch_build.test.record_validity import why_impossible, why_incomplete, why_report_differs
from rocm_packaging.packages.layouts import BOOTSTRAP, host_distribution, is_rocm

# A void test says nothing for or against a wheel.
Outcome = Literal["passed", "failed", "void"]


# What a run says of itself


@dataclass(frozen=True, kw_only=True)
class CompletedTest:
    """What the record of a test says.

    Attributes:
        explanation: Why it failed, or counts for nothing.
        tested_files: The SHA-256 of each file that it installed, by name.
        targets: The gfx targets of the GPU families that it ran for.
    """

    cell: GroupCell
    torch_ref: str | None
    outcome: Outcome
    explanation: str
    tested_files: Mapping[str, str]
    targets: tuple[str, ...] = ()
    evidence: Evidence


@dataclass(frozen=True, kw_only=True)
class RecordedGroup:
    """One artifact group of a run, as the run's store has it now."""

    outputs: RunOutputs
    artifact_group: str
    records: tuple[StoredRecord, ...]
    reports: tuple[DocumentDigest, ...]

    @cached_property
    def recorded_sha256s(self) -> Mapping[str, frozenset[str]]:
        """The digests that successful steps recorded, by key."""
        return records.promised([stored_record.record for stored_record in self.records])

    @property
    def tests(self) -> Iterator[CompletedTest]:
        """The records of its tests."""
        for stored_record in self.records:
            if stored_record.record.stage.startswith("test_"):
                yield _read_test(stored_record, self)


def read_group(
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
) -> RecordedGroup:
    """Read a group's records and reports."""
    # A ROCm build's own manifest lies among the records.
    record_keys = filter(is_record, list_keys(store, outputs.manifests_prefix(artifact_group)))
    reports_prefix = outputs.reports_prefix(artifact_group)
    report_keys = [key for key in list_keys(store, reports_prefix) if key.endswith(".xml")]

    def read_record(key: str) -> StoredRecord:
        return parse_stored_record(key, store.read(key))

    def read_report(key: str) -> DocumentDigest:
        return digest_document(key, store.read(key))

    return RecordedGroup(
        outputs=outputs,
        artifact_group=artifact_group,
        records=tuple(parallel.map_in_threads(read_record, record_keys)),
        reports=tuple(parallel.map_in_threads(read_report, report_keys)),
    )


def find_lock(
    locks: Sequence[StagedLock],
    torch_ref: str | None,
) -> StagedLock | None:
    """Find a torch ref's lock."""
    if torch_ref is None:
        return None
    for lock in locks:
        if key_name(lock.torch_ref) == key_name(torch_ref):
            return lock
    return None


def _read_test(
    stored_record: StoredRecord,
    group: RecordedGroup,
) -> CompletedTest:
    record = stored_record.record
    key = stored_record.document.key
    details = read_details(record, where=key)
    outcome, explanation = _outcome(stored_record, details, group)
    report = details.report
    return CompletedTest(
        cell=GroupCell(
            artifact_group=group.artifact_group,
            platform=group.outputs.platform,
            python=record.cell.python,
        ),
        torch_ref=record.cell.torch_ref,
        outcome=outcome,
        explanation=explanation,
        tested_files=read_inputs(record, where=key).tested_files,
        targets=_targets_of(record, group.artifact_group),
        evidence=Evidence(
            stage=record.stage,
            run_id=record.run_id,
            python=record.cell.python_tag,
            record=stored_record.document,
            report=None
            if report is None
            else DocumentDigest(
                key=report.key,
                sha256=report.sha256,
            ),
        ),
    )


def _targets_of(
    record: Record,
    artifact_group: str,
) -> tuple[str, ...]:
    """Return the gfx targets of the GPU families that a test ran for."""
    gpu_families = (record.cell.gpu_family or group_families(artifact_group)).split(";")
    known_families = families()
    targets: list[str] = []
    for gpu_family in gpu_families:
        if gpu_family in known_families:
            targets += known_families[gpu_family].targets
    return tuple(targets)


def _outcome(
    stored_record: StoredRecord,
    details: TestDetails,
    group: RecordedGroup,
) -> tuple[Outcome, str]:
    """Return whether a test passed, failed, or counts for nothing, and why."""
    record = stored_record.record
    if record.status != "ok":
        return "failed", record.error or "no error message"

    # The totals of tests or, of `rocm-sdk test`, of checks.
    totals = details.tests or details.checks
    if totals is None:
        return "void", "its record holds no totals"
    if totals.failed:
        return "failed", f"{totals.failed} tests failed"

    why_void = _why_void(stored_record, details, group)
    if why_void:
        return "void", why_void
    if not totals.passed:
        return "void", "no test passed"
    return "passed", ""


def _why_void(
    stored_record: StoredRecord,
    details: TestDetails,
    group: RecordedGroup,
) -> str:
    """Return why a release cannot rest on a test that passed; "" where it can."""
    record = stored_record.record
    key = stored_record.document.key
    inputs = read_inputs(record, where=key)
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
        return f"{key}: {impossible}: run the test again"

    report_digests = {report.key.rpartition("/")[2]: report.sha256 for report in group.reports}
    return why_report_differs(details, report_digests.get)


# What there is of a set


@dataclass(frozen=True, kw_only=True)
class StagedWheel:
    """A wheel or sdist of the set, as it was staged and as it is now.

    Attributes:
        current_sha256: Of its bytes now; None where it is gone.
        current_sidecar_sha256: Of its sidecar now; None where it has none.
        recorded_sha256s: What the run's records say of it.
        requires: Its requirements, by its sidecar.
    """

    cell: GroupCell
    file: StagedFile
    current_sha256: str | None
    current_sidecar_sha256: str | None
    recorded_sha256s: frozenset[str]
    requires: tuple[str, ...] = ()

    @property
    def artifact_group(self) -> str:
        """The artifact group that it was staged in."""
        return self.cell.artifact_group or ""

    @property
    def is_rocm(self) -> bool:
        """Whether it is one of ROCm's own packages."""
        return is_rocm(self.file.distribution)


@dataclass(frozen=True, kw_only=True)
class SetLock:
    """A source lock that wheels of a set were built by: one for each run, artifact group and torch ref.

    Attributes:
        run_id: The run whose lock it is.
        place: The artifact group and platform that were built.
        cells: The cells that its promise is for.
        promised: What it promises to each of them: distribution to version.
        commits: What it was built from: component to commit.
    """

    run_id: str
    place: GroupCell
    cells: tuple[GroupCell, ...]
    promised: Mapping[str, str]
    commits: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class SetFacts:
    """Everything that the decision on a set follows from.

    Attributes:
        released: What the release index of each artifact group has: distributions and versions.
        reasons: What was found wrong while it was gathered; no override helps against it.
        left_out: The keys of device packages that the release leaves out.
    """

    set_name: str
    wheels: tuple[StagedWheel, ...]
    tests: tuple[CompletedTest, ...] = ()
    locks: tuple[SetLock, ...] = ()
    released: Mapping[str, frozenset[tuple[str, str]]] = field(default_factory=dict)
    staging: tuple[DocumentDigest, ...] = ()
    reasons: tuple[Reason, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SetRequest:
    """Which set, and what it must have."""

    distribution: str
    version: str
    artifact_groups: tuple[str, ...] = ()
    platforms: tuple[Platform, ...] = ()
    python_tags: tuple[str, ...] = ()
    cells: tuple[GroupCell, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _SetPart:
    """What one staging record has of the set, and its run."""

    record: StagingRecord
    document: DocumentDigest
    files: tuple[StagedFile, ...]
    group: RecordedGroup

    @property
    def place(self) -> GroupCell:
        return GroupCell(
            artifact_group=self.record.artifact_group,
            platform=self.record.platform,
        )

    def cell(self, python_tag: str | None) -> GroupCell:
        if python_tag is None:
            return self.place
        return replace(self.place, python=python_of_tag(python_tag))

    @cached_property
    def torch_refs(self) -> frozenset[str | None]:
        return frozenset(file.torch_ref for file in self.files if file.distribution == "torch")

    @cached_property
    def locks(self) -> Mapping[str | None, StagedLock | None]:
        torch_refs = sorted(self.torch_refs, key=lambda torch_ref: torch_ref or "")
        return {torch_ref: find_lock(self.record.locks, torch_ref) for torch_ref in torch_refs}


def gather(
    store: Store,
    request: SetRequest,
    open_source: Callable[[str], Store],
    *,
    jobs: int = parallel.JOBS,
) -> SetFacts:
    """Gather what there is of a set. `open_source` opens the store of a run by its address.

    Raises:
        MissingInputError: Nothing of the set is staged.
    """
    parts = _read_parts(store, request, open_source)

    locks: list[SetLock] = []
    for part in parts:
        locks += _locks_of_part(part, parts, request)

    reasons: list[Reason] = []
    for part in parts:
        reasons += _failed_builds(part, request)
    reasons += _absent_parts(parts, request)
    for part in parts:
        reasons += _edited_builds(part)

    tests: list[CompletedTest] = []
    for part in parts:
        tests += part.group.tests

    artifact_groups = {part.record.artifact_group for part in parts}
    return SetFacts(
        set_name=f"{request.distribution}-{request.version}",
        wheels=_look_up_wheels(store, parts, jobs),
        tests=tuple(tests),
        locks=tuple(locks),
        released={group: _released_versions(store, group) for group in artifact_groups},
        staging=tuple(part.document for part in parts),
        reasons=tuple(reasons),
    )


def _read_parts(
    store: Store,
    request: SetRequest,
    open_source: Callable[[str], Store],
) -> Sequence[_SetPart]:
    """Read the staging records that have files of the set, and what their runs say now."""
    parts: list[_SetPart] = []
    is_staged = False
    for record, document in documents.staging_records(store, request.artifact_groups):
        files = _files_of_set(record, request)
        if not files:
            continue
        is_staged = True
        if not request.platforms or record.platform in request.platforms:
            group = _read_run(record, open_source)
            parts.append(
                _SetPart(
                    record=record,
                    document=document,
                    files=files,
                    group=group,
                )
            )

    if not is_staged:
        _refuse_empty_set(store, request)
    return parts


def _refuse_empty_set(
    store: Store,
    request: SetRequest,
) -> NoReturn:
    """Refuse a set of which nothing is staged; the hint names what is."""
    staging_records = [record for record, _digest in documents.staging_records(store)]
    holders: set[str] = set()
    for record in staging_records:
        if request.version in documents.versions_in([record], request.distribution):
            holders.add(record.artifact_group)

    versions = documents.versions_in(staging_records, request.distribution)
    other_hint = "Stage it first: nox -s stage."
    if versions:
        other_hint = nearest(request.version, versions)
    groups = ", ".join(request.artifact_groups) or "any family"
    raise MissingInputError(
        f"No {request.distribution} {request.version} of {groups} is staged in {store.url}.",
        hint=f"There is one of {', '.join(sorted(holders))}." if holders else other_hint,
    )


def _files_of_set(
    record: StagingRecord,
    request: SetRequest,
) -> tuple[StagedFile, ...]:
    """Return what of a staging record belongs to the set."""
    if request.distribution != "torch":
        rocm_files = [file for file in record.files if is_rocm(file.distribution)]
        return tuple(file for file in rocm_files if file.version == request.version)

    # The rest of a set goes with these.
    torch_files = [
        file for file in record.files if file.distribution == "torch" and file.version == request.version
    ]
    if not torch_files:
        return ()
    locks = {file.torch_ref: find_lock(record.locks, file.torch_ref) for file in torch_files}
    rocm_versions = {lock.rocm_version for lock in locks.values() if lock is not None}

    set_files: list[StagedFile] = []
    for file in record.files:
        if is_rocm(file.distribution):
            # The bootstrap has a version of its own, and is released with every set.
            belongs = file.version in rocm_versions or file.distribution == BOOTSTRAP
        elif file.distribution == "torch" or file.torch_ref not in locks:
            belongs = file in torch_files
        else:
            belongs = _is_locked_version(file, locks[file.torch_ref])
        if belongs:
            set_files.append(file)
    return tuple(set_files)


def _is_locked_version(
    file: StagedFile,
    lock: StagedLock | None,
) -> bool:
    """Return whether a file has the version that its torch ref's lock promises.

    A version that marks edits counts as the same: edits are a reason against the set, and are to be told.
    """
    if lock is None:
        return True
    version = without_edit_marks(file.version)
    host = host_distribution(file.distribution) or file.distribution
    return version == lock.promised.get(host, version)


def _read_run(
    record: StagingRecord,
    open_source: Callable[[str], Store],
) -> RecordedGroup:
    """Read what the run that was staged says of itself now."""
    folder = f"{record.run_id}-{record.platform}"
    outputs = RunOutputs(
        run_id=record.run_id,
        platform=record.platform,
        external_repo=record.prefix.removesuffix(folder),
    )
    return read_group(open_source(record.store), outputs, record.artifact_group)


def _look_up_wheels(
    store: Store,
    parts: Sequence[_SetPart],
    jobs: int,
) -> tuple[StagedWheel, ...]:
    """Look every staged file of the set up: its digest, its sidecar."""
    present_keys: set[str] = set()
    for artifact_group in sorted({part.record.artifact_group for part in parts}):
        present_keys |= documents.folder_keys(store, documents.STAGING, artifact_group)

    def look_up(part_and_file: tuple[_SetPart, StagedFile]) -> StagedWheel:
        part, file = part_and_file
        sidecar_key = f"{file.key}{SIDECAR}"
        sidecar = b""
        if sidecar_key in present_keys:
            sidecar = store.read(sidecar_key)
        return StagedWheel(
            cell=part.cell(file.python),
            file=file,
            current_sha256=store.digest(file.key) if file.key in present_keys else None,
            current_sidecar_sha256=hashlib.sha256(sidecar).hexdigest() if sidecar else None,
            recorded_sha256s=part.group.recorded_sha256s.get(file.source_key, frozenset()),
            requires=requirements_in(sidecar),
        )

    # A file that two runs have staged alike is one, and either run may speak for it.
    staged_files: dict[tuple[GroupCell, str], tuple[_SetPart, StagedFile]] = {}
    for part in parts:
        for file in part.files:
            staged_files[part.cell(file.python), file.key] = (part, file)
    ordered_files = [staged_files[place] for place in sorted(staged_files)]
    return tuple(parallel.map_in_threads(look_up, ordered_files, jobs=jobs))


def _released_versions(
    store: Store,
    artifact_group: str,
) -> frozenset[tuple[str, str]]:
    """List what the release index of an artifact group has already."""
    released: set[tuple[str, str]] = set()
    for key in documents.folder_keys(store, documents.RELEASE, artifact_group):
        candidate = candidate_named(key.rpartition("/")[2], url=key)
        if candidate is not None:
            released.add((candidate.distribution, candidate.version))
    return frozenset(released)


def _locks_of_part(part: _SetPart, parts: Sequence[_SetPart], request: SetRequest) -> Sequence[SetLock]:
    """Return the source locks of a part; one that is absent is a reason by itself (`_absent_parts`)."""
    cells = tuple(_promised_cells(part, parts, request))
    locks: list[SetLock] = []
    for lock in part.locks.values():
        if lock is None:
            continue
        locks.append(
            SetLock(
                run_id=part.record.run_id,
                place=part.place,
                cells=cells,
                promised=lock.promised,
                commits=lock.commits,
            )
        )
    return locks


def _promised_cells(
    part: _SetPart,
    parts: Sequence[_SetPart],
    request: SetRequest,
) -> Sequence[GroupCell]:
    """Return the cells that a lock's promise is for: none may lack a Python that another has."""
    if request.cells:
        requested_cells = [cell for cell in request.cells if cell.place == part.place]
        return [
            replace(cell, torch_ref=None) for cell in requested_cells if cell.torch_ref in part.torch_refs
        ]

    python_tags = set(request.python_tags)
    if not python_tags:
        for other_part in parts:
            if other_part.record.platform == part.record.platform:
                python_tags.update(file.python for file in other_part.files if file.python is not None)
    return [part.cell(python_tag) for python_tag in sorted(python_tags)]


# Reasons against the set


def _failed_builds(
    part: _SetPart,
    request: SetRequest,
) -> Iterator[Reason]:
    """Find builds of the set's that failed after their last success, or never had one."""
    for stored_record in part.group.records:
        record = stored_record.record
        python_tag = record.cell.python_tag
        is_of_set = record.stage == "build_rocm" or record.cell.torch_ref in part.torch_refs
        is_requested = python_tag is None or not request.python_tags or python_tag in request.python_tags
        if record.status == "failed" and stored_record.is_build and is_of_set and is_requested:
            message = f"{record.stage} failed: {first_line(record.error)}"
            yield Reason(
                cell=part.cell(python_tag),
                message=message,
            )


def _edited_builds(part: _SetPart) -> Iterator[Reason]:
    """Find files of the set that were built from what no commit holds, or from another than was locked."""
    staged_keys = {file.source_key for file in part.files}
    for stored_record in part.group.records:
        record = stored_record.record
        difference = record.edited or _describe_commit_mismatch(record, part.locks.get(record.cell.torch_ref))
        if not difference:
            continue
        for file in record.files:
            if file.key in staged_keys:
                message = f"{file.name} was built from: {difference}"
                yield Reason(
                    cell=part.cell(record.cell.python_tag),
                    message=message,
                )


def _describe_commit_mismatch(record: Record, lock: StagedLock | None) -> str:
    """Return which commit a changed tree is of, and which one was locked; "" where that is the same."""
    match record.details.get("source"):
        case {"tree": _, "commit": str(tree_commit)} if lock is not None:
            locked_commit = lock.commits.get(record.stage.removeprefix("build_"), tree_commit)
            if tree_commit != locked_commit:
                return f"commit {tree_commit[:12]}, and the source lock has {locked_commit[:12]}"
    return ""


def _absent_parts(
    parts: Sequence[_SetPart],
    request: SetRequest,
) -> Iterator[Reason]:
    """Find what was requested and does not exist at all, or whose run cannot be read any more."""
    for cell in dict.fromkeys(_absent_places(parts, request)):
        message = f"no {request.distribution} {request.version} is staged"
        yield Reason(
            cell=cell,
            message=message,
        )

    for part in parts:
        run = f"run {part.record.run_id} in {part.record.store}"
        if not part.group.records:
            yield Reason(
                cell=part.place,
                message=f"{run} has no records of it (any more)",
            )
        for torch_ref, lock in part.locks.items():
            if lock is None:
                message = f"{run} was staged without a source lock of {torch_ref or 'any torch ref'}"
                message += ", so nothing says what the set should contain"
                yield Reason(
                    cell=part.place,
                    message=message,
                )


def _absent_places(
    parts: Sequence[_SetPart],
    request: SetRequest,
) -> Iterator[GroupCell]:
    """Yield the artifact groups and platforms that were requested, and of which nothing is staged."""
    places: set[GroupCell] = set()
    artifact_groups: set[str | None] = set()
    platforms: set[str | None] = set()
    torch_refs: set[str | None] = set()
    for part in parts:
        places.add(part.place)
        artifact_groups.add(part.place.artifact_group)
        platforms.add(part.place.platform)
        torch_refs |= part.torch_refs

    for artifact_group in request.artifact_groups:
        if artifact_group not in artifact_groups:
            yield GroupCell(artifact_group=artifact_group)
    for cell in request.cells:
        if cell.torch_ref in torch_refs and cell.place not in places:
            yield cell.place
    for platform in request.platforms:
        if platform not in platforms:
            yield GroupCell(platform=platform)
