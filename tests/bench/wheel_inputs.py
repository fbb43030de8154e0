"""Wheels to measure with, of the compiled files that this environment has."""

import sys
import zipfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from core import process
from core.archive import Member
from core.wheel.writer import WheelSpec, metadata_text, write_wheel
from rocm_packaging.packages.layouts import library_globs
from tests.bench.workloads import Command
from tests.kit.binaries import compressed_bundle, offload_bundle

ROCM_VERSION = "7.10.0"
ROCM_CANDIDATE = "7.10.0rc2"
ROCM_TAG = "py3-none-linux_x86_64"
TORCH_VERSION = f"2.10.0+rocm{ROCM_VERSION}"
TORCH_TAG = "cp311-cp311-linux_x86_64"

# The wheel of ROCm's libraries that gets another version.
LIBRARIES_WHEEL = "rocm_sdk_libraries_gfx94x_dcgpu"
LIBRARIES_WHEEL_SIZE = 500_000_000

TARGETS = ("gfx942", "gfx950", "gfx1100", "gfx1201")
BUNDLES = 20
# As clang leaves them: bundles side by side, and a wrapper that registers each.
BUNDLE = """
.section .hip_fatbin,"a",@progbits
.p2align 12
b{0}: .incbin "{0}.hipfb"
.section .hipFatBinSegment,"aw",@progbits
.long 0x48495046, 1
.quad b{0}, 0
"""

# A section that comes before what a loader reads, as device code does.
PAYLOAD = """
.section .hip_fatbin,"a",@progbits
.incbin "payload"
"""
CORE = "_rocm_sdk_core"
LIBRARIES = "_rocm_sdk_libraries_gfx94X_dcgpu"
LIBRARIES_OF_CORE = ("amdhip64", "hiprtc")
PRELOADED_LIBRARIES = (*LIBRARIES_OF_CORE, "hipblas", "hipblaslt", "hipsparse", "miopen", "rccl")
PRELOADING = (
    "import rocm_sdk\n"
    "def initialize():\n"
    f"    rocm_sdk.initialize_process("
    f"preload_shortnames={PRELOADED_LIBRARIES!r}, check_version={ROCM_VERSION!r})\n"
)
HEADERS = 5000
HEADER = b"#pragma once\n" * 200


def total_size(paths: Iterable[Path]) -> int:
    """Return the bytes of files together."""
    return sum(path.stat().st_size for path in paths)


@cache
def compiled_libraries() -> Sequence[Path]:
    """Return the largest compiled files of this environment: wheels of ours are made of such."""
    libraries = sorted(
        Path(sys.prefix).rglob("*.so"),
        key=lambda path: path.stat().st_size,
        reverse=True,
    )
    return libraries[:20]


def _library_bytes() -> bytes:
    return b"".join(path.read_bytes() for path in compiled_libraries())


def build_wheel(
    folder: Path, name: str, version: str, tag: str, members: Sequence[Member], requirement: str = ""
) -> Path:
    """Write a wheel as the product does, with at most one requirement."""
    fields = [("Name", name.replace("_", "-")), ("Version", version)]
    if requirement:
        fields.append(("Requires-Dist", requirement))

    spec = WheelSpec(distribution=name, version=version, tag=tag, metadata=metadata_text(fields))
    return write_wheel(folder, spec, members).path


def build_release_candidate(folder: Path) -> Path:
    """Write a release candidate of a large wheel, with the same library again and again."""
    library = folder / "library.so"
    library.write_bytes(_library_bytes())

    size_with_one_library = total_size([_build_libraries_wheel(folder, library, count=1)])
    count = round(LIBRARIES_WHEEL_SIZE / size_with_one_library)
    return _build_libraries_wheel(folder, library, count=count)


def _build_libraries_wheel(folder: Path, library: Path, *, count: int) -> Path:
    version_module = f"__version__ = {ROCM_CANDIDATE!r}\n"
    members: list[Member] = []
    for number in range(count):
        name = f"_{LIBRARIES_WHEEL}/lib/lib{number:03}.so"
        members.append(Member(name=name, source=library, executable=True))
    members.append(Member(name=f"{LIBRARIES_WHEEL}/_dist_info.py", source=version_module.encode()))
    return build_wheel(folder, LIBRARIES_WHEEL, ROCM_CANDIDATE, ROCM_TAG, members)


def build_fat_wheel(folder: Path) -> Path:
    """Write a wheel with compressed bundles for four targets, as large as a tenth of a real torch."""
    content = _library_bytes()
    bundle_size = len(content) // BUNDLES
    source = ""
    for number in range(BUNDLES):
        start = number * bundle_size
        code = b"\x7fELF" + content[start : start + bundle_size]
        bundle = compressed_bundle(offload_bundle(*TARGETS, code=code))
        (folder / f"{number}.hipfb").write_bytes(bundle)
        source += BUNDLE.format(number)

    library = link_library(folder, "libtorch_hip.so", source)
    members = [Member(name="torch/lib/libtorch_hip.so", source=library)]
    members += [Member(name=f"torch/lib/lib{path.name}", source=path) for path in compiled_libraries()]

    requirement = f"rocm[libraries]=={ROCM_VERSION}"
    wheel = build_wheel(folder, "torch", TORCH_VERSION, TORCH_TAG, members, requirement)
    return deflate_as_setuptools(wheel)


def build_torch_and_rocm(folder: Path, rocm: Path) -> Path:
    """Return a torch wheel that preloads the libraries of ROCm's wheels, which go into a folder.

    Half of the bytes are in torch's wheel, and half in the others.
    """
    (folder / "payload").write_bytes(_library_bytes())
    _build_rocm_wheels(folder, rocm)

    library = link_library(folder, "libtorch_hip.so", f'{PAYLOAD}.incbin "payload"\n')
    members = [
        Member(name="torch/_rocm_init.py", source=PRELOADING.encode()),
        Member(name="torch/lib/libtorch_hip.so", source=library, executable=True),
    ]
    members += [Member(name=f"torch/include/{number}.h", source=HEADER) for number in range(HEADERS)]
    return deflate_as_setuptools(build_wheel(folder, "torch", TORCH_VERSION, TORCH_TAG, members))


def _build_rocm_wheels(folder: Path, rocm: Path) -> None:
    globs = library_globs("linux")
    core_members: list[Member] = []
    libraries_members: list[Member] = []
    for name in PRELOADED_LIBRARIES:
        soname = globs[name].removeprefix("lib/").rstrip("*") + ".1"
        library = link_library(folder, soname, PAYLOAD, f"-Wl,-soname,{soname}")
        if name in LIBRARIES_OF_CORE:
            core_members.append(Member(name=f"{CORE}/lib/{soname}", source=library, executable=True))
        else:
            member = Member(name=f"{LIBRARIES}/lib/{soname}", source=library, executable=True)
            libraries_members.append(member)

    build_wheel(rocm, "rocm-sdk-core", ROCM_VERSION, ROCM_TAG, core_members)
    build_wheel(rocm, "rocm-sdk-libraries-gfx94x-dcgpu", ROCM_VERSION, ROCM_TAG, libraries_members)


def link_library(folder: Path, name: str, source: str, *flags: str) -> Path:
    """Link a library of an assembler's source."""
    (folder / "library.s").write_text(source)
    library = folder / "lib" / name
    library.parent.mkdir(exist_ok=True)
    command: Command = [
        "cc",
        "-shared",
        "-nostdlib",
        "-Wl,-rpath,$ORIGIN",
        "-Wl,--build-id=none",
        *flags,
        "library.s",
        "-o",
        library,
    ]
    process.capture(command, cwd=folder)
    return library


def deflate_as_setuptools(wheel: Path) -> Path:
    """Compress a wheel again as setuptools does, which is what makes torch's."""
    original = wheel.rename(wheel.with_suffix(".original"))
    with zipfile.ZipFile(original) as source, zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as target:
        for info in source.infolist():
            target.writestr(info.filename, source.read(info))
    original.unlink()
    return wheel
