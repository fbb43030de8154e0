"""`test-smoke`: wheels of a run, page, index or folder into a clean environment, imported and used."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from core.cli.options import add_group, common_from, environment
from core.packages.options import source_options
from pytorch_build.context import context
from pytorch_build.rocm.options import rocm_options_from
from pytorch_build.test.smoke_run import SmokeOptions, test_run
from pytorch_build.verbs.shared import add_tested_sources

if TYPE_CHECKING:
    import argparse

PASSES_REST = True


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add_group(parser)
    add_tested_sources(parser)
    parser.add_argument(
        "--allow-no-gpu",
        action="store_true",
        help="do not fail where a GPU family's wheels are tested on a machine without a GPU",
    )
    parser.add_argument(
        "--other-gpu", action="store_true", help="test on NVIDIA's GPUs, with a torch that is made for them"
    )
    parser.add_argument("--junit", type=Path, metavar="FILE", help="also write the JUnit report there")
    parser.epilog = "Options that are not known here go to pytest."


def run(arguments: argparse.Namespace) -> None:
    """Install and test."""
    options = SmokeOptions(
        install=not arguments.no_install,
        source=source_options(arguments),
        rocm=rocm_options_from(arguments, environment()),
        allow_no_gpu=arguments.allow_no_gpu,
        other_gpu=arguments.other_gpu,
        junit=arguments.junit,
        pytest_arguments=tuple(arguments.rest),
    )
    test_run(context(common_from(arguments), group=arguments.artifact_group), options)
