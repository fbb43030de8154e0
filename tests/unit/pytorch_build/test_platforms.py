from pathlib import PureWindowsPath

from pytorch_build.platforms import LINUX, WINDOWS


def test_windows_compiles_with_rocms_clang() -> None:
    assert WINDOWS.compiler_settings(None) == {}
    assert WINDOWS.compiler_settings(PureWindowsPath("C:/rocm")) == {
        "CC": r"C:\rocm\lib\llvm\bin\clang-cl.exe",
        "CXX": r"C:\rocm\lib\llvm\bin\clang-cl.exe",
        "HIP_CLANG_PATH": "C:/rocm/lib/llvm/bin",
    }


def test_environments_merge_by_the_platforms_idea_of_names() -> None:
    base = {"OPENBLAS_HOME": "old", "Gone": "1", "KEPT": "1"}
    changes = {"OpenBLAS_HOME": "new"}
    unset = frozenset({"GONE"})
    assert WINDOWS.merge(base, changes, unset=unset) == {"OpenBLAS_HOME": "new", "KEPT": "1"}
    assert LINUX.merge(base, changes, unset=unset) == base | changes
    assert LINUX.merge(base, changes, unset=frozenset({"Gone", "OpenBLAS_HOME"})) == {
        "OPENBLAS_HOME": "old",
        "KEPT": "1",
    }
    assert WINDOWS.find_variable({"VCTOOLSREDISTDIR": "C:/x"}, "VCToolsRedistDir") == "C:/x"
    assert LINUX.find_variable({"VCTOOLSREDISTDIR": "C:/x"}, "VCToolsRedistDir") == ""
    assert WINDOWS.find_variable({}, "libuv_ROOT") == ""
