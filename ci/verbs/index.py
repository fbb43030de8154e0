"""`index`: write the pages of a run's groups, or of any directory of wheels and sdists."""

import argparse
import gc
import time
from pathlib import Path

from ci.publish.index import Files, Indexed, Records, write_index
from core import console
from core.cli.options import Common, add_group, add_platform, common_from
from core.errors import MissingInputError, StoreError
from core.run import RunOutputs, artifact_groups, group_name
from core.stores import Store
from core.stores.location import open_store

# an upload that still goes on has put a file and not yet what names it; one this old has ended
_HALF_PUBLISHED = 3600


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "any directory of wheels and sdists, instead of a run"
    parser.add_argument("--directory", type=Path, metavar="DIR", help=what)
    add_group(parser, default="the GPU family, else every one")
    add_platform(parser)


def run(arguments: argparse.Namespace) -> None:
    """Index a directory, or every chosen group of the run."""
    common = common_from(arguments)
    if arguments.directory is not None:
        _say(common, str(arguments.directory), write_directory(common, arguments.directory))
        return
    if left_to_server(common.store):
        console.done(f"index: the server behind {common.store} writes its pages; nothing to do")
        return
    store, outputs = common.open_store(), common.outputs
    chosen = group_name(arguments.artifact_group) or common.artifact_group
    for group in [chosen] if chosen else artifact_groups(store, outputs, ""):
        try:
            write_group(common, group)
        except MissingInputError:
            artifact_groups(store, outputs, chosen)  # which group or run there is instead
            raise


def write_group(common: Common, artifact_group: str) -> None:
    """Write the pages of a group that changed, and report which."""
    store, outputs = common.open_store(), common.outputs
    indexed = write_pages(store, outputs, artifact_group)
    _say(common, f"{store.url}/{outputs.python_prefix(artifact_group)}", indexed)


def write_pages(store: Store, outputs: RunOutputs, artifact_group: str) -> Indexed:
    """Write the pages of a group that changed, from the run's records.

    A file whose record or metadata sidecar does not exist yet is held back, as its upload may go on;
    one that has waited for an hour is refused, after what is whole has been listed.
    """
    gc.set_threshold(500_000)  # an index makes a hundred thousand small values, and no cycles
    prefix = outputs.python_prefix(artifact_group)
    source = Records(store=store, prefix=outputs.manifests_prefix(artifact_group))
    indexed = write_index(store, prefix, source, title=f"{artifact_group} ({outputs.prefix})")
    if not indexed.files and not indexed.held:
        raise MissingInputError(
            f"{store.url}/{prefix} holds no wheel or sdist.",
            hint="Build something first: nox -s build_torch.",
        )
    old = [held for held in indexed.held if held.stored.modified < time.time() - _HALF_PUBLISHED]
    if old:
        raise StoreError(
            "\n".join(f"{held.stored.key} is in {store.url} but {held.why}." for held in old),
            hint="Put it there with nox -s upload -- --input-dir DIR, or take it away.",
        )
    return indexed


def write_directory(common: Common, directory: Path) -> Indexed:
    """Write pages and metadata sidecars into a directory, from the wheels and sdists themselves."""
    if not directory.is_dir():
        raise MissingInputError(f"{directory} is not a directory.", hint="Name one with --directory.")
    import tempfile

    store = open_store(str(directory.absolute()), root=common.root, dry_run=common.dry_run)
    with tempfile.TemporaryDirectory() as folder:
        source = Files(store=store, folder=Path(folder))
        indexed = write_index(store, "", source, title=directory.absolute().name)
    if not indexed.files:
        raise MissingInputError(
            f"{directory} holds no wheel or sdist.", hint="Name a folder that does with --directory."
        )
    return indexed


def left_to_server(store: str) -> bool:
    """Whether the server behind a store writes its pages."""
    if "://" not in store:
        return False
    from ci.publish.buckets import buckets, server_writes_pages

    return server_writes_pages(buckets(), store)


def _say(common: Common, where: str, indexed: Indexed) -> None:
    for held in indexed.held:
        console.warn(f"{held.stored.key} is not listed yet: {held.why}.")
    if changed := len(indexed.changed):
        pages = f"{console.counted(changed, 'page')} {'would change' if common.dry_run else 'written'}"
        console.done(f"index: {console.counted(indexed.files, 'file')}, {pages} in {where}")
    else:
        console.done(
            f"index: unchanged, {console.counted(indexed.files, 'file')} listed in {where}/index.html"
        )
