"""Cells as tests name them: by the Python's ABI tag, with "" for what does not apply."""

from core.cell import GroupCell, python_of_tag
from core.run import Platform


def group_cell(
    *,
    python_tag: str = "",
    torch_ref: str = "",
    gpu_family: str = "",
    artifact_group: str = "",
    platform: Platform | None = None,
) -> GroupCell:
    """Return what a step ran on."""
    return GroupCell(
        python=python_of_tag(python_tag) if python_tag else None,
        torch_ref=torch_ref or None,
        gpu_family=gpu_family or None,
        artifact_group=artifact_group or None,
        platform=platform,
    )
