"""Wheels: written and verified, given another version, split, and made to stand alone."""

import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from core import console, process
from core.archive import Member
from core.wheel.writer import WheelSpec, metadata_text, write_wheel
from rocm_packaging.packages.layouts import library_globs
from tests.bench import programs
from tests.bench.measuring import Figure, Words, Work, in_turn, program, removing, scratch
from tests.kit.binaries import compressed_bundle, offload_bundle

SIZE = 500_000_000
NAME, CANDIDATE, ROCM = "rocm_sdk_libraries_gfx94x_dcgpu", "7.10.0rc2", "7.10.0"
TORCH, TORCH_TAG, ROCM_TAG = f"2.10.0+rocm{ROCM}", "cp311-cp311-linux_x86_64", "py3-none-linux_x86_64"
TARGETS, BUNDLES = ("gfx942", "gfx950", "gfx1100", "gfx1201"), 20
# As clang leaves them: bundles side by side, and a wrapper that registers each.
_BUNDLE = '.section .hip_fatbin,"a",@progbits\n.p2align 12\nb{0}: .incbin "{0}.hipfb"\n'
_WRAPPER = '.section .hipFatBinSegment,"aw",@progbits\n.long 0x48495046, 1\n.quad b{0}, 0\n'
# A section that comes before what a loader reads, as device code does.
_CODE = '.section .hip_fatbin,"a",@progbits\n.incbin "payload"\n'
CORE, MATH = "_rocm_sdk_core", "_rocm_sdk_libraries_gfx94X_dcgpu"
NAMES = ("amdhip64", "hiprtc", "hipblas", "hipblaslt", "hipsparse", "miopen", "rccl")
ZIPFILE = (sys.executable, "-m", "zipfile")
# what a tool does that unpacks: extract, put what other wheels have beside torch's libraries, zip again
ZIP_AGAIN = """
folder=$1 wheel=$2 zip="$0 -m zipfile"; shift 2
$zip -e $wheel $folder/tree
for other; do $zip -e $other $folder/tree/torch/lib/rocm; done
$zip -c $folder/made.whl $folder/tree/*
"""
OTHER_VERSION = f"""
mkdir $1; $0 unpack --dest $1 $2; cd $1/*
mv {NAME}-{CANDIDATE}.dist-info {NAME}-{ROCM}.dist-info
sed -i s/{CANDIDATE}/{ROCM}/ {NAME}-{ROCM}.dist-info/METADATA {NAME}/_dist_info.py
$0 pack --dest-dir $1 .
"""


def ours(name: str, does: Callable[..., object], *words: Path, note: str = "") -> Work:
    """Run one of our programs in a process of its own."""
    return Work(name, [sys.executable, "-m", programs.__name__, does.__name__, *map(str, words)], note=note)


def by_hand(name: str, script: str, tool: str | Path, folder: Path, *wheels: Path, note: str = "") -> Work:
    """Do in a folder what one does without us."""
    words: Words = ["sh", "-euc", script, tool, folder, *wheels]
    return Work(name, words, before=removing(folder), note=note)


def real_libraries() -> Sequence[Path]:
    """Choose compiled files of some size from this environment: what wheels of ours are made of."""
    return sorted(Path(sys.prefix).rglob("*.so"), key=lambda path: path.stat().st_size, reverse=True)[:20]


def size_of(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def figures(runs: int) -> Iterator[Figure]:
    """Compare writing and verifying a wheel of real libraries with the standard library's zipfile."""
    payload = real_libraries()
    with scratch() as place:
        made, theirs = place / "made", place / "theirs.whl"
        title = f"write a wheel of {console.size(size_of(payload))}"
        works = [
            ours(title, programs.write_wheel, made, *payload),
            Work("`python -m zipfile -c` (level 6)", [*ZIPFILE, "-c", theirs, *payload]),
        ]
        written, zipped = in_turn(works, runs=runs)
        wheel = next(made.glob("*.whl"))
        yield Figure(written, [zipped], f"{size_of([wheel]) / size_of([theirs]):.3f} of the other's size")
        works = [
            ours("verify its RECORD", programs.verify, wheel),
            Work("`python -m zipfile -t`", [*ZIPFILE, "-t", wheel]),
        ]
        verified, read = in_turn(works, runs=runs)
        yield Figure(verified, [read])


def rewriting(runs: int) -> Iterator[Figure]:
    """Compare another version for one wheel, checked, with unpacking, editing and packing it by `wheel`."""
    with scratch() as place:
        (place / "library.so").write_bytes(b"".join(path.read_bytes() for path in real_libraries()))
        info = Member(name=f"{NAME}/_dist_info.py", source=f"__version__ = {CANDIDATE!r}\n".encode())

        def candidate(count: int) -> Path:
            libraries = (f"_{NAME}/lib/lib{number:03}.so" for number in range(count))
            members = [Member(name=one, source=place / "library.so", executable=True) for one in libraries]
            return wheel_of(place, NAME, CANDIDATE, ROCM_TAG, [*members, info])

        wheel = candidate(round(SIZE / size_of([candidate(1)])))
        title = f"another version for a wheel of {console.size(size_of([wheel]))}, checked"
        packed = "`wheel unpack`, edit, `wheel pack`, no check"
        works = [
            ours(title, programs.rewrite, wheel, place / "ours", note="≤ 100 MiB"),
            by_hand(packed, OTHER_VERSION, program("wheel"), place / "by_hand", wheel, note="≤ 0.05"),
        ]
        subject, baseline = in_turn(works, runs=runs, warm=False)
        yield Figure(subject, [baseline])


def splitting(runs: int) -> Iterator[Figure]:
    """Compare splitting a fat wheel with extracting it and zipping the same files again."""
    with scratch() as place:
        wheel, parts = fat_wheel(place, real_libraries()), place / "parts"
        title = f"split a wheel of {console.size(size_of([wheel]))}, read the parts again and compare"
        works = [
            ours(title, programs.split, wheel, parts),
            by_hand("extract, zip again at level 6", ZIP_AGAIN, sys.executable, place / "by_hand", wheel),
        ]
        subject, baseline = in_turn(works, runs=runs)
        yield Figure(subject, [baseline], f"{len(list(parts.iterdir()))} parts")


def standing_alone(runs: int) -> Iterator[Figure]:
    """Compare making a stand-alone wheel with unpacking, copying and zipping it by the standard library."""
    with scratch() as place:
        wheel, rocm = torch_and_rocm(place, real_libraries())
        title, goals = "extract, copy, zip again at level 6", "≤ 0.1, ≤ 1.02 of the size"
        words = (wheel, *sorted(rocm.glob("*.whl")))
        works = [
            ours("a stand-alone wheel", programs.standalone, wheel, rocm, place / "made"),
            by_hand(title, ZIP_AGAIN, sys.executable, place / "by_hand", *words, note=goals),
        ]
        subject, baseline = in_turn(works, runs=runs, warm=False)
        made, theirs = next((place / "made").glob("*.whl")), place / "by_hand" / "made.whl"
        with zipfile.ZipFile(made) as archive:
            unpacked = console.size(sum(info.file_size for info in archive.infolist()))
        packed, ratio = console.size(size_of([made])), size_of([made]) / size_of([theirs])
        yield Figure(subject, [baseline], f"{unpacked}, {packed} packed, {ratio:.3f} of the other's size")


def fat_wheel(place: Path, libraries: Sequence[Path]) -> Path:
    """Write a wheel with compressed bundles for four targets, as large as a tenth of a real torch."""
    content = b"".join(path.read_bytes() for path in libraries)
    step, source = len(content) // BUNDLES, ""
    for number in range(BUNDLES):
        code = b"\x7fELF" + content[number * step : (number + 1) * step]
        (place / f"{number}.hipfb").write_bytes(compressed_bundle(offload_bundle(*TARGETS, code=code)))
        source += _BUNDLE.format(number) + _WRAPPER.format(number)
    library = linked(place, "libtorch_hip.so", source)
    members = [Member(name="torch/lib/libtorch_hip.so", source=library)]
    members += [Member(name=f"torch/lib/lib{path.name}", source=path) for path in libraries]
    needs = ("Requires-Dist", f"rocm[libraries]=={ROCM}")
    return zipped_again(wheel_of(place, "torch", TORCH, TORCH_TAG, members, needs))


def torch_and_rocm(place: Path, libraries: Sequence[Path]) -> tuple[Path, Path]:
    """Write a torch wheel and ROCm's wheels, half of the bytes in each."""
    (place / "payload").write_bytes(b"".join(path.read_bytes() for path in libraries))
    torch = linked(place, "libtorch_hip.so", f'{_CODE}.incbin "payload"\n')
    globs, rocm = library_globs("linux"), place / "rocm"
    members: dict[str, list[Member]] = {CORE: [], MATH: []}
    for name in NAMES:
        soname = f"{globs[name].removeprefix('lib/').rstrip('*')}.1"
        root = CORE if name in {"amdhip64", "hiprtc"} else MATH
        source = linked(place, soname, _CODE, f"-Wl,-soname,{soname}")
        members[root].append(Member(name=f"{root}/lib/{soname}", source=source, executable=True))
    loader = (
        "import rocm_sdk\ndef initialize():\n"
        f"    rocm_sdk.initialize_process(preload_shortnames={NAMES!r}, check_version={ROCM!r})\n"
    )
    headers, header = (f"torch/include/{number}.h" for number in range(5000)), b"#pragma once\n" * 200
    content = [
        Member(name="torch/_rocm_init.py", source=loader.encode()),
        Member(name="torch/lib/libtorch_hip.so", source=torch, executable=True),
        *(Member(name=name, source=header) for name in headers),
    ]
    wheel_of(rocm, "rocm-sdk-core", ROCM, ROCM_TAG, members[CORE])
    wheel_of(rocm, "rocm-sdk-libraries-gfx94x-dcgpu", ROCM, ROCM_TAG, members[MATH])
    return zipped_again(wheel_of(place, "torch", TORCH, TORCH_TAG, content)), rocm


def linked(place: Path, name: str, source: str, *flags: str) -> Path:
    """Link a library of an assembler's source."""
    (place / "library.s").write_text(source)
    target = place / "lib" / name
    target.parent.mkdir(exist_ok=True)
    always = ("-shared", "-nostdlib", "-Wl,-rpath,$ORIGIN", "-Wl,--build-id=none")
    process.capture(["cc", *always, *flags, "library.s", "-o", target], cwd=place)
    return target


def wheel_of(
    folder: Path, name: str, version: str, tag: str, members: Sequence[Member], *fields: tuple[str, str]
) -> Path:
    metadata = metadata_text([("Name", name.replace("_", "-")), ("Version", version), *fields])
    spec = WheelSpec(distribution=name, version=version, tag=tag, metadata=metadata)
    return write_wheel(folder, spec, members).path


def zipped_again(wheel: Path) -> Path:
    """Compress a wheel as setuptools does, which is what makes torch's."""
    plain = wheel.rename(wheel.with_suffix(".plain"))
    with zipfile.ZipFile(plain) as old, zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    plain.unlink()
    return wheel
