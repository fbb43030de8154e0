from pathlib import Path

import pytest

from pytorch_build.build.compilers import Compiler, find_compilers, identify_compiler
from tests.kit.platforms import LINUX, WINDOWS

GCC = """\
g++ (Debian 14.2.0-19) 14.2.0
Copyright (C) 2024 Free Software Foundation, Inc.
"""
CLANG = "Debian clang version 19.1.7 (3+b1)\nTarget: x86_64-pc-linux-gnu\nThread model: posix\n"
AMD_CLANG = "AMD clang version 22.0.0git (https://github.com/ROCm/llvm 1a2b)\nTarget: x86_64-pc-linux-gnu\n"
CLANG_CL = "clang version 18.1.8\nTarget: x86_64-pc-windows-msvc\n"
MSVC = "Microsoft (R) C/C++ Optimizing Compiler Version 19.44.35213 for x64\nCopyright (C) Microsoft\n"
QUIET_FLAGS = ("-Wno-error=maybe-uninitialized", "-Wno-error=uninitialized", "-Wno-error=restrict")


@pytest.mark.parametrize(
    ("output", "kind", "version", "flags"),
    [
        pytest.param(GCC, "gcc", "14.2.0", QUIET_FLAGS, id="gcc"),
        pytest.param(GCC.replace("14.2.0", "11.4.0"), "gcc", "11.4.0", (), id="older gcc"),
        pytest.param(CLANG, "clang", "19.1.7", ("-Wno-unknown-warning-option",), id="clang"),
        pytest.param(AMD_CLANG, "clang", "22.0.0", ("-Wno-unknown-warning-option",), id="AMD's clang"),
        pytest.param(CLANG_CL, "clang-cl", "18.1.8", (), id="clang-cl"),
        pytest.param(MSVC, "msvc", "19.44.35213", (), id="msvc"),
        pytest.param("nvc++ 25.1-0\n", "unknown", "0", (), id="unknown"),
    ],
)
def test_identifies_a_compiler_by_its_version_output(
    output: str, kind: str, version: str, flags: tuple[str, ...]
) -> None:
    compiler = identify_compiler("/bin/c", output)

    assert compiler.kind == kind
    assert compiler.version == version
    assert compiler.flags == flags


def test_takes_a_compiler_without_a_version_for_the_newest() -> None:
    assert Compiler(path="c++", kind="gcc").flags == QUIET_FLAGS


def write_compiler(path: Path, output: str) -> None:
    """Write a program that prints its version, also as the launcher of a compiler called ``mine``."""
    path.write_text(f"#!/bin/sh\ncase $1 in mine) shift; esac\n/bin/cat <<'X'\n{output}X\n")
    path.chmod(0o755)


@pytest.mark.processes
def test_takes_the_compilers_that_variables_name(tmp_path: Path) -> None:
    write_compiler(tmp_path / "gcc", GCC)
    write_compiler(tmp_path / "mine", CLANG)

    found_compilers = find_compilers(LINUX, {"PATH": str(tmp_path), "CC": "gcc", "CXX": "mine -m64"})

    assert found_compilers == {
        "CC": Compiler(path=str(tmp_path / "gcc"), kind="gcc", version="14.2.0"),
        "CXX": Compiler(path=str(tmp_path / "mine"), kind="clang", version="19.1.7"),
    }


@pytest.mark.processes
def test_takes_the_usual_compiler_and_leaves_an_absent_one_out(tmp_path: Path) -> None:
    write_compiler(tmp_path / "c++", GCC)

    found_compilers = find_compilers(LINUX, {"PATH": str(tmp_path), "CC": "absent"})

    assert found_compilers == {"CXX": Compiler(path=str(tmp_path / "c++"), kind="gcc", version="14.2.0")}


def test_leaves_the_compiler_on_windows_to_visual_studio(tmp_path: Path) -> None:
    write_compiler(tmp_path / "c++", GCC)

    assert find_compilers(WINDOWS, {"Path": str(tmp_path)}) == {}
