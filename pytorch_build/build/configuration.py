"""What CMake was configured with: read back from its cache, and compared with what the build asks for.

Source: ``tools/setup_helpers/cmake.py`` and ``env.py`` of PyTorch, which configure once, and never again
while there is a ``CMakeCache.txt``; format: ``NAME:TYPE=value`` (cmake-language(7), the cache).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core import console
from core.errors import BuildError

if TYPE_CHECKING:
    from pytorch_build.build.compilers import Compiler

_ENTRY = re.compile(r"^([A-Za-z_]\w*):[A-Z]+=(.*)$", re.MULTILINE)
# of flags alone: other checks look for functions and processors
_CHECK = re.compile(r"^-- Performing Test ((?:HAS|COMPILER_SUPPORTS)_\w+) - (Success|Failed)", re.MULTILINE)
_FLAGS = {
    "CMAKE_C_FLAGS": "CFLAGS",
    "CMAKE_CXX_FLAGS": "CXXFLAGS",
    "CMAKE_EXE_LINKER_FLAGS": "LDFLAGS",
    "CMAKE_SHARED_LINKER_FLAGS": "LDFLAGS",
}
_COMPILERS = {"CMAKE_C_COMPILER": "CC", "CMAKE_CXX_COMPILER": "CXX"}
_YES, _NO = {"ON", "1", "YES", "TRUE", "Y"}, {"", "OFF", "0", "NO", "FALSE", "N", "NOTFOUND"}
# fewer say nothing
_FEWEST_CHECKS = 5


def asked(env: Mapping[str, str], compilers: Mapping[str, Compiler]) -> dict[str, str]:
    """Return what an environment asks of CMake: build type, compilers, flags."""
    debug = (env.get(name, "").upper() in _YES for name in ("DEBUG", "REL_WITH_DEB_INFO"))
    named = (kind for kind, wanted in zip(("Debug", "RelWithDebInfo"), debug, strict=True) if wanted)
    found = {"CMAKE_BUILD_TYPE": next(named, "Release")}
    found |= {name: compilers[short].path for name, short in _COMPILERS.items() if short in compilers}
    found |= {name: env.get(short, "") for name, short in _FLAGS.items()}
    return {name: env.get(name, value) for name, value in found.items()}


def differences(cache: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """Name what was configured otherwise than asked; what the cache does not have is not in question."""
    return tuple(
        f"{name} is {cache[name] or 'empty'}, and {value or 'nothing'} was asked for"
        for name, value in wanted.items()
        if name in cache and not _same(name, cache[name], value)
    )


def _same(name: str, found: str, value: str) -> bool:
    if name in _COMPILERS:  # by links: /usr/bin/c++ is many compilers' name
        return Path(found).resolve() == Path(value).resolve()
    if name in _FLAGS:  # CMake puts flags of its own beside them
        return set(value.split()) <= set(found.split())
    return found == value


def turned(cache: Mapping[str, str], env: Mapping[str, str]) -> tuple[str, ...]:
    """Name the switches that upstream's CMake code turned, such as for want of a library."""
    switches = _switches(cache, env)
    changed = (name for name in switches if (env[name].upper() in _NO) != (cache[name].upper() in _NO))
    return tuple(f"{name}={env[name]} became {cache[name]}" for name in changed)


def _switches(cache: Mapping[str, str], env: Mapping[str, str]) -> list[str]:
    return [name for name in sorted(env) if name.startswith(("USE_", "BUILD_")) and name in cache]


def flag_checks(said: str) -> tuple[int, tuple[str, ...]]:
    """Count the compiler flags that CMake has tried, and name those that failed."""
    found = dict(_CHECK.findall(said))
    return len(found), tuple(name for name, outcome in found.items() if outcome == "Failed")


def verified(
    path: Path, said: str | None, *, env: Mapping[str, str], compilers: Mapping[str, Compiler]
) -> dict[str, Any]:
    """Compare a cache with what was asked for, and what CMake `said` of flags; return it for the record.

    A cache that was told of before is compared again, and nothing is told (None).
    """
    cache = dict(_ENTRY.findall(path.read_text(encoding="utf-8", errors="replace")))
    wanted = asked(env, compilers)
    if found := differences(cache, wanted):
        raise BuildError(
            f"{path.name} is not what this build asks for: {'; '.join(found)}.",
            hint="Build with --clean. If that does not help, the tree sets it: ask for the same value.",
        )
    names = {short: f"{one.kind} {one.version}" for short, one in compilers.items()}
    tried, failed = flag_checks(said or "")
    if tried >= _FEWEST_CHECKS and len(failed) == tried:
        raise BuildError(
            f"CMake tried {tried} compiler flags, and {names.get('CXX', 'the compiler')} took none of them "
            f"({', '.join(failed[:3])}, …): the wheel would lack them all, hidden visibility among them.",
            hint="A flag of CXXFLAGS or CFLAGS makes the compiler warn or fail at every check: "
            f"see {path.with_name('CMakeFiles') / 'CMakeConfigureLog.yaml'}.",
        )
    changed = turned(cache, env)
    flags = f", {tried - len(failed)} of {tried} compiler flags taken" if tried else ""
    if said is not None and (flags or changed):
        console.say("; ".join((f"configured: {cache.get('CMAKE_BUILD_TYPE', '')}{flags}", *changed)))
    settings = {name: console.mask(cache[name]) for name in wanted if name in cache}
    switches = {name: cache[name] for name in _switches(cache, env)}
    return {"settings": settings, "switches": switches, "compilers": names, "turned": list(changed)}
