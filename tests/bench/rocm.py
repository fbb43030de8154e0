"""What docs/performance.md says of ROCm's packages, measured on a real ROCm."""

import statistics
import sys
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from ci.plan import artifacts as run_artifacts
from core import console, files, process
from core.cli.options import ROOT
from core.env import installer
from core.errors import BuildError
from core.families import family
from core.stores.location import open_store
from rocm_packaging.artifacts import families_of, scan
from tests.artifact_archives import pack
from tests.bench.measuring import Figure, paired, quiet, scratch, seconds

VERSION = "5.2.3"
ARTIFACTS, ARTIFACT_BYTES = 100, 20 << 20
MANY_FILES = 6000
CHUNK = 1 << 20
LARGE = 1 << 30  # sets beyond this are measured once

# Runs the front door, and says how much memory it took at most, in KiB.
PEAK = """
import resource, runpy, sys
try:
    runpy.run_module("rocm_packaging", run_name="__main__")
except SystemExit as end:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    sys.exit(end.code)
"""


def figures(artifacts: Path) -> Iterator[Figure]:
    """Measure packaging, expanding and fetching."""
    with scratch() as place:
        yield build_rocm(artifacts, place)
        chosen = families_of(scan(artifacts))[0]
        yield expand(place, place / "packages", chosen)
        yield expand(place, many_packages(artifacts, place, chosen), chosen)
        yield fetch(artifacts, place)


def build_rocm(artifacts: Path, place: Path) -> Figure:
    """Compare making the packages with deflating their contents by zlib's level 6 on one core."""
    packages = place / "packages"
    peaks: list[int] = []

    def ours() -> None:
        words: list[str | Path] = ["build", "--artifact-dir", artifacts, "--version", VERSION]
        words += ["--output-dir", packages, "--store", place / "out", "--force"]
        env = process.inherited(PYTHONDONTWRITEBYTECODE=None)  # users' checkouts are compiled once
        said = process.capture([sys.executable, "-c", PEAK, *words], cwd=ROOT, env=env).stdout
        peaks.append(int(said.split()[-1]))

    ours()
    contents = place / "contents"
    for wheel in sorted(packages.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(contents / wheel.name)
    found = [path for path in sorted(contents.rglob("*")) if path.is_file()]
    payload = sum(path.stat().st_size for path in found)
    deflated = 0

    def theirs() -> None:
        nonlocal deflated
        deflated = sum(deflated_size(path) for path in found)

    times = paired(ours, theirs, runs=3) if payload < LARGE else (seconds(ours), seconds(theirs))
    written = sum(path.stat().st_size for path in packages.glob("*.whl"))
    memory = console.size(max(peaks) * 1024)
    return Figure(
        subject=f"build_rocm, {console.size(payload)} of payload",
        baseline="zlib level 6, one core",
        times=times,
        note=f"size {written / deflated:.3f} of the baseline's, at most {memory} of memory",
    )


def deflated_size(path: Path) -> int:
    """Deflate a file by zlib, and say how many bytes that makes."""
    compressor, size = zlib.compressobj(6), 0
    with path.open("rb") as stream:
        while data := stream.read(CHUNK):
            size += len(compressor.compress(data))
    return size + len(compressor.flush())


def many_packages(artifacts: Path, place: Path, chosen: str) -> Path:
    """Make packages of a ROCm with as many files as today's: kernels of its libraries, and headers."""
    grown, packages = place / "grown", place / "grown-packages"
    quiet(["cp", "-a", str(artifacts), str(grown)])
    for component, folder in (("lib", "lib/many"), ("dev", "include/many")):
        stage = next(grown.glob(f"*_{component}_{chosen}/**/stage"))
        for number in range(MANY_FILES):
            files.write_text(stage / folder / f"{number // 100}" / f"{number}.txt", f"{component} {number}\n")
    words = ["build", "--artifact-dir", str(grown), "--version", VERSION, "--output-dir", str(packages)]
    quiet([sys.executable, "-m", "rocm_packaging", *words, "--store", str(place / "grown-out")])
    return packages


def expand(place: Path, packages: Path, chosen: str) -> Figure:
    """Compare the first `rocm-sdk init` with hard-linking the tree that it makes."""
    root = place / f"venv-{packages.name}"
    uv = [installer.uv_program(), "pip"]
    quiet([uv[0], "venv", "--quiet", "--python", sys.executable, str(root)])
    python = ["--python", str(root / "bin" / "python")]
    quiet([*uv, "install", *python, "setuptools"])
    # uv would give packages of this version out of its cache, such as an earlier bench's
    source = ["--no-cache", "--no-index", "--no-build-isolation", "--find-links", str(packages)]
    env = process.inherited(ROCM_SDK_TARGET_FAMILY=chosen)
    everything = f"rocm[libraries,devel]=={VERSION}"
    process.capture([*uv, "install", *python, *source, everything], env=env)
    script = [str(root / "bin" / "rocm-sdk"), "init", "--quiet"]
    site = next((root / "lib").glob("python*")) / "site-packages"
    tree, copy = site / "_rocm_sdk_devel", place / "copy"
    ours, theirs = [], []
    for _ in range(5):
        quiet([*uv, "uninstall", *python, "rocm-sdk-devel"])
        quiet([*uv, "install", *python, *source, f"rocm-sdk-devel=={VERSION}"])
        ours.append(seconds(lambda: quiet(script)))
        theirs.append(seconds(lambda: quiet(["cp", "-al", str(tree), str(copy)])))
        quiet(["rm", "-rf", str(copy)])
    count = sum(1 for path in tree.rglob("*") if not path.is_dir())
    return Figure(
        subject=f"rocm-sdk init, {count} files",
        baseline="cp -al of the tree",
        times=(statistics.median(ours), statistics.median(theirs)),
    )


def fetch(given: Path, place: Path) -> Figure:
    """Compare fetching and extracting many artifacts with `zstd -d | tar x` of the same archives."""
    chosen = families_of(scan(given))[0]
    run = place / "store" / "1-linux"
    run.mkdir(parents=True)
    total = sum(packed(folder, run) for folder in many_artifacts(given, place / "many", chosen))
    store = open_store(str(place / "store"), root=ROOT)
    theirs = "for f in *.tar.zst; do mkdir -p $0/$f && zstd -dcq $f | tar x -C $0/$f || exit 1; done"

    def with_ours() -> None:
        listed = run_artifacts.choose(
            run_artifacts.list_artifacts(store, run.name), family(chosen), where=run.name
        )
        run_artifacts.fetch(store, run_artifacts.plan(store, listed, family(chosen)), place / "ours")

    def with_zstd() -> None:
        quiet(["sh", "-euc", theirs, str(place / "theirs")], cwd=run)

    ours, baseline = [], []
    for _ in range(3):
        ours.append(seconds(with_ours))
        baseline.append(seconds(with_zstd))
        quiet(["rm", "-rf", str(place / "ours"), str(place / "theirs")])
    return Figure(
        subject=f"fetch {ARTIFACTS} artifacts, {console.size(total)}",
        baseline="zstd -d | tar x",
        times=(statistics.median(ours), statistics.median(baseline)),
        note="digests checked",
    )


def packed(folder: Path, run: Path) -> int:
    """Pack an artifact, and say how many bytes it held."""
    pack(folder, run)
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def many_artifacts(artifacts: Path, place: Path, chosen: str) -> Iterator[Path]:
    """Cut the bytes of a real ROCm into many artifacts of one size."""
    pieces = slices(sorted(path for path in artifacts.rglob("*.so*") if path.is_file()))
    for number, data in enumerate(islice(pieces, ARTIFACTS)):
        folder = place / f"part-{number:03}_lib_{chosen}"
        with files.atomic(folder / "stage" / "lib" / "data") as stream:
            stream.write(data)
        files.write_text(folder / "artifact_manifest.txt", "stage\n")
        yield folder


def slices(sources: Sequence[Path]) -> Iterator[bytes]:
    """Read files one after the other, again and again, in pieces of an artifact's size."""
    if not sources:
        raise BuildError("The artifacts hold no libraries to measure with.")
    held = b""
    while True:
        for path in sources:
            with path.open("rb") as stream:
                while data := stream.read(ARTIFACT_BYTES - len(held)):
                    held += data
                    if len(held) == ARTIFACT_BYTES:
                        yield held
                        held = b""
