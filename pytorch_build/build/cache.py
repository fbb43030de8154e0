"""Compiler caches: what a build's compilers are started through, by which variables, and what they did.

Pure; `cache_use` acts. Where entries lie is what the user's SCCACHE_* and CCACHE_* variables say, or for
sccache a bucket that the command line or a workflow names.

GPU targets must reach the compiler as flags: neither cache has the variable HCC_AMDGPU_TARGET in its key, so
either would return the object of another target. `plan` sees to that.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from packaging.version import Version

from core.data import json_object
from core.environment import allowed
from core.errors import DataError, UsageError

if TYPE_CHECKING:
    from core.run.locations import Origin, RunBuckets


CacheKind = Literal["ccache", "sccache"]
KINDS: tuple[CacheKind, ...] = ("ccache", "sccache")
# Below the bucket. Release types lie apart, so that no release is made of what CI stored.
LAYOUT = "compiler-cache/{release_type}/sccache"
_S3 = "s3://"

# The user's settings of sccache that say nothing of a storage.
_SETTINGS_BESIDES_STORAGE = frozenset(
    {"SCCACHE_CACHE_SIZE", "SCCACHE_CACHE_ZSTD_LEVEL", "SCCACHE_DIR", "SCCACHE_DIRECT", "SCCACHE_RECACHE"}
)
_BACKENDS = ("AZURE", "COS", "GCS", "GHA", "LOCAL", "MEMCACHED", "OSS", "REDIS", "S3", "WEBDAV")

# Longer than any link step, which is time without compilations; and an end, should nothing stop the server.
_IDLE_SECONDS = "7200"


@dataclass(frozen=True, kw_only=True)
class CompilerCache:
    """A compiler cache that a build goes through.

    Attributes:
        kind: Which one it is.
        program: The absolute path of its program.
        store: The bucket of its entries, and the folder there; None where the user's own settings say it.
        read_only: Whether it takes entries and leaves none.
    """

    kind: CacheKind
    program: PurePath
    store: str | None = None
    read_only: bool = False

    @property
    def storage(self) -> str:
        """Where the cache's entries are stored, in words."""
        return self.store or "the machine's own settings"

    @property
    def access(self) -> str:
        """Whether a build may only read the cache's entries, or write some, too, in words."""
        return "read-only" if self.read_only else "read-write"


def require_usable_store(kind: str, store: str) -> None:
    """Refuse a --compiler-cache-store that the cache cannot use."""
    if kind == "ccache":
        raise UsageError(
            f"ccache does not speak S3, so it cannot use {store}.",
            hint="Take --compiler-cache sccache, or say where ccache's entries lie by CCACHE_REMOTE_STORAGE.",
        )
    if not store.startswith(_S3) or not store.removeprefix(_S3).strip("/"):
        raise UsageError(
            f"--compiler-cache-store {store!r} is not a bucket.",
            hint="Write s3://BUCKET or s3://BUCKET/FOLDER. Other storages are set by SCCACHE_* variables.",
        )


def cache_of_run(
    cache: CompilerCache,
    *,
    run_store: str,
    release_type: str,
    origin: Origin,
    buckets: RunBuckets,
) -> CompilerCache:
    """Return a cache's settings for one run: the folder of its release type, and read-only for forks.

    What a fork compiles reaches nothing else. It reads what the main repository's runs stored.
    """
    store = cache.store
    if store is None and cache.kind == "sccache":
        store = _bucket_of_main_repository(run_store, release_type, origin, buckets)
    if store is not None:
        store = f"{store.rstrip('/')}/{LAYOUT.format(release_type=release_type)}"
    return replace(
        cache,
        store=store,
        read_only=cache.read_only or origin.fork,
    )


def _bucket_of_main_repository(
    run_store: str, release_type: str, origin: Origin, buckets: RunBuckets
) -> str | None:
    """Return the bucket in which runs of the main repository share what they compile; None for other runs."""
    caches = buckets.compiler_caches
    run_bucket = buckets.release_types.get(release_type)
    if caches is None or run_bucket is None:
        return None
    if origin.repository.casefold() != buckets.repository.casefold():
        return None
    if run_store not in {f"{_S3}{run_bucket.bucket}", f"{_S3}{run_bucket.external_bucket}"}:
        return None
    return _S3 + caches.bucket.replace("{type}", caches.types[release_type])


def launcher_env(
    cache: CompilerCache | None,
    *,
    platform: str,
    rocm_version: str,
    compiles_by_cmake: bool,
    base_env: Mapping[str, str],
) -> Mapping[str, str]:
    """Return the variables that send a build's compilations through the cache."""
    if cache is None:
        return {}

    program = str(cache.program)
    env: dict[str, str] = {}
    if compiles_by_cmake or platform == "windows":
        env["CMAKE_C_COMPILER_LAUNCHER"] = program
        env["CMAKE_CXX_COMPILER_LAUNCHER"] = program
    else:
        for variable, usual_compiler in (("CC", "cc"), ("CXX", "c++")):
            compiler = base_env.get(variable, "").strip() or usual_compiler
            # What the user has wrapped already stays so.
            if not any(kind in compiler for kind in KINDS):
                env[variable] = f"{program} {compiler}"

    if platform == "windows":
        # Debug information in a file of its own (/Zi) cannot be cached.
        env["CMAKE_MSVC_DEBUG_INFORMATION_FORMAT"] = "Embedded"
    elif cache.kind == "sccache" and Version(rocm_version or "0").release[:2] >= (7, 13):
        # From this ROCm on, hipcc starts its clang through this.
        env["HIP_CLANG_LAUNCHER"] = program
    return env


def ccache_env(cache: CompilerCache, *, log: str, base_dir: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return a command's environment variables, completed so that its compilers go through ccache.

    Args:
        cache: The cache.
        log: Where ccache writes down what it did.
        base_dir: The folder that lies elsewhere on another machine, and is no part of keys.
        env: The command's environment.
    """
    variables = {
        # The compiler's date, which is ccache's default, differs from machine to machine.
        "CCACHE_COMPILERCHECK": "content",
        **env,
        "CCACHE_BASEDIR": base_dir,
        "CCACHE_NOHASHDIR": "true",
        "CCACHE_STATSLOG": log,
    }
    if cache.read_only:
        variables["CCACHE_READONLY"] = "true"
    return variables


def server_env(
    cache: CompilerCache, *, address: Mapping[str, str], base_env: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that a build's sccache server starts with, but for endpoint and credentials."""
    env = allowed(base_env, program="compiler cache")
    if cache.store is not None:
        bucket, _slash, folder = cache.store.removeprefix(_S3).partition("/")
        env = _without_storage_settings(env)
        env["SCCACHE_BUCKET"] = bucket
        env["SCCACHE_S3_KEY_PREFIX"] = folder
    if cache.read_only:
        for backend in _BACKENDS:
            env[f"SCCACHE_{backend}_RW_MODE"] = "READ_ONLY"
    return {
        **env,
        **address,
        "SCCACHE_IDLE_TIMEOUT": _IDLE_SECONDS,
        "SCCACHE_LOG": "error",
        "SCCACHE_NO_DAEMON": "1",
        "SCCACHE_START_SERVER": "1",
    }


def client_env(cache: CompilerCache, *, address: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Return a command's environment variables, completed so that its compilers use the sccache server."""
    variables = {
        **_without_storage_settings(env),
        **address,
        "SCCACHE_IDLE_TIMEOUT": _IDLE_SECONDS,
        # A server that is gone fails no compilation: the next client starts one, which caches locally.
        "SCCACHE_IGNORE_SERVER_IO_ERROR": "1",
    }
    if cache.read_only:
        variables["SCCACHE_LOCAL_RW_MODE"] = "READ_ONLY"
    return variables


def _without_storage_settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without the user's settings of where sccache stores entries."""
    variables = {
        name: value
        for name, value in env.items()
        if not name.startswith("SCCACHE_") or name in _SETTINGS_BESIDES_STORAGE
    }
    # The user's file may name a storage, too, which would be taken first.
    variables["SCCACHE_CONF"] = os.devnull
    return variables


# Counters of ccache that tell of a storage that failed.
_CCACHE_ERRORS = ("internal_error", "missing_cache_file", "remote_storage_error", "remote_storage_timeout")
_SCCACHE_UNCACHEABLE = (
    "requests_not_cacheable",
    "requests_not_compile",
    "requests_unsupported_compiler",
    "non_cacheable_compilations",
)
_CCACHE_COUNTER = re.compile(r"[a-z]+(_[a-z0-9]+)+")


@dataclass(frozen=True, kw_only=True)
class CacheStatistics:
    """Counts of a compiler cache's hits, misses and failures in one build.

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
        """The share of hits among hits and misses, 0 to 1."""
        return self.hits / max(self.hits + self.misses, 1)


def read_sccache_statistics(output: str, *, read_only: bool = False) -> CacheStatistics:
    """Return the statistics in sccache's JSON output (``--show-stats --stats-format json`` of 0.16).

    One that may only read always fails to write, which is no error.
    """
    statistics = json_object(output, where="The statistics of sccache").get("stats")
    misses = _sum_of_counters(statistics, "cache_misses")
    writes = _sum_of_counters(statistics, "cache_writes")
    write_errors = _sum_of_counters(statistics, "cache_write_errors")
    errors = _sum_of_counters(statistics, "cache_errors", "cache_timeouts", "cache_read_errors")
    return CacheStatistics(
        hits=_sum_of_counters(statistics, "cache_hits"),
        misses=misses,
        uncacheable=_sum_of_counters(statistics, *_SCCACHE_UNCACHEABLE),
        errors=errors if read_only else errors + write_errors,
        unwritten=misses - writes - write_errors,
    )


def _sum_of_counters(statistics: Any, *names: str) -> int:  # noqa: ANN401 - what JSON holds
    """Return the sum of some counters in sccache's statistics, over all languages, device passes too."""
    total = 0
    for name in names:
        try:
            counter = statistics[name]
            total += counter if isinstance(counter, int) else sum(counter["counts"].values())
        except (KeyError, TypeError, AttributeError) as problem:
            raise DataError(
                f"The statistics of sccache have no counter {name}.",
                hint="Update sccache, or build without --compiler-cache.",
            ) from problem
    return total


def read_ccache_statistics(log: str) -> CacheStatistics:
    """Return the statistics in a log of ccache (``CCACHE_STATSLOG`` of 4.7).

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
