"""A plan as a workflow reads it: the jobs of each family, and the sets that go out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.run.plans import PLATFORMS, STAGES, Cell

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.run.outputs import Platform
    from core.run.plans import Plan

_TORCH = "torch"


def views(plan: Plan) -> Mapping[str, object]:
    """Give ``{platform}_cells`` and ``{platform}_promote_matrix``, as job outputs name them."""
    found: dict[str, object] = {}
    for platform in PLATFORMS:
        found[f"{platform}_cells"] = grouped(plan, platform)
        found[f"{platform}_promote_matrix"] = promotions(plan, platform)
    return found


def grouped(plan: Plan, platform: Platform) -> Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]:
    """Give the jobs of each artifact group: group -> stage -> rows; every group has every stage."""
    groups = dict.fromkeys(cell.artifact_group for cell in plan.cells if cell.platform == platform)
    return {
        group: {
            stage: [plan.row(cell) for cell in plan.matrix(platform, stage) if cell.artifact_group == group]
            for stage in STAGES
        }
        for group in groups
    }


def promotions(plan: Plan, platform: Platform) -> Sequence[Mapping[str, str]]:
    """Give what is to be promoted: a torch version of a family, with every Python it is built for.

    Families have a folder each in a release index, so one that fails keeps no other one back. What is
    expected to fail is not waited for.
    """
    if not plan.promote.value:
        return []
    sets: dict[tuple[str, str], list[Cell]] = {}
    for cell in plan.matrix(platform, "build_pytorch"):
        if _TORCH in cell.versions and not cell.expect_failure:
            sets.setdefault((cell.artifact_group, cell.versions[_TORCH]), []).append(cell)
    return [
        {
            "name": f"{group}, torch {version}",
            "gpu_family": cells[0].gpu_family,
            "build_variant": cells[0].build_variant,
            "torch_ref": cells[0].torch_ref,
            "torch_version": version,
            "pythons": ",".join(dict.fromkeys(cell.python for cell in cells)),
        }
        for (group, version), cells in sets.items()
    ]
