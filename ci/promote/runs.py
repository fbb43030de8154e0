"""A run's artifact group as promotion sees it: records, reports, source locks, and what its tests prove."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal

from ci.promote.documents import DocumentDigest, Evidence, StagedLock, digest_document, list_keys
from core import parallel
from core.cell import GroupCell
from core.data import parse_json
from core.families import families, group_families
from core.run import RunOutputs, is_record, key_name, records
from core.run.records import FileRecord, Record
from core.stores import Store
from core.wheel import parse_wheel_name
from pytorch_build.lock.source_lock import SourceLock
from pytorch_build.test.record import (
    TestDetails,
    parse_record,
    read_details,
    read_inputs,
    why_impossible,
    why_incomplete,
    why_report_differs,
)

Outcome = Literal["passed", "failed", "void"]


@dataclass(frozen=True, kw_only=True)
class StoredRecord:
    """A record, and where it was read."""

    record: Record
    document: DocumentDigest

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The files that it names, if the step was successful."""
        return self.record.files if self.record.status == "ok" else ()

    @property
    def is_build(self) -> bool:
        """Whether it is of a step that built its files."""
        return self.record.stage.startswith("build_")


def parse_stored_record(key: str, content: bytes) -> StoredRecord:
    """Parse a record that was read."""
    return StoredRecord(
        record=parse_record(content, where=key),
        document=digest_document(key, content),
    )


@dataclass(frozen=True, kw_only=True)
class RecordedGroup:
    """One artifact group of a run, as the run's store has it now."""

    outputs: RunOutputs
    artifact_group: str
    records: tuple[StoredRecord, ...]
    reports: tuple[DocumentDigest, ...]

    @property
    def place(self) -> GroupCell:
        """The group and its platform."""
        return GroupCell(
            artifact_group=self.artifact_group,
            platform=self.outputs.platform,
        )

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


def read_locks(
    store: Store, outputs: RunOutputs, keys: Sequence[str]
) -> Sequence[tuple[SourceLock, DocumentDigest]]:
    """Read the source locks among the keys of a run's documents."""
    locks: list[tuple[SourceLock, DocumentDigest]] = []
    for key in filter(outputs.is_source_lock, keys):
        content = store.read(key)
        lock = parse_json(content.decode(errors="replace"), SourceLock, where=key)
        locks.append((lock, digest_document(key, content)))
    return locks


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


def python_tag_of_file(filename: str) -> str | None:
    """Return which Python a wheel is for by its ABI tag (``cp312``); None for several, or an sdist."""
    if not filename.endswith(".whl"):
        return None
    abi_tags = {tag.abi for tag in parse_wheel_name(filename).tags}
    if abi_tags & {"none", "abi3"}:
        return None
    return min(abi_tags)


# Tests


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

    # `rocm-sdk test` counts checks.
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
