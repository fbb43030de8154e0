"""Windows: ROCm's clang-cl, DLLs, and paths short enough for its command lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import MissingInputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
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
OPENMP_DLL = "libomp140.x86_64.dll"
UV_DLL = "uv.dll"
# Folders of the VC redistributables that hold the same DLL for another purpose.
_OTHER_KINDS = ("debug", "nonredist", "onecore", "spectre")


def library_pattern(name: str) -> str:
    """Give the glob that a DLL's file name matches: ``amdhip64*.dll`` (ROCm's carry a version)."""
    return f"{name}*.dll"


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


def choose_openmp(candidates: Sequence[PurePath]) -> PurePath:
    """Choose the OpenMP DLL that may be shipped, out of all that Visual Studio holds.

    The redistributables hold up to one copy for each processor and purpose (debug builds,
    OneCore, Spectre mitigations); only the release build for x64 may go into a wheel.

    Args:
        candidates: Every file of that name under ``%VCToolsRedistDir%``.

    Raises:
        MissingInputError: None is right, or more than one.
    """
    right = [path for path in candidates if _is_release_x64(path)]
    if len(right) == 1:
        return right[0]
    if not right:
        raise MissingInputError(
            f"There is no release build of {OPENMP_DLL} for x64 under %VCToolsRedistDir%"
            f" ({len(candidates)} of other kinds).",
            hint="Install 'C++ Clang tools' of Visual Studio and start from its developer prompt.",
        )
    raise MissingInputError(
        f"There are {len(right)} release builds of {OPENMP_DLL}: {', '.join(map(str, right))}.",
        hint="Set VCToolsRedistDir to the folder of one toolset version.",
    )


def _is_release_x64(path: PurePath) -> bool:
    folders = [part.lower() for part in path.parts[:-1]]
    return "x64" in folders and not any(kind in folder for folder in folders for kind in _OTHER_KINDS)
