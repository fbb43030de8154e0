"""`stage`: put a run's wheels up for testing in the distribution bucket: v2-staging/.

Wheels first, then sidecars, the record of what they came from, and pages last.
"""

import argparse
from collections.abc import Sequence

from ci.promote import documents
from ci.promote.documents import StagingRecord
from ci.promote.facts import read_group
from ci.promote.staged_files import choose_files, plan_staging, require_samples, stage_group, stage_locks
from ci.publish.batches import print_files
from ci.publish.buckets import buckets, takes_samples
from core import console
from core.cli.options import (
    GROUP_OPTIONS,
    RUN_OPTIONS,
    Common,
    add_group,
    common_from,
    named_store,
    split_list,
)
from core.run import artifact_groups
from core.run.locations import distribution_store
from core.stores import Store
from core.stores.location import open_store
from pytorch_build.refs.torch_refs import load_refs

# Copies wait for the server, and keep neither this machine's network nor its processors busy.
JOBS = 32

COMMON_OPTIONS = (*GROUP_OPTIONS, *RUN_OPTIONS, "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_distribution_options(parser)
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


def add_distribution_options(parser: argparse.ArgumentParser) -> None:
    """Declare what staging and promotion share: where users get wheels from, and for which platform."""
    parser.add_argument(
        "--distribution-store",
        default="",
        type=named_store,
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
    address = distribution_store(buckets(), common.release_type, arguments.distribution_store)
    store = open_store(
        address,
        root=common.root,
        dry_run=dry_run,
    )
    if takes_samples(buckets(), common.release_type):
        require_samples(store)
    return store


def run(arguments: argparse.Namespace) -> None:
    """Stage the chosen groups of a run."""
    common = common_from(arguments)
    store = distribution_store_of(arguments, common, dry_run=common.dry_run)

    # Everything is chosen before anything is copied: one group's refusal leaves nothing behind.
    run_store = _open_run_store(common)
    for staging_record in _plan_groups(arguments, common, run_store):
        with console.group(f"stage {staging_record.artifact_group}"):
            new_count = stage_group(run_store, store, staging_record, jobs=arguments.jobs)
            if not common.dry_run:
                keys = documents.keys_of(staging_record.files)
                documents.write_pages(store, documents.STAGING, staging_record.artifact_group, expected=keys)
        _report(store, staging_record, new_count, is_dry_run=common.dry_run)


def _open_run_store(common: Common) -> Store:
    """Open the store that has the run, as it is: copies on the server need both ends to be buckets."""
    store = open_store(common.store, root=common.root)
    if common.read_store and not store.list(common.outputs.manifests_prefix("")):
        return open_store(common.read_store, root=common.root)
    return store


def _plan_groups(
    arguments: argparse.Namespace,
    common: Common,
    run_store: Store,
) -> Sequence[StagingRecord]:
    """Return what is staged of each artifact group."""
    outputs = common.outputs
    refs = load_refs(platform=outputs.platform)
    samples = takes_samples(buckets(), common.release_type)
    packages = split_list(arguments.packages)

    records: list[StagingRecord] = []
    for name in artifact_groups(run_store, outputs, arguments.artifact_group or common.artifact_group):
        group = read_group(run_store, outputs, name)
        files = choose_files(group, arguments.distributions, packages, samples=samples)
        locks = stage_locks(run_store, outputs, name, refs)
        records.append(plan_staging(run_store, group, files, locks))
    return records


def _report(
    store: Store,
    staging_record: StagingRecord,
    new_count: int,
    *,
    is_dry_run: bool,
) -> None:
    """Print what was staged of a group."""
    print_files(staging_record.files)
    address = f"{store.url}/{documents.folder(documents.STAGING, staging_record.artifact_group)}"
    file_count = len(staging_record.files)
    if is_dry_run:
        console.done(f"stage: {new_count} of {file_count} files would be copied to {address}")
    elif new_count:
        console.done(f"stage: {file_count} files are in {address}, {new_count} of them new")
    else:
        console.done(f"stage: unchanged, {file_count} files are in {address}")
