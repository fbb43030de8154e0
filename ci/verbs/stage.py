"""`stage`: put a run's wheels up for testing in the distribution bucket: v2-staging/.

Wheels first, then sidecars, the record of what they came from, and pages last.
"""

import argparse
from collections.abc import Sequence

from ci.promote import documents
from ci.promote.documents import StagingRecord
from ci.promote.runs import chosen_files, planned_record, read_group, read_locks, require_samples, stage_group
from ci.publish.batches import show
from ci.publish.buckets import buckets, takes_samples
from core import console
from core.cli.options import Common, add_group, common_from
from core.run import artifact_groups
from core.run.locations import distribution_store
from core.stores import Store
from core.stores.location import open_store
from pytorch_build.refs.torch_refs import load_refs

# Copies wait for the server, and keep neither this machine's network nor its processors busy.
JOBS = 32


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_distribution_store(parser)
    parser.add_argument(
        "--distributions",
        choices=("all", "rocm", "pytorch"),
        default="all",
        help="ROCm's own packages, PyTorch's wheels, or all (default)",
    )
    parser.add_argument(
        "--packages",
        default="",
        metavar="A,B",
        help="only these distributions (default: every one)",
    )
    add_group(parser, default="the GPU family, else every one")


def add_distribution_store(parser: argparse.ArgumentParser) -> None:
    """Declare what staging and promotion share: where users get wheels from, and for which platform."""
    parser.add_argument(
        "--distribution-store",
        default="",
        metavar="STORE",
        help="where users get wheels: a folder or s3://bucket (default: the release type's bucket)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=JOBS,
        metavar="N",
        help="objects at a time (default: %(default)s)",
    )
    parser.add_argument(
        "--platform",
        choices=("linux", "windows"),
        default="",
        help="the wheels' platform (default of stage: this machine's; of promote: every one)",
    )


def distribution_store_of(
    arguments: argparse.Namespace,
    common: Common,
    *,
    dry_run: bool,
) -> Store:
    """Open the store that users get wheels from."""
    location = distribution_store(buckets(), common.release_type, arguments.distribution_store)
    store = open_store(location, root=common.root, dry_run=dry_run)
    if takes_samples(buckets(), common.release_type):
        require_samples(store)
    return store


def listed(text: str) -> tuple[str, ...]:
    """Return the names of a list that commas or semicolons separate."""
    names = [name.strip() for name in text.replace(";", ",").split(",")]
    return tuple(name for name in names if name)


def run(arguments: argparse.Namespace) -> None:
    """Stage the chosen groups of a run."""
    common = common_from(arguments)
    target = distribution_store_of(arguments, common, dry_run=common.dry_run)
    source = _open_source(common)
    # Everything is chosen before anything is copied: one group's refusal leaves nothing behind.
    for record in _plan_records(arguments, common, source):
        with console.group(f"stage {record.family}"):
            copied_count = stage_group(source, target, record, jobs=arguments.jobs)
            if not common.dry_run:
                keys = {file.key for file in record.files}
                documents.write_pages(target, documents.STAGING, record.family, expected=keys)
        show(record.files)
        folder = documents.folder(documents.STAGING, record.family)
        _report(f"{target.url}/{folder}", len(record.files), copied_count, dry_run=common.dry_run)


def _open_source(common: Common) -> Store:
    """Open the store that has the run, and no other one behind it: a server copies from bucket to bucket."""
    store = open_store(common.store, root=common.root)
    if common.read_store and not store.list(common.outputs.manifests_prefix("")):
        return open_store(common.read_store, root=common.root)
    return store


def _plan_records(
    arguments: argparse.Namespace,
    common: Common,
    source: Store,
) -> Sequence[StagingRecord]:
    """Return the record of what is staged of each chosen group."""
    outputs = common.outputs
    refs = load_refs(platform=outputs.platform)
    is_rehearsal = takes_samples(buckets(), common.release_type)
    packages = listed(arguments.packages)
    records: list[StagingRecord] = []
    for group_name in artifact_groups(source, outputs, arguments.artifact_group or common.artifact_group):
        group = read_group(source, outputs, group_name)
        group_files = chosen_files(group, arguments.distributions, packages, samples=is_rehearsal)
        locks = read_locks(source, outputs, group_name, refs)
        records.append(planned_record(source, group, group_files, locks))
    return records


def _report(folder: str, count: int, copied_count: int, *, dry_run: bool) -> None:
    if dry_run:
        console.done(f"stage: {copied_count} of {count} files would be copied to {folder}")
    elif copied_count:
        console.done(f"stage: {count} files are in {folder}, {copied_count} of them new")
    else:
        console.done(f"stage: unchanged, {count} files are in {folder}")
