"""What docs/performance.md says of stand-alone wheels, measured."""

import os
import shutil
import statistics
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from core import console, process
from core.archive import Member
from core.wheel.writer import WheelSpec, metadata_text, write_wheel
from pytorch_build.standalone.fat import Request, make
from rocm_packaging.packages.layouts import library_globs
from tests.bench.measuring import Figure, scratch, seconds

ROCM, VERSION = "7.10.0", "2.10.0+rocm7.10.0"
RUNS = 3
CORE, MATH = "_rocm_sdk_core", "_rocm_sdk_libraries_gfx94X_dcgpu"
NAMES = ("amdhip64", "hiprtc", "hipblas", "hipblaslt", "hipsparse", "miopen", "rccl")
# A section that comes before what a loader reads, as device code does.
_SOURCE = '.section .hip_fatbin,"a",@progbits\n.incbin "payload"\n'


def figures(libraries: Sequence[Path]) -> Iterator[Figure]:
    """Compare making a stand-alone wheel with unpacking, copying and zipping it by the standard library."""
    with scratch() as place:
        wheel, rocm = inputs(place, libraries)
        by_hand = place / "by_hand.whl"
        baseline = seconds(lambda: assemble(wheel, rocm, by_hand))
        output = place / "made"
        request = Request(wheel=wheel, rocm=rocm, output=output, targets=("gfx942",))
        taken = statistics.median(seconds(lambda: make(request)) for _ in range(RUNS))
        made = next(output.glob("*.whl"))
        with zipfile.ZipFile(made) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
        ratio = made.stat().st_size / by_hand.stat().st_size
        size, packed = console.size(unpacked), console.size(made.stat().st_size)
        yield Figure(
            subject=f"stand-alone wheel of {size}, {packed} packed",
            baseline="extract, copy, zip again at level 6",
            times=(taken, baseline),
            note=f"{baseline / taken:.0f} times as fast, {ratio:.3f} of the size",
        )


def inputs(place: Path, libraries: Sequence[Path]) -> tuple[Path, Path]:
    """Write a torch wheel and ROCm's wheels, half of the bytes in each."""
    (place / "payload").write_bytes(b"".join(path.read_bytes() for path in libraries))
    torch = linked(place, "libtorch_hip.so", "", copies=2)
    globs = library_globs("linux")
    members: dict[str, list[Member]] = {CORE: [], MATH: []}
    for name in NAMES:
        soname = f"{globs[name].removeprefix('lib/').rstrip('*')}.1"
        root = CORE if name in {"amdhip64", "hiprtc"} else MATH
        source = linked(place, soname, soname)
        members[root].append(Member(name=f"{root}/lib/{soname}", source=source, executable=True))
    loader = (
        "import rocm_sdk\ndef initialize():\n"
        f"    rocm_sdk.initialize_process(preload_shortnames={NAMES!r}, check_version={ROCM!r})\n"
    )
    texts = [
        Member(name=f"torch/include/{number}.h", source=b"#pragma once\n" * 200) for number in range(5000)
    ]
    content = [
        Member(name="torch/_rocm_init.py", source=loader.encode()),
        Member(name="torch/lib/libtorch_hip.so", source=torch, executable=True),
        *texts,
    ]
    rocm = place / "rocm"
    wheel = zipped_again(written(place, "torch", VERSION, "cp311-cp311-linux_x86_64", content))
    written(rocm, "rocm-sdk-core", ROCM, "py3-none-linux_x86_64", members[CORE])
    written(rocm, "rocm-sdk-libraries-gfx94x-dcgpu", ROCM, "py3-none-linux_x86_64", members[MATH])
    return wheel, rocm


def linked(place: Path, name: str, soname: str, *, copies: int = 1) -> Path:
    """Link a library that holds the payload."""
    (place / "library.s").write_text(_SOURCE + '.incbin "payload"\n' * (copies - 1))
    target = place / "lib" / name
    target.parent.mkdir(exist_ok=True)
    flags = ["-shared", "-nostdlib", "-Wl,-rpath,$ORIGIN", "-Wl,--build-id=none"]
    flags += [f"-Wl,-soname,{soname}"] if soname else []
    process.capture(["cc", *flags, "library.s", "-o", target], cwd=place)
    return target


def written(folder: Path, name: str, version: str, tag: str, members: Sequence[Member]) -> Path:
    """Write a wheel of these files."""
    metadata = metadata_text([("Name", name), ("Version", version)])
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


def assemble(wheel: Path, rocm: Path, target: Path) -> None:
    """Do it as one does by hand: extract, copy ROCm's files in, zip."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        unpacked, tree = Path(folder) / "wheel", Path(folder) / "rocm"
        for source, place in ((wheel, unpacked), *((one, tree) for one in rocm.glob("*.whl"))):
            with zipfile.ZipFile(source) as archive:
                archive.extractall(place)
        for root in (CORE, MATH):
            shutil.copytree(tree / root, unpacked / "torch" / "lib" / "rocm" / root)
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for parent, _, names in os.walk(unpacked):
                for name in sorted(names):
                    path = Path(parent, name)
                    archive.write(path, path.relative_to(unpacked).as_posix())
