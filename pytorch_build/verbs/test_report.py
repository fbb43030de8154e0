"""`test-report`: the JUnit reports of all shards and cells -> one summary, data, and a verdict."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from core import console, files
from core.cli.options import Common, add_platform, common_from
from core.errors import CheckError
from core.run import records
from pytorch_build.test import reports, results, shards, summary

_SHOWN = 20


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
    groups: list[Group] = []
    if arguments.input_dir:
        tested = results.merged(reports.in_folder(arguments.input_dir))
        title = f"Tests in {arguments.input_dir.name or arguments.input_dir}"
    else:
        groups = [Group(common, name) for name in reports.groups_of(common)]
        tested = tuple(one for group in groups for one in group.tested)
        title = f"Tests of run {common.run_id}"
    whole = reports.require_expected(tested, arguments.expect)
    _show(whole, title, arguments, common.run_id)
    for group in groups:
        group.file(keep_durations=arguments.record_durations)
    if why := reports.why_not(whole):
        raise CheckError(why.partition("\n")[0], hint="What and why stands above, and in the summary.")
    console.done(f"{title}: {summary.verdict(whole)}")


class Group:
    """The tests of an artifact group of a run."""

    def __init__(self, common: Common, name: str) -> None:
        self.common, self.name = common, name
        store, outputs = common.open_for_reading(), common.outputs
        self.records = records.read_all(store, outputs, name)
        self.reports = reports.reports_of(store, outputs, name, self.records)
        merged = results.merged(self.reports)
        self.tested = reports.checked(merged, self.records, store=store, outputs=outputs, artifact_group=name)

    def file(self, *, keep_durations: bool) -> None:
        """File what follows from the reports: data, durations, and the records that a promotion reads."""
        store, outputs, name = self.common.open_store(), self.common.outputs, self.name
        content = _json(outputs.run_id, self.tested)
        store.put_bytes(f"{outputs.reports_prefix(name)}/test-report.json", content.encode())
        ours = [one for one in self.reports if one.origin.stage == "test_torch" and not one.document.problems]
        for config in sorted({one.origin.config for one in ours}) if keep_durations else ():
            found = shards.of_documents(one.document for one in ours if one.origin.config == config)
            shards.record(store, outputs, name, config or results.DEFAULT_CONFIG, found)
        for one in self.tested:
            if one.shards > 1 and one.origin.stage:
                record = reports.of_shards(
                    self.records, one, store=store, outputs=outputs, artifact_group=name
                )
                records.write(store, outputs, name, record)


def _json(run_id: str, tested: Sequence[results.Tested]) -> str:
    return f"{summary.data(run_id, tested).model_dump_json(indent=1)}\n"


def _show(tested: Sequence[results.Tested], title: str, arguments: argparse.Namespace, run_id: str) -> None:
    rows = []
    for one in tested:
        counted = ", ".join(f"{count} {name}" for name, count in one.counts.items() if count)
        verdict = "passed" if one.passed else "failed"
        rows.append((str(one.origin), str(one.shards), counted, console.duration(one.seconds), verdict))
    console.table(("tests", "shards", "results", "time", "verdict"), rows, title=title)
    markdown = summary.markdown(tested, title=title)
    console.summary(markdown)
    if arguments.summary:
        files.write_text(arguments.summary, console.mask(markdown))
    if arguments.json:
        files.write_text(arguments.json, console.mask(_json(run_id, tested)))
    for one in tested:
        for problem in one.problems:
            console.error(f"{one.origin}: {problem}")
    failures = summary.again(tested)
    for command, line in failures[:_SHOWN]:
        console.say(f"{line}\n  {command}" if command else line)
    if len(failures) > _SHOWN:
        console.say(f"and {len(failures) - _SHOWN} more failures: see the summary, or --json FILE")
