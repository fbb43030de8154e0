"""Options that several verbs share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Declare how origins are reached."""
    parser.add_argument(
        "--git-mirror",
        action="append",
        default=[],
        metavar="PREFIX=MIRROR",
        help="fetch from MIRROR what origins have under PREFIX (https://github.com/=/mirrors/); repeatable",
    )


def mirrors_from(arguments: argparse.Namespace) -> Mapping[str, str]:
    """Read the mirrors.

    Raises:
        UsageError: One is not ``PREFIX=MIRROR``.
    """
    mirrors = {}
    for pair in arguments.git_mirror:
        prefix, equals, mirror = pair.partition("=")
        if not (prefix and equals and mirror):
            raise UsageError(f"--git-mirror {pair!r} is not PREFIX=MIRROR.")
        mirrors[prefix] = mirror
    return mirrors
