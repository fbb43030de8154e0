"""`upload`: publish what a run left: wheels, logs, reports, artifacts, manifests.

All is compared with the store before the first write. Then wheels are written, sidecars and records after
them, and pages last, so that a reader never sees half. The job's outputs and links come after that: they lead
to what is there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci.publish.folders import Folders, compare_folders, digests_of
from core import console
from core.cli import options
from core.cli.options import GROUP_OPTIONS, RUN_OPTIONS, Common
from core.errors import FatalError, UsageError, nearest
from core.run import RunOutputs
from core.status import Status, UpToDate
from core.stores.location import open_store
from core.stores.overlay import is_reachable

if TYPE_CHECKING:
    from ci.publish.batches import Batch
    from ci.publish.runs import SourceRun
    from core.run.job_files import JobFiles
    from core.run.records import FileRecord

KINDS = ("wheels", "logs", "reports", "manifests", "tests", "artifacts")
_ALL = "all"
_MOST_ROWS = 200  # of the summary; the page lists them all
_SERVER_SECONDS = 300.0  # pages follow events of the bucket within seconds

COMMON_OPTIONS = (*GROUP_OPTIONS, *RUN_OPTIONS, "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    options.add_store_names(parser)
    parser.add_argument(
        "--input-dir",
        "--packages-dir",
        "--input-packages-dir",
        dest="wheels",
        type=Path,
        metavar="DIR",
        help="wheels and sdists, in DIR/dist where there is one (default: the run in ./out)",
    )
    parser.add_argument(
        "--logs-dir",
        dest="logs",
        type=Path,
        metavar="DIR",
        help="logs, at every depth of DIR",
    )
    parser.add_argument(
        "--reports-dir",
        dest="reports",
        type=Path,
        metavar="DIR",
        help="reports, at every depth of DIR",
    )
    parser.add_argument(
        "--artifacts-dir",
        dest="artifacts",
        type=Path,
        metavar="DIR",
        help="archives of artifacts",
    )
    parser.add_argument("--manifest", type=Path, metavar="FILE", help="therock_manifest.json of a ROCm build")
    parser.add_argument(
        "--build-dir",
        type=Path,
        metavar="DIR",
        help="a ROCm build: --logs-dir DIR/logs and --artifacts-dir DIR/artifacts, those that there are",
    )
    options.add_group(parser)
    options.add_platform(parser)
    parser.add_argument(
        "--what",
        default="",
        metavar="KIND,…",
        help=f"what of the run in ./out: {', '.join(KINDS)} (default: {_ALL})",
    )
    parser.add_argument(
        "--from",
        dest="source",
        type=options.named_store,
        metavar="STORE",
        help="copy the run from this store instead of ./out",
    )


def run(arguments: argparse.Namespace) -> None:
    """Upload what folders hold, or the run that lies in the default store."""
    common = _take_unreadable_store_as_empty(options.common_from(arguments))
    uploaded = put_all(common, _compare(common, arguments))
    if uploaded:
        write_pages(common, uploaded)
        tell(common, uploaded)


def look(arguments: argparse.Namespace) -> Status:
    """Return whether the run in the default store would change the one that is named. Nothing is changed."""
    common = options.common_from(arguments)
    dry_run = replace(common, dry_run=True)
    uploaded = put_all(dry_run, _compare(dry_run, arguments))
    write_pages(dry_run, uploaded)
    status = dry_run.planned_status
    if isinstance(status, UpToDate):
        tell(common, uploaded)
    return status


def _compare(common: Common, arguments: argparse.Namespace) -> Sequence[Batch]:
    """Return what the store lacks of the folders that are named, or else of a run."""
    artifact_group = arguments.artifact_group or common.artifact_group
    folders = _folders_of(arguments)
    if folders != Folders():
        if arguments.what:
            raise UsageError("--what chooses from the run in ./out.", hint="Leave it out beside folders.")
        return compare_folders(common, folders, artifact_group)

    # Records take a while to import, and folders need none of their code.
    from ci.publish.runs import compare_run

    # Builds write to the default store of the checkout, wherever the user stands.
    location = arguments.source or options.DEFAULT_STORE
    return compare_run(common, _source_run(common, location), kinds(arguments.what), artifact_group)


def _folders_of(arguments: argparse.Namespace) -> Folders:
    folders = Folders(
        wheels=arguments.wheels,
        logs=arguments.logs,
        reports=arguments.reports,
        artifacts=arguments.artifacts,
        manifest=arguments.manifest,
    )
    build_folder = arguments.build_dir
    if build_folder is None:
        return folders

    if folders.logs is None and (build_folder / "logs").is_dir():
        folders = replace(folders, logs=build_folder / "logs")
    if folders.artifacts is None and (build_folder / "artifacts").is_dir():
        folders = replace(folders, artifacts=build_folder / "artifacts")
    if folders.logs is None and folders.artifacts is None:
        raise UsageError(f"{build_folder} has neither logs/ nor artifacts/.", hint="Name them one by one.")
    return folders


def kinds(text: str) -> Sequence[str]:
    """Return the kinds of files that ``--what`` names."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in {*KINDS, _ALL}:
            raise UsageError(f"--what has no {name!r}. {nearest(name, {*KINDS, _ALL})}")
    if not names or _ALL in names:
        return KINDS
    return names


def _source_run(common: Common, location: str) -> SourceRun:
    """Return the run as it lies in the store that builds write to, or in another one."""
    from ci.publish.runs import SourceRun

    unlocated = replace(common, store=location, read_store="", external_repo="")
    located = options.with_run_location(unlocated, options.environment(), is_store_named=False)
    return SourceRun(
        store=open_store(located.store, root=common.root),
        outputs=located.outputs,
        cache=common.cache / "fetched",
        digests=digests_of(common, common.root / options.DEFAULT_STORE),
    )


def _take_unreadable_store_as_empty(common: Common) -> Common:
    """Let a dry run continue where the store cannot be read: it says so, and takes the store to be empty."""
    if not common.dry_run or not common.store.startswith("s3://"):
        return common
    try:
        if is_reachable(common.endpoint):
            # Any request shows whether the store can be read.
            common.open_store().folders(common.outputs.prefix)
            return common
    except FatalError as problem:
        console.warn(problem.message)
    console.warn(f"{common.store} cannot be read: this is what would be uploaded to an empty store.")
    return replace(common, takes_store_as_empty=True)


def put_all(common: Common, compared: Sequence[Batch]) -> Mapping[str, Sequence[FileRecord]]:
    """Put everything that the store lacks; return the wheels of the groups that were uploaded."""
    from ci.publish.batches import put

    store = common.open_store()
    wheels_by_group: dict[str, Sequence[FileRecord]] = {}
    for batch in compared:
        put(store, batch)
        if batch.artifact_group is not None:
            wheels_by_group[batch.artifact_group] = batch.wheels
    return wheels_by_group


# --- Pages -----------------------------------------------------------------------------------


def write_pages(common: Common, wheels_by_group: Mapping[str, Sequence[FileRecord]]) -> None:
    """Write the pages that list what was uploaded, or wait for those that the store's server writes."""
    from ci.verbs import index

    if index.left_to_server(common.store):
        if not common.dry_run:
            _await_pages(common, wheels_by_group)
        return
    for artifact_group in sorted(wheels_by_group):
        index.write_group(common, artifact_group)


def _await_pages(common: Common, wheels_by_group: Mapping[str, Sequence[FileRecord]]) -> None:
    from core.http import Answer
    from core.packages.candidates import candidate_of_record
    from core.packages.pages import wait_for_pages

    store = common.open_store()
    outputs = common.outputs

    def read_page(key: str) -> Answer:
        # With this process's credentials: the bucket may refuse all others.
        if store.find(key) is None:
            return Answer(problem="it does not exist")
        return Answer(text=store.read(key).decode())

    candidates_by_page = {
        f"{outputs.python_prefix(group)}/index.html": [candidate_of_record(wheel) for wheel in wheels]
        for group, wheels in wheels_by_group.items()
    }
    wait_for_pages(candidates_by_page, seconds=_SERVER_SECONDS, read=read_page, name_of=store.url_of)


# --- What is told ----------------------------------------------------------------------------


def tell(common: Common, wheels_by_group: Mapping[str, Sequence[FileRecord]]) -> None:
    """Write the addresses of what was uploaded to the job's outputs, and links to its summary."""
    from core.run.job_files import job_files

    if common.dry_run:
        return
    store = common.open_store()
    outputs = common.outputs.at(store)
    has_index = _serves_index(common, wheels_by_group)
    step_files = job_files(options.environment())
    set_outputs(step_files, outputs, sorted(wheels_by_group), has_index=has_index)
    for artifact_group, wheels in sorted(wheels_by_group.items()):
        summarize(outputs, artifact_group, wheels, has_index=has_index)


def _serves_index(common: Common, artifact_groups: Mapping[str, Sequence[FileRecord]]) -> bool:
    """Return whether indexes have an address: in a folder, and in buckets that hold pages of folders."""
    store = common.open_store()
    if "://" not in store.url:
        return True
    outputs = common.outputs
    return all(store.keeps_folder_pages(outputs.python_prefix(group)) for group in artifact_groups)


def set_outputs(
    step_files: JobFiles,
    outputs: RunOutputs,
    artifact_groups: Sequence[str],
    *,
    has_index: bool,
) -> None:
    """Set the addresses as the step's outputs: one, or a JSON map of several groups."""
    find_links_urls = {group: outputs.python_find_links_url(group) for group in artifact_groups}
    step_files.set_output("package_find_links_url", _one_or_all(find_links_urls))
    if has_index:
        index_urls = {group: outputs.python_index_url(group) for group in artifact_groups}
        step_files.set_output("package_index_url", _one_or_all(index_urls))


def _one_or_all(urls: Mapping[str, str]) -> str:
    if len(urls) == 1:
        return next(iter(urls.values()))
    return json.dumps(urls)


def summarize(
    outputs: RunOutputs,
    artifact_group: str,
    wheels: Sequence[FileRecord],
    *,
    has_index: bool = True,
) -> None:
    """Show the wheels of a group in the job's summary, each with its link."""
    from core.run import job_files

    page_url = outputs.python_find_links_url(artifact_group)
    page_links = [job_files.link("page for --find-links", page_url)]
    if has_index:
        page_links.append(job_files.link("index", outputs.python_index_url(artifact_group)))

    rows: list[tuple[str, ...]] = []
    for wheel in wheels[:_MOST_ROWS]:
        link = job_files.link(wheel.name, outputs.url_of(wheel.key))
        version = job_files.text(wheel.version)
        rows.append((link, version, console.size(wheel.size), f"`{wheel.sha256[:12]}`"))

    blocks = [
        f"### {job_files.text(f'Wheels of run {outputs.run_id}, {artifact_group}')}",
        ", ".join(page_links),
        f"```\npip install '{_requirement_to_install(wheels)}' --find-links '{page_url}'\n```",
        job_files.table(("wheel", "version", "size", "sha256"), rows),
    ]
    if len(wheels) > _MOST_ROWS:
        blocks.append(f"and {len(wheels) - _MOST_ROWS} more")
    console.summary("\n\n".join(blocks))


def _requirement_to_install(wheels: Sequence[FileRecord]) -> str:
    """Pin what most users install: unpinned, an installer takes the highest version that it finds anywhere.

    Split packages come with the device code of all targets: without any, the first kernel fails.
    """
    from ci.publish.index.html_pages import device_extras

    wheels_by_name = {wheel.distribution: wheel for wheel in wheels}
    wheel = wheels_by_name.get("torch") or wheels_by_name.get("rocm") or wheels[0]
    extras = device_extras([*wheels_by_name]).get(wheel.distribution, "")
    return f"{wheel.distribution}{extras}=={wheel.version}"
