from __future__ import annotations

import sys
from pathlib import PurePath, PurePosixPath, PureWindowsPath

import pytest

from core.errors import MissingInputError, UsageError
from pytorch_build.platforms import linux, platform_named, this_platform, windows

QUIET = "-Wno-error=maybe-uninitialized -Wno-error=uninitialized -Wno-error=restrict"
REDIST = PureWindowsPath("C:/VS/VC/Redist/MSVC/14.44.35112")


def test_platforms_by_name() -> None:
    assert platform_named("linux").WHEEL_TAG == "linux_x86_64"
    assert platform_named("windows").WHEEL_TAG == "win_amd64"
    with pytest.raises(UsageError, match="'widows'") as unknown:
        platform_named("widows")
    assert "windows" in unknown.value.hint


def test_this_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert this_platform().NAME == "windows"
    monkeypatch.setattr(sys, "platform", "linux")
    assert this_platform().NAME == "linux"
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UsageError, match="'darwin'"):
        this_platform()


def test_library_patterns() -> None:
    assert PurePosixPath("libamdhip64.so.7").match(linux.library_pattern("amdhip64"))
    assert PureWindowsPath("amdhip64_7.dll").match(windows.library_pattern("amdhip64"))


def test_linux_keeps_a_persons_flags_and_compiler() -> None:
    assert linux.compiler_settings({}, None) == {"CXXFLAGS": QUIET, "CPPFLAGS": QUIET}
    env = {"CXXFLAGS": "-O1 -g ", "CC": "gcc-13"}
    assert linux.compiler_settings(env, PurePosixPath("/rocm")) == {
        "CXXFLAGS": f"-O1 -g {QUIET}",
        "CPPFLAGS": QUIET,
    }


def test_windows_compiles_with_rocms_clang() -> None:
    assert windows.compiler_settings({"CC": "cl"}, None) == {}
    assert windows.compiler_settings({"CC": "cl"}, PureWindowsPath("C:/rocm")) == {
        "CC": r"C:\rocm\lib\llvm\bin\clang-cl.exe",
        "CXX": r"C:\rocm\lib\llvm\bin\clang-cl.exe",
        "HIP_CLANG_PATH": "C:/rocm/lib/llvm/bin",
    }


def test_environments_merge_by_the_platforms_idea_of_names() -> None:
    base = {"OPENBLAS_HOME": "old", "Gone": "1", "KEPT": "1"}
    changes = {"OpenBLAS_HOME": "new"}
    unset = frozenset({"GONE"})
    assert windows.merge(base, changes, unset=unset) == {"OpenBLAS_HOME": "new", "KEPT": "1"}
    assert linux.merge(base, changes, unset=unset) == base | changes
    assert linux.merge(base, changes, unset=frozenset({"Gone", "OpenBLAS_HOME"})) == {
        "OPENBLAS_HOME": "old",
        "KEPT": "1",
    }
    assert windows.find_variable({"VCTOOLSREDISTDIR": "C:/x"}, "VCToolsRedistDir") == "C:/x"
    assert linux.find_variable({"VCTOOLSREDISTDIR": "C:/x"}, "VCToolsRedistDir") == ""
    assert windows.find_variable({}, "libuv_ROOT") == ""


def test_the_openmp_that_may_be_shipped_is_chosen() -> None:
    right = REDIST / "x64/Microsoft.VC143.OpenMP.LLVM/libomp140.x86_64.dll"
    others = [
        REDIST / "debug_nonredist/x64/Microsoft.VC143.OpenMP.LLVM/libomp140.x86_64.dll",
        REDIST / "onecore/x64/Microsoft.VC143.OpenMP.LLVM/libomp140.x86_64.dll",
        REDIST / "x64/Microsoft.VC143.DebugOpenMP.LLVM/libomp140.x86_64.dll",
        REDIST / "arm64/Microsoft.VC143.OpenMP.LLVM/libomp140.x86_64.dll",
        REDIST / "spectre/x64/Microsoft.VC143.OpenMP.LLVM/libomp140.x86_64.dll",
    ]
    assert windows.choose_openmp([*others, right]) == right
    assert windows.choose_openmp([right]) == right


def test_no_openmp_or_two_are_refused() -> None:
    with pytest.raises(MissingInputError, match="no release build"):
        windows.choose_openmp([])
    debug: list[PurePath] = [REDIST / "debug_nonredist/x64/libomp140.x86_64.dll"]
    with pytest.raises(MissingInputError, match="1 of other kinds"):
        windows.choose_openmp(debug)
    two = [REDIST / f"x64/Microsoft.VC14{n}.OpenMP.LLVM/libomp140.x86_64.dll" for n in (2, 3)]
    with pytest.raises(MissingInputError, match=r"2 release builds.*VC142.*VC143"):
        windows.choose_openmp(two)
