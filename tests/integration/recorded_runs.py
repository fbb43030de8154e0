"""Runs of wheels that no stage built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ci.verbs import index
from core.run import records
from core.run.records import Record
from core.wheel import distributions

if TYPE_CHECKING:
    from pathlib import Path

    from core.run.outputs import RunOutputs
    from core.stores import Store


def indexed(store: Store, outputs: RunOutputs, group: str, *paths: Path) -> str:
    """Put files into a run, each with a record, and write its pages; give the folder of these."""
    for path in paths:
        one = distributions.publish(store, outputs, group, path)
        made = Record(
            stage=path.name,
            run_id=outputs.run_id,
            platform=outputs.platform,
            started=records.now(),
            seconds=0,
            files=(one,),
        )
        records.write(store, outputs, group, made)
    index.write_pages(store, outputs, group)
    return outputs.python_prefix(group)
