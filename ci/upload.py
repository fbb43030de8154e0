"""`upload`: put a run's wheels, sidecars and records into a store.

Wheels first, then sidecars, then records, so that a reader never sees half; pages are the
`index` stage's.
"""

from __future__ import annotations

import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ci.groups import artifact_groups
from core import console, distributions, files, records, stores
from core.errors import MissingInputError, StoreError, UsageError
from core.options import DEFAULT_STORE, common_from
from core.outputs import group_name
from core.records import Cell, FileRecord, Record

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from core.options import Common
    from core.stores import Store


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "--input-dir",
        "--packages-dir",
        "--input-packages-dir",
        type=Path,
        metavar="DIR",
        help="a folder of wheels and sdists (default: the run's outputs in ./out)",
    )
    parser.add_argument(
        "--artifact-group", default="", metavar="GROUP", help="group (default: the GPU family)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Upload a folder's files, or the run that lies in the default store."""
    common = common_from(arguments)
    group = arguments.artifact_group or group_name(common.gpu_family)
    if arguments.input_dir is not None:
        if not group:
            raise UsageError(
                "--input-dir needs the group it goes to.", hint="Give --gpu-family or --artifact-group."
            )
        upload_folder(common, arguments.input_dir, group)
        return
    source = stores.open_store(DEFAULT_STORE, root=common.root)
    for one in artifact_groups(source, common.outputs, group):
        upload_group(common, source, one)
    upload_locks(common, source)


def upload_folder(common: Common, folder: Path, artifact_group: str) -> Sequence[FileRecord]:
    """Put a folder's wheels and sdists into the run, with a record that names them.

    Raises:
        MissingInputError: The folder holds none.
        StoreError: A name is taken by other bytes in an immutable run.
    """
    paths = sorted(path for path in folder.glob("*") if distributions.is_distribution(path.name))
    if not paths:
        raise MissingInputError(
            f"{folder} holds no wheel or sdist.", hint="Give a folder that does with --input-dir."
        )
    store, outputs = common.open_store(), common.outputs
    named = records.promised(records.read_all(store, outputs, artifact_group))
    put = []
    for path in paths:
        # recorded one by one: what a later file's refusal leaves behind can be indexed
        one = _publish_copy(common, artifact_group, path)
        put.append(one)
        if one.sha256 in named.get(one.key, ()):
            continue
        # each file has a record of its own, so that two uploads to one run never share one
        record = Record(
            stage=f"upload-{one.name}",
            run_id=outputs.run_id,
            platform=outputs.platform,
            cell=Cell(gpu_family=artifact_group),
            started=records.now(),
            seconds=0,
            files=(one,),
        )
        records.write(store, outputs, artifact_group, record)
    _say(common, artifact_group, put)
    return put


def _publish_copy(common: Common, artifact_group: str, path: Path) -> FileRecord:
    """Publish a copy, as the store may link what it gets and the folder is a person's to write in."""
    with tempfile.TemporaryDirectory(dir=files.made(common.cache), prefix="upload.") as folder:
        mine = Path(folder) / path.name
        files.copy(path, mine)
        return distributions.publish(common.open_store(), common.outputs, artifact_group, mine)


def upload_group(common: Common, source: Store, artifact_group: str) -> Sequence[FileRecord]:
    """Put one group of a run from the default store into the chosen one, each file held against its record.

    Raises:
        MissingInputError: The group has no record of a wheel.
        StoreError: A file differs from its record, or its name is taken by other bytes.
    """
    store, outputs = common.open_store(), common.outputs
    found = [record for record in records.read_all(source, outputs, artifact_group) if record.status == "ok"]
    promised = records.promised(found)
    if not promised:
        raise MissingInputError(
            f"No record of group {artifact_group} names a wheel.", hint="Build something first."
        )
    put = []
    for key in sorted(promised):
        path = source.fetch(key, common.cache / "fetched")
        digest = source.digest(key)
        if digest not in promised[key]:
            raise StoreError(
                f"{path} is not the file that its record names.", hint="Build it again with --force."
            )
        put.append(distributions.publish(store, outputs, artifact_group, path, sha256=digest))
    for record in found:
        records.write(store, outputs, artifact_group, record)
    if source.url == store.url:
        where = f"{store.url}/{outputs.python_prefix(artifact_group)}"
        console.done(f"upload: unchanged, {len(put)} files in {where} are as recorded")
    else:
        _say(common, artifact_group, put)
    return put


def upload_locks(common: Common, source: Store) -> Sequence[str]:
    """Put the run's source locks into the store, which stages there take commits and versions from."""
    store, outputs = common.open_store(), common.outputs
    keys = [stored.key for stored in source.list(f"{outputs.prefix}/manifests")]
    locks = [key for key in keys if PurePosixPath(key).name.startswith("source-lock-")]
    for key in locks:
        store.put_bytes(key, source.read(key), replace=not outputs.immutable)
    return locks


def _say(common: Common, artifact_group: str, put: Sequence[FileRecord]) -> None:
    where = f"{common.open_store().url}/{common.outputs.python_prefix(artifact_group)}"
    verb = "would be put" if common.dry_run else "are"
    console.table(
        ("file", "size", "sha256"), [(one.name, console.size(one.size), one.sha256[:12]) for one in put]
    )
    console.done(f"upload: {len(put)} files {verb} in {where}")
