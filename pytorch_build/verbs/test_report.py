"""`test-report`: the JUnit reports of all shards and cells -> one summary, data, and a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, files
from core.cli.options import add_platform, common_from
from core.errors import CheckError
from core.run import records
from pytorch_build.test import reports, results, shards, summary

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from core.cli.options import Common
    from core.run.records import Record
    from pytorch_build.test.results import Report, Tested

DATA_NAME = "test-report.json"
_SHOWN = 20


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
        metavar="NAME[=SHARDS]",
        help="results that there must be, by the name of their reports (torch-nightly-cp312=6); repeatable",
    )
    parser.add_argument("--summary", type=Path, metavar="FILE", help="also write the Markdown there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the data there")
    parser.add_argument(
        "--record-durations", action="store_true", help="keep how long tests took, for later runs' shards"
    )


def run(arguments: argparse.Namespace) -> None:
    """Read, merge, print, judge."""
    common = common_from(arguments)
    expected = list(map(reports.parse_expected, arguments.expect))
    groups: list[Group] = []
    if arguments.input_dir:
        tested = results.merged(reports.in_folder(arguments.input_dir))
        title = f"Tests in {arguments.input_dir.name or arguments.input_dir}"
    else:
        groups = [_gathered(common, name) for name in reports.groups_of(common)]
        tested = tuple(one for group in groups for one in group.tested)
        title = f"Tests of run {common.run_id}"
    whole = reports.require_expected(tested, expected)
    _show(whole, title, arguments, common.run_id)
    for group in groups:
        _file(common, group, keep_durations=arguments.record_durations)
    if why := reports.why_not(whole):
        raise CheckError(why.partition("\n")[0], hint="What and why stands above, and in the summary.")
    console.done(f"{title}: {summary.verdict(whole)}")


@dataclass(frozen=True, kw_only=True)
class Group:
    """The tests of an artifact group of a run."""

    name: str
    reports: Sequence[Report]
    records: Sequence[Record]
    tested: tuple[Tested, ...]


def _gathered(common: Common, name: str) -> Group:
    store, outputs = common.open_for_reading(), common.outputs
    read, found = reports.in_store(store, outputs, name)
    merged = results.merged(read)
    tested = reports.checked(merged, found, store=store, outputs=outputs, artifact_group=name)
    return Group(name=name, reports=read, records=found, tested=tested)


def _file(common: Common, group: Group, *, keep_durations: bool) -> None:
    """File what follows from a run's reports: data, durations, and the records that a promotion reads."""
    store, outputs = common.open_store(), common.outputs
    content = _json(outputs.run_id, group.tested)
    store.put_bytes(f"{outputs.reports_prefix(group.name)}/{DATA_NAME}", content.encode())
    ours = [one for one in group.reports if one.origin.stage == "test_torch" and not one.document.problems]
    for config in sorted({one.origin.config for one in ours}) if keep_durations else ():
        found = shards.of_documents(one.document for one in ours if one.origin.config == config)
        shards.record(store, outputs, group.name, config or results.DEFAULT_CONFIG, found)
    for one in group.tested:
        if one.shards > 1 and one.origin.stage:
            record = reports.of_shards(
                group.records, one, store=store, outputs=outputs, artifact_group=group.name
            )
            records.write(store, outputs, group.name, record)


def _json(run_id: str, tested: Sequence[Tested]) -> str:
    return f"{summary.data(run_id, tested).model_dump_json(indent=1)}\n"


def _show(tested: Sequence[Tested], title: str, arguments: argparse.Namespace, run_id: str) -> None:
    """Print the table and the first failures; write the summary and the data."""
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
