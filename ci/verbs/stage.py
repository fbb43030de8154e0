"""`stage`: put a run's wheels up for testing in the distribution bucket, under `v2-staging/{family}/`.

Wheels first, then sidecars, the record of what they came from, and pages last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.promote import documents
from ci.promote.runs import read_group, read_locks
from ci.promote.staging_area import Choice, chosen_files, planned_record, stage_group
from ci.publish.buckets import buckets, distribution_store
from core import console, stores
from core.cli.options import add_group, common_from
from core.run.outputs import artifact_groups
from core.stores import open_store
from pytorch_build.refs.torch_refs import load_refs

if TYPE_CHECKING:
    import argparse

    from ci.promote.documents import StagingRecord
    from core.cli.options import Common
    from core.run.outputs import RunOutputs
    from core.stores import Store


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
        "--packages", default="", metavar="A,B", help="only these distributions (default: every one)"
    )
    add_group(parser, default="the GPU family, else every one")


def run(arguments: argparse.Namespace) -> None:
    """Stage the chosen groups of a run."""
    common = common_from(arguments)
    target = distribution_store_of(arguments, common)
    outputs = common.outputs
    source = _source(common, outputs)
    choice = Choice(kind=arguments.distributions, packages=listed(arguments.packages))
    groups = artifact_groups(source, outputs, arguments.artifact_group or common.artifact_group)
    # everything is chosen before anything is copied: one group's refusal leaves nothing behind
    planned = [_planned(common, source, outputs, group, choice) for group in groups]
    for record in planned:
        _stage(common, source, target, record, arguments.jobs)


def _source(common: Common, outputs: RunOutputs) -> Store:
    """Open the store that has the run, as it is: copies on the server need both ends to be buckets."""
    here = open_store(common.store, root=common.root)
    if not common.read_store or here.list(outputs.manifests_prefix("")):
        return here
    return open_store(common.read_store, root=common.root)


def _planned(common: Common, source: Store, outputs: RunOutputs, group: str, choice: Choice) -> StagingRecord:
    read = read_group(source, outputs, group)
    refs = load_refs(common.refs_file, common.root, platform=outputs.platform)
    return planned_record(source, read, chosen_files(read, choice), read_locks(source, outputs, group, refs))


def _stage(common: Common, source: Store, target: Store, planned: StagingRecord, jobs: int) -> None:
    folder = documents.folder(documents.STAGING, planned.family)
    with console.group(f"stage {planned.family}"):
        staged = stage_group(source, target, planned, jobs=jobs)
        if not common.dry_run:
            keys = {file.key for file in planned.files}
            documents.write_pages(target, documents.STAGING, planned.family, expected=keys)
    console.table(
        ("file", "size", "sha256"),
        [(file.name, console.size(file.size), file.sha256[:12]) for file in planned.files],
    )
    where = f"{target.url}/{folder}"
    if common.dry_run:
        console.done(f"stage: {staged.copied} of {len(planned.files)} files would be copied to {where}")
    elif staged.copied:
        console.done(f"stage: {len(planned.files)} files are in {where}, {staged.copied} of them new")
    else:
        console.done(f"stage: unchanged, {len(planned.files)} files are in {where}")


# copies wait for the server, and keep neither this machine's network nor its processors busy
JOBS = 32


def add_distribution_store(parser: argparse.ArgumentParser) -> None:
    """Declare where wheels are handed out from, and which platform's they are."""
    parser.add_argument(
        "--distribution-store",
        default="",
        metavar="STORE",
        help="where wheels are handed out from: a folder or s3://bucket (default: the release type's bucket)",
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


def distribution_store_of(arguments: argparse.Namespace, common: Common) -> Store:
    """Open the store that wheels are handed out from."""
    named = arguments.distribution_store or distribution_store(buckets(), common.release_type)
    return stores.open_store(named, root=common.root, dry_run=common.dry_run)


def listed(words: str) -> tuple[str, ...]:
    """Split a list that commas or semicolons separate."""
    return tuple(word.strip() for word in words.replace(";", ",").split(",") if word.strip())
