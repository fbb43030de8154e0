"""Files besides libraries that serve some GPUs only; which ones is data: `files.toml`."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

from core.data import read_toml
from core.families import parents, sub_family

TABLE = Path(__file__).with_name("files.toml")
# aotriton's names of groups: gfx11xx is a family, gfx110x a sub-family.
_FAMILY = re.compile(r"gfx([0-9]+)xx")
_SUB_FAMILY = re.compile(r"gfx([0-9]+)([0-9a-f])x")


@cache
def _gpu_file_patterns() -> Sequence[re.Pattern[str]]:
    """Return the patterns of files that serve some GPUs only, each with a group ``gpu``."""
    return [re.compile(row["pattern"]) for row in read_toml(TABLE)["files"]]


def gpu_of_file(path: str, targets: Collection[str]) -> str | None:
    """Return the target or group of GPUs whose device wheel gets a file; None for the host wheel.

    `path` is one below the wheel's package, `targets` are those that the wheel has code for.
    """
    matches = (pattern.fullmatch(path) for pattern in _gpu_file_patterns())
    match = next(filter(None, matches), None)
    if match is None:
        return None
    gpu = match["gpu"]
    group = _group_of(gpu)
    if group is not None:
        is_served = any(group in parents(target) for target in targets)
        return group if is_served else None
    # What follows a target does not matter: MIOpen writes the number of compute units behind it.
    matching_targets = [target for target in targets if gpu.startswith(target)]
    return max(
        matching_targets,
        key=len,
        default=None,
    )


def _group_of(gpu: str) -> str | None:
    """Return the family or sub-family that a name such as gfx11xx stands for; None for a target's name."""
    if family := _FAMILY.fullmatch(gpu):
        return f"gfx{family[1]}"
    if match := _SUB_FAMILY.fullmatch(gpu):
        return sub_family(match[1], match[2])
    return None
