"""`report`: what a run made, from its records alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ci.groups import artifact_groups
from core import console, records
from core.options import common_from
from core.stores.overlay import holding

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from core.records import Record


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument("--json", action="store_true", help="print the records as JSON instead")


def run(arguments: argparse.Namespace) -> None:
    """Print the table of every chosen group, and where everything lies."""
    common = common_from(arguments)
    store, outputs = common.open_for_reading(), common.outputs
    for group in artifact_groups(store, outputs, common.gpu_family):
        found = chosen(records.read_all(store, outputs, group), common.torch_ref)
        if arguments.json:
            console.result(json.dumps([record.model_dump(mode="json") for record in found], indent=2))
            continue
        title = f"run {outputs.run_id}, {group}"
        console.table(("wheel", "version", "size", "seconds", "sha256"), rows(found), title=title)
        for record in found:
            if record.status == "failed":
                console.error(f"{record.stage} failed: {record.error}")
        page = f"{outputs.python_prefix(group)}/index.html"
        place = holding(store, next((one.key for record in found for one in record.files), page)).url
        prefix = f"{place}/{outputs.python_prefix(group)}"
        console.say(f"wheels   {prefix}/")
        console.say(f"index    {prefix}/index.html  (pip install --find-links)")
        console.say(f"records  {place}/{outputs.manifests_prefix(group)}/")
        console.summary(markdown(title, found))


def chosen(found: Sequence[Record], torch_ref: str) -> Sequence[Record]:
    """Take the records of one ref, if one is named, in the order that their stages ran."""
    ours = (record for record in found if not torch_ref or record.cell.torch_ref in {"", torch_ref})
    return sorted(ours, key=lambda record: record.started)


def rows(found: Sequence[Record]) -> Sequence[tuple[str, str, str, str, str]]:
    """Give a row a file: distribution, version, size, seconds of its stage, digest."""
    return [
        (one.name, one.version, console.size(one.size), f"{record.seconds:.1f}", one.sha256[:12])
        for record in found
        if record.status == "ok"
        for one in record.files
    ]


def markdown(title: str, found: Sequence[Record]) -> str:
    """Write the same table for a job summary."""
    head = [f"### {title}", "", "| wheel | version | size | seconds | sha256 |", "|---|---|---|---|---|"]
    return "\n".join([*head, *("| " + " | ".join(row) + " |" for row in rows(found))])
