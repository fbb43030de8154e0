"""`provenance`: how each wheel was made, and the run's bill of materials, from its records."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from core import console
from core.cli.options import (
    GROUP_OPTIONS,
    RUN_OPTIONS,
    Common,
    add_group,
    add_platform,
    add_store_names,
    common_from,
)
from core.status import Status, UpToDate
from core.stores import Store

if TYPE_CHECKING:
    from ci.provenance.statements import WrittenProvenance

COMMON_OPTIONS = (*GROUP_OPTIONS, *RUN_OPTIONS, "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_store_names(parser)
    add_group(parser, default="the GPU family, else every one; the bill of materials is the whole run's")
    add_platform(parser)


def run(arguments: argparse.Namespace) -> None:
    """Write statements and the bill of materials."""
    common = common_from(arguments)
    store = common.open_store()
    report(store, _write_provenance(store, common, arguments.artifact_group))


def look(arguments: argparse.Namespace) -> Status:
    """Return whether a statement, or the bill of materials, would change. Nothing is changed."""
    common = replace(common_from(arguments), dry_run=True)
    store = common.open_store()
    provenance = _write_provenance(store, common, arguments.artifact_group)
    status = common.planned_status
    if isinstance(status, UpToDate):
        report(store, provenance)
    return status


def _write_provenance(
    store: Store,
    common: Common,
    artifact_group: str,
) -> WrittenProvenance:
    from ci.provenance.statements import write_provenance

    return write_provenance(store, common.outputs, artifact_group or common.artifact_group)


def report(store: Store, provenance: WrittenProvenance) -> None:
    """Print what was written, and where it lies."""
    for run_file in provenance.without_statement:
        name = run_file.file.name
        console.say(f"{name}: no statement, as no build's record names it ({run_file.record.stage})")
    for key in provenance.removed_keys:
        console.say(f"removed: {key}")

    if provenance.problem:
        console.warn(
            f"{provenance.sbom_key} is not written, as another group has what cannot be read: "
            f"{provenance.problem}"
        )
    else:
        console.say(f"sbom     {store.url_of(provenance.sbom_key)} ({provenance.sbom_outcome})")

    new_statements = sum(outcome != "unchanged" for outcome in provenance.statements.values())
    result = "unchanged"
    if new_statements:
        result = f"{new_statements} of {len(provenance.statements)} statements written"
    console.done(f"provenance: {result}")
