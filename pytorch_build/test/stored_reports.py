"""The reports of a run in its store, or in a folder: filed under their names, and found again.

A shard has a report and a record of its own, ``test_torch-2-of-6``, which do not allow a promotion.
`merged_record` makes those that do, ``test_torch``, once every shard is there and has passed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from core import parallel
from core.errors import MissingInputError
from core.run import RunOutputs, records
from pytorch_build.test.junit.reader import read_junit, read_junit_file
from pytorch_build.test.junit.writer import write_junit
from pytorch_build.test.record import (
    STAGE_PREFIX,
    details_of_report,
    origin_of_record,
    read_details,
    records_of_tests,
)
from pytorch_build.test.report import (
    MERGED_SHARDS,
    Report,
    ReportOrigin,
    document_to_write,
    report_of_document,
    shard_suffix,
)

if TYPE_CHECKING:
    from pathlib import Path

    from core.cli.options import Common
    from core.run.records import Record
    from core.stores import Store


def put_report(
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
    report: Report,
) -> Mapping[str, Any]:
    """File a report, ``torch-{ref}-{python}-2-of-6.xml``; return the details for the record.

    In the local run, reports of other numbers of shards are dropped.
    """
    if not outputs.immutable and MERGED_SHARDS not in report.document.properties:
        _delete_other_shards(store, outputs, artifact_group, report)

    content = write_junit(document_to_write(report))
    filename = f"{report.origin.name}{shard_suffix(report.shard)}.xml"
    key = f"{outputs.reports_prefix(artifact_group)}/{filename}"
    store.put_bytes(key, content)
    digest = hashlib.sha256(content).hexdigest()
    return {**details_of_report(report), "report": {"key": key, "sha256": digest}}


def _delete_other_shards(
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
    report: Report,
) -> None:
    """Delete reports and records of the same tests in another number of shards: they are of another run."""
    origin = report.origin
    shard_count = 1 if report.shard is None else report.shard.count
    record_name = records.record_name(origin.stage_name() + "%", origin.cell)
    patterns = {
        outputs.reports_prefix(artifact_group): (f"{origin.name}%", r"\.xml"),
        outputs.manifests_prefix(artifact_group): (record_name, r"(\.failed)?\.json"),
    }
    for prefix, (name, suffix) in patterns.items():
        shard_pattern = r"(-\d+-of-(?P<count>\d+))?"
        name_pattern = re.escape(name).replace("%", shard_pattern)
        pattern = re.compile(name_pattern + suffix)
        for file in store.list(prefix):
            filename = file.key.removeprefix(f"{prefix}/")
            match = pattern.fullmatch(filename)
            if match is None:
                continue
            # A name without a shard is that of the whole.
            count_of_file = int(match["count"] or 1)
            if count_of_file != shard_count:
                store.delete(file.key)


def report_digests(
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
) -> Callable[[str], str | None]:
    """Return a function that finds the digest of a report by its name."""
    prefix = outputs.reports_prefix(artifact_group)

    def digest_of(name: str) -> str | None:
        key = f"{prefix}/{name}"
        if store.find(key) is None:
            return None
        return store.digest(key)

    return digest_of


def read_reports_in_folder(folder: Path) -> Sequence[Report]:
    """Read every ``.xml`` below a folder."""
    if not folder.is_dir():
        raise MissingInputError(
            f"{folder} is not a folder.", hint="Name the one with the reports: --input-dir DIR."
        )
    reports: list[Report] = []
    for path in sorted(folder.rglob("*.xml")):
        if path.is_file():
            filename = path.relative_to(folder).as_posix()
            report = report_of_document(
                read_junit_file(path),
                ReportOrigin(folder=filename.rpartition("/")[0]),
                filename=filename,
            )
            reports.append(report)
    if not reports:
        raise MissingInputError(
            f"{folder} has no JUnit reports (*.xml).",
            hint="No report at all is a failure: see why no test ran.",
        )
    return _leave_out_totals(reports)


def find_tested_groups(common: Common) -> Sequence[str]:
    """List the artifact groups of a run that have test records or reports; or the chosen one."""
    if common.gpu_family:
        return [common.artifact_group]
    store = common.open_for_reading()
    outputs = common.outputs
    groups: set[str] = set()
    for prefix in (f"{outputs.prefix}/reports", f"{outputs.prefix}/manifests"):
        for file in store.list(prefix):
            path = file.key.removeprefix(f"{prefix}/")
            group, slash, name = path.partition("/")
            if slash and (name.endswith(".xml") or name.startswith(STAGE_PREFIX)):
                groups.add(group)
    if not groups:
        raise MissingInputError(
            f"Run {outputs.run_id} has no test reports in {store.url}.",
            hint="Test something first: nox -s test_smoke or nox -s test_torch. Or give --input-dir.",
        )
    return sorted(groups)


def read_reports_of_group(
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
    group_records: Iterable[Record],
) -> Sequence[Report]:
    """Read the reports of a group of a run, whose records are known."""
    # ROCm's reports do not say what they are about; their records do.
    origins: dict[str, ReportOrigin] = {}
    for record in records_of_tests(group_records):
        report = read_details(record).report
        stem = records.record_name(record.stage.removeprefix(STAGE_PREFIX), record.cell)
        name = f"{stem}.xml" if report is None else report.name
        origins[name] = origin_of_record(record, artifact_group, outputs)

    def read_report(key: str) -> Report:
        name = key.rpartition("/")[2]
        # A group without a variant has the name of its family.
        unrecorded_origin = ReportOrigin(
            gpu_family=artifact_group,
            folder=name.removesuffix(".xml"),
        )
        with store.open(key) as stream:
            report = report_of_document(
                read_junit(stream),
                origins.get(name, unrecorded_origin),
                filename=name,
            )
        # A run that was uploaded had another name before.
        return replace(report, origin=replace(report.origin, run_id=outputs.run_id))

    report_files = store.list(outputs.reports_prefix(artifact_group))
    keys = [file.key for file in report_files if file.key.endswith(".xml")]
    return _leave_out_totals(parallel.map_in_threads(read_report, keys))


def _leave_out_totals(reports: Iterable[Report]) -> Sequence[Report]:
    """Leave out the totals of shards, whose own reports are there."""
    return [report for report in reports if MERGED_SHARDS not in report.document.properties]
