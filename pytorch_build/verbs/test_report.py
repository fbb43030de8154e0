"""`test-report`: the JUnit reports of all shards and cells -> one summary, data, and a verdict."""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core import console, files
from core.cli.options import GROUP_OPTIONS, RUN_OPTIONS, Common, add_platform, common_from
from core.errors import CheckError
from core.run import RunOutputs, records
from core.run.records import Record
from core.stores import Store
from pytorch_build.test import shards, summary
from pytorch_build.test.cell_results import CellResults, add_missing_results, merge_reports
from pytorch_build.test.junit.document import Case, Document, failure_line
from pytorch_build.test.merged_record import merge_shard_records
from pytorch_build.test.record_validity import check_records
from pytorch_build.test.report import DEFAULT_CONFIG, Report, ReportOrigin
from pytorch_build.test.stored_reports import (
    find_tested_groups,
    read_reports_in_folder,
    read_reports_of_group,
)
from pytorch_build.test.verdict import why_failed

_MOST_FAILURES = 20

COMMON_OPTIONS = (*GROUP_OPTIONS, *RUN_OPTIONS, "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "--input-dir",
        type=Path,
        metavar="DIR",
        help="read every .xml below this folder instead of a run's reports",
    )
    add_platform(parser)
    parser.add_argument(
        "--expect",
        action="append",
        default=[],
        metavar="NAME",
        help="a result that must exist, by the name of its report (torch-nightly-cp312); repeatable",
    )
    parser.add_argument(
        "--summary",
        type=Path,
        metavar="FILE",
        help="also write the Markdown there",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write the data there",
    )
    parser.add_argument(
        "--record-durations",
        action="store_true",
        help="keep how long tests took, for later runs' shards",
    )


def run(arguments: argparse.Namespace) -> None:
    """Print and store a summary of test reports, of a run or in a folder; fail unless they passed."""
    common = common_from(arguments)
    groups: list[TestedGroup] = []
    results_read: list[CellResults] = []
    if arguments.input_dir:
        folder: Path = arguments.input_dir
        results_read += merge_reports(read_reports_in_folder(folder))
        title = f"Tests in {folder.name or folder}"
    else:
        for name in find_tested_groups(common):
            group = read_group(common, name)
            groups.append(group)
            results_read += group.results
        title = f"Tests of run {common.run_id}"

    all_results = add_missing_results(results_read, arguments.expect)
    _print_results(all_results, title, arguments, common.run_id)
    for group in groups:
        _store_results(common, group, keep_durations=arguments.record_durations)
    reasons = why_failed(all_results)
    if reasons:
        sentence = reasons.partition("\n")[0]
        raise CheckError(sentence, hint="What and why stands above, and in the summary.")
    verdict = summary.headline(all_results)
    console.done(f"{title}: {verdict}")


@dataclass(frozen=True, kw_only=True)
class TestedGroup:
    """The test records, reports and results of an artifact group of a run."""

    __test__ = False

    name: str
    records: Sequence[Record]
    reports: Sequence[Report]
    results: Sequence[CellResults]


def read_group(common: Common, artifact_group: str) -> TestedGroup:
    """Return the test reports of an artifact group, with results that are checked against its records."""
    store = common.open_for_reading()
    outputs = common.outputs
    group_records = records.read_all(store, outputs, artifact_group)
    group_reports = read_reports_of_group(store, outputs, artifact_group, group_records)
    checked_results = check_records(
        merge_reports(group_reports),
        group_records,
        store=store,
        outputs=outputs,
        artifact_group=artifact_group,
    )
    return TestedGroup(
        name=artifact_group,
        records=group_records,
        reports=group_reports,
        results=checked_results,
    )


def _store_results(
    common: Common,
    group: TestedGroup,
    *,
    keep_durations: bool,
) -> None:
    """Store the results of a group: data, durations if asked, and records of sharded tests."""
    store = common.open_store()
    outputs = common.outputs
    folder_key = outputs.reports_prefix(group.name)
    content = _report_as_json(outputs.run_id, group.results)
    store.put_bytes(f"{folder_key}/test-report.json", content.encode())
    if keep_durations:
        _record_durations(store, outputs, group)

    for cell_results in group.results:
        if cell_results.shard_count > 1 and cell_results.origin.stage:
            record = merge_shard_records(
                group.records,
                cell_results,
                store=store,
                outputs=outputs,
                artifact_group=group.name,
            )
            records.write(store, outputs, group.name, record)


def _record_durations(
    store: Store,
    outputs: RunOutputs,
    group: TestedGroup,
) -> None:
    """Store how long each of upstream's tests took, by configuration, for later runs' shards."""
    documents: dict[str, list[Document]] = defaultdict(list)
    for report in group.reports:
        if report.origin.stage == "test_torch" and not report.document.problems:
            config = report.origin.config or DEFAULT_CONFIG
            documents[config].append(report.document)
    for config in sorted(documents):
        durations = shards.durations_of_files(documents[config])
        shards.record_durations(store, outputs, group.name, config, durations)


def _report_as_json(run_id: str, all_results: Sequence[CellResults]) -> str:
    summary_data = summary.summary_data(run_id, all_results)
    return f"{summary_data.model_dump_json(indent=1)}\n"


def _print_results(
    all_results: Sequence[CellResults],
    title: str,
    arguments: argparse.Namespace,
    run_id: str,
) -> None:
    """Print the results as a table and a summary, and write them where the options say."""
    columns = ("tests", "shards", "results", "time", "verdict")
    rows: list[tuple[str, ...]] = []
    for cell_results in all_results:
        outcomes = summary.list_outcomes(cell_results.outcomes)
        verdict = "passed" if cell_results.passed else "failed"
        time = console.duration(cell_results.seconds)
        rows.append((str(cell_results.origin), str(cell_results.shard_count), outcomes, time, verdict))
    console.table(columns, rows, title=title)
    markdown = summary.markdown(all_results, title=title)
    console.summary(markdown)
    if arguments.summary:
        files.write_text(arguments.summary, console.mask(markdown))
    if arguments.json:
        files.write_text(arguments.json, console.mask(_report_as_json(run_id, all_results)))
    _print_failures(all_results)


def _print_failures(all_results: Sequence[CellResults]) -> None:
    """Print all problems, and the first failures with the command that repeats each."""
    for cell_results in all_results:
        for problem in cell_results.document.problems:
            console.error(f"{cell_results.origin}: {problem}")
    failures: list[tuple[ReportOrigin, Case]] = []
    for cell_results in all_results:
        failures += [(cell_results.origin, case) for case in cell_results.document.failing]
    for origin, case in failures[:_MOST_FAILURES]:
        console.say(failure_line(case))
        command = summary.repeating_command(origin, case)
        if command:
            console.say(f"  {command}")
    hidden_count = len(failures) - _MOST_FAILURES
    if hidden_count > 0:
        console.say(f"and {hidden_count} more failures: see the summary, or --json FILE")
