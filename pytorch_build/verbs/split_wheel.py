"""`split-wheel`: a fat torch or torchvision wheel -> a host wheel and wheels of device code."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from core import console, temporary
from core.cli.options import common_from
from core.errors import REFUSALS, FatalError, UsageError, raise_refusals
from core.wheel import WheelName, parse_wheel_name
from pytorch_build.check.run import find_wheels
from pytorch_build.split.split_wheel import plan_split, split_wheel

COMMON_OPTIONS = ("dry-run",)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "wheels",
        nargs="+",
        type=Path,
        metavar="WHEEL",
        help="fat wheels, or folders with some",
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=Path("dist"),
        metavar="DIR",
        help="where they go (default: dist)",
    )
    parser.add_argument(
        "--rocm-version",
        metavar="V",
        help="of ROCm's device packages (default: what the wheel requires of rocm)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Split each fat wheel, and print the new wheels; one that is refused does not stop the others."""
    fat_wheels = find_wheels(arguments.wheels)
    _require_distinct_names(fat_wheels)

    rows: list[tuple[str, str]] = []
    refusals: list[FatalError] = []
    for fat_wheel in fat_wheels:
        try:
            if common_from(arguments).dry_run:
                _print_plan(fat_wheel, arguments.output_dir, arguments.rocm_version)
                continue
            wheels = split_wheel(fat_wheel, arguments.output_dir, rocm_version=arguments.rocm_version)
        except (UsageError, *REFUSALS) as refusal:
            refusals.append(refusal)
        else:
            rows += [(wheel.name, console.size(wheel.stat().st_size)) for wheel in wheels]

    if rows:
        console.table(("file", "size"), rows)
        console.done(f"split_wheel: {len(rows)} in {arguments.output_dir}")
    raise_refusals(refusals)


def _require_distinct_names(wheels: Sequence[Path]) -> None:
    """Fail where two wheels would become files of the same names."""
    names: set[WheelName] = set()
    for wheel in wheels:
        name = replace(parse_wheel_name(wheel.name), filename="")
        if name in names:
            raise UsageError(f"{wheel.name} is among the wheels twice.", hint="Name each wheel once.")
        names.add(name)


def _print_plan(
    fat_wheel: Path,
    output_dir: Path,
    rocm_version: str | None,
) -> None:
    """Print the file names of the wheels that a fat wheel would be split into."""
    with temporary.folder("split") as scratch:
        plan = plan_split(fat_wheel, scratch, rocm_version=rocm_version)
    console.say(f"would make of {fat_wheel.name}, in {output_dir}:")
    for file_name in plan.layout.file_names(fat_wheel.name):
        console.say(f"  {file_name}")
