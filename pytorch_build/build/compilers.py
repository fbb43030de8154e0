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
# what CMake takes where a variable names none (CMakeDetermineCXXCompiler.cmake)
_USUAL: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "linux": {"CC": ("cc", "gcc", "clang"), "CXX": ("c++", "g++", "clang++")},
    "windows": {"CC": ("cl", "clang-cl"), "CXX": ("cl", "clang-cl")},
}
_KINDS: tuple[tuple[Kind, str], ...] = (
    ("clang-cl", r"clang version (\d[\d.]*)(?s:.*)-windows-msvc"),
    ("clang", r"clang version (\d[\d.]*)"),
    ("msvc", r"Microsoft .*Compiler.* (\d+(?:\.\d+)+)"),
    ("gcc", r"^\S+ \([^\n]*\) (\d[\d.]*)[^\n]*\n.*Free Software Foundation"),
)


class _Flags(Model):
    """Flags of a compiler from a version on; the reason is for people."""

    compiler: Kind
    since: str
    flags: tuple[str, ...]
    reason: str


class _Compilers(Model):
    """Content of compilers.toml."""

    flags: tuple[_Flags, ...]


_load = data_file(Path(__file__).with_suffix(".toml"), _Compilers)


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """A compiler on a machine: its program and what it says that it is; an empty version is the newest."""

    path: str
    kind: Kind
    version: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags that it needs."""
        return tuple(
            flag
            for one in _load().flags
            if one.compiler == self.kind and (not self.version or Version(self.version) >= Version(one.since))
            for flag in one.flags
        )


def identified(path: str, said: str) -> Compiler:
    """Name a compiler by what it prints about itself (``--version``; MSVC's banner)."""
    for kind, pattern in _KINDS:
        if found := re.search(pattern, said, re.MULTILINE):
            return Compiler(path=path, kind=kind, version=found[1].rstrip("."))
    return Compiler(path=path, kind="unknown", version="0")


def commands(platform: Platform, env: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the compilers' commands, by variable: as it says, else of the usual ones what is there."""
    path = platform.find_variable(env, "PATH")
    return {
        variable: platform.find_variable(env, variable).split()
        or [next((one for one in usual if process.which(one, path=path)), usual[0])]
        for variable, usual in _USUAL[platform.name].items()
    }


def compilers(platform: Platform, env: Mapping[str, str]) -> dict[str, Compiler]:
    """Find the compilers for C and C++ in an environment, by variable; one that is not there is left out."""
    path, found = platform.find_variable(env, "PATH"), dict[str, Compiler]()
    for variable, (name, *words) in commands(platform, env).items():
        if program := process.which(name, path=path):
            # of `CC="ccache gcc"` the compiler is asked, too
            done = process.capture([program, *words, "--version"], check=False)
            found[variable] = identified(str(program), done.stdout + done.stderr)
    return found
