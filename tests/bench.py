"""Measure what docs/performance.md claims: ratios within one run, against a named baseline.

`nox -s bench` prints the table; `-- --quick` leaves out the pipeline.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, process
from core.errors import FatalError
from core.options import ROOT
from core.wheel_record import verify_record
from core.wheel_writer import Member, WheelSpec, write_wheel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RUNS = 5


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure: a subject's median seconds, a baseline's, and their ratio."""

    subject: str
    baseline: str
    seconds: float
    baseline_seconds: float
    note: str = ""

    @property
    def row(self) -> tuple[str, str, str, str, str, str]:
        """The figure's row of the table."""
        ratio = self.seconds / self.baseline_seconds
        return (
            self.subject,
            f"{self.seconds:.2f}",
            self.baseline,
            f"{self.baseline_seconds:.2f}",
            f"{ratio:.2f}",
            self.note,
        )


def main(words: list[str]) -> int:
    """Measure, and print one table."""
    try:
        figures = [*start_up(), *wheel_files(), *([] if "--quick" in words else pipeline())]
    except FatalError as problem:
        console.error(str(problem))
        return problem.exit_code
    columns = ("subject", "s", "baseline", "s", "ratio", "")
    console.table(columns, [figure.row for figure in figures])
    return 0


def start_up() -> Sequence[Figure]:
    """Compare starting nox and a front door with what nobody can avoid."""
    nox = [sys.executable, "-m", "nox"]
    listing = paired(lambda: quiet([*nox, "-l"]), lambda: quiet([*nox, "--version"]))
    door = [sys.executable, "-m", "ci", "--help"]
    helped = paired(lambda: quiet(door), lambda: quiet([sys.executable, "-c", "import argparse"]))
    return (
        Figure(subject="nox -l", baseline="nox --version", seconds=listing[0], baseline_seconds=listing[1]),
        Figure(
            subject="python -m ci --help",
            baseline="python -c 'import argparse'",
            seconds=helped[0],
            baseline_seconds=helped[1],
        ),
    )


def wheel_files() -> Sequence[Figure]:
    """Compare writing and verifying a wheel of real libraries with the standard library's zipfile."""
    payload = real_libraries()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        spec = WheelSpec(
            distribution="bench",
            version="1.0",
            tag="py3-none-any",
            metadata="Metadata-Version: 2.1\nName: bench\nVersion: 1.0\n",
        )
        ours = place / "ours"
        theirs = place / "theirs.whl"

        def write_ours() -> None:
            write_wheel(ours, spec, [Member(name=f"bench/{path.name}", source=path) for path in payload])

        def write_theirs() -> None:
            with zipfile.ZipFile(theirs, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
                for path in payload:
                    archive.write(path, f"bench/{path.name}")

        written = paired(write_ours, write_theirs, runs=3)
        wheel = next(ours.glob("*.whl"))
        verified = paired(lambda: verify_record(wheel), lambda: read_all(wheel), runs=3)
        size = wheel.stat().st_size / theirs.stat().st_size
        total = console.size(sum(path.stat().st_size for path in payload))
    return (
        Figure(
            subject=f"write a wheel of {total}",
            baseline="zipfile, level 6",
            seconds=written[0],
            baseline_seconds=written[1],
            note=f"size {size:.3f} of the baseline's",
        ),
        Figure(
            subject="verify its RECORD",
            baseline="zipfile, read only",
            seconds=verified[0],
            baseline_seconds=verified[1],
        ),
    )


def pipeline() -> Sequence[Figure]:
    """Compare the sample's whole pipeline with its second run, in a clone of the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        quiet(["git", "clone", "--quiet", str(ROOT), str(clone)])
        argv = [sys.executable, "-m", "invoke", "ci", "--torch-ref", "sample"]
        first = seconds(lambda: quiet(argv, cwd=clone))
        second = seconds(lambda: quiet(argv, cwd=clone))
    return (
        Figure(
            subject="invoke ci, nothing changed",
            baseline="invoke ci, from nothing",
            seconds=second,
            baseline_seconds=first,
        ),
    )


def real_libraries() -> Sequence[Path]:
    """Choose compiled files of some size from this environment: what wheels of ours are made of."""
    found = sorted(Path(sys.prefix).rglob("*.so"), key=lambda path: path.stat().st_size, reverse=True)
    return found[:20]


def read_all(wheel: Path) -> None:
    """Decompress every member, and do nothing with it."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            archive.read(name)


def paired(
    subject: Callable[[], object], baseline: Callable[[], object], *, runs: int = RUNS
) -> tuple[float, float]:
    """Run both in turn after a warm-up, and give the medians, so that a machine's drift hits both."""
    subject(), baseline()
    times = [(seconds(subject), seconds(baseline)) for _ in range(runs)]
    return statistics.median(one[0] for one in times), statistics.median(one[1] for one in times)


def seconds(action: Callable[[], object]) -> float:
    """Time one call."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def quiet(argv: Sequence[str], cwd: Path = ROOT) -> None:
    """Run a command for its time alone."""
    process.capture(argv, cwd=cwd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
