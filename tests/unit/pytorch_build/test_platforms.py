from pathlib import PureWindowsPath

import pytest

from tests.kit.platforms import LINUX, WINDOWS


def test_windows_compiles_with_the_clang_of_rocm() -> None:
    assert WINDOWS.compiler_settings(PureWindowsPath("C:/rocm"), {"PATH": "C:/mingw"}) == {
        "CC": r"C:\rocm\lib\llvm\bin\clang-cl.exe",
        "CXX": r"C:\rocm\lib\llvm\bin\clang-cl.exe",
        "HIP_CLANG_PATH": "C:/rocm/lib/llvm/bin",
    }


def test_windows_without_rocm_compiles_as_it_is_set_up() -> None:
    assert WINDOWS.compiler_settings(None, {}) == {}


@pytest.mark.parametrize("variables", [{"CC": "gcc", "CXX": "g++"}, {"cxx": "g++"}], ids=["both", "one"])
def test_windows_compiles_with_the_compilers_that_the_user_names(variables: dict[str, str]) -> None:
    settings = WINDOWS.compiler_settings(PureWindowsPath("C:/rocm"), variables)

    assert settings == {"HIP_CLANG_PATH": "C:/rocm/lib/llvm/bin"}


BASE = {"OPENBLAS_HOME": "old", "Gone": "1", "KEPT": "1"}
CHANGES = {"OpenBLAS_HOME": "new"}


def test_windows_merges_variables_whatever_their_case() -> None:
    merged = WINDOWS.merge(BASE, CHANGES, unset=frozenset({"GONE"}))

    assert merged == {"OpenBLAS_HOME": "new", "KEPT": "1"}


@pytest.mark.parametrize(
    ("unset", "merged"),
    [
        pytest.param({"GONE"}, BASE | CHANGES, id="another name"),
        pytest.param({"Gone", "OpenBLAS_HOME"}, {"OPENBLAS_HOME": "old", "KEPT": "1"}, id="the same name"),
    ],
)
def test_linux_merges_variables_by_their_case(unset: set[str], merged: dict[str, str]) -> None:
    assert LINUX.merge(BASE, CHANGES, unset=frozenset(unset)) == merged


def test_windows_finds_variables_whatever_their_case() -> None:
    assert WINDOWS.find_variable({"VCTOOLSREDISTDIR": "C:/x"}, "VCToolsRedistDir") == "C:/x"
    assert WINDOWS.find_variable({}, "libuv_ROOT") == ""


def test_linux_finds_variables_by_their_case() -> None:
    assert LINUX.find_variable({"VCTOOLSREDISTDIR": "C:/x"}, "VCToolsRedistDir") == ""
