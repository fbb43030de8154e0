"""`report`: what a run made, from its records alone, as one HTML page, as text and as JSON.

The page is put beside the run's outputs: ``reports/index.html``. ``--history`` writes one over the last runs.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci.report import page_of, text
from ci.report.facts import MOST, PAGE, RunFacts, page_key, previous, read_run
from ci.report.model import json_value
from core import console
from core.cli.options import RELEASE_TYPES, Common, common_from, environment
from core.errors import FatalError, MissingInputError, UsageError
from core.modes import declared_options, refuse_options
from core.run import PLATFORMS
from core.status import Pending, Status, UpToDate
from core.stores.overlay import store_of

if TYPE_CHECKING:
    from ci.report.model import Page

PREVIOUS, NONE = "previous", "none"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    # A page over runs is about all release types where none is named.
    parser.set_defaults(release_type=None)
    parser.add_argument("--json", action="store_true", help="only print what the page says, as JSON")
    what = "whose part of a run (default: this machine's), or whose runs (default: a page for each platform)"
    parser.add_argument("--platform", choices=PLATFORMS, help=what)

    add = parser.add_argument_group("the page of one run").add_argument
    add("--text", action="store_true", help="only print the summary, write no page")
    add("--brief", action="store_true", help="print less: lists are on the page")
    what = "another run of the store: which sources differ, which wheels grew; previous: the last one before "
    what += "this that built the same cells (default: for runs of CI); none"
    add("--against", default="", metavar="RUN", help=what)

    add = parser.add_argument_group("the page over the last runs of a store").add_argument
    what = "write that page; a ref, a GPU family, a release type choose runs where they are named"
    add("--history", action="store_true", help=what)
    add("--runs", type=int, default=20, metavar="N", help="how many runs (default: 20)")
    what = "write the page there, instead of into the store"
    add("-o", "--output", type=Path, metavar="FILE", help=what)

    parser.set_defaults(
        run_options=declared_options(parser, "--run-id", "--text", "--brief", "--against"),
        history_options=declared_options(parser, "--runs", "--output"),
    )


def run(arguments: argparse.Namespace) -> None:
    """Print the summary of the run and where everything lies, and write its page; or that over runs."""
    release_type = arguments.release_type
    common = _common_from(arguments)
    if arguments.history:
        refuse_options(arguments, arguments.run_options, mode="with --history")
        _write_history(arguments, common, release_type)
        return

    refuse_options(arguments, arguments.history_options, mode="without --history", hint="Add --history.")
    if arguments.text and arguments.json:
        raise UsageError("--text and --json print the same in two forms.", hint="Leave one of them out.")

    page = _made(arguments, common)
    if arguments.json:
        console.result(json.dumps(page, indent=1, default=json_value))
        return
    # first what there is to read: the store may refuse the page
    tell(common, page, brief=arguments.brief and not console.echoes())
    if not arguments.text:
        from ci.report.html import render

        page = _page_of_whole_run(arguments, common, page)
        store, key = common.open_store(), page_key(common.outputs)
        store.put_bytes(key, render(page).encode())
        console.say(f"page     {store.url_of(key)}")
    console.done(text.verdict(page))


def look(arguments: argparse.Namespace) -> Status:
    """Return whether the run's page would say anything else. Nothing is changed."""
    from ci.report.html import render

    common = _common_from(arguments)
    page = _made(arguments, common)
    whole_page = _page_of_whole_run(arguments, common, page)

    store = common.open_store()
    key = page_key(common.outputs)
    if store.find(key) is None or store.read(key) != render(whole_page).encode():
        return Pending(reasons=("the page was not written yet, or is out of date",))

    _tell_places(common, page)
    console.say(f"page     {store.url_of(key)}")
    console.done(text.verdict(page))
    return UpToDate()


def _common_from(arguments: argparse.Namespace) -> Common:
    """Return the run that is reported on. A history is of every release type where none is named."""
    if arguments.release_type is None:
        arguments.release_type = environment().get("RELEASE_TYPE") or RELEASE_TYPES[0]
    return common_from(arguments)


def _write_history(arguments: argparse.Namespace, common: Common, release_type: str | None) -> None:
    """Write the page over the last runs of each platform."""
    from ci.report.history import HistoryOptions, write_history

    options = HistoryOptions(
        platforms=PLATFORMS if arguments.platform is None else (arguments.platform,),
        most_runs=arguments.runs,
        release_type=release_type,
        output=arguments.output,
        as_json=arguments.json,
    )
    write_history(common, options)


def _made(arguments: argparse.Namespace, common: Common) -> Page:
    """Read a run, and the one that it is compared with, and make its page."""
    facts = read_run(common)
    before = _before(arguments, common, facts)
    return page_of(facts, read_run(before, tests=False) if before else None)


def _page_of_whole_run(arguments: argparse.Namespace, common: Common, page: Page) -> Page:
    """Return the page that is written: that of the run, whatever part of it was selected."""
    whole = replace(common, gpu_family="", torch_ref="")
    return page if whole == common else _made(arguments, whole)


def _before(arguments: argparse.Namespace, common: Common, facts: RunFacts) -> Common | None:
    """Return the run that this one is compared with; None for none."""
    run_id = arguments.against or (PREVIOUS if common.outputs.immutable else NONE)
    if run_id == PREVIOUS:
        run_id = _previous(common, facts, named=bool(arguments.against))
    if run_id == NONE:
        return None
    # wherever that run lies, which may be elsewhere
    other = common_from(argparse.Namespace(**{**vars(arguments), "run_id": run_id}))
    return replace(other, gpu_family="", torch_ref=common.torch_ref)


def _previous(common: Common, facts: RunFacts, *, named: bool) -> str:
    store = common.open_for_reading()
    try:
        if found := previous(store, common.outputs, facts):
            console.say(f"compared with run {found}")
            return found
    except FatalError as problem:
        if named:
            raise
        console.warn(f"No previous run was looked for: {problem.message}")
    if named:
        raise MissingInputError(
            f"None of the last {MOST} runs in {store.url} built all the cells of run {common.run_id}.",
            hint="Name another run: --against RUN.",
        )
    return NONE


def tell(common: Common, page: Page, *, brief: bool = False) -> None:
    """Print the summary, what went wrong, and where everything lies; `brief` leaves lists to the page."""
    for one in text.tables(page, brief=brief):
        console.table(one.columns, one.rows, title=one.title)
    for problem in page.problems:
        more = f" and {len(problem.also)} more" if problem.also else ""
        console.error(text.spelt(f"{problem.where}{more}: {problem.what}"))
    _tell_places(common, page)
    console.summary(text.markdown(page))


def _tell_places(common: Common, page: Page) -> None:
    """Print where wheels, their index and their records lie."""
    store, outputs = common.open_for_reading(), common.outputs
    groups_with_wheels = {wheel.cell.artifact_group for wheel in page.wheels}
    for group in page.groups:
        prefix = outputs.python_prefix(group.name)
        place = store_of(store, f"{prefix}/{PAGE}").url
        if group.name in groups_with_wheels:
            console.say(f"wheels   {place}/{prefix}/")
            console.say(f"index    {place}/{prefix}/{PAGE}  (pip install --find-links)")
        console.say(f"records  {place}/{outputs.manifests_prefix(group.name)}/")
