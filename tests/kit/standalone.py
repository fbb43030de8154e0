"""What stand-alone wheels are made of: torch wheels, ROCm's wheels, and trees of ROCm.

Everything is small: torch needs HIP and hipBLAS, which need libraries and the kernels of two GPUs.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from tests.kit.binaries import elf_file, pe_file
from tests.kit.wheels import write_wheel
from tests.kit.windows import make_link

Platform = Literal["linux", "windows"]

TORCH_VERSION = "2.10.0+rocm7.1"
ROCM_VERSION = "7.1"
TORCH_TAGS: dict[Platform, str] = {
    "linux": "cp312-cp312-linux_x86_64",
    "windows": "cp312-cp312-win_amd64",
}
ROCM_TAG = "py3-none-linux_x86_64"
CORE = "_rocm_sdk_core"
MATH = "_rocm_sdk_libraries_gfx94X_dcgpu"

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


def write_torch(
    folder: Path,
    *,
    platform: Platform = "linux",
    changed_files: Mapping[str, bytes | None] | None = None,
    split_targets: Sequence[str] = (),
    license_field: tuple[str, str] = ("License", "BSD"),
) -> Path:
    """Write a torch wheel that loads ROCm's own wheels; return its path.

    `changed_files` are files of its package by name; None leaves one out. With `split_targets` it is a host
    wheel, whose device code is in wheels of these targets.
    """
    files: dict[str, bytes | None] = {
        "torch/__init__.py": TORCH_INIT.encode(),
        "torch/_rocm_init.py": ROCM_INIT.encode(),
        "torch/version.py": f"__version__ = '{TORCH_VERSION}'\n".encode(),
        "torch/include/a.h": b"#pragma once\n" * 500,
        **torch_libraries(platform),
    }
    for name, content in (changed_files or {}).items():
        files[f"torch/{name}"] = content

    extras = [f"device-{target}" for target in split_targets]
    requirements = [f"rocm[libraries]=={ROCM_VERSION}", "triton==3.6"]
    requirements += [f'amd-torch-{extra} == {TORCH_VERSION}; extra == "{extra}"' for extra in extras]
    if split_targets:
        extras += ["device-all", "optree"]

    return write_wheel(
        folder,
        version=TORCH_VERSION,
        tag=TORCH_TAGS[platform],
        files={name: content for name, content in files.items() if content is not None},
        requires=requirements,
        metadata_fields=[license_field, *(("Provides-Extra", extra) for extra in extras)],
    )


def torch_libraries(platform: Platform) -> dict[str, bytes]:
    """Return torch's own libraries, which need ROCm's."""
    if platform == "windows":
        return {
            "torch/lib/torch_hip.dll": pe_file(
                needed=("amdhip64_7.dll", "KERNEL32.dll"), delayed=("roctx64.dll",)
            ),
            "torch/lib/c10.dll": pe_file(),
        }
    needed = ("libamdhip64.so.7", "libroctx64.so.4", "libc10.so", "libc.so.6")
    return {
        "torch/lib/libtorch_hip.so": elf_file(needed=needed, runpath="$ORIGIN"),
        "torch/lib/libc10.so": elf_file(),
    }


def write_device_wheel(folder: Path, target: str, *, version: str = TORCH_VERSION) -> Path:
    """Write the wheel of torch's device code for a target; return its path."""
    return write_wheel(
        folder,
        name=f"amd-torch-device-{target}",
        version=version,
        tag=TORCH_TAGS["linux"],
        files={f"torch/.kpack/torch_{target}.kpack": target.encode() * 99},
    )


def core_files() -> dict[str, bytes]:
    """Return the files of ROCm's core on Linux, by their paths in its tree."""
    return {
        "lib/libamdhip64.so.7": elf_file(
            needed=("libhsa-runtime64.so.1",), soname="libamdhip64.so.7", rpath="$ORIGIN"
        ),
        "lib/libhsa-runtime64.so.1": elf_file(needed=("libnuma.so.1",), soname="libhsa-runtime64.so.1"),
        "lib/libroctx64.so.4": elf_file(soname="libroctx64.so.4"),
        "lib/libunused.so.1": elf_file(soname="libunused.so.1"),
        "include/hip/hip.h": b"#pragma once\n",
    }


def math_files(rpath: str = "$ORIGIN") -> dict[str, bytes]:
    """Return the files of ROCm's libraries on Linux, by their paths in its tree."""
    return {
        "lib/libhipblas.so.3": elf_file(
            needed=("libamdhip64.so.7", "librocblas.so.5"), soname="libhipblas.so.3", rpath=rpath
        ),
        "lib/librocblas.so.5": elf_file(soname="librocblas.so.5", rpath=rpath),
        "lib/rocblas/library/K_gfx942.co": b"kernels for gfx942" * 99,
        "lib/rocblas/library/K_gfx1100.co": b"kernels for gfx1100" * 99,
        "lib/rocblas/library/all.dat": b"for all",
    }


def write_rocm_core(
    folder: Path,
    *,
    version: str = ROCM_VERSION,
    licenses: Mapping[str, bytes] | None = None,
    license_field: tuple[str, str] = ("License", "BSD"),
) -> Path:
    """Write ROCm's core wheel, with files of licences (path to content); return its path."""
    files = {f"{CORE}/{path}": content for path, content in core_files().items()}
    files[f"{CORE}/__init__.py"] = b""
    for path, content in (licenses or {}).items():
        files[f"rocm_sdk_core-{version}.dist-info/licenses/{path}"] = content
    return write_wheel(
        folder,
        name="rocm-sdk-core",
        version=version,
        tag=ROCM_TAG,
        files=files,
        metadata_fields=[license_field],
    )


def write_rocm_wheels(
    folder: Path, *, version: str = ROCM_VERSION, family: str | None = "gfx94x-dcgpu"
) -> Path:
    """Write ROCm's core wheel and its libraries' wheel, of a GPU family or of none; return the folder."""
    write_rocm_core(folder, version=version)

    libraries_rpath = f"$ORIGIN:$ORIGIN/../../{CORE}/lib"
    write_wheel(
        folder,
        name="rocm-sdk-libraries" if family is None else f"rocm-sdk-libraries-{family}",
        version=version,
        tag=ROCM_TAG,
        files={f"{MATH}/{path}": content for path, content in math_files(libraries_rpath).items()},
    )
    return folder


def write_rocm_tree(folder: Path) -> Path:
    """Write a ROCm tree of Linux, with links as installers leave them; return its folder."""
    write_contents(folder, {**core_files(), **math_files()})
    hip = folder / "lib" / "libamdhip64.so.7"
    hip.rename(hip.with_name("libamdhip64.so.7.1.2"))
    make_link(hip, "libamdhip64.so.7.1.2")
    make_link(hip.with_name("libamdhip64.so"), "libamdhip64.so.7")
    return folder


def write_windows_tree(folder: Path) -> Path:
    """Write a ROCm tree of Windows; return its folder."""
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
    write_contents(folder / "bin", files)
    return folder


def write_contents(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files below a folder: path to content."""
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
