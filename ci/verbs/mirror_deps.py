"""`mirror-deps`: the index of dependencies alone, which stands beside the indexes of runs.

A distribution of ours is in none of its pages: so pip, which takes the highest version of all
indexes, can find ours in the run's index only.
"""

import argparse
from collections.abc import Mapping, Sequence

from ci.install.dependencies import Mirror, MirroredFile, bring, mirror, needs, resolved, source_of
from ci.publish.batches import show
from ci.publish.index import write_index
from core import console, files
from core.cli.options import add_from_run, add_group, common_from, is_given
from core.errors import StoreError
from core.packages.groups import RunGroup, recorded_candidates
from core.run import artifact_groups, records
from core.stores import Store


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "a run whose wheels' requirements are mirrored, too, beside those that ci/mirror.toml knows"
    add_from_run(parser, what)
    add_group(parser, default="every one")


def run(arguments: argparse.Namespace) -> None:
    """Mirror what is missing, and write the pages."""
    data = mirror()
    common = common_from(arguments)
    where, chosen = common.open_for_reading(), arguments.artifact_group or common.artifact_group
    names = artifact_groups(where, common.outputs, chosen) if is_given(arguments, "run_id") else ()
    groups = [RunGroup(store=where, outputs=common.outputs, name=name) for name in names]
    store = common.open_store()
    with console.group("Resolving what our wheels require"):
        wanted = needs(data, groups, [recorded_candidates(group) for group in groups])
        sources = resolved(data, wanted)
    have = recorded(data, store)
    missing = absent(data, store, sources, have)
    console.say(
        f"{len(sources)} files for Python {', '.join(data.pythons)} on {', '.join(data.platforms)}: "
        f"{len(sources) - len(missing)} are there, {len(missing)} are missing."
    )
    if common.dry_run:
        console.table(
            ("file to mirror", "sha256"), [(one.name, one.require_digest()[:12]) for one in missing]
        )
        return
    if missing:
        # also what an interrupted call put there without a record
        present = frozenset(stored.key for stored in store.list(data.prefix, recursive=False))
        put = bring(data, store, missing, present)
        made = sorted(put, key=lambda one: one.name)
        record = records.Record(
            stage="mirror_deps",
            run_id=common.run_id,
            platform=common.outputs.platform,
            started=records.now(),
            seconds=0,
            files=tuple(made),
        )
        name = files.digest_of([(one.name, one.sha256) for one in made])[:16]
        store.put_bytes(f"{data.prefix}/manifests/mirror_deps-{name}.json", records.serialize(record))
        show(put)
    update = write_index(store, data.prefix, source_of(data, store), title="Dependencies")
    console.done(
        f"mirror_deps: {update.file_count} files in {store.url}/{data.prefix}, {len(missing)} of them new, "
        f"{len(update.changed_pages)} pages written"
    )


def recorded(data: Mirror, store: Store) -> Mapping[str, str]:
    """List what was mirrored before: file name to SHA-256."""
    source = source_of(data, store)
    files_by_record = source.read_records(list(source.list_records()), data.prefix)
    digests: dict[str, str] = {}
    for recorded_files in files_by_record.values():
        digests.update((recorded_file.filename, recorded_file.sha256) for recorded_file in recorded_files)
    return digests


def absent(
    data: Mirror, store: Store, sources: Sequence[MirroredFile], have: Mapping[str, str]
) -> Sequence[MirroredFile]:
    """List what is not mirrored yet."""
    for one in sources:
        if have.get(one.name, one.sha256) != one.sha256:
            raise StoreError(
                f"{store.url}/{data.prefix}/{one.name} was mirrored with the digest "
                f"{have[one.name]}, and the public index has {one.sha256} under that name.",
                hint="One of them was replaced. Find out which before anybody installs it.",
            )
    return [one for one in sources if one.name not in have]
