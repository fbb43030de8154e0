"""Linux: the container's own gcc, libraries found by SONAME."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePath

NAME = "linux"
WHEEL_TAG = "linux_x86_64"
PATH_SEPARATOR = ":"
KINETO = "ON"
FLASH_FLAG = "--enable-pytorch-flash-attention-linux"
PRELOADS: tuple[str, ...] = (
    "amd_comgr",
    "amdhip64",
    "amd_smi",
    "rocm_sysdeps_liblzma",
    "rocm_smi64",
    "rocprofiler-sdk",
    "rocprofiler-sdk-roctx",
    "roctracer64",
    "roctx64",
    "hiprtc",
    "hipblas",
    "hipfft",
    "hiprand",
    "hipsparse",
    "hipsparselt",
    "hipsolver",
    "rccl",
    "hipblaslt",
    "miopen",
    "hipdnn",
    "hipfile",
    "rocm-openblas",
)
# GCC 12 and newer see these in sources that are correct, and torch makes warnings errors.
_QUIET = ("-Wno-error=maybe-uninitialized", "-Wno-error=uninitialized", "-Wno-error=restrict")


def compiler_settings(env: Mapping[str, str], rocm_root: PurePath | None) -> Mapping[str, str]:
    """Keep the compiler and flags that `env` names, and add flags; CC and CXX stay as they are."""
    del rocm_root  # hipcc compiles device code; host code is gcc's or the person's compiler's
    return {
        name: " ".join(filter(None, (env.get(name, "").strip(), *_QUIET)))
        for name in ("CXXFLAGS", "CPPFLAGS")
    }


def find_variable(env: Mapping[str, str], name: str) -> str:
    """Read a variable; an unset one is empty."""
    return env.get(name, "")


def merge(base: Mapping[str, str], changes: Mapping[str, str], *, unset: frozenset[str]) -> dict[str, str]:
    """Lay `changes` over `base` without `unset`."""
    return {name: value for name, value in (*base.items(), *changes.items()) if name not in unset}
