"""`report`: what a run made, from its records alone, as one HTML page, as text and as JSON.

The page is put beside the run's outputs: ``reports/index.html``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from ci.report import page_of, text
from ci.report.facts import MOST, RunFacts, previous, read_run
from ci.report.model import json_value
from core import console
from core.cli.options import Common, add_platform, common_from
from core.errors import FatalError, MissingInputError
from core.run import RunOutputs
from core.stores.location import holding

if TYPE_CHECKING:
    from ci.report.model import Page

PAGE = "index.html"
PREVIOUS, NONE = "previous", "none"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--text", action="store_true", help="only print the summary, write no page")
    form.add_argument("--json", action="store_true", help="only print what the page says, as JSON")
    parser.add_argument("--brief", action="store_true", help="print less: lists are on the page")
    add_platform(parser)
    what = "another run of the store: which sources differ, which wheels grew; previous: the last one before "
    what += "this that built the same cells (default: for runs of CI); none"
    parser.add_argument("--against", default="", metavar="RUN", help=what)


def run(arguments: argparse.Namespace) -> None:
    """Print the summary of the run and where everything lies, and write its page."""
    common = common_from(arguments)
    page = _made(arguments, common)
    if arguments.json:
        console.result(json.dumps(page, indent=1, default=json_value))
        return
    # first what there is to read: the store may refuse the page
    tell(common, page, brief=arguments.brief and not console.echoes())
    if not arguments.text:
        from ci.report.html import render

        # the page is the run's, whatever part of it was selected
        whole = replace(common, gpu_family="", torch_ref="")
        page = page if whole == common else _made(arguments, whole)
        store, key = common.open_store(), page_key(common.outputs)
        store.put_bytes(key, render(page).encode())
        console.say(f"page     {store.url_of(key)}")
    console.done(text.verdict(page))


def _made(arguments: argparse.Namespace, common: Common) -> Page:
    """Read a run, and the one that it is compared with, and make its page."""
    facts = read_run(common)
    before = _before(arguments, common, facts)
    return page_of(facts, read_run(before, tests=False) if before else None)


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


def page_key(outputs: RunOutputs) -> str:
    """Key of a run's page."""
    return f"{outputs.prefix}/reports/{PAGE}"


def tell(common: Common, page: Page, *, brief: bool = False) -> None:
    """Print the summary, what went wrong, and where everything lies; `brief` leaves lists to the page."""
    for one in text.tables(page, brief=brief):
        console.table(one.columns, one.rows, title=one.title)
    for problem in page.problems:
        more = f" and {len(problem.also)} more" if problem.also else ""
        console.error(text.spelt(f"{problem.where}{more}: {problem.what}"))
    store, outputs = common.open_for_reading(), common.outputs
    wheels = {one.cell.artifact_group for one in page.wheels}
    for group in page.groups:
        prefix = outputs.python_prefix(group.name)
        place = holding(store, f"{prefix}/{PAGE}").url
        if group.name in wheels:
            console.say(f"wheels   {place}/{prefix}/")
            console.say(f"index    {place}/{prefix}/{PAGE}  (pip install --find-links)")
        console.say(f"records  {place}/{outputs.manifests_prefix(group.name)}/")
    console.summary(text.markdown(page))
