"""`provenance`: how each wheel was made, and the run's bill of materials, from its records."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from core import console
from core.cli.options import add_group, add_platform, add_store_names, common_from
from core.status import Status, UpToDate
from core.stores import Store

if TYPE_CHECKING:
    from ci.provenance.statements import Written


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_store_names(parser)
    add_group(parser, default="the GPU family, else every one; the bill of materials is the whole run's")
    add_platform(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write statements and the bill of materials."""
    from ci.provenance.statements import write_provenance

    common = common_from(arguments)
    store, group = common.open_store(), arguments.artifact_group or common.artifact_group
    report(store, write_provenance(store, common.outputs, group))


def look(arguments: argparse.Namespace) -> Status:
    """Return whether a statement, or the bill of materials, would change. Nothing is changed."""
    from ci.provenance.statements import write_provenance

    common = replace(common_from(arguments), dry_run=True)
    store, group = common.open_store(), arguments.artifact_group or common.artifact_group
    written = write_provenance(store, common.outputs, group)
    status = common.planned_status
    if isinstance(status, UpToDate):
        report(store, written)
    return status


def report(store: Store, written: Written) -> None:
    """Print what was written, and where it lies."""
    for one in written.without:
        console.say(f"{one.file.name}: no statement, as no build's record names it ({one.by.record.stage})")
    for key in written.removed:
        console.say(f"removed: {key}")
    new = sum(outcome != "unchanged" for _, outcome in written.made)
    if written.problem:
        console.warn(
            f"{written.sbom} is not written, as another group has what cannot be read: {written.problem}"
        )
    else:
        console.say(f"sbom     {store.url_of(written.sbom)} ({written.sbom_outcome})")
    console.done(f"provenance: {f'{new} of {len(written.made)} statements written' if new else 'unchanged'}")
