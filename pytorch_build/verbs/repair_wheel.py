"""`repair-wheel`: a wheel -> the highest manylinux tag that it satisfies, the machine's libraries inside."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from core import console
from core.cli.options import common_from, environment, source_date_epoch
from pytorch_build.check.run import find_wheels
from pytorch_build.context import context
from pytorch_build.standalone.fat import platform_of
from pytorch_build.standalone.portable import analyse, analyse_dlls, repair, require_brought
from pytorch_build.verbs.check_wheels import run_wheels

if TYPE_CHECKING:
    import argparse

    from pytorch_build.standalone.portable import Repaired


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "paths", nargs="*", type=Path, metavar="WHEEL|DIR", help="what to repair (default: the run's wheels)"
    )
    parser.add_argument(
        "--graft", action="store_true", help="put libraries that manylinux does not promise into the wheel"
    )
    parser.add_argument(
        "--output-dir", type=Path, default=Path("dist"), metavar="DIR", help="where it goes (default: dist)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Repair each wheel, and say what became of it."""
    common = common_from(arguments)
    wheels = find_wheels(arguments.paths) if arguments.paths else tuple(run_wheels(context(common)))
    epoch = source_date_epoch(environment())
    rows = []
    for wheel in wheels:
        if platform_of(wheel) == "windows":
            needs = analyse_dlls(wheel)
            require_brought(wheel, needs)
            brought = ", ".join(needs.others) or "none"
            rows.append((wheel.name, "win_amd64", f"DLLs of other wheels: {brought}"))
            continue
        found = analyse(wheel)
        if common.dry_run:
            listed = ", ".join(found.external) or "nothing"
            rows.append((wheel.name, found.satisfied[0], f"for {found.reachable[0]} it lacks {listed}"))
            continue
        rows.append(
            _row(wheel, repair(wheel, found, arguments.output_dir, graft=arguments.graft, epoch=epoch))
        )
    console.table(("wheel", "platform", ""), rows)
    console.done(f"repair_wheel: {len(wheels)} wheels")


def _row(wheel: Path, made: Repaired) -> tuple[str, str, str]:
    if made.file is None:
        return wheel.name, made.platform, "as it was"
    inside = f", with {', '.join(made.grafted)}" if made.grafted else ""
    return wheel.name, made.platform, f"{made.file.path}{inside}"
