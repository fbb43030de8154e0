"""What a compiler cache says that it did for a build."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from core.errors import DataError


@dataclass(frozen=True, kw_only=True)
class CacheStatistics:
    """What a compiler cache did for one build."""

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

    def __add__(self, other: CacheStatistics) -> CacheStatistics:
        """Add what a second server did for the same build."""
        return CacheStatistics(
            kind=self.kind,
            hits=self.hits + other.hits,
            misses=self.misses + other.misses,
            uncacheable=self.uncacheable + other.uncacheable,
            errors=self.errors + other.errors,
        )


def parse_statistics(kind: str, text: str, *, read_only: bool = False) -> CacheStatistics:
    """Read ccache's statistics log, or what ``sccache --show-stats --stats-format json`` printed.

    Seen with ccache 4.7 and sccache 0.16.
    """
    try:
        return _ccache(text) if kind == "ccache" else _sccache(text, read_only=read_only)
    except (KeyError, ValueError, TypeError, AttributeError) as problem:
        raise DataError(
            f"The statistics of {kind} cannot be read ({problem!r}): {text[:200]!r}",
            hint=f"Update {kind}, or build without --compiler-cache.",
        ) from problem


def unwritten(text: str) -> int:
    """Count the compilations that sccache has still to store, by its statistics; 0 where nobody can say."""
    try:
        stats = json.loads(text)["stats"]
        return int(_per_language(stats["cache_misses"]) - stats["cache_writes"] - stats["cache_write_errors"])
    except (KeyError, ValueError, TypeError, AttributeError):
        return 0


# Counters of ccache that are neither hit nor miss nor bookkeeping.
_CCACHE_ERRORS = (
    "internal_error",
    "missing_cache_file",
    "remote_storage_error",
    "remote_storage_timeout",
)
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
_COUNTER = re.compile(r"[a-z]+(_[a-z0-9]+)+")
_CCACHE_HITS = ("direct_cache_hit", "preprocessed_cache_hit")


def _ccache(text: str) -> CacheStatistics:
    """Add up the log: a comment names each file, and lines below it the counters that went up by one."""
    counters = Counter(line for line in text.splitlines() if line and not line.startswith("#"))
    if strange := [name for name in counters if not _COUNTER.fullmatch(name)]:
        raise ValueError(f"{strange[0]!r} is no counter")

    def total(names: tuple[str, ...]) -> int:
        return sum(counters[name] for name in names)

    return CacheStatistics(
        kind="ccache",
        hits=total(_CCACHE_HITS),
        misses=counters["cache_miss"],
        uncacheable=total(_CCACHE_UNCACHEABLE),
        errors=total(_CCACHE_ERRORS),
    )


def _sccache(text: str, *, read_only: bool) -> CacheStatistics:
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
        + (0 if read_only else stats["cache_write_errors"]),
    )


def _per_language(counts: dict[str, Any]) -> int:
    """Add up the languages. Device passes count as languages of their own beside their file's."""
    return sum(int(count) for count in counts["counts"].values())
