"""JUnit reports of a run: what a test stage leaves, and finding and checking it again.

`pytorch_build.test.record` says what their records hold.

A shard has a report and a record of its own, ``test_torch-2-of-6``, which do not allow a promotion.
`test_report` writes the record that does, ``test_torch``, once every shard is there and has passed.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console, files, parallel
from core.causes import Cause, first
from core.errors import CheckError, MissingInputError
from core.run import RunOutputs, records
from core.run.records import Record
from core.stores import Store
from pytorch_build.test import junit
from pytorch_build.test.record import (
    STAGE_PREFIX,
    TestDetails,
    read_details,
    read_inputs,
    why_incomplete,
    why_out_of_date,
    why_report_differs,
)
from pytorch_build.test.results import (
    EXISTING,
    LEFT_OUT,
    CellResults,
    Report,
    ReportOrigin,
    document_of,
    failure_line,
    gaps_of_files,
    merge_shards,
    name_unless_default,
    report_of,
    unexplained_cases,
)
from pytorch_build.test.shards import Shard

if TYPE_CHECKING:
    from core.cli.options import Common
    from core.run.stage import Stage

# The property of a report, and the detail of a record, that was made of those of all shards: their total.
SHARD_COUNT_OF_TOTAL = "merged_shards"
_MOST_REASONS = 10
# A record names this many failed tests; the report has all.
_MOST_FAILING = 200


# What a test leaves


def stage_name(
    origin: ReportOrigin,
    shard: Shard | None = None,
) -> str:
    """Name the stage in records: ``test_torch``, ``test_torch_distributed``, ``test_torch-2-of-6``."""
    config = name_unless_default(origin.config)
    suffix = f"_{config}" if config else ""
    return f"{origin.stage}{suffix}{_shard_suffix(shard)}"


def _shard_suffix(shard: Shard | None) -> str:
    if shard is None or shard.count == 1:
        return ""
    return f"-{shard.index}-of-{shard.count}"


def put_report(
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
    report: Report,
) -> Mapping[str, Any]:
    """File a report, ``torch-{ref}-{python}-2-of-6.xml``; return the details for the record.

    In the local run, reports of other numbers of shards are dropped.
    """
    if not outputs.immutable and SHARD_COUNT_OF_TOTAL not in report.document.properties:
        _withdraw_other_shards(store, outputs, artifact_group, report)

    content = junit.write(document_of(report))
    filename = f"{report.origin.name}{_shard_suffix(report.shard)}.xml"
    key = f"{outputs.reports_prefix(artifact_group)}/{filename}"
    store.put_bytes(key, content)
    digest = hashlib.sha256(content).hexdigest()
    return {**details_of(report), "report": {"key": key, "sha256": digest}}


def _withdraw_other_shards(
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
    report: Report,
) -> None:
    """Delete reports and records of the same tests in another number of shards: they are of another run."""
    origin = report.origin
    shard_count = report.shard.count if report.shard else 1
    record_name = records.record_name(stage_name(origin) + "%", origin.cell)
    patterns = {
        outputs.reports_prefix(artifact_group): (f"{origin.name}%", r"\.xml"),
        outputs.manifests_prefix(artifact_group): (record_name, r"(\.failed)?\.json"),
    }
    for prefix, (name, suffix) in patterns.items():
        shard_pattern = r"(-\d+-of-(?P<count>\d+))?"
        pattern = re.compile(re.escape(name).replace("%", shard_pattern) + suffix)
        for file in store.list(prefix):
            match = pattern.fullmatch(file.key.removeprefix(f"{prefix}/"))
            if match and int(match["count"] or 1) != shard_count:
                store.delete(file.key)


def details_of(report: Report) -> Mapping[str, Any]:
    """Return what a record says of its results: totals, and outcomes; a shard cannot say how many exist."""
    document = report.document
    totals = junit.totals(document.cases)
    existing = _count_existing(report)
    if existing is not None:
        totals["existing"] = existing
        totals["unexplained"] = len(unexplained_cases(document.cases, document.properties))

    details: dict[str, Any] = {"tests": totals, **outcomes_of(document.cases)}
    gaps = gaps_of_files([document])
    if gaps and report.shard is None:
        details[LEFT_OUT] = "; ".join(gaps)
    return details


def _count_existing(report: Report) -> int | None:
    """Return how many tests there are without any choice among them; None where that is unknown."""
    suites = report.document.suites.values()
    if report.shard is not None or not suites:
        return None
    existing = 0
    for suite in suites:
        if EXISTING not in suite.properties:
            return None
        existing += int(suite.properties[EXISTING])
    # A file that failed as a whole is one more result.
    return existing + sum(case.test == case.file for case in report.document.cases)


def outcomes_of(cases: Collection[junit.Case]) -> Mapping[str, Any]:
    """Count results by outcome, and name the tests that failed."""
    details: dict[str, Any] = {
        "outcomes": {outcome: count for outcome, count in junit.counts(cases).items() if count}
    }
    failing = sorted(case.test for case in cases if case.failing)
    if failing:
        details["failing"] = failing[:_MOST_FAILING]
    return details


def unless_incomplete(stage: Stage) -> Stage:
    """Force a stage that ran in part for no cause of its inputs, or whose report is another run's since."""
    previous_record = records.read(
        stage.store,
        stage.outputs,
        stage.artifact_group,
        records.record_name(stage.name, stage.cell),
    )
    if previous_record is None:
        return stage

    details = read_details(previous_record)
    is_part = read_inputs(previous_record).selection or "-" in stage.name
    incomplete = "" if is_part else why_incomplete(details)
    digest_of = _digests_of_reports(
        stage.store,
        stage.outputs,
        stage.artifact_group,
    )
    if incomplete or why_report_differs(details, digest_of):
        return replace(stage, common=replace(stage.common, force=True))
    return stage


def _digests_of_reports(
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
) -> Callable[[str], str | None]:
    """Return a function that finds the digest of a report by its name."""
    prefix = outputs.reports_prefix(artifact_group)

    def digest_of(name: str) -> str | None:
        key = f"{prefix}/{name}"
        return None if store.find(key) is None else store.digest(key)

    return digest_of


# The verdict


def why_not(results: Sequence[CellResults]) -> str:
    """Return why results are not a pass: a sentence, then some reasons, a line each; "" for a pass."""
    if not results:
        return "Tests: there is no result."
    problems: list[str] = []
    failures: list[str] = []
    total = 0
    for cell_results in results:
        problems += [f"{cell_results.origin}: {problem}" for problem in cell_results.problems]
        failures += [failure_line(case) for case in cell_results.results if case.failing]
        total += len(cell_results.cases)
    reasons = [*problems, *failures]
    if not reasons:
        return ""

    shown_reasons = reasons[:_MOST_REASONS]
    if len(reasons) > _MOST_REASONS:
        shown_reasons.append(f"and {len(reasons) - _MOST_REASONS} more")
    verdict = "the results cannot be trusted"
    if failures:
        verdict = f"{len(failures)} of {total} failed"
    return "\n  ".join([f"Tests: {verdict}.", *shown_reasons])


def require_passed(
    report: Report,
    *,
    hint: str = "",
) -> None:
    """Refuse one shard's report that failed, or that cannot be trusted, whatever other shards did.

    What ran and passed is no failure; that it was a part of the tests is said.
    """
    if report.shard is not None and not report.document.suites and not report.document.cases:
        console.say(f"{report.origin}, shard {report.shard}: other shards have all tests.")
        return
    cell_results = merge_shards(report.origin, [replace(report, shard=None)])
    sentence = why_not([cell_results])
    if sentence:
        problem = CheckError(sentence, hint=hint)
        failed_case = next((case for case in report.document.cases if case.failing), None)
        if failed_case is not None:
            message = f"{failed_case.test}: {failed_case.line}"
            cause = first(failed_case.text.splitlines())
            cause = cause or Cause(
                tool="pytest",
                file=failed_case.file,
                message="",
            )
            problem.cause = cause.model_copy(update={"message": message})
        problem.details = details_of(report)
        raise problem

    if report.shard is None:
        incomplete = why_incomplete(TestDetails.model_validate(details_of(report)))
        if incomplete:
            console.warn(f"{report.origin}: {incomplete}. It counts as missing: no release rests on it.")


# The record of all shards


def record_of_shards(
    group_records: Sequence[Record],
    cell_results: CellResults,
    *,
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
) -> Record:
    """Return the record of all shards of a stage, and file the merged report."""
    shards = [
        Shard(
            index=index,
            count=cell_results.shards,
        )
        for index in range(1, cell_results.shards + 1)
    ]
    stages = [stage_name(cell_results.origin, shard) for shard in shards]
    names = {records.record_name(stage, cell_results.origin.cell) for stage in stages}
    shard_records = [record for record in group_records if record.name in names]
    # It begins with the first shard, and takes what all took.
    merged = Record(
        stage=stage_name(cell_results.origin),
        run_id=outputs.run_id,
        platform=outputs.platform,
        cell=cell_results.origin.cell,
        started=min((record.started for record in shard_records), default=records.now()),
        seconds=round(sum(record.seconds for record in shard_records), 3),
    )
    reason = why_not([cell_results])
    if reason:
        failure = {
            "status": "failed",
            "exit_code": CheckError.exit_code,
            "error": reason,
            "details": {**outcomes_of(cell_results.results), SHARD_COUNT_OF_TOTAL: cell_results.shards},
        }
        return merged.model_copy(update=failure)

    successes = {record.stage: record for record in shard_records if record.status == "ok"}
    missing_stages = sorted(set(stages) - successes.keys())
    if missing_stages:
        raise CheckError(
            f"{cell_results.origin}: there is no record of success of {', '.join(missing_stages)}.",
            hint="Run that shard again.",
        )
    inputs = _shared_inputs(cell_results.origin, list(successes.values()))
    document = junit.Document(
        cases=cell_results.results,
        suites=cell_results.suites,
        properties={SHARD_COUNT_OF_TOTAL: str(cell_results.shards), **cell_results.properties},
    )
    report = Report(
        origin=cell_results.origin,
        document=document,
    )
    report_details = put_report(store, outputs, artifact_group, report)
    success = {
        "inputs": inputs,
        "input_digest": files.digest_of(inputs),
        "details": {**report_details, SHARD_COUNT_OF_TOTAL: cell_results.shards},
    }
    return merged.model_copy(update=success)


def _shared_inputs(
    origin: ReportOrigin,
    shard_records: Sequence[Record],
) -> dict[str, Any]:
    """Return the inputs that all shards have; they must agree in those that a promotion goes by."""
    first_inputs = shard_records[0].inputs
    inputs: dict[str, Any] = {}
    different_names: set[str] = set()
    for record in shard_records:
        for name, value in record.inputs.items():
            inputs[name] = first_inputs.get(name)
            if name not in first_inputs or value != first_inputs[name]:
                different_names.add(name)
        different_names |= first_inputs.keys() - record.inputs.keys()

    for name in ("files", "arguments", "selection", "installed", "config"):
        if name in different_names:
            raise CheckError(f"{origin}: the shards differ in {name}.", hint="Run all shards again, alike.")
    for name in different_names:
        del inputs[name]
    if not first_inputs.get("files"):
        raise CheckError(f"{origin}: the records of the shards name no wheels.", hint="Run them again.")

    # Shards may have run on different machines; that each had a GPU is what counts.
    gpus = [record.inputs.get("gpu") for record in shard_records]
    inputs["gpu"] = gpus if all(gpus) else []
    inputs["shards"] = {record.stage: record.input_digest for record in shard_records}
    return inputs


# Finding reports again


def reports_in_folder(folder: Path) -> Sequence[Report]:
    """Read every ``.xml`` below a folder."""
    if not folder.is_dir():
        raise MissingInputError(
            f"{folder} is not a folder.", hint="Name the one with the reports: --input-dir DIR."
        )
    reports: list[Report] = []
    for path in sorted(folder.rglob("*.xml")):
        if path.is_file():
            filename = path.relative_to(folder).as_posix()
            report = report_of(
                junit.read_file(path),
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


def tested_groups(common: Common) -> Sequence[str]:
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


def read_reports(
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
    group_records: Iterable[Record],
) -> Sequence[Report]:
    """Read the reports of a group of a run, whose records are known."""
    # ROCm's reports do not say what they are about; their records do.
    origins: dict[str, ReportOrigin] = {}
    for record in _records_of_tests(group_records):
        report = read_details(record).report
        stem = records.record_name(record.stage.removeprefix(STAGE_PREFIX), record.cell)
        name = f"{stem}.xml" if report is None else report.name
        origins[name] = _origin_of(record, artifact_group, outputs)

    def read_report(key: str) -> Report:
        name = key.rpartition("/")[2]
        # A group without a variant has the name of its family.
        unrecorded_origin = ReportOrigin(
            gpu_family=artifact_group,
            folder=name.removesuffix(".xml"),
        )
        with store.open(key) as stream:
            report = report_of(
                junit.read(stream),
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
    return [report for report in reports if SHARD_COUNT_OF_TOTAL not in report.document.properties]


def _records_of_tests(group_records: Iterable[Record]) -> Sequence[Record]:
    """Return the records of tests; what was made of shards adds nothing to them."""
    return [
        record
        for record in group_records
        if record.stage.startswith(STAGE_PREFIX) and SHARD_COUNT_OF_TOTAL not in record.details
    ]


def _origin_of(
    record: Record,
    artifact_group: str,
    outputs: RunOutputs,
) -> ReportOrigin:
    config = name_unless_default(read_inputs(record).config)
    stage = record.stage.partition("-")[0]
    if config:
        stage = stage.removesuffix(f"_{config}")
    origin = ReportOrigin.of(
        stage,
        record.cell,
        config=config,
        run_id=outputs.run_id,
    )
    return replace(origin, gpu_family=origin.gpu_family or artifact_group)


def check_records(
    results: Iterable[CellResults],
    group_records: Sequence[Record],
    *,
    store: Store,
    outputs: RunOutputs,
    artifact_group: str,
) -> tuple[CellResults, ...]:
    """Add what records know and reports do not: failures without a report, changed reports, other bytes."""
    by_origin = {cell_results.origin: cell_results for cell_results in results}
    digest_of = _digests_of_reports(store, outputs, artifact_group)
    problems: dict[ReportOrigin, list[str]] = defaultdict(list)
    recorded_origins: set[ReportOrigin] = set()
    for record in _records_of_tests(records.latest(group_records)):
        origin = _origin_of(record, artifact_group, outputs)
        recorded_origins.add(origin)
        cell_results = by_origin.setdefault(
            origin,
            CellResults(
                origin=origin,
                shards=0,
            ),
        )
        problem = _problem_of(record, cell_results, group_records, digest_of)
        if problem:
            problems[origin].append(problem)

    checked_results: list[CellResults] = []
    for origin in sorted(by_origin):
        cell_results = by_origin[origin]
        if origin not in recorded_origins:
            problems[origin].insert(0, "no record says which wheels its report is about")
        all_problems = (*cell_results.problems, *problems[origin])
        checked_results.append(replace(cell_results, problems=all_problems))
    return tuple(checked_results)


def _problem_of(
    record: Record,
    cell_results: CellResults,
    group_records: Sequence[Record],
    digest_of: Callable[[str], str | None],
) -> str:
    """Return what a record adds to the results; "" where it adds nothing."""
    if record.status == "failed":
        # Results with a failure show it already.
        is_shown = not cell_results.passed and cell_results.cases
        return "" if is_shown else f"{record.stage} failed: {record.error or 'no error message'}"
    difference = why_report_differs(read_details(record), digest_of)
    if difference:
        return f"{record.stage}: {difference}"
    return why_out_of_date(record, group_records)


def require_expected(
    results: Sequence[CellResults], expected_names: Iterable[str]
) -> tuple[CellResults, ...]:
    """Add what was expected and is missing, as a problem of its own."""
    all_results = list(results)
    known_names = {cell_results.origin.name for cell_results in results}
    for name in expected_names:
        if name not in known_names:
            missing_result = CellResults(
                origin=ReportOrigin(folder=name),
                problems=("there is no report",),
                shards=0,
            )
            all_results.append(missing_result)
    return tuple(all_results)
