"""`repair-wheel`: a wheel -> the highest manylinux tag that it satisfies, the machine's libraries inside."""

import argparse
from pathlib import Path

from core import console
from core.cli.options import common_from, environment, source_date_epoch
from core.wheel import parse_wheel_name
from pytorch_build.check import require_no_errors
from pytorch_build.check.contents import expectations
from pytorch_build.check.libraries import DLL_CHECK
from pytorch_build.check.run import check_wheel, find_wheels
from pytorch_build.context import context
from pytorch_build.standalone.fat import platform_of
from pytorch_build.standalone.portable import analyse, repair
from pytorch_build.verbs.check_wheels import run_wheels
from rocm_packaging.packages.layouts import host_distribution


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    add = parser.add_argument
    add("paths", nargs="*", type=Path, metavar="WHEEL|DIR", help="what to repair (default: the run's wheels)")
    what = "put libraries that manylinux does not promise into the wheel"
    add("--graft", action="store_true", help=what)
    what = "where it goes (default: dist)"
    add("--output-dir", type=Path, default=Path("dist"), metavar="DIR", help=what)


def run(arguments: argparse.Namespace) -> None:
    """Repair each wheel, and print what became of it."""
    common = common_from(arguments)
    if arguments.paths:
        wheels = find_wheels(arguments.paths)
    else:  # device code has no policy, as no loader reads it
        chosen = context(common)
        every = run_wheels(chosen, expectations(chosen))
        wheels = tuple(one for one in every if not host_distribution(parse_wheel_name(one.name).distribution))
    epoch = source_date_epoch(environment())
    rows = []
    for wheel in wheels:
        if platform_of(wheel) == "windows":
            require_no_errors(one for one in check_wheel(wheel) if one.check == DLL_CHECK)
            row = ("win_amd64", "every DLL that it needs is there")
        elif common.dry_run:
            found = analyse(wheel)
            lacking = ", ".join(found.external) or "nothing"
            row = (found.satisfied[0], f"for {found.reachable[0]} it lacks {lacking}")
        else:
            made = repair(wheel, analyse(wheel), arguments.output_dir, graft=arguments.graft, epoch=epoch)
            inside = f", with {', '.join(made.grafted)}" if made.grafted else ""
            row = (made.platform, f"{made.file.path}{inside}" if made.file else "as it was")
        rows.append((wheel.name, *row))
    console.table(("wheel", "platform", ""), rows)
    console.done(f"repair_wheel: {len(wheels)} wheels")
