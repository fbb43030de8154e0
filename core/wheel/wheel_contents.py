"""How the size of a wheel is spread over its folders, for records: what grew is asked of them later."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from core.archive.zip_members import opened

if TYPE_CHECKING:
    from pathlib import Path

# what a record's details call it: file name of a wheel -> its folders
CONTENTS = "contents"
REST = "…"
MOST_FOLDERS, DEPTH, MOST_LETTERS = 25, 2, 200


def folder_sizes(wheel: Path) -> dict[str, list[int]]:
    """Add a wheel's members up by folder, from its central directory alone.

    Returns:
        Folder (up to `DEPTH` names) to its files, their bytes, and their bytes in the wheel; the largest
        in the wheel first, at most `MOST_FOLDERS` of them and `REST` for all others.

    Raises:
        WheelError: It is no zip file.
    """
    found: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    with opened(wheel) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                names = member.filename.split("/")[:-1][:DEPTH]
                _add(
                    found["/".join(names)[:MOST_LETTERS] or "."], (1, member.file_size, member.compress_size)
                )
    ordered = sorted(found.items(), key=lambda item: (-item[1][2], item[0]))
    kept = dict(ordered[:MOST_FOLDERS])
    if ordered[MOST_FOLDERS:]:
        rest = [0, 0, 0]
        for _, numbers in ordered[MOST_FOLDERS:]:
            _add(rest, numbers)
        kept[REST] = rest
    return kept


def _add(total: list[int], numbers: tuple[int, ...] | list[int]) -> None:
    for at, number in enumerate(numbers):
        total[at] += number
