"""Our data and a real checkout of TheRock (--therock DIR)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ci.__main__ import VERBS
from core.cli import main

if TYPE_CHECKING:
    from pathlib import Path


def test_our_data_says_what_therock_says(pytestconfig: pytest.Config) -> None:
    folder: Path | None = pytestconfig.getoption("--therock")
    if folder is None:
        pytest.skip("--therock names no checkout of TheRock")
    assert main("ci", "", VERBS, ["drift", "--therock", str(folder)]) == 0
