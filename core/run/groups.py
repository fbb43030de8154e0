"""Which artifact groups of a run a stage works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import MissingInputError, nearest
from core.run.outputs import group_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.run.outputs import RunOutputs
    from core.stores import Store


def artifact_groups(store: Store, outputs: RunOutputs, chosen: str) -> Sequence[str]:
    """List the groups that hold wheels: all, or the one of the chosen GPU family.

    Raises:
        MissingInputError: The run holds none, or not the chosen one.
    """
    prefix = f"{outputs.prefix}/python"
    found = sorted({stored.key.removeprefix(f"{prefix}/").split("/")[0] for stored in store.list(prefix)})
    if not found:
        raise MissingInputError(
            f"Run {outputs.run_id} has no wheels in {store.url}/{prefix}.",
            hint="Build something first (nox -s build_torch), or name another run with --run-id.",
        )
    chosen = group_name(chosen)
    if chosen and chosen not in found:
        raise MissingInputError(
            f"Run {outputs.run_id} has no group {chosen!r} in {store.url}.", hint=nearest(chosen, found)
        )
    return [chosen] if chosen else found
