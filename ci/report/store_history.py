"""Read the last runs of a store, and write the page over them: states, since when, times, sizes, tests.

The page is put beside the runs: ``history/{platform}.html``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from ci.report import facts, stored_runs
from ci.report.history import History, HistoryRun, make_history
from ci.report.html import render_history
from ci.report.model import json_value
from ci.report.page import make_page
from ci.report.text import make_history_tables
from core import console, files
from core.cell import GroupCell
from core.errors import FatalError, MissingInputError, UsageError
from core.families import family
from pytorch_build.refs.torch_refs import torch_ref

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ci.report.model import RunPage
    from core.cli.options import Common
    from core.run import Platform


def write_history(
    common: Common,
    platforms: Sequence[Platform],
    *,
    most_runs: int,
    release_type: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Print how the last runs went, and write the page of each platform that has some.

    The ref and the GPU family choose runs, where they are named.

    Args:
        common: Where the runs are.
        platforms: A page for each of them.
        most_runs: How many runs are read, the last ones.
        release_type: Only runs of this type; None for all.
        output: Where the page is written; None for the store.
        as_json: Print what the page says instead.
    """
    if most_runs < 1:
        raise UsageError(f"--runs {most_runs} is too few.", hint="Give 1 or more.")

    histories = []
    for platform in platforms:
        history = _read_history(
            replace(common, platform=platform),
            most_runs,
            release_type,
            is_beside=output is None,
        )
        if history.runs:
            histories.append(history)

    if not histories:
        _refuse_without_runs(common, platforms, release_type)
    needs_one_platform = output is not None or as_json
    if len(histories) > 1 and needs_one_platform:
        platform_names = " and ".join(platforms)
        raise UsageError(f"There are runs for {platform_names}.", hint="Name one: --platform linux.")

    for history in histories:
        if as_json:
            text = json.dumps(history, indent=1, default=json_value)
            console.result(text)
        else:
            _show_and_write(common, history, output)


def _refuse_without_runs(common: Common, platforms: Sequence[Platform], release_type: str | None) -> NoReturn:
    """Say that the store has no such run, or which ref or family there is not at all."""
    if common.torch_ref:
        torch_ref(common.torch_ref)
    if common.gpu_family:
        family(common.gpu_family)

    names = filter(None, (common.artifact_group, common.torch_ref, release_type))
    selection = " ".join(names)
    builds = f"builds of {selection}" if selection else "builds"
    platform_names = " or ".join(platforms)
    address = common.open_for_reading().url
    raise MissingInputError(
        f"{address}/{common.outputs.external_repo} has no run for {platform_names} with records of {builds}.",
        hint="Build something first (nox -s build_torch), or name another place with --store.",
    )


def _read_history(
    common: Common,
    most_runs: int,
    release_type: str | None,
    *,
    is_beside: bool,
) -> History:
    """Read the last runs that have what was asked for; the rest of the store is listed at most."""
    store = common.open_for_reading()
    requested_cell = GroupCell(
        artifact_group=common.artifact_group or None, torch_ref=common.torch_ref or None
    )
    pages_by_run: list[tuple[HistoryRun, RunPage | None]] = []
    for run_id in stored_runs.list_runs(store, common.outputs):
        if len(pages_by_run) == most_runs:
            break
        run_common = replace(common, run_id=run_id)
        manifests = facts.list_manifests(store, run_common.outputs)
        if not stored_runs.has_built(manifests, [requested_cell]):
            continue
        if release_type is not None:
            type_of_run = stored_runs.read_release_type(store, run_common.outputs, manifests)
            if type_of_run != release_type:
                continue
        pages_by_run.append(_read_run(run_common, is_beside=is_beside))
    return make_history(common.platform, pages_by_run)


def _read_run(common: Common, *, is_beside: bool) -> tuple[HistoryRun, RunPage | None]:
    """Read a run, and find its page, as seen from one beside the runs; what cannot be read hides no other."""
    store = common.open_for_reading()
    key = stored_runs.page_key(common.outputs)
    address = store.url_of(key)
    if is_beside:
        address = f"../{key.removeprefix(common.outputs.external_repo)}"
    if store.find(key) is None:
        address = ""
    row = HistoryRun(run_id=common.run_id, address=address)

    try:
        run_facts = facts.read_run(common, tests=False)
    except FatalError as problem:
        return replace(row, problems=(problem.message,)), None

    problems = [*run_facts.problems]
    for group in run_facts.groups:
        problems += group.problems
    messages = [f"{problem.where}: {problem.what}" for problem in problems]
    release_types = {lock.release_type for lock in run_facts.locks.values()}
    row = replace(
        row,
        release_type=", ".join(sorted(release_types)),
        problems=tuple(messages),
    )
    return row, make_page(run_facts)


def _show_and_write(common: Common, history: History, output: Path | None) -> None:
    for table in make_history_tables(history):
        table.show()

    page = render_history(history)
    if output is not None:
        files.write_text(output, page)
        console.say(f"page     {output}")
    else:
        store = common.open_store()
        key = f"{common.outputs.external_repo}history/{history.platform}.html"
        store.put_bytes(key, page.encode())
        console.say(f"page     {store.url_of(key)}")

    failing_count = sum(line.since is not None for line in history.lines)
    cells = console.counted(len(history.lines), "cell")
    console.done(f"report: {failing_count} of {cells} failing")
