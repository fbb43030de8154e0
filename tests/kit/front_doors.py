"""The front door of `ci`, as a shell goes through it."""

from ci.__main__ import VERBS
from core.cli import main


def run_ci(*words: object) -> int:
    """Run a verb with its options; return the exit code."""
    return main("ci", "", VERBS, [*map(str, words)])
