"""Measure what docs/performance.md says, against others' tools: `nox -s bench [-- PART …]`."""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from core import console, files
from core.cli import exit_code
from core.cli.options import ROOT
from core.errors import UsageError, nearest
from tests.bench import buckets, indexes, operations, rocm, starts, wheels
from tests.bench.comparisons import COLUMNS, Comparison, replace_table
from tests.bench.conditions import Conditions

PAGE = ROOT / "docs" / "performance.md"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What the command line asks for."""

    parts: Sequence[str]
    quick: bool
    runs: int | None
    large: bool
    rocm: Sequence[Path]
    therock: Path | None
    write: bool


@dataclass(frozen=True, kw_only=True)
class Part:
    """A table of the page.

    Attributes:
        compare: Measures what the table shows, so many times.
        runs: How often it is measured if nothing else is asked for.
        is_quick: Whether it takes seconds.
        needs_rocm: Whether it needs the artifacts of a real ROCm.
    """

    compare: Callable[[Request, int], Iterator[Comparison]]
    runs: int
    is_quick: bool = False
    needs_rocm: bool = False


PARTS: Mapping[str, Part] = {
    "start": Part(
        compare=lambda _, runs: starts.compare_starts(runs),
        runs=9,
        is_quick=True,
    ),
    "wheels": Part(
        compare=lambda _, runs: wheels.compare_writing_and_verifying(runs),
        runs=5,
        is_quick=True,
    ),
    "indexes": Part(
        compare=lambda request, runs: indexes.compare_indexes(runs, large=request.large),
        runs=5,
    ),
    "uploads": Part(
        compare=lambda _, runs: buckets.compare_uploads(runs),
        runs=5,
    ),
    "promotion": Part(
        compare=lambda _, runs: buckets.compare_promotion(runs),
        runs=1,
    ),
    "rewriting": Part(
        compare=lambda _, runs: wheels.compare_rewriting(runs),
        runs=3,
    ),
    "split": Part(
        compare=lambda _, runs: wheels.compare_splitting(runs),
        runs=3,
    ),
    "fat_wheel": Part(
        compare=lambda _, runs: wheels.compare_standalone(runs),
        runs=3,
    ),
    "rocm": Part(
        compare=lambda request, runs: rocm.compare_packaging(request.rocm, request.therock, runs),
        runs=3,
        needs_rocm=True,
    ),
    "init": Part(
        compare=lambda request, runs: rocm.compare_expanding(request.rocm[0], runs),
        runs=5,
        needs_rocm=True,
    ),
    "fetch": Part(
        compare=lambda request, runs: rocm.compare_fetching(request.rocm[0], runs),
        runs=3,
        needs_rocm=True,
    ),
    "operations": Part(
        compare=lambda _request, _runs: operations.count_operations(),
        runs=1,
        is_quick=True,
    ),
    "pipeline": Part(
        compare=lambda _, runs: starts.compare_pipeline_runs(runs),
        runs=3,
    ),
}


def main(command_line: Sequence[str]) -> int:
    """Measure the parts that the command line asks for."""
    request = parse_request(command_line)
    return exit_code(lambda: measure_parts(request))


def parse_request(command_line: Sequence[str]) -> Request:
    """Return what a command line asks for."""
    all_parts = ", ".join(PARTS)
    quick_parts = ", ".join(name for name, part in PARTS.items() if part.is_quick)
    parser = argparse.ArgumentParser(prog="nox -s bench --", description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        metavar="PART",
        help=f"{all_parts} (default: all that can be measured)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"the parts that take seconds, once: {quick_parts}",
    )
    parser.add_argument(
        "--runs",
        type=int,
        metavar="N",
        help="how often (default: by part)",
    )
    parser.add_argument(
        "--large",
        action="store_true",
        help="an index of 100,000 wheels, too",
    )
    parser.add_argument(
        "--rocm",
        action="append",
        default=[],
        type=Path,
        metavar="DIR",
        help="artifacts of a real ROCm; repeatable, init and fetch take the first",
    )
    parser.add_argument(
        "--therock",
        type=Path,
        metavar="DIR",
        help="a checkout of TheRock, whose builder packages them, too",
    )
    parser.add_argument(
        "--write",
        action="store_true",
        help=f"put the tables into {PAGE.relative_to(ROOT)}",
    )
    arguments = parser.parse_args(command_line)
    return Request(
        parts=arguments.parts,
        quick=arguments.quick,
        runs=arguments.runs,
        large=arguments.large,
        rocm=arguments.rocm,
        therock=arguments.therock,
        write=arguments.write,
    )


def measure_parts(request: Request) -> None:
    """Measure part by part; a table that is done is written before the next part begins."""
    if request.runs is not None and request.runs < 1:
        raise UsageError("--runs is how often a part is measured: once at least.")
    for name in request.parts:
        check_part(name, request)

    for name in request.parts or default_parts(request):
        console.say(f"{name}:")
        measure_part(name, request)


def check_part(name: str, request: Request) -> None:
    """Raise an error if a part does not exist, or lacks its input."""
    if name not in PARTS:
        raise UsageError(f"The bench has no part {name!r}. {nearest(name, PARTS)}")
    if PARTS[name].needs_rocm and not request.rocm:
        raise UsageError(f"{name} needs a real ROCm.", hint="Give its artifacts: --rocm DIR.")


def default_parts(request: Request) -> list[str]:
    """Return the parts to measure if none is named."""
    if request.quick:
        return [name for name, part in PARTS.items() if part.is_quick]
    return [name for name, part in PARTS.items() if request.rocm or not part.needs_rocm]


def measure_part(name: str, request: Request) -> None:
    """Measure a part, print its table, and put it into the page if that is asked for."""
    part = PARTS[name]
    runs = request.runs
    if runs is None:
        runs = 1 if request.quick else part.runs

    conditions = Conditions()
    comparisons = list(part.compare(request, runs))
    cores_of_others = conditions.cores_of_others()
    # the time on the clock says little if others took much of the machine
    is_busy = cores_of_others > conditions.cores / 4

    rows: list[tuple[str, ...]] = []
    for comparison in comparisons:
        rows += comparison.rows(busy=is_busy)
    runs_taken = max(len(comparison.subject.samples) for comparison in comparisons)
    circumstances = conditions.describe(runs=runs_taken, cores_of_others=cores_of_others)
    console.table(COLUMNS, rows)
    console.say(circumstances)

    if request.write:
        page = PAGE.read_text(encoding="utf-8")
        files.write_text(PAGE, replace_table(page, name, rows, circumstances))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
