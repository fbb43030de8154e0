"""`upload`: publish what a run left: wheels, logs, reports, artifacts, manifests.

Wheels first, then sidecars and records, then pages, so that a reader never sees half; then the job's
outputs and links, which so lead to what is there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.publish.folders import Digests
from core import console, files
from core.cli import options
from core.errors import FatalError, UsageError, nearest
from core.run import RunOutputs
from core.status import Status, UpToDate
from core.stores.location import open_store
from core.stores.overlay import is_reachable

if TYPE_CHECKING:
    from core.run.job_files import JobFiles
    from core.run.records import FileRecord

KINDS = ("wheels", "logs", "reports", "manifests", "tests", "artifacts")
ALL = "all"
_ROWS = 200  # of the summary; the page lists them all
_SERVER_SECONDS = 300.0  # pages follow events of the bucket within seconds


@dataclass(frozen=True, kw_only=True)
class Folders:
    """Folders of a user or a build, the files of which go into the run."""

    wheels: Path | None = None
    logs: Path | None = None
    reports: Path | None = None
    artifacts: Path | None = None
    manifest: Path | None = None


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    options.add_store_names(parser)
    add, folder = parser.add_argument, dict[str, Any](type=Path, metavar="DIR")
    what = "wheels and sdists, in DIR/dist where there is one (default: the run in ./out)"
    add("--input-dir", "--packages-dir", "--input-packages-dir", dest="wheels", **folder, help=what)
    add("--logs-dir", dest="logs", **folder, help="logs, at every depth of DIR")
    add("--reports-dir", dest="reports", **folder, help="reports, at every depth of DIR")
    add("--artifacts-dir", dest="artifacts", **folder, help="archives of artifacts")
    add("--manifest", type=Path, metavar="FILE", help="therock_manifest.json of a ROCm build")
    what = "a ROCm build: --logs-dir DIR/logs and --artifacts-dir DIR/artifacts, those that there are"
    add("--build-dir", **folder, help=what)
    options.add_group(parser)
    options.add_platform(parser)
    what = f"what of the run in ./out: {', '.join(KINDS)} (default: {ALL})"
    add("--what", default="", metavar="KIND,…", help=what)
    what = "copy the run from this store instead of ./out"
    add("--from", dest="source", default=options.DEFAULT_STORE, metavar="STORE", help=what)


def run(arguments: argparse.Namespace) -> None:
    """Upload what folders hold, or the run that lies in the default store."""
    common = foreseen(options.common_from(arguments))
    group = arguments.artifact_group or common.artifact_group
    given = _folders(arguments)
    if given == Folders():
        put = upload_from(common, kinds(arguments.what), group, arguments.source)
    else:
        if arguments.what:
            raise UsageError("--what chooses from the run in ./out.", hint="Leave it out beside folders.")
        put = upload_folders(common, given, group)
    if put:
        write_pages(common, put)
        tell(common, put)


def look(arguments: argparse.Namespace) -> Status:
    """Return whether the run in the default store would change the one that is named. Nothing is changed."""
    common = options.common_from(arguments)
    planning = replace(common, dry_run=True)
    group = arguments.artifact_group or common.artifact_group
    uploaded = upload_from(planning, kinds(arguments.what), group, arguments.source)
    write_pages(planning, uploaded)
    status = planning.planned_status
    if isinstance(status, UpToDate):
        tell(common, uploaded)
    return status


def kinds(what: str) -> Sequence[str]:
    """Read ``--what``."""
    words = [word.strip() for word in what.split(",") if word.strip()] or [ALL]
    for word in words:
        if word not in {*KINDS, ALL}:
            raise UsageError(f"--what has no {word!r}. {nearest(word, {*KINDS, ALL})}")
    return KINDS if ALL in words else words


def upload_from(
    common: options.Common, chosen: Sequence[str], group: str, place: str = options.DEFAULT_STORE
) -> Mapping[str, Sequence[FileRecord]]:
    """Upload the run that the stages left in ``out/``, or copy it from another store."""
    from ci.publish import wheels

    there = replace(common, store=place, read_store="", external_repo="")
    here = options.with_run_location(there, options.environment(), is_store_named=False)
    source = wheels.Source(
        store=open_store(here.store, root=common.root), outputs=replace(here.outputs, bucket="")
    )
    digests = _digests(common, common.root / options.DEFAULT_STORE)
    return wheels.upload_run(common, source, chosen, group, digests)


def upload_folders(common: options.Common, given: Folders, group: str) -> Mapping[str, Sequence[FileRecord]]:
    """Upload what folders hold; everything but artifacts goes to a group."""
    if not group and given != Folders(artifacts=given.artifacts):
        raise UsageError(
            "Files from a folder need the group they go to.", hint="Give --gpu-family or --artifact-group."
        )
    # imported where it is used: an upload with nothing to do is over before all is
    from ci.publish import folders, upload

    uploaded: dict[str, Sequence[FileRecord]] = {}
    if given.artifacts:
        upload.upload_artifacts(common, given.artifacts, _digests(common, given.artifacts))
    if given.wheels:
        from ci.publish import wheels

        uploaded[group] = wheels.upload_folder(common, given.wheels, group, _digests(common, given.wheels))
    outputs = common.outputs
    named = (("logs", given.logs, outputs.logs_prefix), ("reports", given.reports, outputs.reports_prefix))
    for kind, folder, prefix in named:
        if folder:
            items = folders.tree(folder, prefix(group), _digests(common, folder))
            upload.upload_tree(common, items, kind, group)
    if given.manifest:
        upload.upload_manifest(common, given.manifest, group, Digests())
    return uploaded


def foreseen(common: options.Common) -> options.Common:
    """Let a dry run continue where the store cannot be read: it is reported and taken to be empty."""
    if not common.dry_run or not common.store.startswith("s3://"):
        return common
    try:
        if is_reachable(common.endpoint):
            common.open_store().folders(common.outputs.prefix)
            return common
    except FatalError as problem:
        console.warn(problem.message)
    console.warn(f"{common.store} cannot be read: this is what would be uploaded to an empty store.")
    return replace(common, unread=True)


def write_pages(common: options.Common, put: Mapping[str, Sequence[FileRecord]]) -> None:
    """Write the pages that list what was uploaded, or wait for those that the store's server writes."""
    from ci.verbs import index

    if not index.left_to_server(common.store):
        for group in sorted(put):
            index.write_group(common, group)
    elif not common.dry_run:
        _await_pages(common, put)


def _await_pages(common: options.Common, put: Mapping[str, Sequence[FileRecord]]) -> None:
    from core.http import Answer
    from core.packages.candidates import candidate_of_record
    from core.packages.pages import wait_for_pages

    store, outputs = common.open_store(), common.outputs

    def read(key: str) -> Answer:
        # with this process's credentials: the bucket may refuse all others
        found = store.find(key)
        return Answer(text=store.read(key).decode()) if found else Answer(problem="it does not exist")

    pages = {
        f"{outputs.python_prefix(group)}/index.html": [candidate_of_record(file) for file in found]
        for group, found in put.items()
    }
    wait_for_pages(pages, seconds=_SERVER_SECONDS, read=read, name_of=store.url_of)


def tell(common: options.Common, put: Mapping[str, Sequence[FileRecord]]) -> None:
    """Write the addresses of what was uploaded to the job's outputs, and links to its summary."""
    from core.run.job_files import job_files

    if common.dry_run:
        return
    store = common.open_store()
    outputs = common.outputs.at(store)
    # an index is an address in a folder, and in buckets that hold pages of folders
    index = "://" not in store.url or all(
        store.find(f"{outputs.python_index_prefix(group)}/") is not None for group in put
    )
    set_outputs(job_files(options.environment()), outputs, sorted(put), index=index)
    for group, found in sorted(put.items()):
        summarize(outputs, group, found, index=index)


def set_outputs(step: JobFiles, outputs: RunOutputs, groups: Sequence[str], *, index: bool) -> None:
    """Set the addresses as the step's outputs: one, or a JSON map of several groups."""
    addresses = {"package_find_links_url": {group: outputs.python_find_links_url(group) for group in groups}}
    if index:
        addresses["package_index_url"] = {group: outputs.python_index_url(group) for group in groups}
    for name, urls in addresses.items():
        step.set_output(name, urls[groups[0]] if len(groups) == 1 else json.dumps(urls))


def summarize(
    outputs: RunOutputs, artifact_group: str, put: Sequence[FileRecord], *, index: bool = True
) -> None:
    """Show the wheels of a group in the job's summary, each with its link."""
    from core.run import job_files

    page = outputs.python_find_links_url(artifact_group)
    links = [(job_files.link(one.name, outputs.url_of(one.key)), one) for one in put[:_ROWS]]
    rows = [
        (link, job_files.text(one.version), console.size(one.size), f"`{one.sha256[:12]}`")
        for link, one in links
    ]
    named = {"page for --find-links": page}
    if index:
        named["index"] = outputs.python_index_url(artifact_group)
    blocks = [
        f"### {job_files.text(f'Wheels of run {outputs.run_id}, {artifact_group}')}",
        ", ".join(job_files.link(text, url) for text, url in named.items()),
        f"```\npip install '{_pinned(put)}' --find-links '{page}'\n```",
        job_files.table(("wheel", "version", "size", "sha256"), rows),
        f"and {len(put) - _ROWS} more" if len(put) > _ROWS else "",
    ]
    console.summary("\n\n".join(filter(None, blocks)))


def _pinned(put: Sequence[FileRecord]) -> str:
    """Pin what most users install: unpinned, an installer takes the highest version it finds anywhere.

    Split packages come with the device code of all targets, as without any the first kernel fails.
    """
    from ci.publish.index.html_pages import device_extras

    names = [one.distribution for one in put]
    chosen = next((put[names.index(name)] for name in ("torch", "rocm") if name in names), put[0])
    return f"{chosen.distribution}{device_extras(names).get(chosen.distribution, '')}=={chosen.version}"


def _folders(arguments: argparse.Namespace) -> Folders:
    given = {one.name: getattr(arguments, one.name) for one in fields(Folders)}
    if arguments.build_dir is not None:
        built = {name: arguments.build_dir / name for name in ("logs", "artifacts")}
        given |= {name: path for name, path in built.items() if not given[name] and path.is_dir()}
        if not (given["logs"] or given["artifacts"]):
            raise UsageError(
                f"{arguments.build_dir} has neither logs/ nor artifacts/.", hint="Name them one by one."
            )
    return Folders(**given)


def _digests(common: options.Common, folder: Path) -> Digests:
    name = files.sha256_text(str(folder.resolve()))[:16]
    return Digests(memory=None if common.dry_run else common.cache / "digests" / f"{name}.json")
