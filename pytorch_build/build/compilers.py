"""The compilers of a build: what they are, and the flags that each needs (`compilers.toml`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packaging.version import Version

from core import process
from core.data import Model, data_file

if TYPE_CHECKING:
    from pytorch_build.platforms import Platform

Kind = Literal["gcc", "clang", "clang-cl", "msvc", "unknown"]

# What CMake takes where a variable names none (CMakeDetermineCXXCompiler.cmake).
_USUAL_COMPILERS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "linux": {"CC": ("cc", "gcc", "clang"), "CXX": ("c++", "g++", "clang++")},
    "windows": {"CC": ("cl", "clang-cl"), "CXX": ("cl", "clang-cl")},
}
# What compilers print about themselves. The first that fits is right.
_VERSION_OUTPUT: tuple[tuple[Kind, str], ...] = (
    ("clang-cl", r"clang version (\d[\d.]*)(?s:.*)-windows-msvc"),
    ("clang", r"clang version (\d[\d.]*)"),
    ("msvc", r"Microsoft .*Compiler.* (\d+(?:\.\d+)+)"),
    ("gcc", r"^\S+ \([^\n]*\) (\d[\d.]*)[^\n]*\n.*Free Software Foundation"),
)


class _NeededFlags(Model):
    """Flags of a compiler from a version on; the reason is for people."""

    compiler: Kind
    since: str
    flags: tuple[str, ...]
    reason: str


class _CompilersFile(Model):
    """Content of compilers.toml."""

    flags: tuple[_NeededFlags, ...]


_load_compilers_file = data_file(Path(__file__).with_suffix(".toml"), _CompilersFile)


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """A compiler on a machine: its program, and what it says that it is.

    Attributes:
        path: Its program.
        kind: Which one it is.
        version: Its version; "" for the newest.
    """

    path: str
    kind: Kind
    version: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags that it needs."""
        flags: list[str] = []
        for row in _load_compilers_file().flags:
            is_new_enough = not self.version or Version(self.version) >= Version(row.since)
            if row.compiler == self.kind and is_new_enough:
                flags += row.flags
        return tuple(flags)


def identify_compiler(path: str, output: str) -> Compiler:
    """Return which compiler a program is, by what it prints about itself (``--version``; MSVC's banner)."""
    for kind, pattern in _VERSION_OUTPUT:
        match = re.search(pattern, output, re.MULTILINE)
        if match is not None:
            return Compiler(path=path, kind=kind, version=match[1].rstrip("."))
    return Compiler(path=path, kind="unknown", version="0")


def compiler_commands(platform: Platform, env: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the compilers' commands, by variable: as it says, else the first usual one that is there."""
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
    """Return the compilers for C and C++ in an environment, by variable, without those that are not there."""
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
