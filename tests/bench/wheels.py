"""Wheels: written and verified, given another version, split, and made to stand alone."""

import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from core import console
from tests.bench import programs
from tests.bench.baselines import baseline_program
from tests.bench.comparisons import Comparison
from tests.bench.wheel_inputs import (
    LIBRARIES_WHEEL,
    ROCM_CANDIDATE,
    ROCM_VERSION,
    build_fat_wheel,
    build_release_candidate,
    build_torch_and_rocm,
    compiled_libraries,
    total_size,
)
from tests.bench.workloads import Command, Workload, measure_in_turn, remove, scratch_folder

ZIPFILE = (sys.executable, "-m", "zipfile")

# What a tool does that unpacks: extract, put what other wheels have beside torch's libraries, zip again.
ZIP_AGAIN = """
folder=$1 wheel=$2 zip="$0 -m zipfile"; shift 2
$zip -e $wheel $folder/tree
for other; do $zip -e $other $folder/tree/torch/lib/rocm; done
$zip -c $folder/made.whl $folder/tree/*
"""

OTHER_VERSION = f"""
mkdir $1; $0 unpack --dest $1 $2; cd $1/*
mv {LIBRARIES_WHEEL}-{ROCM_CANDIDATE}.dist-info {LIBRARIES_WHEEL}-{ROCM_VERSION}.dist-info
sed -i s/{ROCM_CANDIDATE}/{ROCM_VERSION}/ \\
    {LIBRARIES_WHEEL}-{ROCM_VERSION}.dist-info/METADATA {LIBRARIES_WHEEL}/_dist_info.py
$0 pack --dest-dir $1 .
"""


def program_command(program: Callable[..., None], *paths: Path) -> Command:
    """Return what runs one of our programs in a process of its own."""
    return [sys.executable, "-m", programs.__name__, program.__name__, *paths]


def script_workload(
    name: str, script: str, tool: str | Path, folder: Path, *wheels: Path, note: str = ""
) -> Workload:
    """Return a workload that does in a folder what one does without us, by a tool."""
    return Workload(
        name=name,
        action=["sh", "-euc", script, tool, folder, *wheels],
        prepare=lambda: remove(folder),
        note=note,
    )


def compare_writing_and_verifying(runs: int) -> Iterator[Comparison]:
    """Compare writing and verifying a wheel of real libraries with the standard library's zipfile."""
    libraries = compiled_libraries()
    with scratch_folder() as scratch:
        our_folder = scratch / "ours"
        their_wheel = scratch / "theirs.whl"
        workloads = [
            Workload(
                name=f"write a wheel of {console.size(total_size(libraries))}",
                action=program_command(programs.write_wheel, our_folder, *libraries),
            ),
            Workload(
                name="`python -m zipfile -c` (level 6)",
                action=[*ZIPFILE, "-c", their_wheel, *libraries],
            ),
        ]
        writing, zipping = measure_in_turn(workloads, runs=runs)
        (our_wheel,) = our_folder.glob("*.whl")
        size_ratio = total_size([our_wheel]) / total_size([their_wheel])
        yield Comparison(subject=writing, baselines=[zipping], note=f"{size_ratio:.3f} of the other's size")

        workloads = [
            Workload(
                name="verify its RECORD",
                action=program_command(programs.verify_wheel, our_wheel),
            ),
            Workload(
                name="`python -m zipfile -t`",
                action=[*ZIPFILE, "-t", our_wheel],
            ),
        ]
        verifying, testing = measure_in_turn(workloads, runs=runs)
        yield Comparison(subject=verifying, baselines=[testing])


def compare_rewriting(runs: int) -> Iterator[Comparison]:
    """Compare another version for one wheel, checked, with unpacking, editing and packing it by `wheel`."""
    with scratch_folder() as scratch:
        candidate = build_release_candidate(scratch)
        size = console.size(total_size([candidate]))
        workloads = [
            Workload(
                name=f"another version for a wheel of {size}, checked",
                action=program_command(programs.rewrite_wheel, candidate, scratch / "ours"),
                note="≤ 100 MiB",
            ),
            script_workload(
                "`wheel unpack`, edit, `wheel pack`, no check",
                OTHER_VERSION,
                baseline_program("wheel"),
                scratch / "theirs",
                candidate,
                note="≤ 0.05",
            ),
        ]
        rewriting, repacking = measure_in_turn(workloads, runs=runs, warm_up=False)
        yield Comparison(subject=rewriting, baselines=[repacking])


def compare_splitting(runs: int) -> Iterator[Comparison]:
    """Compare splitting a fat wheel with extracting it and zipping the same files again."""
    with scratch_folder() as scratch:
        wheel = build_fat_wheel(scratch)
        parts = scratch / "parts"
        size = console.size(total_size([wheel]))
        workloads = [
            Workload(
                name=f"split a wheel of {size}, read the parts again and compare",
                action=program_command(programs.split_fat_wheel, wheel, parts),
            ),
            script_workload(
                "extract, zip again at level 6",
                ZIP_AGAIN,
                sys.executable,
                scratch / "theirs",
                wheel,
            ),
        ]
        splitting, zipping = measure_in_turn(workloads, runs=runs)
        part_count = len(list(parts.iterdir()))
        yield Comparison(subject=splitting, baselines=[zipping], note=f"{part_count} parts")


def compare_standalone(runs: int) -> Iterator[Comparison]:
    """Compare making a stand-alone wheel with unpacking, copying and zipping it by the standard library."""
    with scratch_folder() as scratch:
        rocm = scratch / "rocm"
        torch = build_torch_and_rocm(scratch, rocm)
        our_folder = scratch / "ours"
        their_folder = scratch / "theirs"
        workloads = [
            Workload(
                name="a stand-alone wheel",
                action=program_command(programs.make_standalone_wheel, torch, rocm, our_folder),
            ),
            script_workload(
                "extract, copy, zip again at level 6",
                ZIP_AGAIN,
                sys.executable,
                their_folder,
                torch,
                *sorted(rocm.glob("*.whl")),
                note="≤ 0.1, ≤ 1.02 of the size",
            ),
        ]
        bundling, zipping = measure_in_turn(workloads, runs=runs, warm_up=False)
        (our_wheel,) = our_folder.glob("*.whl")
        note = describe_sizes(our_wheel, their_folder / "made.whl")
        yield Comparison(subject=bundling, baselines=[zipping], note=note)


def describe_sizes(our_wheel: Path, their_wheel: Path) -> str:
    """Return the size of a wheel unpacked, packed, and as a part of another's."""
    with zipfile.ZipFile(our_wheel) as archive:
        unpacked = sum(info.file_size for info in archive.infolist())
    packed = total_size([our_wheel])
    ratio = packed / total_size([their_wheel])
    return f"{console.size(unpacked)}, {console.size(packed)} packed, {ratio:.3f} of the other's size"
