"""`prepare`: what a platform's builds need besides ROCm and upstream's requirements, pinned."""

import argparse

from core import console
from core.cli.options import add_platform, common_from
from core.env import installer, require
from core.errors import UsageError
from core.run import this_platform
from pytorch_build.build.toolchain import plan, provide
from pytorch_build.context import add_source_options, mirrors_from


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "provide this part, whether the platform needs it or not; repeatable"
    parser.add_argument("--only", action="append", default=[], choices=("libuv", "openmp"), help=what)
    add_platform(parser)
    add_source_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Provide what is missing; say where everything lies."""
    common = common_from(arguments)
    platform = common.platform
    if platform != this_platform() and not common.dry_run:
        raise UsageError(
            f"Parts for {platform} are provided on {platform}.", hint="Add --dry-run for the plan."
        )
    steps = plan(common.cache, platform, only=arguments.only)
    if not steps:
        console.done(f"Builds on {platform} need nothing that they do not bring.")
        return
    rows = [(step.name, step.version, step.license, step.source, step.digest[:12]) for step in steps]
    console.table(("part", "version", "licence", "from", "digest"), rows)
    if common.dry_run:
        return
    target = require(common.python)
    calls = [installer.locked_call(common, target, only=("cmake", "ninja"))]
    with installer.prepared(target, calls, digest=installer.digest_of_calls(target, calls)):
        provide(steps, platform, target=target, mirrors=mirrors_from(arguments))
