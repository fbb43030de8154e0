"""`report`: what a run made and what was decided on it, as one HTML page, as text and as JSON.

The page is put beside the run's outputs: ``reports/index.html``. ``--history`` writes one over the last runs.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci.report import text
from ci.report.facts import INDEX, RunFacts, read_run
from ci.report.model import json_value
from ci.report.page import make_page
from ci.report.releases import add_releases
from ci.report.stored_runs import MOST_RUNS_BEFORE, find_previous_run, page_key
from ci.tables import spelt
from core import console
from core.cli.options import (
    GROUP_OPTIONS,
    RELEASE_TYPES,
    RUN_OPTIONS,
    Common,
    common_from,
    environment,
    named_store,
)
from core.errors import FatalError, MissingInputError, UsageError
from core.modes import declared_options, refuse_options
from core.run import PLATFORMS
from core.status import Pending, Status, UpToDate
from core.stores.overlay import store_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ci.report.model import ReportedProblem, RunPage

# What --against takes besides the id of a run.
PREVIOUS = "previous"
NO_RUN = "none"

COMMON_OPTIONS = ("torch-ref", *GROUP_OPTIONS, *RUN_OPTIONS, "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    # A page over runs is about all release types where none is named.
    parser.set_defaults(release_type=None)
    parser.add_argument("--json", action="store_true", help="only print what the page says, as JSON")
    parser.add_argument(
        "--platform",
        choices=PLATFORMS,
        help="whose part of a run (default: this machine's), or whose runs "
        "(default: a page for each platform)",
    )

    run_group = parser.add_argument_group("the page of one run")
    run_group.add_argument("--text", action="store_true", help="only print the summary, write no page")
    run_group.add_argument("--brief", action="store_true", help="print less: lists are on the page")
    run_group.add_argument(
        "--against",
        default="",
        metavar="RUN",
        help="another run of the store: which sources differ, which wheels grew; previous: the last one "
        "before this that built the same cells (default: for runs of CI); none",
    )

    run_group.add_argument(
        "--distribution-store",
        default="",
        type=named_store,
        metavar="STORE",
        help="where the run's wheels are staged, if not in the release type's folder or bucket",
    )

    history_group = parser.add_argument_group("the page over the last runs of a store")
    history_group.add_argument(
        "--history",
        action="store_true",
        help="write that page; a ref, a GPU family, a release type choose runs where they are named",
    )
    history_group.add_argument(
        "--runs",
        type=int,
        default=20,
        metavar="N",
        help="how many runs (default: 20)",
    )
    history_group.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the page there, instead of into the store",
    )

    parser.set_defaults(
        run_options=declared_options(
            parser, "--run-id", "--text", "--brief", "--against", "--distribution-store"
        ),
        history_options=declared_options(parser, "--runs", "--output"),
    )


def run(arguments: argparse.Namespace) -> None:
    """Print the summary of the run and where everything lies, and write its page; or that over runs."""
    release_type = arguments.release_type
    common = _make_common_with_release_type(arguments)
    if arguments.history:
        refuse_options(arguments, arguments.run_options, mode="with --history")
        from ci.report.store_history import write_history

        write_history(
            common,
            PLATFORMS if arguments.platform is None else (arguments.platform,),
            most_runs=arguments.runs,
            release_type=release_type,
            output=arguments.output,
            as_json=arguments.json,
        )
        return

    refuse_options(arguments, arguments.history_options, mode="without --history", hint="Add --history.")
    if arguments.text and arguments.json:
        raise UsageError("--text and --json print the same in two forms.", hint="Leave one of them out.")

    page = _read_page(arguments, common)
    if arguments.json:
        console.result(json.dumps(page, indent=1, default=json_value))
        return

    is_brief = arguments.brief and not console.echoes()
    if arguments.text:
        _print_text(common, page, brief=is_brief)
        return

    # What there is to read comes first: the store may refuse the page.
    _print_page(common, page, brief=is_brief)
    _write_page(common, _page_of_whole_run(arguments, common, page))


def look(arguments: argparse.Namespace) -> Status:
    """Return whether the run's page would say anything else. Nothing is changed."""
    from ci.report.html import render

    common = _make_common_with_release_type(arguments)
    page = _read_page(arguments, common)
    whole_page = _page_of_whole_run(arguments, common, page)

    store = common.open_store()
    key = page_key(common.outputs)
    html = render(whole_page).encode()
    if store.find(key) is None or store.read(key) != html:
        return Pending(reasons=("the page was not written yet, or is out of date",))

    _print_places(common, page)
    console.say(f"page     {store.url_of(key)}")
    console.done(text.make_verdict(page))
    return UpToDate()


def _write_page(common: Common, page: RunPage) -> None:
    """Write the run's page to its store, and tell where it is."""
    from ci.report.html import render

    store = common.open_store()
    key = page_key(common.outputs)
    store.put_bytes(key, render(page).encode())
    console.say(f"page     {store.url_of(key)}")
    console.done(text.make_verdict(page))


def _make_common_with_release_type(arguments: argparse.Namespace) -> Common:
    """Return the run that is reported on. A history is of every release type where none is named."""
    if arguments.release_type is None:
        arguments.release_type = environment().get("RELEASE_TYPE") or RELEASE_TYPES[0]
    return common_from(arguments)


def _read_page(arguments: argparse.Namespace, common: Common) -> RunPage:
    """Read a run, and the one that it is compared with, and return its page."""
    facts = add_releases(read_run(common), common, arguments.distribution_store)
    compared_run = _run_to_compare_with(arguments, common, facts)
    if compared_run is None:
        return make_page(facts)
    return make_page(facts, read_run(compared_run, tests=False))


def _page_of_whole_run(arguments: argparse.Namespace, common: Common, page: RunPage) -> RunPage:
    """Return the page that is written: that of the run, whatever part of it was selected."""
    whole_run = replace(common, gpu_family="", torch_ref="")
    if whole_run == common:
        return page
    return _read_page(arguments, whole_run)


def _run_to_compare_with(arguments: argparse.Namespace, common: Common, facts: RunFacts) -> Common | None:
    """Return the run that this one is compared with; None where it is compared with none."""
    run_id: str | None = arguments.against
    if arguments.against == PREVIOUS:
        run_id = _require_previous_run(common, facts)
    elif not arguments.against and common.outputs.immutable:
        run_id = _find_previous_run(common, facts)
    if not run_id or run_id == NO_RUN:
        return None

    # That run may lie elsewhere than this one.
    arguments_of_run = argparse.Namespace(**{**vars(arguments), "run_id": run_id})
    return replace(common_from(arguments_of_run), gpu_family="", torch_ref=common.torch_ref)


def _require_previous_run(common: Common, facts: RunFacts) -> str:
    """Return the last run before this one that built its cells."""
    store = common.open_for_reading()
    run_id = find_previous_run(store, common.outputs, facts)
    if run_id is None:
        raise MissingInputError(
            f"None of the last {MOST_RUNS_BEFORE} runs in {store.url} built all the cells of "
            f"run {common.run_id}.",
            hint="Name another run: --against RUN.",
        )
    console.say(f"compared with run {run_id}")
    return run_id


def _find_previous_run(common: Common, facts: RunFacts) -> str | None:
    """Return the last run before this one that built its cells, if there is one and the store can say it."""
    try:
        run_id = find_previous_run(common.open_for_reading(), common.outputs, facts)
    except FatalError as problem:
        console.warn(f"No previous run was looked for: {problem.message}")
        return None
    if run_id is not None:
        console.say(f"compared with run {run_id}")
    return run_id


def _print_text(common: Common, page: RunPage, *, brief: bool) -> None:
    """Print the page as text, the result of `--text`; `brief` leaves lists to the page."""
    for table in text.make_tables(page, brief=brief):
        table.show(is_result=True)
    for problem in page.problems:
        console.result(f"error: {_problem_words(problem)}")
    for line in _place_lines(common, page):
        console.result(line)
    console.result(text.make_verdict(page))
    console.summary(text.make_markdown(page))


def _print_page(common: Common, page: RunPage, *, brief: bool) -> None:
    """Tell the summary, what went wrong, and where everything lies; `brief` leaves lists to the page."""
    for table in text.make_tables(page, brief=brief):
        table.show()
    for problem in page.problems:
        console.error(_problem_words(problem))
    _print_places(common, page)
    console.summary(text.make_markdown(page))


def _problem_words(problem: ReportedProblem) -> str:
    """Return where something went wrong, and what."""
    places = problem.where
    if problem.also:
        places = f"{places} and {len(problem.also)} more"
    return spelt(f"{places}: {problem.what}")


def _print_places(common: Common, page: RunPage) -> None:
    """Tell where wheels, their index and their records lie."""
    for line in _place_lines(common, page):
        console.say(line)


def _place_lines(common: Common, page: RunPage) -> Iterator[str]:
    """Return where wheels, their index and their records lie."""
    store = common.open_for_reading()
    outputs = common.outputs
    groups_with_wheels = {wheel.cell.artifact_group for wheel in page.wheels}
    for group in page.groups:
        prefix = outputs.python_prefix(group.name)
        address = store_of(store, f"{prefix}/{INDEX}").url
        if group.name in groups_with_wheels:
            yield f"wheels   {address}/{prefix}/"
            yield f"index    {address}/{prefix}/{INDEX}  (pip install --find-links)"
        records_prefix = outputs.manifests_prefix(group.name)
        yield f"records  {address}/{records_prefix}/"
