"""Measure what docs/performance.md says, against others' tools: `nox -s bench [-- PART …]`."""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from core import console, files
from core.cli import exit_code
from core.cli.options import ROOT
from core.errors import UsageError, nearest
from tests.bench import buckets, indexes, operations, rocm, starts, wheels
from tests.bench.measuring import COLUMNS, Conditions, Figure, put

PAGE = ROOT / "docs" / "performance.md"
# what measures a part, and how often unless --runs says
PARTS: Mapping[str, tuple[Callable[[argparse.Namespace, int], Iterable[Figure]], int]] = {
    "start": (lambda _, runs: starts.figures(runs), 9),
    "wheels": (lambda _, runs: wheels.figures(runs), 5),
    "indexes": (lambda given, runs: indexes.figures(runs, large=given.large), 5),
    "uploads": (lambda _, runs: buckets.figures(runs), 5),
    "promotion": (lambda _, runs: buckets.promotion(runs), 1),
    "rewriting": (lambda _, runs: wheels.rewriting(runs), 3),
    "split": (lambda _, runs: wheels.splitting(runs), 3),
    "fat_wheel": (lambda _, runs: wheels.standing_alone(runs), 3),
    "rocm": (lambda given, runs: rocm.packaging(given.rocm, given.therock, runs), 3),
    "init": (lambda given, runs: rocm.expanding(given.rocm[0], runs), 5),
    "fetch": (lambda given, runs: rocm.fetching(given.rocm[0], runs), 3),
    "operations": (lambda _, _runs: operations.figures(), 1),
    "pipeline": (lambda _, runs: starts.pipeline(runs), 3),
}
QUICK, OF_ROCM = ("start", "wheels", "operations"), ("rocm", "init", "fetch")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="nox -s bench --", description=__doc__)
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (default: all that can be measured)")
    add("--quick", action="store_true", help=f"the parts that take seconds, once: {', '.join(QUICK)}")
    add("--runs", type=int, metavar="N", help="how often (default: by part)")
    add("--large", action="store_true", help="an index of 100,000 wheels, too")
    what = "artifacts of a real ROCm; repeatable, init and fetch take the first"
    add("--rocm", action="append", default=[], type=Path, metavar="DIR", help=what)
    add("--therock", type=Path, metavar="DIR", help="a checkout of TheRock, whose builder packages them, too")
    add("--write", action="store_true", help=f"put the tables into {PAGE.relative_to(ROOT)}")
    given = parser.parse_args(words)
    return exit_code(lambda: measure(given))


def measure(given: argparse.Namespace) -> None:
    """Measure part by part; a table that is done is written before the next part begins."""
    for name in given.parts:
        if name not in PARTS:
            raise UsageError(f"The bench has no part {name!r}. {nearest(name, PARTS)}")
        if name in OF_ROCM and not given.rocm:
            raise UsageError(f"{name} needs a real ROCm.", hint="Give its artifacts: --rocm DIR.")
    able = [name for name in PARTS if given.rocm or name not in OF_ROCM]
    for name in given.parts or (QUICK if given.quick else able):
        call, usual = PARTS[name]
        console.say(f"{name}:")
        conditions = Conditions()
        figures = list(call(given, given.runs or (1 if given.quick else usual)))
        others = conditions.others()
        rows = [row for one in figures for row in one.rows(busy=others > conditions.cores / 4)]
        told = conditions.told(figures, others)
        console.table(COLUMNS, rows)
        console.say(told)
        if given.write:
            files.write_text(PAGE, put(PAGE.read_text(encoding="utf-8"), name, rows, told))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
