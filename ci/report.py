"""`report`: what a run made, from its records alone, as one HTML page, as text and as JSON.

The page is put beside the run's outputs: ``reports/index.html``.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from core import console
from core.options import common_from
from core.stores.overlay import holding

if TYPE_CHECKING:
    from ci.page.model import Page
    from core.options import Common
    from core.outputs import RunOutputs

PAGE = "index.html"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--text", action="store_true", help="only print the summary, write no page")
    form.add_argument("--json", action="store_true", help="only print what the page says, as JSON")
    parser.add_argument(
        "--platform",
        choices=("linux", "windows"),
        help="whose part of the run it is (default: this machine's)",
    )
    parser.add_argument(
        "--against",
        default="",
        metavar="RUN",
        help="another run of the store: which sources differ, which wheels grew",
    )


def run(arguments: argparse.Namespace) -> None:
    """Print the summary of the run and where everything lies, and write its page.

    Raises:
        MissingInputError: It has no records.
        StoreError: The store does not take the page; the summary has been printed.
    """
    common = _common(arguments)
    page = made(common, before_of(arguments))
    if arguments.json:
        from ci.page.json_text import write

        console.result(write(page))
        return
    from ci.page import text

    # first what there is to read: the store may refuse the page
    tell(common, page)
    if not arguments.text:
        from ci.page.html import render

        # the page is the run's, whatever part of it was asked for
        whole = replace(common, gpu_family="", torch_ref="")
        page = page if whole == common else made(whole, before_of(arguments, whole=True))
        store, key = common.open_store(), page_key(common.outputs)
        store.put_bytes(key, render(page).encode())
        console.say(f"page     {store.url_of(key)}")
    console.done(text.verdict(page))


def _common(arguments: argparse.Namespace) -> Common:
    common = common_from(arguments)
    return replace(common, platform=arguments.platform or common.platform)


def before_of(arguments: argparse.Namespace, *, whole: bool = False) -> Common | None:
    """Say which run this one is held against, of all refs or of the one asked for; None for none."""
    if not arguments.against:
        return None
    # wherever that run lies, which may be elsewhere
    other = _common(argparse.Namespace(**{**vars(arguments), "run_id": arguments.against}))
    return replace(other, gpu_family="", torch_ref="" if whole else other.torch_ref)


def made(common: Common, before: Common | None) -> Page:
    """Read a run and make its page.

    Raises:
        MissingInputError: It, or the one before, has no records.
    """
    from ci.page.making import page_of
    from ci.page.reading import read_run

    return page_of(read_run(common), read_run(before, tests=False) if before else None)


def page_key(outputs: RunOutputs) -> str:
    """Key of a run's page."""
    return f"{outputs.prefix}/reports/{PAGE}"


def tell(common: Common, page: Page) -> None:
    """Print the summary, what went wrong, and where everything lies."""
    from ci.page import text
    from ci.page.words import spelt

    for one in text.tables(page):
        console.table(one.columns, one.rows, title=one.title)
    for problem in page.problems:
        console.error(spelt(f"{problem.where}: {problem.what}"))
    store, outputs = common.open_for_reading(), common.outputs
    for group in page.groups:
        prefix = outputs.python_prefix(group.name)
        place = holding(store, f"{prefix}/{PAGE}").url
        console.say(f"wheels   {place}/{prefix}/")
        console.say(f"index    {place}/{prefix}/{PAGE}  (pip install --find-links)")
        console.say(f"records  {place}/{outputs.manifests_prefix(group.name)}/")
    console.summary(text.markdown(page))
