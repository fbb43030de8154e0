"""Writers of what stand-alone wheels are made of: torch, ROCm's wheels, ROCm's tree."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kit.binaries import pe_file
from tests.unit.pytorch_build.check.conftest import elf_file, write_wheel

LINUX = "torch-2.10.0+rocm7.1-cp312-cp312-linux_x86_64.whl"
WINDOWS = "torch-2.10.0+rocm7.1-cp312-cp312-win_amd64.whl"
CORE, MATH = "_rocm_sdk_core", "_rocm_sdk_libraries_gfx94X_dcgpu"
TORCH_INIT = """\
import os
def _load_dll_libraries():
    th_dll_path = os.path.join(os.path.dirname(__file__), "lib")
    dll_paths = [th_dll_path]
    for dll_path in dll_paths:
        os.add_dll_directory(dll_path)
"""
ROCM_INIT = """\
def initialize():
    import rocm_sdk
    rocm_sdk.initialize_process(preload_shortnames=["amdhip64", "hipblas"], check_version="7.1")
"""


def torch(
    folder: Path,
    filename: str = LINUX,
    changed: Mapping[str, bytes | None] | None = None,
    targets: Sequence[str] = (),
) -> Path:
    """Write a torch wheel; `changed` are files of its package by name, None to leave one out.

    With targets it is a host wheel, whose device code is in wheels of these.
    """
    windows = filename == WINDOWS
    library = (
        pe_file(needed=("amdhip64_7.dll", "KERNEL32.dll"), delayed=("roctx64.dll",))
        if windows
        else elf_file(
            needed=("libamdhip64.so.7", "libroctx64.so.4", "libc10.so", "libc.so.6"), runpath="$ORIGIN"
        )
    )
    files: dict[str, bytes | None] = {
        "torch/__init__.py": TORCH_INIT.encode(),
        "torch/_rocm_init.py": ROCM_INIT.encode(),
        "torch/version.py": b"__version__ = '2.10.0+rocm7.1'\n",
        f"torch/lib/{'torch_hip.dll' if windows else 'libtorch_hip.so'}": library,
        f"torch/lib/{'c10.dll' if windows else 'libc10.so'}": pe_file() if windows else elf_file(),
        "torch/include/a.h": b"#pragma once\n" * 500,
        **{f"torch/{name}": data for name, data in (changed or {}).items()},
    }
    present = {name: data for name, data in files.items() if data is not None}
    extras = [f"device-{one}" for one in targets]
    device = [f'amd-torch-{one} == 2.10.0+rocm7.1; extra == "{one}"' for one in extras]
    return write_wheel(
        folder,
        filename,
        present,
        requires=("rocm[libraries]==7.1", "triton==3.6", *device),
        extras=[*extras, "device-all", "optree"] if targets else [],
    )


def device_wheel(folder: Path, gpu: str, version: str = "2.10.0+rocm7.1") -> Path:
    name = f"amd_torch_device_{gpu}-{version}-cp312-cp312-linux_x86_64.whl"
    return write_wheel(folder, name, {f"torch/.kpack/torch_{gpu}.kpack": gpu.encode() * 99})


def libraries() -> Mapping[str, bytes]:
    """Return a small ROCm of Linux: path in its tree -> content."""
    return {
        "lib/libamdhip64.so.7": elf_file(
            needed=("libhsa-runtime64.so.1",), soname="libamdhip64.so.7", rpath="$ORIGIN"
        ),
        "lib/libhsa-runtime64.so.1": elf_file(needed=("libnuma.so.1",), soname="libhsa-runtime64.so.1"),
        "lib/libroctx64.so.4": elf_file(soname="libroctx64.so.4"),
        "lib/libunused.so.1": elf_file(soname="libunused.so.1"),
        "include/hip/hip.h": b"#pragma once\n",
    }


def math_libraries(origin: str = "$ORIGIN") -> Mapping[str, bytes]:
    return {
        "lib/libhipblas.so.3": elf_file(
            needed=("libamdhip64.so.7", "librocblas.so.5"), soname="libhipblas.so.3", rpath=origin
        ),
        "lib/librocblas.so.5": elf_file(soname="librocblas.so.5", rpath=origin),
        "lib/rocblas/library/K_gfx942.co": b"kernels for gfx942" * 99,
        "lib/rocblas/library/K_gfx1100.co": b"kernels for gfx1100" * 99,
        "lib/rocblas/library/all.dat": b"for all",
    }


def rocm_wheels(folder: Path, version: str = "7.1", *, family: str = "gfx94x_dcgpu") -> Path:
    core = {f"{CORE}/{path}": data for path, data in libraries().items()}
    core[f"{CORE}/__init__.py"] = b""
    search = f"$ORIGIN:$ORIGIN/../../{CORE}/lib"
    more = {f"{MATH}/{path}": data for path, data in math_libraries(search).items()}
    write_wheel(folder, f"rocm_sdk_core-{version}-py3-none-linux_x86_64.whl", core)
    name = f"rocm_sdk_libraries_{family}" if family else "rocm_sdk_libraries"
    write_wheel(folder, f"{name}-{version}-py3-none-linux_x86_64.whl", more)
    return folder


def rocm_tree(folder: Path) -> Path:
    """Write a ROCm tree of Linux, with links as installers leave them."""
    for path, data in {**libraries(), **math_libraries()}.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    hip = folder / "lib" / "libamdhip64.so.7"
    hip.rename(hip.with_name("libamdhip64.so.7.1.2"))
    hip.symlink_to("libamdhip64.so.7.1.2")
    hip.with_name("libamdhip64.so").symlink_to("libamdhip64.so.7")
    return folder


def windows_tree(folder: Path) -> Path:
    files = {
        "amdhip64_7.dll": pe_file(needed=("KERNEL32.dll", "amd_comgr.dll"), name="amdhip64_7.dll"),
        "amd_comgr.dll": pe_file(needed=("VCRUNTIME140.dll",)),
        "hipblas.dll": pe_file(needed=("amdhip64_7.dll", "ROCBLAS.dll")),
        "rocblas.dll": pe_file(needed=("api-ms-win-crt-heap-l1-1-0.dll",)),
        "roctx64.dll": pe_file(),
        "hipcc.exe": pe_file(dll=False),
        "rocblas/library/K_gfx942.co": b"942",
        "rocblas/library/K_gfx1100.co": b"1100",
    }
    for path, data in files.items():
        target = folder / "bin" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    return folder
