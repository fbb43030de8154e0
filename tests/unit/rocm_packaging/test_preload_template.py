"""How `rocm_sdk` loads libraries on Windows, from its template on written installations."""

import ctypes
import importlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.rocm_sdk import install_files, install_runtime

LIBRARIES = ("amd_comgr", "amdhip64", "hiprtc", "hipblas", "rocm-openblas")
FILES = {
    "_rocm_sdk_core/__init__.py": "",
    "_rocm_sdk_core/bin/amd_comgr.dll": "",
    "_rocm_sdk_core/bin/amdhip64_7.dll": "",
    "_rocm_sdk_core/bin/hiprtc0715.dll": "",
    "_rocm_sdk_core/bin/rocm-openblas.dll": "",
    "_rocm_sdk_libraries/__init__.py": "",
    "_rocm_sdk_libraries/bin/hipblas.dll": "",
}


@pytest.fixture
def calls(sdk_site: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Install a ROCm that lacks rocm_kpack for Windows; return what is then asked of its loader, in order."""
    install_runtime(sdk_site, families={"gfx942": ("gfx942",)}, libraries=LIBRARIES, is_split=True)
    install_files(sdk_site, FILES)
    calls: list[str] = []

    def relative(path: str) -> str:
        return Path(path).relative_to(sdk_site).as_posix()

    def load(path: str, mode: int) -> None:
        assert mode in {ctypes.RTLD_GLOBAL, ctypes.RTLD_LOCAL}
        calls.append(f"load {relative(path)}")

    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(os, "add_dll_directory", lambda path: calls.append(relative(path)), raising=False)
    monkeypatch.setattr(ctypes, "CDLL", load)
    return calls


def sdk() -> Any:
    """Return the installed module."""
    return importlib.import_module("rocm_sdk")


def loads(calls: list[str]) -> list[str]:
    """Return the names of the files that were loaded, in order."""
    return [call.rpartition("/")[2] for call in calls if call.startswith("load ")]


def test_loads_first_what_a_library_opens_by_name(calls: list[str]) -> None:
    sdk().preload_libraries("hipblas")

    assert loads(calls) == ["amd_comgr.dll", "amdhip64_7.dll", "hiprtc0715.dll", "hipblas.dll"]


def test_looks_for_what_a_dll_needs_in_its_package_and_in_core(calls: list[str]) -> None:
    sdk().preload_libraries("hipblas")

    before_hipblas = calls[: calls.index("load _rocm_sdk_libraries/bin/hipblas.dll")]
    assert {"_rocm_sdk_core/bin", "_rocm_sdk_libraries/bin"} <= set(before_hipblas)


def test_loads_each_library_once(calls: list[str]) -> None:
    sdk().preload_libraries("amdhip64", "hipblas")
    sdk().preload_libraries("hipblas", "amdhip64")

    assert loads(calls) == ["amd_comgr.dll", "amdhip64_7.dll", "hiprtc0715.dll", "hipblas.dll"]


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("amd_comgr", ["amd_comgr.dll"]),
        ("amdhip64", ["amd_comgr.dll", "amdhip64_7.dll"]),
        ("rocm-openblas", ["rocm-openblas.dll"]),
    ],
)
def test_loads_no_more_than_a_library_of_core_needs(calls: list[str], name: str, files: list[str]) -> None:
    sdk().preload_libraries(name)

    assert loads(calls) == files


def test_refuses_an_unknown_name_before_anything_is_loaded(calls: list[str]) -> None:
    with pytest.raises(ModuleNotFoundError, match="nonesuch"):
        sdk().preload_libraries("nonesuch")

    assert calls == []
