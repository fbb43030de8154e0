"""`split-wheel`: a fat torch or torchvision wheel -> a host wheel and wheels of device code."""

import argparse
from pathlib import Path

from core import console, temporary
from core.cli.options import common_from
from core.errors import REFUSALS, FatalError, UsageError, raise_refusals
from core.wheel import parse_wheel_name
from pytorch_build.check.run import find_wheels
from pytorch_build.split.parts import plan, split


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "fat wheels, or folders with some"
    parser.add_argument("wheels", nargs="+", type=Path, metavar="WHEEL", help=what)
    what = "where they go (default: dist)"
    parser.add_argument("--output-dir", type=Path, default=Path("dist"), metavar="DIR", help=what)
    what = "of ROCm's device packages (default: what the wheel requires of rocm)"
    parser.add_argument("--rocm-version", default="", metavar="V", help=what)


def run(arguments: argparse.Namespace) -> None:
    """Split each wheel, and print what was made."""
    dry_run, rocm = common_from(arguments).dry_run, arguments.rocm_version
    fat = find_wheels(arguments.wheels)
    names = [parse_wheel_name(wheel.name).filename for wheel in fat]
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        raise UsageError(f"{twice} is among the wheels twice.", hint="Name each wheel once.")
    rows: list[tuple[str, ...]] = []
    refusals: list[FatalError] = []
    for wheel in fat:
        try:
            if dry_run:
                _print_plan(wheel, arguments.output_dir, rocm_version=rocm)
            else:
                made = split(wheel, arguments.output_dir, rocm_version=rocm)
                rows += [(one.name, console.size(one.stat().st_size)) for one in made]
        except (UsageError, *REFUSALS) as refusal:
            refusals.append(refusal)
    if rows:
        console.table(("file", "size"), rows)
        console.done(f"split_wheel: {len(rows)} in {arguments.output_dir}")
    raise_refusals(refusals)


def _print_plan(wheel: Path, output_dir: Path, *, rocm_version: str) -> None:
    with temporary.folder("split") as scratch:
        file_names = plan(wheel, scratch, rocm_version=rocm_version).wheels.file_names(wheel.name)
    console.say(f"would make of {wheel.name}, in {output_dir}:")
    for name in file_names:
        console.say(f"  {name}")
