from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from core.errors import WheelError
from core.wheel import MOST_FOLDERS, REST, folder_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def wheel(folder: Path, members: Mapping[str, int]) -> Path:
    path = folder / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, size in members.items():
            archive.writestr(name, b"" if name.endswith("/") else bytes(size))
    return path


def test_members_are_added_up_by_folder_two_deep(tmp_path: Path) -> None:
    found = folder_sizes(
        wheel(
            tmp_path,
            {"torch/lib/a.so": 5000, "torch/lib/x/y/b.so": 7, "torch/a.py": 3, "top.py": 2, "torch/lib/": 0},
        )
    )
    assert {name: numbers[:2] for name, numbers in found.items()} == {
        "torch/lib": [2, 5007],
        "torch": [1, 3],
        ".": [1, 2],
    }
    # compressed, and the largest first
    assert 0 < found["torch/lib"][2] < 5007
    assert next(iter(found)) == "torch/lib"


def test_a_record_is_bounded_and_nothing_is_lost(tmp_path: Path) -> None:
    members = {f"folder{at}/{'n' * 400}/file": at for at in range(MOST_FOLDERS + 10)}
    found = folder_sizes(wheel(tmp_path, members))
    assert len(found) == MOST_FOLDERS + 1
    assert found[REST][0] == 10
    assert sum(numbers[1] for numbers in found.values()) == sum(members.values())
    assert max(map(len, found)) <= 200


def test_what_is_no_wheel_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.whl"
    path.write_text("no")
    with pytest.raises(WheelError, match=r"a\.whl is not a readable zip file"):
        folder_sizes(path)
