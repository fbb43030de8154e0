"""`stage`: put a run's wheels up for testing in the distribution bucket: v2-staging/.

Wheels first, then sidecars, the record of what they came from, and pages last.
"""

import argparse

from ci.promote import documents
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

# copies wait for the server, and keep neither this machine's network nor its processors busy
JOBS = 32


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_distribution_store(parser)
    what = "ROCm's own packages, PyTorch's wheels, or all (default)"
    parser.add_argument("--distributions", choices=("all", "rocm", "pytorch"), default="all", help=what)
    what = "only these distributions (default: every one)"
    parser.add_argument("--packages", default="", metavar="A,B", help=what)
    add_group(parser, default="the GPU family, else every one")


def add_distribution_store(parser: argparse.ArgumentParser) -> None:
    """Declare what staging and promotion share: where wheels are handed out from, and for which platform."""
    add = parser.add_argument
    what = "where users get wheels: a folder or s3://bucket (default: the release type's bucket)"
    add("--distribution-store", default="", metavar="STORE", help=what)
    add("--jobs", type=int, default=JOBS, metavar="N", help="objects at a time (default: %(default)s)")
    what = "the wheels' platform (default of stage: this machine's; of promote: every one)"
    add("--platform", choices=("linux", "windows"), default="", help=what)


def distribution_store_of(arguments: argparse.Namespace, common: Common, *, dry_run: bool) -> Store:
    """Open the store that wheels are handed out from."""
    named = distribution_store(buckets(), common.release_type, arguments.distribution_store)
    store = open_store(named, root=common.root, dry_run=dry_run)
    if takes_samples(buckets(), common.release_type):
        require_samples(store)
    return store


def listed(words: str) -> tuple[str, ...]:
    """Split a list that commas or semicolons separate."""
    return tuple(word.strip() for word in words.replace(";", ",").split(",") if word.strip())


def run(arguments: argparse.Namespace) -> None:
    """Stage the chosen groups of a run."""
    common = common_from(arguments)
    outputs = common.outputs
    target = distribution_store_of(arguments, common, dry_run=common.dry_run)
    # as they are: copies on the server need both ends to be buckets
    source = open_store(common.store, root=common.root)
    if common.read_store and not source.list(outputs.manifests_prefix("")):
        source = open_store(common.read_store, root=common.root)
    refs = load_refs(platform=outputs.platform)
    planned = []
    # everything is chosen before anything is copied: one group's refusal leaves nothing behind
    for group in artifact_groups(source, outputs, arguments.artifact_group or common.artifact_group):
        read = read_group(source, outputs, group)
        samples = takes_samples(buckets(), common.release_type)
        chosen = chosen_files(read, arguments.distributions, listed(arguments.packages), samples=samples)
        planned.append(planned_record(source, read, chosen, read_locks(source, outputs, group, refs)))
    for record in planned:
        with console.group(f"stage {record.family}"):
            copied = stage_group(source, target, record, jobs=arguments.jobs)
            if not common.dry_run:
                keys = {file.key for file in record.files}
                documents.write_pages(target, documents.STAGING, record.family, expected=keys)
        show(record.files)
        where = f"{target.url}/{documents.folder(documents.STAGING, record.family)}"
        count = len(record.files)
        if common.dry_run:
            console.done(f"stage: {copied} of {count} files would be copied to {where}")
        elif copied:
            console.done(f"stage: {count} files are in {where}, {copied} of them new")
        else:
            console.done(f"stage: unchanged, {count} files are in {where}")
