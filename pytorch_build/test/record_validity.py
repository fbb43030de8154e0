"""Whether the record of a test counts, and whether results and records say the same.

Each reason is a sentence's end, and "" where there is none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from core.families import CPU
from core.run import RunOutputs, records
from core.run.records import Record
from core.stores import Store
from pytorch_build.components import distributions
from pytorch_build.test.cell_results import CellResults
from pytorch_build.test.gaps import UNEXPLAINED
from pytorch_build.test.junit.document import Document
from pytorch_build.test.record import (
    SHARD_MARK,
    TestDetails,
    origin_of_record,
    read_details,
    read_inputs,
    records_of_tests,
)
from pytorch_build.test.stored_reports import report_digests
from rocm_packaging.packages.layouts import is_rocm

if TYPE_CHECKING:
    from core.run.stage import Stage
    from pytorch_build.test.report import ReportOrigin

# Machines' clocks differ, but by less than a day.
_CLOCK_TOLERANCE = timedelta(days=1)


def why_impossible(
    record: Record,
    *,
    run_id: str,
    artifact_group: str,
    targets: Collection[str],
    now: datetime,
) -> str:
    """Return which field of a test's record cannot be true in this group of a run."""
    if record.run_id != run_id:
        return f"its 'run_id' is {record.run_id!r}, another run's"
    impossible_start = _why_impossible_start(record, now)
    if impossible_start:
        return impossible_start
    if artifact_group == CPU or "checks" in record.details:
        # `rocm-sdk test` names the targets of its packages, and no GPU.
        return ""

    gpu_targets = read_inputs(record).gpu_targets
    if not gpu_targets:
        return "its 'inputs.gpu' names no GPU: it ran on a machine without a GPU"
    other_targets = sorted(gpu_targets - set(targets))
    if other_targets:
        return f"its 'inputs.gpu' names {', '.join(other_targets)}, which is not of {artifact_group}"
    return ""


def _why_impossible_start(record: Record, now: datetime) -> str:
    """Return why a record cannot have been written when it says that its test began."""
    try:
        started = datetime.fromisoformat(record.started)
    except ValueError:
        return f"its 'started' is {record.started!r}, which is no time"
    if started.tzinfo is None:
        started = started.replace(tzinfo=UTC)
    if started > now + _CLOCK_TOLERANCE:
        return f"its 'started' is {record.started}, which has not come yet"
    return ""


def why_incomplete(details: TestDetails) -> str:
    """Return why the results of a test are not those of all tests that exist."""
    totals = details.tests
    if totals is None or totals.existing is None:
        return "its record does not say which tests exist"
    if totals.tests != totals.existing:
        return f"{totals.tests} of {totals.existing} tests ran"
    if details.left_out:
        return details.left_out
    if totals.unexplained:
        return f"{totals.unexplained} of {totals.tests} tests were {UNEXPLAINED}"
    return ""


def why_out_of_date(record: Record, group_records: Iterable[Record]) -> str:
    """Return which files of its run a test did not run on, by all records of its artifact group."""
    inputs = read_inputs(record)
    if not inputs.installed:
        return "it tested what an environment held already"

    digests_of_run: dict[str, str] = {}
    required_names: set[str] = set()
    # A build's word counts more than that of an upload.
    for other_record in sorted(group_records, key=_is_of_build):
        if other_record.status != "ok":
            continue
        for file in other_record.files:
            digests_of_run[file.name] = file.sha256
        is_beside = (
            record.cell.torch_ref is not None
            and other_record.cell.torch_ref == record.cell.torch_ref
            and other_record.cell.python == record.cell.python
        )
        if is_beside and _is_of_build(other_record):
            # A build may have left more than its wheels.
            wheels = [file for file in other_record.files if file.distribution in distributions()]
            required_names.update(file.name for file in wheels)

    tested_files = inputs.tested_files
    different_names = required_names - tested_files.keys()
    for name, digest in tested_files.items():
        if digests_of_run.get(name, digest) != digest:
            different_names.add(name)
    rocm_of_run = set(filter(_is_rocm_file, digests_of_run))
    if rocm_of_run:
        tested_rocm = set(filter(_is_rocm_file, tested_files))
        different_names |= tested_rocm - rocm_of_run

    if not different_names:
        return ""
    listing = ", ".join(sorted(different_names))
    return f"out of date: it ran on other bytes than the run has of {listing}"


def _is_of_build(record: Record) -> bool:
    return record.stage.startswith("build_")


def _is_rocm_file(filename: str) -> bool:
    distribution = filename.partition("-")[0]
    return is_rocm(canonicalize_name(distribution))


def why_missing(record: Record, group_records: Sequence[Record]) -> str:
    """Return why a test counts as missing, by its record and all of its artifact group."""
    out_of_date = why_out_of_date(record, group_records)
    if out_of_date:
        return out_of_date
    details = read_details(record)
    is_of_shard = SHARD_MARK in record.stage
    if record.status != "ok" or is_of_shard or details.tests is None:
        return ""
    return why_incomplete(details)


def why_report_differs(
    details: TestDetails,
    digest_of: Callable[[str], str | None],
) -> str:
    """Return what became of the report that a record names, by the digest of each report's name."""
    if details.report is None:
        return "its record names no report"
    digest = digest_of(details.report.name)
    if digest is None:
        return f"its report {details.report.name} is gone"
    if digest != details.report.sha256:
        return f"its report {details.report.name} was replaced"
    return ""


# Records beside reports


def force_if_incomplete(stage: Stage) -> Stage:
    """Return a stage, forced where its last record is incomplete, or its report is another run's since.

    A part that was asked for is complete.
    """
    name = records.record_name(stage.name, stage.cell)
    previous_record = records.read(stage.store, stage.outputs, stage.artifact_group, name)
    if previous_record is None:
        return stage

    details = read_details(previous_record)
    is_part = read_inputs(previous_record).selection or SHARD_MARK in stage.name
    incomplete = "" if is_part else why_incomplete(details)
    digest_of = report_digests(stage.store, stage.outputs, stage.artifact_group)
    if incomplete or why_report_differs(details, digest_of):
        return replace(stage, common=replace(stage.common, force=True))
    return stage


def check_records(
    results: Iterable[CellResults],
    group_records: Sequence[Record],
    *,
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
) -> tuple[CellResults, ...]:
    """Return results with what records know and reports do not.

    That is failures without a report, changed reports, and tests of other bytes than the run has.
    """
    by_origin = {cell_results.origin: cell_results for cell_results in results}
    digest_of = report_digests(store, outputs, artifact_group)
    problems: dict[ReportOrigin, list[str]] = defaultdict(list)
    recorded_origins: set[ReportOrigin] = set()
    for record in records_of_tests(records.latest(group_records)):
        origin = origin_of_record(record, artifact_group, outputs)
        recorded_origins.add(origin)
        without_report = CellResults(origin=origin, document=Document(), shard_count=0)
        cell_results = by_origin.setdefault(origin, without_report)
        problem = _problem_of(record, cell_results, group_records, digest_of)
        if problem:
            problems[origin].append(problem)

    checked_results: list[CellResults] = []
    for origin in sorted(by_origin):
        cell_results = by_origin[origin]
        if origin not in recorded_origins:
            problems[origin].insert(0, "no record says which wheels its report is about")
        checked_results.append(cell_results.with_problems(problems[origin]))
    return tuple(checked_results)


def _problem_of(
    record: Record,
    cell_results: CellResults,
    group_records: Sequence[Record],
    digest_of: Callable[[str], str | None],
) -> str:
    """Return the problem that a record adds to the results; "" where it adds none."""
    if record.status == "failed":
        # Results with a failure show it already.
        is_shown = not cell_results.passed and cell_results.document.cases
        return "" if is_shown else f"{record.stage} failed: {record.error or 'no error message'}"
    difference = why_report_differs(read_details(record), digest_of)
    if difference:
        return f"{record.stage}: {difference}"
    return why_out_of_date(record, group_records)
