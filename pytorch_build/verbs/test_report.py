"""`test-report`: the JUnit reports of all shards and cells -> one summary, data, and a verdict."""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from core import console, files, junit
from core.cli.options import Common, add_platform, common_from
from core.errors import CheckError
from core.run import RunOutputs, records
from core.run.records import Record
from core.stores import Store
from pytorch_build.test import reports, results, shards, summary
from pytorch_build.test.results import Report, Tested

_MOST_FAILURES = 20


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "read every .xml below this folder instead of a run's reports"
    parser.add_argument("--input-dir", type=Path, metavar="DIR", help=what)
    add_platform(parser)
    what = "a result that must exist, by the name of its report (torch-nightly-cp312); repeatable"
    parser.add_argument("--expect", action="append", default=[], metavar="NAME", help=what)
    parser.add_argument("--summary", type=Path, metavar="FILE", help="also write the Markdown there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the data there")
    what = "keep how long tests took, for later runs' shards"
    parser.add_argument("--record-durations", action="store_true", help=what)


def run(arguments: argparse.Namespace) -> None:
    """Read, merge, print, judge."""
    common = common_from(arguments)
    groups: list[TestedGroup] = []
    results_read: list[Tested] = []
    if arguments.input_dir:
        results_read += results.merge_reports(reports.reports_in_folder(arguments.input_dir))
        title = f"Tests in {arguments.input_dir.name or arguments.input_dir}"
    else:
        groups = [read_group(common, name) for name in reports.tested_groups(common)]
        for group in groups:
            results_read += group.results
        title = f"Tests of run {common.run_id}"

    all_results = reports.require_expected(results_read, arguments.expect)
    _show(all_results, title, arguments, common.run_id)
    for group in groups:
        _file_results(common, group, keep_durations=arguments.record_durations)
    why = reports.why_not(all_results)
    if why:
        raise CheckError(why.partition("\n")[0], hint="What and why stands above, and in the summary.")
    console.done(f"{title}: {summary.verdict(all_results)}")


@dataclass(frozen=True, kw_only=True)
class TestedGroup:
    """The tests of an artifact group of a run."""

    __test__ = False

    name: str
    records: Sequence[Record]
    reports: Sequence[Report]
    results: Sequence[Tested]


def read_group(common: Common, artifact_group: str) -> TestedGroup:
    """Read the tests of an artifact group, and hold the reports against the records."""
    store = common.open_for_reading()
    outputs = common.outputs
    group_records = records.read_all(store, outputs, artifact_group)
    group_reports = reports.read_reports(store, outputs, artifact_group, group_records)
    merged_results = results.merge_reports(group_reports)
    return TestedGroup(
        name=artifact_group,
        records=group_records,
        reports=group_reports,
        results=reports.check_records(
            merged_results, group_records, store=store, outputs=outputs, artifact_group=artifact_group
        ),
    )


def _file_results(common: Common, group: TestedGroup, *, keep_durations: bool) -> None:
    """File what follows from the reports: data, durations, and the records that a promotion reads."""
    store = common.open_store()
    outputs = common.outputs
    content = _json(outputs.run_id, group.results)
    store.put_bytes(f"{outputs.reports_prefix(group.name)}/test-report.json", content.encode())
    if keep_durations:
        _record_durations(store, outputs, group)
    for tested in group.results:
        if tested.shards > 1 and tested.origin.stage:
            record = reports.record_of_shards(
                group.records, tested, store=store, outputs=outputs, artifact_group=group.name
            )
            records.write(store, outputs, group.name, record)


def _record_durations(store: Store, outputs: RunOutputs, group: TestedGroup) -> None:
    """Keep how long upstream's tests took, by their configuration."""
    documents: dict[str, list[junit.Document]] = defaultdict(list)
    for report in group.reports:
        if report.origin.stage == "test_torch" and not report.document.problems:
            documents[report.origin.config or results.DEFAULT_CONFIG].append(report.document)
    for config in sorted(documents):
        durations = shards.durations_of(documents[config])
        shards.record_durations(store, outputs, group.name, config, durations)


def _json(run_id: str, all_results: Sequence[Tested]) -> str:
    return f"{summary.report_data(run_id, all_results).model_dump_json(indent=1)}\n"


def _show(all_results: Sequence[Tested], title: str, arguments: argparse.Namespace, run_id: str) -> None:
    """Print the results, and write them where the options say."""
    rows = []
    for tested in all_results:
        counts = ", ".join(f"{count} {outcome}" for outcome, count in tested.counts.items() if count)
        verdict = "passed" if tested.passed else "failed"
        duration = console.duration(tested.seconds)
        rows.append((str(tested.origin), str(tested.shards), counts, duration, verdict))
    console.table(("tests", "shards", "results", "time", "verdict"), rows, title=title)

    markdown = summary.markdown(all_results, title=title)
    console.summary(markdown)
    if arguments.summary:
        files.write_text(arguments.summary, console.mask(markdown))
    if arguments.json:
        files.write_text(arguments.json, console.mask(_json(run_id, all_results)))

    for tested in all_results:
        for problem in tested.problems:
            console.error(f"{tested.origin}: {problem}")
    failures = summary.failures_with_commands(all_results)
    for line, command in failures[:_MOST_FAILURES]:
        console.say(f"{line}\n  {command}" if command else line)
    if len(failures) > _MOST_FAILURES:
        left_out = len(failures) - _MOST_FAILURES
        console.say(f"and {left_out} more failures: see the summary, or --json FILE")
