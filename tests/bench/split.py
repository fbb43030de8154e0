"""What docs/performance.md says of split wheels, measured."""

import statistics
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from core import console, process
from core.archive import Member
from core.cli.options import ROOT
from core.wheel.writer import WheelSpec, metadata_text, write_wheel
from tests.bench.fat_wheel import zipped_again
from tests.bench.measuring import Figure, scratch, seconds
from tests.bench.rewriting import PEAK
from tests.unit.pytorch_build.check.conftest import compressed_bundle, plain_bundle

VERSION = "2.10.0+rocm7.10.0"
TARGETS = ("gfx942", "gfx950", "gfx1100", "gfx1201")
BUNDLES, RUNS = 40, 3
# As clang leaves them: bundles side by side, and a wrapper that registers each.
_BUNDLE = '.section .hip_fatbin,"a",@progbits\n.p2align 12\nb{0}: .incbin "{0}.hipfb"\n'
_WRAPPER = '.section .hipFatBinSegment,"aw",@progbits\n.long 0x48495046, 1\n.quad b{0}, 0\n'
# In a process of its own, as its memory is measured.
SPLIT = """
import sys
from pathlib import Path
from pytorch_build.split.parts import split
split(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def figures(libraries: Sequence[Path]) -> Iterator[Figure]:
    """Compare splitting a fat wheel with extracting it and zipping the same files again."""
    with scratch() as place:
        wheel = fat_wheel(place, libraries)
        baseline = seconds(lambda: zipped(wheel, place / "by_hand.zip"))
        words: list[str | Path] = [sys.executable, "-c", SPLIT + PEAK, wheel, place / "parts"]
        peaks: list[int] = []

        def run() -> None:
            peaks.append(int(process.capture(words, cwd=ROOT).stdout.split()[-1]))

        taken = statistics.median(seconds(run) for _ in range(RUNS))
        parts = list((place / "parts").iterdir())
        yield Figure(
            subject=f"split a wheel of {console.size(wheel.stat().st_size)} into {len(parts)}, checked",
            baseline="extract, zip again at level 6",
            times=(taken, baseline),
            note=f"{max(peaks) >> 10} MiB of memory",
        )


def fat_wheel(place: Path, libraries: Sequence[Path]) -> Path:
    """Write a wheel with compressed bundles for four targets, as large as a tenth of a real torch."""
    content = b"".join(path.read_bytes() for path in libraries)
    step = len(content) // BUNDLES
    source = ""
    for number in range(BUNDLES):
        code = b"\x7fELF" + content[number * step : (number + 1) * step]
        (place / f"{number}.hipfb").write_bytes(compressed_bundle(plain_bundle(*TARGETS, code=code)))
        source += _BUNDLE.format(number) + _WRAPPER.format(number)
    (place / "library.s").write_text(source)
    library = place / "libtorch_hip.so"
    process.capture(["cc", "-shared", "-nostdlib", "library.s", "-o", library], cwd=place)
    fields = [("Name", "torch"), ("Version", VERSION), ("Requires-Dist", "rocm[libraries]==7.10.0")]
    tag = "cp311-cp311-linux_x86_64"
    spec = WheelSpec(distribution="torch", version=VERSION, tag=tag, metadata=metadata_text(fields))
    members = [Member(name="torch/lib/libtorch_hip.so", source=library)]
    members += [Member(name=f"torch/lib/lib{path.name}", source=path) for path in libraries]
    return zipped_again(write_wheel(place, spec, members).path)


def zipped(wheel: Path, target: Path) -> None:
    """Do the least that a tool does which unpacks: extract, and zip again."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for path in sorted(Path(folder).rglob("*")):
                archive.write(path, path.relative_to(folder).as_posix())
