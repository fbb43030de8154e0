"""The compilers of a build: what they are, and the flags that each needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from packaging.version import Version

from core import process

if TYPE_CHECKING:
    from pytorch_build.platforms import Platform

CompilerKind = Literal["gcc", "clang", "clang-cl", "msvc", "unknown"]

# What CMake takes where a variable names none (CMakeDetermineCXXCompiler.cmake).
_USUAL_COMPILERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "linux": {"CC": ("cc", "gcc", "clang"), "CXX": ("c++", "g++", "clang++")},
    "windows": {"CC": ("cl", "clang-cl"), "CXX": ("cl", "clang-cl")},
}
# What compilers print about themselves. The first that fits is right.
_VERSION_OUTPUT: tuple[tuple[CompilerKind, str], ...] = (
    ("clang-cl", r"clang version (\d[\d.]*)(?s:.*)-windows-msvc"),
    ("clang", r"clang version (\d[\d.]*)"),
    ("msvc", r"Microsoft .*Compiler.* (\d+(?:\.\d+)+)"),
    ("gcc", r"^\S+ \([^\n]*\) (\d[\d.]*)[^\n]*\n.*Free Software Foundation"),
)


# Flags that builds on Linux get behind the user's own, by compiler and the version that they begin with.
# clang-cl and MSVC get none: upstream makes no warning an error on Windows.
_NEEDED_FLAGS: tuple[tuple[CompilerKind, str, tuple[str, ...]], ...] = (
    # GCC 12 and newer see these in sources that are correct, and torch makes warnings errors.
    ("gcc", "12", ("-Wno-error=maybe-uninitialized", "-Wno-error=uninitialized", "-Wno-error=restrict")),
    # clang warns of GCC's options, and CMake takes a warning for the failure of every flag check.
    ("clang", "3", ("-Wno-unknown-warning-option",)),
)


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """A compiler on a machine: its program, and what it says that it is.

    Attributes:
        path: Its program.
        kind: Which one it is.
        version: Its version; "" for the newest.
    """

    path: str
    kind: CompilerKind
    version: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags that builds with this compiler need besides the user's own."""
        for kind, since, flags in _NEEDED_FLAGS:
            is_new_enough = not self.version or Version(self.version) >= Version(since)
            if kind == self.kind and is_new_enough:
                return flags
        return ()


def identify_compiler(path: str, output: str) -> Compiler:
    """Return which compiler a program is, by what it prints about itself (``--version``; MSVC's banner)."""
    for kind, pattern in _VERSION_OUTPUT:
        match = re.search(pattern, output, re.MULTILINE)
        if match is not None:
            return Compiler(
                path=path,
                kind=kind,
                version=match[1].rstrip("."),
            )
    return Compiler(
        path=path,
        kind="unknown",
        version="0",
    )


def compiler_commands(platform: Platform, env: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the commands of CC and CXX by variable: the variable's value, else the first usual compiler."""
    path = platform.find_variable(env, "PATH")
    commands: dict[str, list[str]] = {}
    for variable, names in _USUAL_COMPILERS[platform.name].items():
        command = platform.find_variable(env, variable).split()
        if not command:
            available = [name for name in names if process.which(name, path=path)]
            command = [available[0] if available else names[0]]
        commands[variable] = command
    return commands


def find_compilers(platform: Platform, env: Mapping[str, str]) -> dict[str, Compiler]:
    """Return the C and C++ compilers that exist on this machine, by the variable that names each."""
    path = platform.find_variable(env, "PATH")
    compilers: dict[str, Compiler] = {}
    for variable, (name, *arguments) in compiler_commands(platform, env).items():
        program = process.which(name, path=path)
        if program is None:
            continue
        # Of CC="ccache gcc", it is the compiler that answers.
        completed = process.capture([program, *arguments, "--version"], check=False)
        compilers[variable] = identify_compiler(str(program), completed.stdout + completed.stderr)
    return compilers
