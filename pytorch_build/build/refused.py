"""Wheels that were built and then refused: kept on this machine, so that they need not be built again.

The record of the failure says which they are, what they were made from, and how far their checks came.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from core import files
from core.errors import FatalError
from core.run import records
from core.run.stage import Stage

REFUSED = "refused"  # where the record's details have it


def folder(run: Stage) -> Path:
    """Return where the wheels of a cell lie that were refused last."""
    place = run.common.cache / REFUSED / run.outputs.prefix / run.artifact_group
    return place / records.record_name(run.name, run.cell)


def kept(run: Stage, input_digest: str = "") -> records.Record | None:
    """Return the record of the wheels that lie here as they were refused: of these inputs, or of any."""
    name = f"{records.record_name(run.name, run.cell)}.failed"
    record = records.read(run.store, run.outputs, run.artifact_group, name)
    if record is None or REFUSED not in record.details or input_digest not in {"", record.input_digest}:
        return None
    here = {path.name: files.sha256(path) for path in folder(run).glob("*.whl")}
    return record if here == record.details[REFUSED]["wheels"] else None


def keep(run: Stage, wheels: Sequence[Path], problem: FatalError) -> dict[str, Any]:
    """Keep wheels in the place of those from before; say where in the error, and return it for the record."""
    with files.replaced(folder(run)) as fresh:
        for path in wheels:
            files.link_or_copy(path, fresh / path.name)
    place = str(folder(run).relative_to(run.common.root))
    problem.hint += (
        f"\nThe wheel is kept in {place}: the same command checks it again without a build "
        "(--policy FILE: by limits of your own), and --force builds it anew."
    )
    return {"folder": place, "wheels": {path.name: files.sha256(path) for path in wheels}}
