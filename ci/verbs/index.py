"""`index`: write the pages of a run's groups, or of any directory of wheels and sdists.

With ``--check``: whether the pages that stay list what is there.
"""

import argparse
import time
from pathlib import Path

from ci.publish.index import FolderSource, IndexUpdate, RecordSource, write_index
from ci.publish.index.names import DISTRIBUTION_SUFFIXES
from core import console, files
from core.cli.options import GROUP_OPTIONS, RUN_OPTIONS, Common, add_group, add_platform, common_from
from core.errors import MissingInputError, StoreError, UsageError
from core.modes import declared_options, refuse_options
from core.parallel import judge_in_threads
from core.run import RunOutputs, artifact_groups
from core.stores import Store
from core.stores.location import open_store

# an upload that still goes on has put a file and not yet what names it; one this old has ended
_HALF_PUBLISHED = 3600

COMMON_OPTIONS = (*GROUP_OPTIONS, *RUN_OPTIONS, "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    group = parser.add_argument_group("the pages of a run, or of a folder")
    group.add_argument(
        "--directory",
        type=Path,
        metavar="DIR",
        help="any directory of wheels and sdists, instead of a run",
    )
    add_group(group, default="the GPU family, else every one")
    add_platform(group)

    checks = parser.add_argument_group("the pages that stay: dependencies, staging and releases")
    checks.add_argument(
        "--check",
        action="store_true",
        help="compare these pages of the store with its files; without --write nothing is written",
    )
    checks.add_argument(
        "--write",
        action="store_true",
        help="write these pages again, as after a yank or a removal",
    )
    checks.add_argument(
        "--yank",
        metavar="RELEASE",
        help="a release to yank: NAME==VERSION, or a file name; with --reason and --write",
    )
    checks.add_argument(
        "--reason",
        metavar="TEXT",
        help="why it is yanked, for who installs it",
    )
    checks.add_argument(
        "--remove",
        metavar="SET",
        help="a promoted set to take out of the release index, such as torch-VERSION; with --write",
    )

    parser.set_defaults(
        run_options=declared_options(parser, "--directory", "--artifact-group", "--platform"),
        check_options=declared_options(parser, "--write", "--yank", "--reason", "--remove"),
    )


def run(arguments: argparse.Namespace) -> None:
    """Index a directory, or every chosen group of the run; or check the pages that stay."""
    common = common_from(arguments)
    if arguments.check:
        refuse_options(arguments, arguments.run_options, mode="with --check")
        _check_lasting_indexes(arguments, common)
        return

    refuse_options(arguments, arguments.check_options, mode="without --check", hint="Add --check.")
    if arguments.directory is not None:
        _report(common, str(arguments.directory), write_directory(common, arguments.directory))
        return
    if left_to_server(common.store):
        console.done(f"index: the server behind {common.store} writes its pages; nothing to do")
        return
    store = common.open_store()
    outputs = common.outputs
    requested_group = arguments.artifact_group or common.artifact_group
    groups = [requested_group] if requested_group else artifact_groups(store, outputs, "")
    for group in groups:
        try:
            write_group(common, group)
        except MissingInputError:
            # Its error says which group or run there is instead.
            artifact_groups(store, outputs, requested_group)
            raise


def _check_lasting_indexes(arguments: argparse.Namespace, common: Common) -> None:
    """Check the pages that stay, or change what they list."""
    from ci.promote.index_check import check_indexes

    if (arguments.yank is None) != (arguments.reason is None):
        raise UsageError("A yank needs a reason.", hint="Give both: --yank NAME==VERSION --reason TEXT.")

    write = arguments.write and not common.dry_run
    check_indexes(
        open_store(common.store, root=common.root, dry_run=not write),
        write=write,
        yanked=arguments.yank,
        reason=arguments.reason,
        removed_set=arguments.remove,
    )


def write_group(common: Common, artifact_group: str) -> None:
    """Write the pages of a group that changed, and report which."""
    store = common.open_store()
    prefix = common.outputs.python_prefix(artifact_group)
    update = write_pages(store, common.outputs, artifact_group)
    _report(common, f"{store.url}/{prefix}", update)


def write_pages(store: Store, outputs: RunOutputs, artifact_group: str) -> IndexUpdate:
    """Write the pages of a group that changed, from the run's records.

    A file whose record or metadata sidecar does not exist yet is held back, as its upload may go on;
    one that has waited for an hour is refused, after what is whole has been listed.
    """
    prefix = outputs.python_prefix(artifact_group)
    source = RecordSource(store=store, prefix=outputs.manifests_prefix(artifact_group))
    update = write_index(store, prefix, source, title=f"{artifact_group} ({outputs.prefix})")
    if not update.file_count and not update.held_back_files:
        raise MissingInputError(
            f"{store.url}/{prefix} holds no wheel or sdist.",
            hint="Build something first: nox -s build_torch.",
        )

    hour_ago = time.time() - _HALF_PUBLISHED
    lines: list[str] = []
    if update.held_back_files:
        for stored_object in store.list(prefix, recursive=False):
            reason = update.held_back_files.get(stored_object.key)
            if reason is not None and stored_object.modified < hour_ago:
                lines.append(f"{stored_object.key} is in {store.url} but {reason}.")
    if lines:
        raise StoreError(
            "\n".join(lines),
            hint="Put it there with nox -s upload -- --input-dir DIR, or take it away.",
        )
    return update


def write_directory(common: Common, directory: Path) -> IndexUpdate:
    """Write pages and metadata sidecars into a directory, from the wheels and sdists themselves."""
    if not directory.is_dir():
        raise MissingInputError(f"{directory} is not a directory.", hint="Name one with --directory.")

    # A listing leaves out what is no file, and so an index would lack it without a word.
    paths = sorted(path for path in directory.iterdir() if path.name.endswith(DISTRIBUTION_SUFFIXES))
    # One by one: a folder answers at once, and threads would take longer than their work.
    judge_in_threads(files.require_regular, paths, jobs=1)
    store = open_store(str(directory.absolute()), root=common.root, dry_run=common.dry_run)
    source = FolderSource(store=store, directory=directory)
    update = write_index(store, "", source, title=directory.absolute().name)
    if not update.file_count:
        raise MissingInputError(
            f"{directory} holds no wheel or sdist.", hint="Name a folder that does with --directory."
        )
    return update


def left_to_server(store: str) -> bool:
    """Whether the server behind a store writes its pages."""
    if "://" not in store:
        return False
    from ci.publish.buckets import buckets, server_writes_pages

    return server_writes_pages(buckets(), store)


def _report(common: Common, folder: str, update: IndexUpdate) -> None:
    for key, reason in update.held_back_files.items():
        console.warn(f"{key} is not listed yet: {reason}.")

    files = console.counted(update.file_count, "file")
    changed_pages = len(update.changed_pages)
    if changed_pages:
        pages = console.counted(changed_pages, "page")
        outcome = "would change" if common.dry_run else "written"
        console.done(f"index: {files}, {pages} {outcome} in {folder}")
    else:
        console.done(f"index: unchanged, {files} listed in {folder}/index.html")
