"""A split of real fat binaries: libraries of ROCm 7, and what a real hipcc compiles for several targets."""

import hashlib
import io
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest

from core import process
from core.wheel.record import require_sound
from pytorch_build.check.run import check_wheels
from pytorch_build.split.split_wheel import split_wheel
from pytorch_build.split.take_apart import open_library
from pytorch_build.split.verify import reference_of
from rocm_packaging.packages import kpack
from tests.kit.hip_libraries import SOURCE_NAMES, write_sources, write_wheel_around, write_wheel_of

# What is read into memory at once.
MOST = 250 << 20


@pytest.fixture(name="fat", scope="module")
def fat_fixture(rocm7_artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: dict[str, Path] = {}
    for path in sorted((rocm7_artifacts / "unsplit").rglob("lib*.so.*")):
        if path.is_symlink() or path.stat().st_size > MOST:
            continue
        with path.open("rb") as stream:
            is_library = stream.read(4) == b"\x7fELF"
        if is_library and open_library(path).device_code() is not None:
            found.setdefault(f"torch/lib/{path.name.partition('.so')[0]}.so", path)
    if not found:
        pytest.skip("the unsplit artifacts hold no fat library")
    return write_wheel_of(found, tmp_path_factory.mktemp("fat"))


def test_real_libraries_are_split_and_held_against_the_fat_ones(fat: Path, tmp_path: Path) -> None:
    host, *devices = split_wheel(fat, tmp_path / "parts")
    assert len(devices) > 1
    require_sound(host)
    with zipfile.ZipFile(host) as archive, zipfile.ZipFile(fat) as old:
        for info in old.infolist():
            if info.filename.startswith("torch/"):
                assert archive.getinfo(info.filename).file_size < info.file_size
                (tmp_path / "library").write_bytes(archive.read(info.filename))
                found = reference_of(tmp_path / "library")
                assert found is not None
                assert f"torch/{found.binary}" == info.filename


TARGETS = ("gfx90a:xnack-", "gfx90a:xnack+", "gfx1030")
RPATH = "$ORIGIN/../../_rocm_sdk_core/lib"
# Loading runs what registers the code of each file: with the fat library, and with the one without code.
LOAD = "import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); print(ctypes.c_char_p.in_dll(lib, 'said').value)"


@pytest.fixture(name="compiled", scope="module")
def compiled_fixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile a library of three files with three kernels each, for two targets, one of them in two modes."""
    if shutil.which("hipcc") is None:
        pytest.skip("hipcc is not on the PATH")
    folder = tmp_path_factory.mktemp("hip")
    sources = write_sources(folder)
    (folder / "data.cpp").write_text('extern "C" const char* said; const char* said = "data that follows";\n')
    argv: list[str] = ["hipcc", "-fPIC", "-shared", "-O2", *(f"--offload-arch={one}" for one in TARGETS)]
    argv += [
        *sources,
        "data.cpp",
        "-o",
        "libtorch_hip.so",
        f"-Wl,--disable-new-dtags,-rpath,{RPATH}",
    ]
    # where a compiler for NVIDIA is on the PATH, hipcc's scripts would choose that platform
    process.capture(argv, cwd=folder, env=process.inherited(HIP_PLATFORM="amd"))
    return folder / "libtorch_hip.so"


@pytest.fixture(name="parts", scope="module")
def parts_fixture(compiled: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    return split_wheel(
        write_wheel_around(compiled, tmp_path_factory.mktemp("hipcc")), tmp_path_factory.mktemp("parts")
    )


def unbundled(library: Path, folder: Path) -> dict[tuple[int, str], str]:
    """Take the code out by LLVM's own tools: (number of the bundle, target) -> SHA-256."""
    section = folder / "section"
    dump: list[str | Path] = ["objcopy", "--dump-section", f".hip_fatbin={section}", library, folder / "copy"]
    process.capture(dump)
    data = section.read_bytes()
    starts = [found.start() for found in re.finditer(b"__CLANG_OFFLOAD_BUNDLE__", data)]
    bundler = shutil.which("clang-offload-bundler") or shutil.which("clang-offload-bundler-15")
    if bundler is None:
        pytest.skip("clang-offload-bundler is not on the PATH")
    found = {}
    for index, (start, end) in enumerate(zip(starts, [*starts[1:], len(data)], strict=True)):
        (folder / "bundle").write_bytes(data[start:end])
        for target in TARGETS:
            words = [f"--targets=hipv4-amdgcn-amd-amdhsa--{target}", f"--input={folder / 'bundle'}"]
            process.capture([bundler, "--unbundle", "--type=o", *words, f"--output={folder / 'code'}"])
            found[index, target] = hashlib.sha256((folder / "code").read_bytes()).hexdigest()
    return found


def test_archives_hold_what_llvms_own_tool_takes_out(
    compiled: Path, parts: tuple[Path, ...], tmp_path: Path
) -> None:
    expected = unbundled(compiled, tmp_path)
    assert len(expected) == len(SOURCE_NAMES) * len(TARGETS)
    found = {}
    for wheel, gpu in zip(parts[1:], ("gfx1030", "gfx90a"), strict=True):
        with zipfile.ZipFile(wheel) as archive:
            stream = io.BytesIO(archive.read(f"torch/.kpack/torch_{gpu}.kpack"))
        held = kpack.read(stream)
        for kernel in held.kernels:
            binary, _, index = kernel.binary.partition("#")
            assert binary == "lib/libtorch_hip.so"
            digest = hashlib.sha256(held.content(stream, kernel)).hexdigest()
            found[int(index), kernel.target] = digest
    assert {key: digest for key, digest in found.items() if key in expected} == expected


def test_the_library_loads_without_its_code(compiled: Path, parts: tuple[Path, ...], tmp_path: Path) -> None:
    errors = [one for one in check_wheels(parts) if one.severity == "error" and one.check != "size"]
    assert errors == []
    with zipfile.ZipFile(parts[0]) as archive:
        host = tmp_path / "libtorch_hip.so"
        host.write_bytes(archive.read("torch/lib/libtorch_hip.so"))
    assert host.stat().st_size < compiled.stat().st_size - 50_000
    answers = [process.capture([sys.executable, "-c", LOAD, one], check=False) for one in (compiled, host)]
    assert answers[0].stdout == answers[1].stdout == "b'data that follows'\n", answers
