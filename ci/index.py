"""`index`: write a group's pages from a listing of the run's outputs and the stages' records."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from email import message_from_bytes
from typing import TYPE_CHECKING

from ci.groups import artifact_groups
from ci.pages import Entry, flat_page, simple_pages
from core import console, distributions, records
from core.distributions import SIDECAR
from core.errors import ConflictError, MissingInputError, StoreError
from core.options import common_from

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from core.distributions import Distribution
    from core.outputs import RunOutputs
    from core.stores import Store

_TRIES = 5


@dataclass(frozen=True, kw_only=True)
class Indexed:
    """What `write_pages` did.

    Attributes:
        files: How many wheels and sdists the pages list.
        written: Keys of the pages that changed.
    """

    files: int
    written: tuple[str, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options: none beyond the common ones."""
    parser.epilog = "Without --gpu-family, every artifact group of the run is indexed."


def run(arguments: argparse.Namespace) -> None:
    """Index every chosen group of the run."""
    common = common_from(arguments)
    store, outputs = common.open_store(), common.outputs
    for group in artifact_groups(store, outputs, common.gpu_family):
        indexed = write_pages(store, outputs, group)
        where = f"{store.url}/{outputs.python_prefix(group)}"
        if indexed.written:
            verb = "would be written" if common.dry_run else "written"
            console.done(f"index: {indexed.files} files, {len(indexed.written)} pages {verb} in {where}")
        else:
            console.done(f"index: unchanged, {indexed.files} files listed in {where}/index.html")


def write_pages(store: Store, outputs: RunOutputs, artifact_group: str) -> Indexed:
    """Write the pages that changed; again from a fresh listing when somebody else was first.

    Raises:
        MissingInputError: The group holds no wheel or sdist.
        StoreError: A listed file is absent, or differs from what its record says.
    """
    for _ in range(_TRIES):
        try:
            return _write_once(store, outputs, artifact_group)
        except ConflictError:
            console.say("Somebody else wrote a page meanwhile; listing again.")
    raise StoreError(
        f"The pages of {outputs.python_prefix(artifact_group)} were written by others {_TRIES} times.",
        hint="Run nox -s index again when the run's uploads have ended.",
    )


def _write_once(store: Store, outputs: RunOutputs, artifact_group: str) -> Indexed:
    prefix = outputs.python_prefix(artifact_group)
    # etags first: a file that appears after this listing makes the writes below conflict
    etags = {stored.key: stored.etag for stored in store.list(prefix) if stored.key.endswith(".html")}
    listed = distributions.in_run(store, outputs, artifact_group)
    if not listed:
        raise MissingInputError(
            f"{store.url}/{prefix} holds no wheel or sdist.",
            hint="Build something first: nox -s build_torch.",
        )
    entries = tuple(
        _entry(store, one, recorded) for one, recorded in _recorded(store, outputs, artifact_group, listed)
    )
    pages = {f"{prefix}/simple/{path}": page for path, page in simple_pages(entries).items()}
    pages[f"{prefix}/index.html"] = flat_page(f"{artifact_group} ({outputs.prefix})", entries)
    written = [
        key
        for key, page in pages.items()
        if store.put_bytes(key, page.encode(), if_match=etags.get(key, "")) != "unchanged"
    ]
    stale = [key for key in etags if key not in pages]
    for key in stale:
        store.delete(key)
    return Indexed(files=len(entries), written=(*written, *stale))


def _recorded(
    store: Store, outputs: RunOutputs, artifact_group: str, listed: Sequence[Distribution]
) -> Sequence[tuple[Distribution, str]]:
    """Pair each listed file with the digest that its record promises, and hold them against each other."""
    promised = records.promised(records.read_all(store, outputs, artifact_group))
    present = {one.key for one in listed}
    for key in promised:
        if key not in present:
            raise StoreError(
                f"{key} is recorded but not in {store.url}.", hint="Run the stage that made it again."
            )
    held = []
    for found in listed:
        if found.key not in promised:
            raise StoreError(
                f"{found.key} is in {store.url} but no record names it.",
                hint="Put it there with nox -s upload -- --input-dir DIR, or take it away.",
            )
        digest = store.digest(found.key)
        if digest not in promised[found.key]:
            raise StoreError(
                f"{found.key} in {store.url} differs from its record.", hint="Build it again with --force."
            )
        held.append((found, digest))
    return held


def _entry(store: Store, one: Distribution, sha256: str) -> Entry:
    sidecar = f"{one.key}{SIDECAR}"
    if not one.is_wheel or store.find(sidecar) is None:
        return Entry(filename=one.filename, name=one.name, version=one.version, sha256=sha256)
    metadata = store.read(sidecar)
    return Entry(
        filename=one.filename,
        name=one.name,
        version=one.version,
        sha256=sha256,
        requires_python=str(message_from_bytes(metadata).get("Requires-Python", "")),
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
    )
