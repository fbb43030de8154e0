from pathlib import Path

import pytest

from pytorch_build.build.compilers import Compiler, compilers, identified
from pytorch_build.platforms import LINUX, WINDOWS

GCC = """\
g++ (Debian 14.2.0-19) 14.2.0
Copyright (C) 2024 Free Software Foundation, Inc.
"""
CLANG = "Debian clang version 19.1.7 (3+b1)\nTarget: x86_64-pc-linux-gnu\nThread model: posix\n"
AMD = "AMD clang version 22.0.0git (https://github.com/ROCm/llvm 1a2b)\nTarget: x86_64-pc-linux-gnu\n"
CLANG_CL = "clang version 18.1.8\nTarget: x86_64-pc-windows-msvc\n"
MSVC = "Microsoft (R) C/C++ Optimizing Compiler Version 19.44.35213 for x64\nCopyright (C) Microsoft\n"
QUIET = ("-Wno-error=maybe-uninitialized", "-Wno-error=uninitialized", "-Wno-error=restrict")


@pytest.mark.parametrize(
    ("said", "kind", "version", "flags"),
    [
        (GCC, "gcc", "14.2.0", QUIET),
        (GCC.replace("14.2.0", "11.4.0"), "gcc", "11.4.0", ()),
        (CLANG, "clang", "19.1.7", ("-Wno-unknown-warning-option",)),
        (AMD, "clang", "22.0.0", ("-Wno-unknown-warning-option",)),
        (CLANG_CL, "clang-cl", "18.1.8", ()),
        (MSVC, "msvc", "19.44.35213", ()),
        ("nvc++ 25.1-0\n", "unknown", "0", ()),
    ],
)
def test_a_compiler_is_known_by_what_it_says(
    said: str, kind: str, version: str, flags: tuple[str, ...]
) -> None:
    found = identified("/bin/c", said)
    assert (found.kind, found.version, found.flags) == (kind, version, flags)


def test_one_that_is_only_planned_is_the_newest() -> None:
    assert Compiler(path="c++", kind="gcc").flags == QUIET


@pytest.mark.processes
def test_the_environment_names_the_compilers(tmp_path: Path) -> None:
    for name, said in {"mine": CLANG, "gcc": GCC, "c++": GCC, "wrap": "none"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\ncase $1 in mine) shift; esac\ncat <<'X'\n{said}X\n")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    usual = compilers(LINUX, {**path, "PATH": str(tmp_path)} | {"CC": "gone"})
    assert {name: one.kind for name, one in usual.items()} in ({"CXX": "gcc"}, {"CXX": "unknown"})
    found = compilers(LINUX, path | {"CC": "gcc", "CXX": "mine -m64"})
    assert found == {
        "CC": Compiler(path=str(tmp_path / "gcc"), kind="gcc", version="14.2.0"),
        "CXX": Compiler(path=str(tmp_path / "mine"), kind="clang", version="19.1.7"),
    }
    assert compilers(WINDOWS, {"Path": str(tmp_path)}) == {}
