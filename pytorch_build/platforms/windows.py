"""Windows: ROCm's clang-cl, DLLs, and paths short enough for its command lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePath

NAME = "windows"
WHEEL_TAG = "win_amd64"
PATH_SEPARATOR = ";"
KINETO = "OFF"
FLASH_FLAG = "--enable-pytorch-flash-attention-windows"
PRELOADS: tuple[str, ...] = (
    "amd_comgr",
    "amdhip64",
    "hiprtc",
    "hipblas",
    "hipfft",
    "hiprand",
    "hipsparse",
    "hipsparselt",
    "hipsolver",
    "hipblaslt",
    "miopen",
    "hipdnn",
    "rocm-openblas",
)


def compiler_settings(env: Mapping[str, str], rocm_root: PurePath | None) -> Mapping[str, str]:
    """Compile with ROCm's clang-cl; without ROCm, with what `env` names (else MSVC)."""
    del env
    if rocm_root is None:
        return {}
    llvm = rocm_root / "lib" / "llvm" / "bin"
    clang = str(llvm / "clang-cl.exe")
    # CMake code of HIP reads this path, and backslashes are escapes there.
    return {"CC": clang, "CXX": clang, "HIP_CLANG_PATH": llvm.as_posix()}


def find_variable(env: Mapping[str, str], name: str) -> str:
    """Read a variable by its name in any letter case, as Windows does; an unset one is empty."""
    return next((value for known, value in env.items() if known.upper() == name.upper()), "")


def merge(base: Mapping[str, str], changes: Mapping[str, str], *, unset: frozenset[str]) -> dict[str, str]:
    """Lay `changes` over `base` without `unset`; names that differ in case alone are one."""
    hidden = {name.upper() for name in (*changes, *unset)}
    kept = {name: value for name, value in base.items() if name.upper() not in hidden}
    gone = {name.upper() for name in unset}
    return kept | {name: value for name, value in changes.items() if name.upper() not in gone}
