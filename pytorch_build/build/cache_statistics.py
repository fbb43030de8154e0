"""What a compiler cache did for a build, by its own statistics."""

import re
from collections import Counter
from dataclasses import dataclass

from core.data import Model, json_object, validated
from core.errors import DataError

# Counters of ccache that tell of a storage that failed.
_CCACHE_ERRORS = ("internal_error", "missing_cache_file", "remote_storage_error", "remote_storage_timeout")
_CCACHE_COUNTER = re.compile(r"[a-z]+(_[a-z0-9]+)+")


@dataclass(frozen=True, kw_only=True)
class CacheStatistics:
    """How often a compiler cache did what.

    Attributes:
        hits: Compilations whose object was in the cache.
        misses: Those whose object was not.
        uncacheable: Calls of a compiler that no cache can answer.
        errors: Entries that could not be read or stored.
        unwritten: Objects that are still to be stored.
    """

    hits: int = 0
    misses: int = 0
    uncacheable: int = 0
    errors: int = 0
    unwritten: int = 0

    @property
    def hit_rate(self) -> float:
        """The part of hits, 0 to 1."""
        return self.hits / max(self.hits + self.misses, 1)


class _PerLanguage(Model, extra="ignore"):
    """A counter of sccache by language. Device passes count as languages of their own beside their file's."""

    counts: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.counts.values())


class _SccacheCounters(Model, extra="ignore"):
    """The counters of sccache that are used, as ``--stats-format json`` prints them (seen with 0.16)."""

    cache_hits: _PerLanguage
    cache_misses: _PerLanguage
    cache_errors: _PerLanguage
    cache_writes: int
    cache_timeouts: int
    cache_read_errors: int
    cache_write_errors: int
    requests_not_cacheable: int
    requests_not_compile: int
    requests_unsupported_compiler: int
    non_cacheable_compilations: int


def read_sccache_statistics(output: str, *, read_only: bool = False) -> CacheStatistics:
    """Return what sccache's output says. One that may only read always fails to write, which is no error."""
    where = "The statistics of sccache"
    counters = validated(json_object(output, where=where).get("stats", {}), _SccacheCounters, where=where)
    errors = counters.cache_errors.total + counters.cache_timeouts + counters.cache_read_errors
    if not read_only:
        errors += counters.cache_write_errors
    return CacheStatistics(
        hits=counters.cache_hits.total,
        misses=counters.cache_misses.total,
        uncacheable=(
            counters.requests_not_cacheable
            + counters.requests_not_compile
            + counters.requests_unsupported_compiler
            + counters.non_cacheable_compilations
        ),
        errors=errors,
        unwritten=counters.cache_misses.total - counters.cache_writes - counters.cache_write_errors,
    )


def read_ccache_statistics(log: str) -> CacheStatistics:
    """Return what ccache's log says (seen with 4.7).

    A comment names the file of each call, and lines below it the counters that went up by one.
    """
    calls = 0
    counters = Counter[str]()
    for line in log.splitlines():
        if line.startswith("#"):
            calls += 1
        elif _CCACHE_COUNTER.fullmatch(line):
            counters[line] += 1
        elif line:
            raise DataError(
                f"The statistics of ccache cannot be read: {line[:200]!r} is not a counter.",
                hint="Update ccache, or build without --compiler-cache.",
            )

    hits = counters["direct_cache_hit"] + counters["preprocessed_cache_hit"]
    misses = counters["cache_miss"]
    return CacheStatistics(
        hits=hits,
        misses=misses,
        uncacheable=max(0, calls - hits - misses),
        errors=sum(counters[name] for name in _CCACHE_ERRORS),
    )
