"""`history`: the last runs of a store -> one HTML page: states, since when, times, sizes, tests.

The page is put beside the runs: ``history/{platform}.html``.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

from ci.report import facts, page_of, text
from ci.report.compare import History, Run, history_of
from ci.report.html import render_history
from ci.report.model import Page, json_value
from ci.verbs.report import page_key
from core import console, files
from core.cell import GroupCell
from core.cli.options import RELEASE_TYPES, Common, add_platform, common_from, environment
from core.errors import FatalError, MissingInputError, UsageError
from core.families import family
from core.run import PLATFORMS
from pytorch_build.refs.torch_refs import torch_ref


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options; of the common ones, ref, family and release type choose runs."""
    parser.set_defaults(release_type="")
    parser.add_argument("--runs", type=int, default=20, metavar="N", help="how many runs (default: 20)")
    add_platform(parser)
    what = "write the page there, instead of into the store"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=what)
    parser.add_argument("--json", action="store_true", help="only print what the page says, as JSON")
    parser.epilog = "All release types, and a page for each platform, where none is named."


def run(arguments: argparse.Namespace) -> None:
    """Print how the runs went, and write the page of each platform."""
    if arguments.runs < 1:
        raise UsageError(f"--runs {arguments.runs} is too few.", hint="Give 1 or more.")
    kind = arguments.release_type
    named = kind or environment().get("RELEASE_TYPE") or RELEASE_TYPES[0]
    common = common_from(argparse.Namespace(**{**vars(arguments), "release_type": named}))
    platforms = (common.platform,) if arguments.platform else PLATFORMS
    every = [_made(replace(common, platform=one), kind, arguments) for one in platforms]
    made = [one for one in every if one.runs]
    if not made:
        # of what nobody knows nothing will ever be found
        if common.torch_ref:
            torch_ref(common.torch_ref)
        if common.gpu_family:
            family(common.gpu_family)
        asked = " ".join(filter(None, (common.artifact_group, common.torch_ref, kind)))
        raise MissingInputError(
            f"{common.open_for_reading().url}/{common.outputs.external_repo} has no run for "
            f"{' or '.join(platforms)} with records of builds{asked and f' of {asked}'}.",
            hint="Build something first (nox -s build_torch), or name another place with --store.",
        )
    if len(made) > 1 and (arguments.output or arguments.json):
        raise UsageError(f"There are runs for {' and '.join(platforms)}.", hint="Name one: --platform linux.")
    for history in made:
        if arguments.json:
            console.result(json.dumps(history, indent=1, default=json_value))
        else:
            _tell(common, history, arguments.output)


def _made(common: Common, kind: str, arguments: argparse.Namespace) -> History:
    """Read the last runs that have what was asked for; the rest of the store is listed at most."""
    store = common.open_for_reading()
    requested = GroupCell(artifact_group=common.artifact_group or None, torch_ref=common.torch_ref or None)
    found: list[tuple[Run, Page | None]] = []
    for run_id in facts.stored_runs(store, common.outputs):
        one = replace(common, run_id=run_id)
        listed = facts.manifests(store, one.outputs) if len(found) < arguments.runs else ()
        if facts.has_built(listed, [requested]) and (not kind or kind == facts.release_type(store, listed)):
            found.append(_read(one, beside=not arguments.output))
    return history_of(common.platform, found)


def _read(common: Common, *, beside: bool) -> tuple[Run, Page | None]:
    """Read a run, and find its page, as seen from one beside the runs; what cannot be read hides no other."""
    store, key = common.open_for_reading(), page_key(common.outputs)
    address = f"../{key.removeprefix(common.outputs.external_repo)}" if beside else store.url_of(key)
    made = Run(run_id=common.run_id, address=address if store.find(key) else "")
    try:
        run = facts.read_run(common, tests=False)
    except FatalError as problem:
        return replace(made, problems=(problem.message,)), None
    odd = (*run.problems, *(one for group in run.groups for one in group.problems))
    said = tuple(f"{one.where}: {one.what}" for one in odd)
    types = sorted({lock.release_type for lock in run.locks.values()})
    return replace(made, release_type=", ".join(types), problems=said), page_of(run)


def _tell(common: Common, history: History, output: Path | None) -> None:
    for table in text.history_tables(history):
        console.table(table.columns, table.rows, title=table.title)
    page = render_history(history)
    store, key = common.open_store(), f"{common.outputs.external_repo}history/{history.platform}.html"
    if output:
        files.write_text(output, page)
    else:
        store.put_bytes(key, page.encode())
    console.say(f"page     {output or store.url_of(key)}")
    failing = sum(line.since is not None for line in history.lines)
    console.done(f"history: {failing} of {console.counted(len(history.lines), 'cell')} failing")
