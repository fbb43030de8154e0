"""Which groups of a plan need ROCm from elsewhere, and the plan once it is known where that comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.run.plan import FETCH, Decision, LeftOut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.run.outputs import Platform
    from core.run.plan import Cell, Plan, RocmOrigin

PACKAGE = "build_rocm"


@dataclass(frozen=True, kw_only=True)
class Need:
    """One artifact group that needs ROCm."""

    platform: Platform
    artifact_group: str
    gpu_family: str


def needs(plan: Plan) -> Mapping[str, Sequence[Need]]:
    """List the groups of a plan that need ROCm from elsewhere, by build variant."""
    found: dict[str, dict[Need, None]] = {}
    for cell in plan.cells:
        if FETCH in cell.sessions:
            need = Need(
                platform=cell.platform, artifact_group=cell.artifact_group, gpu_family=cell.gpu_family
            )
            found.setdefault(cell.build_variant, {})[need] = None
    return {variant: tuple(some) for variant, some in found.items()}


def completed(plan: Plan, origins: Sequence[RocmOrigin], notes: Sequence[str] = ()) -> Plan:
    """Write into a plan where its ROCm comes from; what an index has is neither built nor tested here."""
    indexed = {(one.platform, one.artifact_group): one for one in origins if one.index_url}
    left_out = list(plan.left_out)
    cells: list[Cell] = []
    for cell in plan.cells:
        origin = indexed.get((cell.platform, cell.artifact_group))
        if origin is None:
            cells.append(cell)
        elif cell.stage.endswith("rocm"):
            what = f"{cell.stage}, {cell.artifact_group} on {cell.platform}"
            reason = f"ROCm {origin.version} comes from {origin.index_url}"
            left_out.append(LeftOut(what=what, reason=reason))
        else:
            sessions = tuple(one for one in cell.sessions if one not in {FETCH, PACKAGE})
            cells.append(cell.model_copy(update={"sessions": sessions}))
    version = next((one.version for one in indexed.values()), plan.rocm.version)
    held = {(one.platform, one.artifact_group) for one in cells}
    enabled = plan.enable_build_jobs
    if plan.cells and not cells:
        reason = f"ROCm {version} comes from an index, and PyTorch is not built: {plan.build_pytorch.reason}"
        enabled = Decision(value=False, reason=reason)
    return plan.model_copy(
        update={
            "enable_build_jobs": enabled,
            "rocm": plan.rocm.model_copy(update={"version": version, "origins": tuple(origins)}),
            "variants": tuple(one for one in plan.variants if (one.platform, one.artifact_group) in held),
            "cells": tuple(cells),
            "left_out": tuple(left_out),
            "notes": (*plan.notes, *notes),
        }
    )
