"""ccache and sccache: how a build is told to use one, and what it says it did.

GPU targets must reach the compiler as flags: given by a variable (``HCC_AMDGPU_TARGET``),
either cache returns the object of another target, as the variable is no part of its key.
`pytorch_build.builds` sees to that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packaging.version import Version

from core.errors import DataError, UsageError, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePath

KINDS = ("ccache", "sccache")
# From this ROCm on, hipcc starts its clang through HIP_CLANG_LAUNCHER.
_FIRST_ROCM_WITH_LAUNCHER = (7, 13)


@dataclass(frozen=True, kw_only=True)
class CompilerCache:
    """A compiler cache that a build goes through; there is at most one.

    Attributes:
        kind: ``ccache`` or ``sccache``.
        program: Its absolute path: CMake and hipcc run it from folders of their own.
        wrap_hip: Also cache hipcc's device passes, where ROCm can (sccache on Linux).
    """

    kind: str
    program: PurePath
    wrap_hip: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"{self.kind!r} is no compiler cache.", hint=nearest(self.kind, KINDS))
        if not self.program.is_absolute():
            raise UsageError(f"The compiler cache {self.program} must be given by its absolute path.")


@dataclass(frozen=True, kw_only=True)
class CacheStatistics:
    """What a compiler cache did for one build, since its counters were zeroed.

    Attributes:
        kind: ``ccache`` or ``sccache``.
        hits: Compilations answered from the cache.
        misses: Compilations that ran and were stored.
        uncacheable: Calls that the cache passed on: links, preprocessing, unknown options.
        errors: Failures of the cache itself: reads, writes, timeouts.
    """

    kind: str
    hits: int
    misses: int
    uncacheable: int
    errors: int

    @property
    def hit_rate(self) -> float:
        """Hits as a part of all cacheable compilations, from 0 to 1; 0 if there was none."""
        cacheable = self.hits + self.misses
        return self.hits / cacheable if cacheable else 0.0


def launcher_env(cache: CompilerCache | None, *, platform: str, rocm_version: str) -> Mapping[str, str]:
    """Give the variables that send a build's compilations through the cache.

    Args:
        cache: None for no cache, which is no variables.
        platform: ``linux`` or ``windows``.
        rocm_version: The SDK's version; empty for family cpu.
    """
    if cache is None:
        return {}
    program = str(cache.program)
    env = {"CMAKE_C_COMPILER_LAUNCHER": program, "CMAKE_CXX_COMPILER_LAUNCHER": program}
    if platform == "windows":
        # Debug information in a file of its own (/Zi) cannot be cached.
        env["CMAKE_MSVC_DEBUG_INFORMATION_FORMAT"] = "Embedded"
    elif cache.kind == "sccache" and cache.wrap_hip and _has_hip_launcher(rocm_version):
        env["HIP_CLANG_LAUNCHER"] = program
    return env


def _has_hip_launcher(rocm_version: str) -> bool:
    return bool(rocm_version) and Version(rocm_version).release[:2] >= _FIRST_ROCM_WITH_LAUNCHER


def zero_command(cache: CompilerCache) -> tuple[str, ...]:
    """Give the command that sets the cache's counters to zero."""
    return (str(cache.program), "--zero-stats")


def statistics_command(cache: CompilerCache) -> tuple[str, ...]:
    """Give the command whose output `parse_statistics` reads."""
    if cache.kind == "ccache":
        return (str(cache.program), "--print-stats")
    return (str(cache.program), "--show-stats", "--stats-format", "json")


def parse_statistics(kind: str, text: str) -> CacheStatistics:
    """Read what `statistics_command` printed (seen with ccache 4.7 and sccache 0.16).

    Raises:
        DataError: It is not the output of this cache.
    """
    try:
        return _ccache(text) if kind == "ccache" else _sccache(text)
    except (KeyError, ValueError, TypeError, AttributeError) as problem:
        raise DataError(
            f"The statistics of {kind} cannot be read ({problem!r}): {text[:200]!r}",
            hint=f"Update {kind}, or build without --compiler-cache.",
        ) from problem


# Counters of `ccache --print-stats` that are neither hit nor miss nor bookkeeping.
_CCACHE_ERRORS = ("internal_error", "missing_cache_file", "remote_storage_error", "remote_storage_timeout")
_CCACHE_UNCACHEABLE = (
    "autoconf_test",
    "bad_compiler_arguments",
    "bad_output_file",
    "called_for_link",
    "called_for_preprocessing",
    "compile_failed",
    "compiler_check_failed",
    "compiler_produced_empty_output",
    "compiler_produced_no_output",
    "compiler_produced_stdout",
    "could_not_find_compiler",
    "could_not_use_modules",
    "could_not_use_precompiled_header",
    "error_hashing_extra_file",
    "multiple_source_files",
    "no_input_file",
    "output_to_stdout",
    "preprocessor_error",
    "unsupported_code_directive",
    "unsupported_compiler_option",
    "unsupported_environment_variable",
    "unsupported_source_language",
)


def _ccache(text: str) -> CacheStatistics:
    counters = {name: int(value) for name, value in (line.split("\t") for line in text.splitlines() if line)}
    return CacheStatistics(
        kind="ccache",
        hits=counters["direct_cache_hit"] + counters["preprocessed_cache_hit"],
        misses=counters["cache_miss"],
        uncacheable=sum(counters.get(name, 0) for name in _CCACHE_UNCACHEABLE),
        errors=sum(counters.get(name, 0) for name in _CCACHE_ERRORS),
    )


def _sccache(text: str) -> CacheStatistics:
    stats: dict[str, Any] = json.loads(text)["stats"]
    return CacheStatistics(
        kind="sccache",
        hits=_per_language(stats["cache_hits"]),
        misses=_per_language(stats["cache_misses"]),
        uncacheable=stats["requests_not_cacheable"]
        + stats["requests_not_compile"]
        + stats["requests_unsupported_compiler"]
        + stats["non_cacheable_compilations"],
        errors=_per_language(stats["cache_errors"])
        + stats["cache_timeouts"]
        + stats["cache_read_errors"]
        + stats["cache_write_errors"],
    )


def _per_language(counts: dict[str, Any]) -> int:
    """Add up the languages. Device passes count as languages of their own beside their file's."""
    return sum(int(count) for count in counts["counts"].values())
