from __future__ import annotations

import sys
from pathlib import PurePosixPath, PureWindowsPath

import pytest

from core.errors import UsageError
from pytorch_build.platforms import linux, platform_named, this_platform, windows

QUIET = "-Wno-error=maybe-uninitialized -Wno-error=uninitialized -Wno-error=restrict"


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
