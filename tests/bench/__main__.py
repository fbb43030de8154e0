"""Measure what docs/performance.md claims: ratios within one run, against a named baseline.

`nox -s bench` prints the table; `-- --quick` leaves out what takes minutes, `-- rewriting` measures
that part alone, `-- --rocm DIR` the packaging of a real ROCm, whose artifacts DIR holds.
"""

import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from core import console
from core.archive import Member
from core.cli.options import ROOT
from core.errors import FatalError
from core.wheel.record import verify_record
from core.wheel.writer import WheelSpec, metadata_text, write_wheel
from tests.bench import fat_wheel, indexes, promotion, rewriting, rocm, split, uploads
from tests.bench.measuring import Figure, paired, quiet, seconds


def main(words: list[str]) -> int:
    """Measure, and print one table."""
    try:
        if "--rocm" in words:
            figures = list(rocm.figures(Path(words[words.index("--rocm") + 1]).resolve()))
        else:
            chosen = [name for name in PARTS if name in words] or [
                name for name in PARTS if name in QUICK or "--quick" not in words
            ]
            figures = [figure for name in chosen for figure in PARTS[name]()]
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
    plan = [sys.executable, "-m", "ci", "configure", "--event=pull_request", "--label=build:pytorch"]
    planned = paired(lambda: quiet(plan), lambda: quiet([sys.executable, "-c", "import pydantic.main"]))
    return (
        Figure(subject="nox -l", baseline="nox --version", times=listing),
        Figure(subject="python -m ci --help", baseline="python -c 'import argparse'", times=helped),
        Figure(
            subject="configure a pull request", baseline="python -c 'import pydantic.main'", times=planned
        ),
    )


def wheel_files() -> Sequence[Figure]:
    """Compare writing and verifying a wheel of real libraries with the standard library's zipfile."""
    payload = real_libraries()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        metadata = metadata_text([("Name", "bench"), ("Version", "1.0")])
        spec = WheelSpec(distribution="bench", version="1.0", tag="py3-none-any", metadata=metadata)
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
    note, subject = f"size {size:.3f} of the baseline's", f"write a wheel of {total}"
    return (
        Figure(subject=subject, baseline="zipfile, level 6", times=written, note=note),
        Figure(subject="verify its RECORD", baseline="zipfile, read only", times=verified),
    )


def pipeline() -> Sequence[Figure]:
    """Compare the sample's whole pipeline with its second run, in a clone of the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        quiet(["git", "clone", "--quiet", str(ROOT), str(clone)])
        argv = [sys.executable, "-m", "invoke", "ci", "--torch-ref", "sample"]
        first = seconds(lambda: quiet(argv, cwd=clone))
        second = seconds(lambda: quiet(argv, cwd=clone))
    times = (second, first)
    return (Figure(subject="invoke ci, nothing changed", baseline="invoke ci, from nothing", times=times),)


def real_libraries() -> Sequence[Path]:
    """Choose compiled files of some size from this environment: what wheels of ours are made of."""
    found = sorted(Path(sys.prefix).rglob("*.so"), key=lambda path: path.stat().st_size, reverse=True)
    return found[:20]


def read_all(wheel: Path) -> None:
    """Decompress every member, and do nothing with it."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            archive.read(name)


PARTS: Mapping[str, Callable[[], Iterable[Figure]]] = {
    "start": start_up,
    "wheels": wheel_files,
    "uploads": uploads.figures,
    "indexes": indexes.figures,
    "rewriting": lambda: rewriting.figures(real_libraries()),
    "split": lambda: split.figures(real_libraries()),
    "fat_wheel": lambda: fat_wheel.figures(real_libraries()),
    "promotion": promotion.figures,
    "pipeline": pipeline,
}
QUICK = frozenset({"start", "wheels"})

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
