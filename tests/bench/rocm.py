"""ROCm's packages, made of the artifacts of a real ROCm; expanding them; fetching artifacts."""

import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from core import console, files, process
from core.cli.options import ROOT, environment
from core.env import installer
from rocm_packaging.artifacts import build_info, families_of, scan
from tests.bench import programs
from tests.bench.baselines import baseline_program
from tests.bench.comparisons import Comparison
from tests.bench.wheel_inputs import total_size
from tests.bench.wheels import program_command
from tests.bench.workloads import Command, Workload, measure_in_turn, remove, scratch_folder
from tests.kit.artifact_archives import pack_all

# As many files as today's ROCm has, in each of two folders.
ADDED_FILES = 6000

ZLIB = """
import pathlib, sys, zlib
size = 0
for path in filter(pathlib.Path.is_file, pathlib.Path(sys.argv[1]).rglob("*")):
    compressor = zlib.compressobj(6)
    with path.open("rb") as stream:
        while data := stream.read(1 << 20):
            size += len(compressor.compress(data))
    size += len(compressor.flush())
print(size)
"""
UNPACK = "for f in *.zst; do mkdir -p $0/$f; zstd -dcq $f | tar x -C $0/$f; done"


def packaging_command(artifacts: Path, scratch: Path) -> Command:
    """Return what packages artifacts for all of their families; a part of ROCm will do."""
    artifact_set = scan(artifacts)
    return [
        sys.executable,
        "-m",
        "rocm_packaging",
        "build",
        "--artifact-dir",
        artifacts,
        "--version",
        build_info(artifact_set).version,
        "--without",
        "*",
        "--gpu-family",
        ";".join(families_of(artifact_set)),
        "--store",
        scratch / "out",
        "--output-dir",
        scratch / "packages",
    ]


# Packages


def compare_packaging(rocm_folders: Sequence[Path], therock: Path | None, runs: int) -> Iterator[Comparison]:
    """Compare making packages, in a clone, with deflating their contents, and with TheRock's builder."""
    for rocm_folder in rocm_folders:
        with scratch_folder() as scratch:
            process.capture(["git", "clone", "--quiet", ROOT, scratch / "clone"])
            process.capture(["cp", "-a", f"{rocm_folder}/.", scratch / "artifacts"])
            yield from compare_packaging_of_one(scratch, therock, runs)


def compare_packaging_of_one(scratch: Path, therock: Path | None, runs: int) -> Iterator[Comparison]:
    """Compare making the packages of one ROCm, whose artifacts and clone are in the folder already."""
    clone = scratch / "clone"
    artifacts = scratch / "artifacts"
    packages = scratch / "packages"
    contents = scratch / "contents"
    info = build_info(scan(artifacts))
    command = packaging_command(artifacts, scratch)
    deflate: Command = [sys.executable, "-c", ZLIB, contents]

    process.capture(command, cwd=clone)
    unpack_wheels(packages, contents)
    payload = console.size(total_size(path for path in contents.rglob("*") if path.is_file()))
    split = ", split" if info.split else ""

    workloads = [
        Workload(
            name=f"ROCm {info.version}{split}, {payload}",
            action=command,
            folder=clone,
            prepare=lambda: remove(clone / ".cache", scratch / "out", packages),
            note="≤ 400 MiB",
        ),
        Workload(
            name="the same again, two libraries changed",
            action=command,
            folder=clone,
            prepare=library_change(artifacts),
        ),
        Workload(
            name="zlib, level 6, on one core",
            action=deflate,
            note="≤ 0.35 by CPU",
        ),
    ]
    if therock is not None:
        workloads.append(therock_workload(therock, artifacts, info.version, scratch / "therock"))
    first_run, second_run, *baselines = measure_in_turn(workloads, runs=runs, warm_up=False)

    size = total_size(packages.glob("*.whl"))
    deflated_size = int(process.capture(deflate).stdout)
    note = f"{size / deflated_size:.3f} of zlib's size"
    if therock is not None:
        therock_size = total_size((scratch / "therock" / "dist").rglob("*.whl"))
        note += f", {size / therock_size:.3f} of TheRock's size"

    yield Comparison(subject=first_run, baselines=baselines, note=note)
    yield Comparison(subject=second_run, baselines=[replace(first_run, name="the first time", note="≤ 0.3")])


def unpack_wheels(folder: Path, contents: Path) -> None:
    """Unpack each wheel of a folder into a folder of its own."""
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(contents / wheel.name)


def library_change(artifacts: Path) -> Callable[[], None]:
    """Return a function that makes two libraries of middle size a byte longer."""
    libraries = [path for path in artifacts.rglob("*.so*") if path.is_file() and not path.is_symlink()]
    libraries.sort(key=lambda path: (path.stat().st_size, path))
    middle = len(libraries) // 2

    def change_libraries() -> None:
        for library in libraries[middle : middle + 2]:
            library.write_bytes(library.read_bytes() + b"!")

    return change_libraries


def therock_workload(therock: Path, artifacts: Path, version: str, output: Path) -> Workload:
    """Return TheRock's own builder, which needs Python 3.12, and of others' programs patchelf."""
    python = baseline_program("python", "3.12")
    search_path = environment()["PATH"]
    command: Command = [
        python,
        therock.resolve() / "build_tools" / "build_python_packages.py",
        "--artifact-dir",
        artifacts,
        "--dest-dir",
        output,
        "--version",
        version,
    ]
    return Workload(
        name="TheRock's `build_python_packages.py`",
        action=command,
        variables={"PATH": f"{python.parent}{os.pathsep}{search_path}"},
        prepare=lambda: remove(output),
        note="≤ 0.12",
    )


# Expanding


def compare_expanding(artifacts: Path, runs: int) -> Iterator[Comparison]:
    """Compare the first `rocm-sdk init` with hard-linking its tree, with as many files as today's."""
    with scratch_folder() as scratch:
        grown_artifacts = scratch / "grown"
        process.capture(["cp", "-a", f"{artifacts}/.", grown_artifacts])
        artifact_set = scan(grown_artifacts)
        version = build_info(artifact_set).version
        family = families_of(artifact_set)[0]
        add_files(grown_artifacts)
        process.capture(packaging_command(grown_artifacts, scratch), cwd=ROOT)

        venv = scratch / "venv"
        copy = scratch / "copy"
        variables = process.inherited(ROCM_SDK_TARGET_FAMILY=family, UV_PYTHON=str(venv / "bin" / "python"))

        def uv(*arguments: str | Path) -> None:
            process.capture([installer.uv_program(), *arguments], env=variables)

        def install(requirement: str) -> None:
            # uv would give packages of this version out of its cache, such as an earlier bench's
            source = ("--no-cache", "--no-index", "--find-links", scratch / "packages")
            uv("pip", "install", "--no-build-isolation", *source, requirement)

        uv("venv", "--quiet", "--python", sys.executable, venv)
        uv("pip", "install", "setuptools")
        install(f"rocm[libraries,devel]=={version}")
        (site_packages,) = (venv / "lib").glob("python*/site-packages")
        tree = site_packages / "_rocm_sdk_devel"

        def install_again() -> None:
            remove(copy)
            uv("pip", "uninstall", "rocm-sdk-devel")
            install(f"rocm-sdk-devel=={version}")

        workloads = [
            Workload(
                name="rocm-sdk init",
                action=[venv / "bin" / "rocm-sdk", "init", "--quiet"],
                prepare=install_again,
            ),
            Workload(
                name="`cp -al` of the tree",
                action=["cp", "-al", tree, copy],
                note="≤ 1.5",
            ),
        ]
        expanding, linking = measure_in_turn(workloads, runs=runs)
        file_count = sum(not path.is_dir() for path in tree.rglob("*"))
        yield Comparison(subject=expanding, baselines=[linking], note=f"{file_count:,} files")


def add_files(artifacts: Path) -> None:
    """Add kernels and headers to artifacts of libraries and of headers, those of any target."""
    for component, folder in (("lib", "lib/many"), ("dev", "include/many")):
        stage = min(artifacts.glob(f"*_{component}_*/**/stage"))
        for number in range(ADDED_FILES):
            path = stage / folder / f"{number // 100}" / f"{number}.txt"
            files.write_text(path, f"{component} {number}\n")


# Fetching


def compare_fetching(artifacts: Path, runs: int) -> Iterator[Comparison]:
    """Compare fetching and extracting a run's artifacts with `zstd -d | tar x` of the same archives."""
    with scratch_folder() as scratch:
        store = scratch / "store"
        run = store / "1-linux"
        run.mkdir(parents=True)
        pack_all(artifacts, run)
        archives = list(run.glob("*.zst"))
        size = console.size(total_size(archives))

        our_folder = scratch / "ours"
        their_folder = scratch / "theirs"
        family = families_of(scan(artifacts))[0]
        workloads = [
            Workload(
                name=f"fetch {len(archives)} artifacts from a folder, {size} packed",
                action=program_command(programs.fetch_artifacts, store, our_folder / family),
                prepare=lambda: remove(our_folder, their_folder),
            ),
            Workload(
                name="`zstd -d | tar x`, no digests",
                action=["sh", "-euc", UNPACK, their_folder],
                folder=run,
                note="≤ 1.3",
            ),
        ]
        fetching, unpacking = measure_in_turn(workloads, runs=runs)
        yield Comparison(subject=fetching, baselines=[unpacking])
