"""What docs/performance.md says of a release candidate that becomes a release, measured."""

import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from core import console, process
from core.archive import Member
from core.cli.options import ROOT
from core.wheel.writer import WheelSpec, metadata_text, write_wheel
from tests.bench.baselines import program
from tests.bench.measuring import Figure, quiet, scratch, seconds

CANDIDATE, FINAL = "7.10.0rc2", "7.10.0"
NAME = "rocm_sdk_libraries_gfx94x_dcgpu"
TAG = "py3-none-linux_x86_64"
SIZE = 500_000_000
RUNS = 3

# In a process of its own, as its memory is measured; both print the most that it took, in KiB.
REWRITE = """
import sys
from pathlib import Path
from ci.promote.edits import MemberEdits
from ci.promote.version_change import final_of, plan_set
from core.wheel.editor import edit_wheel
source, folder, candidate = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
change = final_of(candidate)
plan = plan_set([source.name], change)[0]
edits = MemberEdits(plan, change)
edits.require_done(edit_wheel(source, folder, version=plan.new, edit=edits).members)
"""
PROMOTE = """
import sys
from pathlib import Path
from ci.promote.candidates import rewrite_set
from ci.promote.version_change import final_of
rewrite_set([Path(sys.argv[1])], Path(sys.argv[2]), final_of(sys.argv[3]))
"""
PEAK = """
lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
print(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))
"""


def figures(libraries: Sequence[Path]) -> Iterator[Figure]:
    """Compare rewriting one wheel with unpacking, editing and packing it by the `wheel` package."""
    with scratch() as place:
        wheel = candidate(place, libraries)
        wheel_program = program("wheel")
        baseline = seconds(lambda: by_hand(wheel_program, wheel, place))
        size = console.size(wheel.stat().st_size)
        for subject, code in (
            (f"rewrite a wheel of {size}", REWRITE),
            ("the same, its result checked", PROMOTE),
        ):
            taken, memory = measured(code, wheel, place / "ours")
            yield Figure(
                subject=subject,
                baseline="wheel unpack, edit, wheel pack",
                times=(taken, baseline),
                note=f"{baseline / taken:.0f} times as fast, {memory} MiB of memory",
            )


def measured(code: str, wheel: Path, folder: Path) -> tuple[float, int]:
    """Return the median seconds of a process, its start included, and the most MiB that it took."""
    words: list[str | Path] = [sys.executable, "-c", f"{code}{PEAK}", wheel, folder, CANDIDATE]
    peaks: list[int] = []

    def run() -> None:
        peaks.append(int(process.capture(words, cwd=ROOT).stdout.split()[-1]))

    run()
    return statistics.median(seconds(run) for _ in range(RUNS)), max(peaks) >> 10


def by_hand(wheel_program: Path, wheel: Path, place: Path) -> None:
    """Do it as one does without a tool for it."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        unpacked, packed = Path(folder) / "unpacked", Path(folder) / "packed"
        packed.mkdir()
        quiet([str(wheel_program), "unpack", "--dest", str(unpacked), str(wheel)])
        tree = next(unpacked.iterdir())
        info = (tree / f"{NAME}-{CANDIDATE}.dist-info").rename(tree / f"{NAME}-{FINAL}.dist-info")
        for path in (info / "METADATA", tree / NAME / "_dist_info.py"):
            path.write_bytes(path.read_bytes().replace(CANDIDATE.encode(), FINAL.encode()))
        quiet([str(wheel_program), "pack", "--dest-dir", str(packed), str(tree)])


def candidate(folder: Path, libraries: Sequence[Path]) -> Path:
    """Write a wheel of `SIZE` compressed bytes out of real libraries."""
    contents = b"".join(path.read_bytes() for path in libraries)
    library = folder / "library.so"
    library.write_bytes(contents)

    def write(count: int) -> Path:
        members = [
            Member(name=f"_{NAME}/lib/lib{number:03}.so", source=library, executable=True)
            for number in range(count)
        ]
        info = Member(name=f"{NAME}/_dist_info.py", source=f"__version__ = {CANDIDATE!r}\n".encode())
        metadata = metadata_text([("Name", NAME.replace("_", "-")), ("Version", CANDIDATE)])
        spec = WheelSpec(distribution=NAME, version=CANDIDATE, tag=TAG, metadata=metadata)
        return write_wheel(folder, spec, [*members, info]).path

    once = write(1).stat().st_size
    return write(round(SIZE / once))
