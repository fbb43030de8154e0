"""`repair-wheel`: a wheel -> the highest manylinux tag that it satisfies, the machine's libraries inside."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from core import console
from core.cli.options import GROUP_OPTIONS, RUN_OPTIONS, common_from, environment, source_date_epoch
from pytorch_build.check import require_no_errors
from pytorch_build.check.expected import expectations
from pytorch_build.check.run import check_wheel, find_wheels
from pytorch_build.check.wheel_set import distribution_of
from pytorch_build.context import find_context
from pytorch_build.standalone.fat import platform_of
from pytorch_build.standalone.portable import find_portability, repair_wheel
from pytorch_build.verbs.check_wheels import fetch_wheels_of_run
from rocm_packaging.packages.layouts import host_distribution

COMMON_OPTIONS = ("torch-ref", *GROUP_OPTIONS, *RUN_OPTIONS, "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="WHEEL|DIR",
        help="what to repair (default: the run's wheels)",
    )
    parser.add_argument(
        "--graft", action="store_true", help="put libraries that manylinux does not promise into the wheel"
    )
    parser.add_argument(
        "--output-dir",
        type=Path,
        default=Path("dist"),
        metavar="DIR",
        help="where it goes (default: dist)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Repair named wheels or the run's, and print the platform tag and the file of each."""
    common = common_from(arguments)
    wheels: Sequence[Path]
    if arguments.paths:
        wheels = find_wheels(arguments.paths)
    else:
        context = find_context(common)
        every_wheel = fetch_wheels_of_run(context, expectations(context))
        # No loader of a machine reads wheels of device code.
        wheels = [path for path in every_wheel if not host_distribution(distribution_of(path))]

    rows: list[tuple[str, str, str]] = []
    for wheel in wheels:
        if platform_of(wheel) == "windows":
            findings = check_wheel(wheel)
            require_no_errors(finding for finding in findings if finding.check == "dll")
            rows.append((wheel.name, "win_amd64", "every DLL that it needs is there"))
            continue

        portability = find_portability(wheel)
        if common.dry_run:
            libraries = ", ".join(portability.external_libraries) or "nothing"
            forecast = f"for {portability.reachable_tags[0]} it lacks {libraries}"
            rows.append((wheel.name, portability.satisfied_tags[0], forecast))
            continue

        epoch = source_date_epoch(environment())
        repaired = repair_wheel(
            wheel,
            portability,
            arguments.output_dir,
            graft=arguments.graft,
            epoch=epoch,
        )
        text = "as it was" if repaired.file is None else str(repaired.file.path)
        if repaired.grafted_libraries:
            text += f", with {', '.join(repaired.grafted_libraries)}"
        rows.append((wheel.name, repaired.platform, text))
    console.table(("wheel", "platform", ""), rows)
    console.done(f"repair_wheel: {len(wheels)} wheels")
