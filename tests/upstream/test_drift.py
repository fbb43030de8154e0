"""Our data and a real checkout of TheRock (--therock DIR)."""

from pathlib import Path

from ci.__main__ import VERBS
from core.cli import main


def test_our_data_says_what_therock_says(therock_tree: Path) -> None:
    assert main("ci", "", VERBS, ["drift", "--therock", str(therock_tree)]) == 0
