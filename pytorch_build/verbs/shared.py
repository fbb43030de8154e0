"""Options that several verbs share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import UsageError
from core.packages.sources import add_package_source
from pytorch_build.rocm.options import add_rocm_options

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


def add_tested_sources(parser: argparse.ArgumentParser) -> None:
    """Declare where tests take torch from, and a ROCm that is no part of the run."""
    add_package_source(parser, "where torch comes from (default: the run's outputs)", "")
    parser.add_argument(
        "--torch-version", dest="version", default="", metavar="V", help="exact version (default: the newest)"
    )
    parser.add_argument("--no-install", action="store_true", help="test what the environment holds already")
    add_rocm_options(parser, alone=False)


def mirrors_from(arguments: argparse.Namespace) -> Mapping[str, str]:
    """Read the mirrors."""
    mirrors = {}
    for pair in arguments.git_mirror:
        prefix, equals, mirror = pair.partition("=")
        if not (prefix and equals and mirror):
            raise UsageError(f"--git-mirror {pair!r} is not PREFIX=MIRROR.")
        mirrors[prefix] = mirror
    return mirrors
