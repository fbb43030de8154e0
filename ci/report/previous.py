"""Which run of a store came before another one and built the same cells: what is held against it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ci.report.cell_name import CellName
from ci.report.words import natural
from core.run.outputs import LOCAL_RUN, key_name

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from ci.report.reading import RunFacts
    from core.run.outputs import RunOutputs
    from core.stores import Store

MOST = 25
"""How many runs are looked into: a request each, in a bucket."""


def previous(store: Store, outputs: RunOutputs, facts: RunFacts) -> str:
    """Find the last run before this one that built all of its cells; "" where there is none."""
    cells = built(facts)
    found = earlier(store.folders(outputs.external_repo), outputs) if cells else ()
    for run_id in found[:MOST]:
        prefix = f"{outputs.external_repo}{run_id}-{outputs.platform}/manifests/"
        if has_built({one.key.removeprefix(prefix) for one in store.list(prefix)}, cells):
            return run_id
    return ""


def built(facts: RunFacts) -> frozenset[CellName]:
    """Name the cells that a run built, or tried to build."""
    return frozenset(
        CellName(group=group.name, torch_ref=record.cell.torch_ref, python=record.cell.python)
        for group in facts.groups
        for _, record in group.records
        if record.stage.startswith("build_") and record.cell.torch_ref
    )


def earlier(folders: Iterable[str], outputs: RunOutputs) -> Sequence[str]:
    """Give the runs before this one, the last first: a run's id grows, as those of GitHub do."""
    end = f"-{outputs.platform}"
    runs = {one.removesuffix(end) for one in folders if one.endswith(end)} - {LOCAL_RUN, outputs.run_id}
    own = natural(outputs.run_id)
    before = [one for one in runs if outputs.run_id == LOCAL_RUN or natural(one) < own]
    return sorted(before, key=natural, reverse=True)


def has_built(records: Collection[str], cells: Iterable[CellName]) -> bool:
    """Whether a run built cells, and no build of theirs failed."""
    return all(_has_built(records, cell) for cell in cells)


def _has_built(records: Collection[str], cell: CellName) -> bool:
    name = re.escape(key_name("-".join(part for part in (cell.torch_ref, cell.python) if part)))
    pattern = re.compile(rf"{re.escape(cell.group)}/build_[a-z]+-{name}(\.failed)?\.json")
    found = [one for one in records if pattern.fullmatch(one)]
    return bool(found) and not any(one.endswith(".failed.json") for one in found)
