"""A split of real fat binaries: libraries of ROCm 7, and what a real hipcc compiles for several targets."""

import hashlib
import io
import re
import shutil
import sys
import zipfile
from itertools import pairwise
from pathlib import Path

import pytest

from core import process
from core.wheel.record import require_sound
from pytorch_build.check.run import check_wheels
from pytorch_build.split.split_wheel import split_wheel
from pytorch_build.split.take_apart import open_library
from pytorch_build.split.verify import reference_of
from rocm_packaging.packages import kpack
from tests.kit.findings import errors_among
from tests.kit.hip_libraries import SOURCE_NAMES, write_sources, write_wheel_around, write_wheel_of

# What is read into memory at once.
MAX_LIBRARY_BYTES = 250 << 20


def is_fat_library(path: Path) -> bool:
    """Return whether a file is a library with device code, and small enough for memory."""
    if path.is_symlink() or path.stat().st_size > MAX_LIBRARY_BYTES:
        return False
    with path.open("rb") as stream:
        is_elf = stream.read(4) == b"\x7fELF"
    return is_elf and open_library(path).device_code() is not None


@pytest.fixture(scope="module")
def rocm_wheel(rocm7_artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel with the fat libraries of ROCm's unsplit artifacts."""
    libraries: dict[str, Path] = {}
    for path in sorted((rocm7_artifacts / "unsplit").rglob("lib*.so.*")):
        name = path.name.partition(".so")[0]
        if is_fat_library(path):
            libraries.setdefault(f"torch/lib/{name}.so", path)
    if not libraries:
        pytest.skip("the unsplit artifacts hold no fat library")
    return write_wheel_of(libraries, tmp_path_factory.mktemp("fat"))


@pytest.mark.nightly
def test_real_libraries_are_split_and_held_against_the_fat_ones(rocm_wheel: Path, tmp_path: Path) -> None:
    host, *device_wheels = split_wheel(rocm_wheel, tmp_path / "parts")

    assert len(device_wheels) > 1
    require_sound(host)
    library = tmp_path / "library"
    with zipfile.ZipFile(host) as host_archive, zipfile.ZipFile(rocm_wheel) as fat_archive:
        for fat_member in fat_archive.infolist():
            if not fat_member.filename.startswith("torch/"):
                continue
            assert host_archive.getinfo(fat_member.filename).file_size < fat_member.file_size

            library.write_bytes(host_archive.read(fat_member.filename))
            reference = reference_of(library)
            assert reference is not None
            assert f"torch/{reference.binary}" == fat_member.filename


# What hipcc compiles

TARGETS = ("gfx90a:xnack-", "gfx90a:xnack+", "gfx1030")
ARCHIVE_NAMES = ("gfx1030", "gfx90a")
RPATH = "$ORIGIN/../../_rocm_sdk_core/lib"
DATA = 'extern "C" const char* said; const char* said = "data that follows";\n'
# Loading runs what registers the code of each file: with the fat library, and with the one without code.
LOAD = "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); print(ctypes.c_char_p.in_dll(lib, 'said').value)"
BUNDLE_START = b"__CLANG_OFFLOAD_BUNDLE__"

# The number of a bundle, and its target -> the SHA-256 of its code
CodeDigests = dict[tuple[int, str], str]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile a library of three files with three kernels each, for two targets, one of them in two modes."""
    if shutil.which("hipcc") is None:
        pytest.skip("hipcc is not on the PATH")
    folder = tmp_path_factory.mktemp("hip")
    (folder / "data.cpp").write_text(DATA)

    command = ["hipcc", "-fPIC", "-shared", "-O2", "-o", "libtorch_hip.so"]
    command += [f"--offload-arch={target}" for target in TARGETS]
    command += [f"-Wl,--disable-new-dtags,-rpath,{RPATH}"]
    command += [*write_sources(folder), "data.cpp"]
    # Where a compiler for NVIDIA is on the PATH, hipcc's scripts would choose that platform.
    process.capture(command, cwd=folder, env=process.inherited(HIP_PLATFORM="amd"))
    return folder / "libtorch_hip.so"


@pytest.fixture(scope="module")
def wheels(library: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """Return the host wheel and the device wheels of the library."""
    fat_wheel = write_wheel_around(library, tmp_path_factory.mktemp("hipcc"))
    return split_wheel(fat_wheel, tmp_path_factory.mktemp("parts"))


def extract_bundles(library: Path, folder: Path) -> list[bytes]:
    """Return the bundles of device code in a library, as binutils read it."""
    section = folder / "section"
    process.capture(["objcopy", "--dump-section", f".hip_fatbin={section}", library, folder / "copy"])

    content = section.read_bytes()
    starts = [match.start() for match in re.finditer(BUNDLE_START, content)]
    return [content[start:end] for start, end in pairwise([*starts, len(content)])]


def code_by_llvm(library: Path, folder: Path) -> CodeDigests:
    """Return the digests of the code that LLVM's own tool takes out of a library."""
    bundler = shutil.which("clang-offload-bundler") or shutil.which("clang-offload-bundler-15")
    if bundler is None:
        pytest.skip("clang-offload-bundler is not on the PATH")

    digests: CodeDigests = {}
    bundle_file = folder / "bundle"
    code_file = folder / "code"
    for index, bundle in enumerate(extract_bundles(library, folder)):
        bundle_file.write_bytes(bundle)
        for target in TARGETS:
            command = [bundler, "--unbundle", "--type=o", f"--targets=hipv4-amdgcn-amd-amdhsa--{target}"]
            process.capture([*command, f"--input={bundle_file}", f"--output={code_file}"])
            digests[index, target] = hashlib.sha256(code_file.read_bytes()).hexdigest()
    return digests


def code_in_archive(content: bytes) -> CodeDigests:
    """Return the digests of the code that an archive holds for the library."""
    stream = io.BytesIO(content)
    archive = kpack.read(stream)

    digests: CodeDigests = {}
    for kernel in archive.kernels:
        binary, _, index = kernel.binary.partition("#")
        assert binary == "lib/libtorch_hip.so"
        code = archive.content(stream, kernel)
        digests[int(index), kernel.target] = hashlib.sha256(code).hexdigest()
    return digests


def test_archives_hold_what_llvms_own_tool_takes_out(
    library: Path, wheels: tuple[Path, ...], tmp_path: Path
) -> None:
    expected = code_by_llvm(library, tmp_path)
    assert len(expected) == len(SOURCE_NAMES) * len(TARGETS)

    digests: CodeDigests = {}
    for wheel, gpu in zip(wheels[1:], ARCHIVE_NAMES, strict=True):
        with zipfile.ZipFile(wheel) as archive:
            digests |= code_in_archive(archive.read(f"torch/.kpack/torch_{gpu}.kpack"))

    assert digests.items() >= expected.items()


def load_library(path: Path) -> str:
    """Load a library in a process of its own; return the text that its data holds."""
    return process.capture([sys.executable, "-c", LOAD, path], check=False).stdout


def test_the_library_loads_without_its_code(library: Path, wheels: tuple[Path, ...], tmp_path: Path) -> None:
    errors = errors_among(check_wheels(wheels))
    assert [error for error in errors if error.check != "size"] == []

    host_library = tmp_path / "libtorch_hip.so"
    with zipfile.ZipFile(wheels[0]) as archive:
        host_library.write_bytes(archive.read("torch/lib/libtorch_hip.so"))

    assert host_library.stat().st_size < library.stat().st_size - 50_000
    assert load_library(library) == "b'data that follows'\n"
    assert load_library(host_library) == "b'data that follows'\n"
