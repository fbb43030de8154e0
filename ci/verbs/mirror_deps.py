"""`mirror-deps`: the index of dependencies alone, which stands beside the indexes of runs.

A distribution of ours is in none of its pages: so pip, which takes the highest version of all
indexes, can find ours in the run's index only.
"""

import argparse
from collections.abc import Mapping, Sequence

from ci.install.dependencies import (
    MirrorData,
    collect_needs,
    key_of,
    mirror,
    mirror_files,
    resolve_needs,
    source_of,
)
from ci.publish.batches import print_files
from ci.publish.index import write_index
from core import console, files
from core.cell import Cell
from core.cli.options import (
    GROUP_OPTIONS,
    RUN_OPTIONS,
    Common,
    add_from_run,
    add_group,
    common_from,
    is_given,
)
from core.errors import StoreError
from core.packages.candidates import Candidate
from core.packages.groups import RunGroup
from core.run import artifact_groups, records
from core.run.records import FileRecord
from core.stores import Store

COMMON_OPTIONS = (*GROUP_OPTIONS, *RUN_OPTIONS, "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_from_run(
        parser, "a run whose wheels' requirements are mirrored, too, beside those that ci/mirror.toml knows"
    )
    add_group(parser, default="every one")


def run(arguments: argparse.Namespace) -> None:
    """Mirror what is missing, and write the pages."""
    mirror_data = mirror()
    common = common_from(arguments)
    store = common.open_store()
    with console.group("Resolving what our wheels require"):
        files_by_cell = resolve_needs(
            mirror_data, collect_needs(mirror_data, _groups_of_run(common, arguments))
        )

    missing_by_cell = missing_files(mirror_data, store, files_by_cell)
    count = _count(files_by_cell)
    missing_count = _count(missing_by_cell)
    console.say(
        f"{count} files for Python {', '.join(mirror_data.pythons)} on {', '.join(mirror_data.platforms)}: "
        f"{count - missing_count} are there, {missing_count} are missing."
    )
    if common.dry_run:
        _show_missing(missing_by_cell)
        return

    if missing_by_cell:
        new_files = mirror_files(mirror_data, store, missing_by_cell)
        _write_record(common, mirror_data, store, new_files)
        print_files(new_files)
    update = write_index(store, mirror_data.prefix, source_of(mirror_data, store), title="Dependencies")
    console.done(
        f"mirror_deps: {update.file_count} files in {store.url}/{mirror_data.prefix}, "
        f"{missing_count} of them new, {len(update.changed_pages)} pages written"
    )


def _groups_of_run(common: Common, arguments: argparse.Namespace) -> Sequence[RunGroup]:
    """Return the groups of the run that is named; none where none is."""
    if not is_given(arguments, "run_id"):
        return ()
    store = common.open_for_reading()
    requested_group = arguments.artifact_group or common.artifact_group
    names = artifact_groups(store, common.outputs, requested_group)
    return [RunGroup(store=store, outputs=common.outputs, name=name) for name in names]


def missing_files(
    mirror_data: MirrorData,
    store: Store,
    files_by_cell: Mapping[Cell, Sequence[Candidate]],
) -> Mapping[Cell, Sequence[Candidate]]:
    """Return the files that are not mirrored yet; refuse one that was mirrored with other bytes."""
    digests = mirrored_digests(mirror_data, store)
    missing_by_cell: dict[Cell, list[Candidate]] = {}
    for cell, cell_files in files_by_cell.items():
        for file in cell_files:
            if file.name not in digests:
                missing_by_cell.setdefault(cell, []).append(file)
            elif digests[file.name] != file.sha256:
                raise StoreError(
                    f"{store.url}/{key_of(mirror_data, file)} was mirrored with the digest "
                    f"{digests[file.name]}, and the public index has {file.sha256} under that name.",
                    hint="One of them was replaced. Find out which before anybody installs it.",
                )
    return missing_by_cell


def mirrored_digests(mirror_data: MirrorData, store: Store) -> Mapping[str, str]:
    """Return the digests of what was mirrored before, by file name."""
    source = source_of(mirror_data, store)
    files_by_record = source.read_records(list(source.list_records()), mirror_data.prefix)
    digests: dict[str, str] = {}
    for recorded_files in files_by_record.values():
        for recorded_file in recorded_files:
            digests[recorded_file.filename] = recorded_file.sha256
    return digests


def _count(files_by_cell: Mapping[Cell, Sequence[Candidate]]) -> int:
    return sum(len(cell_files) for cell_files in files_by_cell.values())


def _show_missing(missing_by_cell: Mapping[Cell, Sequence[Candidate]]) -> None:
    rows: list[tuple[str, str]] = []
    for cell_files in missing_by_cell.values():
        rows += [(file.name, file.require_digest()[:12]) for file in cell_files]
    console.table(("file to mirror", "sha256"), sorted(rows))


def _write_record(
    common: Common,
    mirror_data: MirrorData,
    store: Store,
    new_files: Sequence[FileRecord],
) -> None:
    """Record what this call has mirrored, under a name that follows from it."""
    sorted_files = sorted(new_files, key=lambda file: file.name)
    record = records.Record(
        stage="mirror_deps",
        run_id=common.run_id,
        platform=common.outputs.platform,
        started=records.now(),
        seconds=0,
        files=tuple(sorted_files),
    )
    digest = files.digest_of([(file.name, file.sha256) for file in sorted_files])
    key = f"{mirror_data.prefix}/manifests/mirror_deps-{digest[:16]}.json"
    store.put_bytes(key, records.serialize(record))
