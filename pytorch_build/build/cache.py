"""Compiler caches: where entries lie, what a build may do there, the variables that lead compilers to them.

Pure; layout and access rules are data (`cache.toml`), and `cache_use` acts. GPU targets must reach the
compiler as flags: neither cache has the variable HCC_AMDGPU_TARGET in its key, so either would return the
object of another target. `plans` sees to that.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from packaging.version import Version
from pydantic import field_validator

from core.data import Model, data_file
from core.environment import allowed
from core.errors import DataError, UsageError

if TYPE_CHECKING:
    from core.run.locations import Origin, RunBuckets

KINDS = ("ccache", "sccache")
DATA = Path(__file__).with_name("cache.toml")
_S3 = "s3://"
Access = Literal["read-write", "read-only", "none"]

# The user's settings of sccache that are kept, because they say nothing of a storage.
_KEPT = frozenset(
    {"SCCACHE_CACHE_SIZE", "SCCACHE_CACHE_ZSTD_LEVEL", "SCCACHE_DIR", "SCCACHE_DIRECT", "SCCACHE_RECACHE"}
)
_BACKENDS = ("AZURE", "COS", "GCS", "GHA", "LOCAL", "MEMCACHED", "OSS", "REDIS", "S3", "WEBDAV")
# Longer than any link step, which is time without compilations; and an end, should nothing stop the server.
_IDLE_SECONDS = "7200"
_UNREADABLE = (KeyError, ValueError, TypeError, AttributeError)


class AccessRules(Model):
    """What builds may do in a shared storage, by whose they are."""

    own: Access
    fork: Access
    shared: Access


class Counters(Model):
    """Counters of a compiler cache that are neither hit nor miss nor bookkeeping."""

    errors: tuple[str, ...]
    uncacheable: tuple[str, ...]


class CacheRules(Model):
    """Content of `cache.toml`."""

    layout: str
    access: AccessRules
    own_settings: dict[str, tuple[str, ...]]
    ccache: Counters
    sccache: Counters

    @field_validator("layout")
    @classmethod
    def _apart(cls, value: str) -> str:
        for name in ("{release_type}", "{kind}"):
            if name not in value:
                raise ValueError(f"{value!r} lacks {name}, so that entries would mix")
        return value


cache_rules = data_file(DATA, CacheRules)


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Where entries lie; `own` is where the user's environment says."""

    kind: Literal["local", "own", "folder", "s3", "http"] = "local"
    where: str = ""
    access: Access = "read-write"

    def __str__(self) -> str:
        if self.kind == "s3":
            return f"{_S3}{self.where}"
        if self.kind == "http":  # a URL's credentials stay out
            parts = urlsplit(self.where.partition("|")[0])
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        return self.where or self.kind

    @property
    def bucket(self) -> str:
        """The bucket of S3."""
        return self.where.partition("/")[0]


@dataclass(frozen=True, kw_only=True)
class CompilerCache:
    """A compiler cache that a build goes through; its program's path is absolute, its `location` as given."""

    kind: str
    program: PurePath
    location: str = ""
    read_only: bool = False
    storage: Storage = field(default_factory=Storage)


@dataclass(frozen=True, kw_only=True)
class S3Access:
    """How an S3 service is reached; `credentials` is the text of a credentials file, or ""."""

    endpoint: str
    region: str
    credentials: str = field(default="", repr=False)
    anonymous: bool = False


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a build's storage follows from."""

    cache: CompilerCache
    store: str = ""
    release_type: str = "ci"
    origin: Origin
    buckets: RunBuckets

    @property
    def is_main(self) -> bool:
        """Whether the run is the main repository's, a fork's pull request to it included."""
        return self.origin.repository.casefold() == self.buckets.repository.casefold()


def storage_for(wanted: Wanted, *, rules: CacheRules, env: Mapping[str, str]) -> Storage:
    """Choose the storage: the option's, else the user's own settings, else, for sccache, by the run's bucket.

    A fork's run reads what the main repository's runs stored, not the bucket that forks leave outputs in.
    """
    cache = wanted.cache
    folder = rules.layout.format(release_type=wanted.release_type, kind=cache.kind)
    if cache.location:
        chosen = storage_at(cache.kind, cache.location, folder)
    elif any(env.get(name) for name in rules.own_settings[cache.kind]):
        chosen = Storage(kind="own")
    elif cache.kind == "sccache" and wanted.store.startswith(_S3):
        chosen = Storage(kind="s3", where=f"{_cache_bucket(wanted)}/{folder}")
    else:
        chosen = Storage()
    runs = wanted.buckets.release_types.get(wanted.release_type)
    outside = runs and wanted.is_main and chosen.kind == "s3" and chosen.bucket == runs.external_bucket
    if runs and outside and wanted.origin.fork:
        chosen = replace(chosen, where=f"{runs.bucket}/{chosen.where.partition('/')[2]}")
    return replace(chosen, access=_access(chosen, wanted, rules.access))


def storage_at(kind: str, location: str, folder: str = "") -> Storage:
    """Read --compiler-cache-store; a storage that the cache cannot use is refused."""
    if location == "local":
        return Storage()
    scheme, colon, rest = location.partition("://")
    if not colon:
        return Storage(kind="folder", where=str(Path(location).resolve() / folder))
    if scheme == "s3":
        if kind == "ccache":
            raise UsageError(
                f"ccache does not speak S3, so it cannot use {location}.",
                hint="Take --compiler-cache sccache, or give ccache a folder or an HTTP server's address.",
            )
        if not (place := rest.strip("/")):
            raise UsageError("--compiler-cache-store s3:// names no bucket.", hint="Write s3://BUCKET.")
        return Storage(kind="s3", where=f"{place}/{folder}")
    if scheme not in {"http", "https"}:
        raise UsageError(
            f"--compiler-cache-store {location!r} is not a store.",
            hint="A store is a folder, s3://BUCKET (sccache) or http://… (ccache); 'local' is none.",
        )
    if kind == "sccache" or scheme == "https":
        raise UsageError(
            f"{kind} cannot use {scheme}: addresses here.",
            hint="http://… is for ccache; sccache takes s3://BUCKET. Both take a folder.",
        )
    return Storage(kind="http", where=location)  # without the folder: ccache makes none on a server


def _cache_bucket(wanted: Wanted) -> str:
    place = wanted.store.removeprefix(_S3).strip("/")
    runs, caches = wanted.buckets.release_types.get(wanted.release_type), wanted.buckets.compiler_caches
    if runs and caches and wanted.is_main and place in {runs.bucket, runs.external_bucket}:
        return caches.bucket.replace("{type}", caches.types[wanted.release_type])
    return place


def _access(chosen: Storage, wanted: Wanted, rules: AccessRules) -> Access:
    """Return what the build may do; the option can take away, never add."""
    known = {
        name for one in wanted.buckets.release_types.values() for name in (one.bucket, one.external_bucket)
    }
    if not wanted.is_main and chosen.kind == "s3" and chosen.bucket in known:
        allowed = rules.shared
    else:
        allowed = rules.fork if wanted.origin.fork else rules.own
    return "read-only" if wanted.cache.read_only and allowed == "read-write" else allowed


def launcher_env(
    cache: CompilerCache | None,
    *,
    platform: str,
    rocm_version: str,
    by_cmake: bool,
    base_env: Mapping[str, str],
) -> Mapping[str, str]:
    """Return the variables that send a build's compilations through the cache."""
    if cache is None:
        return {}
    program, env = str(cache.program), {}
    if by_cmake or platform == "windows":
        env = {"CMAKE_C_COMPILER_LAUNCHER": program, "CMAKE_CXX_COMPILER_LAUNCHER": program}
    else:
        for name, default in (("CC", "cc"), ("CXX", "c++")):
            chosen = base_env.get(name, "").strip() or default
            if not any(kind in chosen for kind in KINDS):  # the user's own wrapping holds
                env[name] = f"{program} {chosen}"
    if platform == "windows":
        # Debug information in a file of its own (/Zi) cannot be cached.
        env["CMAKE_MSVC_DEBUG_INFORMATION_FORMAT"] = "Embedded"
    # from this ROCm on, hipcc starts its clang through HIP_CLANG_LAUNCHER
    elif cache.kind == "sccache" and Version(rocm_version or "0").release[:2] >= (7, 13):
        env["HIP_CLANG_LAUNCHER"] = program
    return env


def server_env(
    storage: Storage,
    *,
    address: Mapping[str, str],
    base_env: Mapping[str, str],
    s3: S3Access | None = None,
    credentials: str = "",
) -> dict[str, str]:
    """Return the environment of a build's sccache server, without secrets: it tries compilers out with it."""
    own = storage.kind == "own"
    env = dict(base_env) if own else _without_storage(allowed(base_env, program="compiler cache"))
    if storage.kind == "s3":
        bucket, _, prefix = storage.where.partition("/")
        env |= {"SCCACHE_BUCKET": bucket, "SCCACHE_S3_KEY_PREFIX": prefix}
    elif storage.kind == "folder":
        env["SCCACHE_DIR"] = storage.where
    if s3 is not None:
        env["SCCACHE_REGION"] = s3.region
        if s3.endpoint:
            ssl = str(s3.endpoint.startswith("https:")).lower()
            env |= {"SCCACHE_ENDPOINT": s3.endpoint, "SCCACHE_S3_USE_SSL": ssl}
        if s3.credentials:
            env = {name: value for name, value in env.items() if not name.startswith("AWS_")}
            env |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": credentials}
        if s3.anonymous:
            env["SCCACHE_S3_NO_CREDENTIALS"] = "true"
    if storage.access == "read-only":
        env |= {f"SCCACHE_{backend}_RW_MODE": "READ_ONLY" for backend in _BACKENDS}
    return env | {
        **address,
        "SCCACHE_IDLE_TIMEOUT": _IDLE_SECONDS,
        "SCCACHE_LOG": "error",
        "SCCACHE_NO_DAEMON": "1",
        "SCCACHE_START_SERVER": "1",
    }


def client_env(storage: Storage, *, address: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """Return a command's whole environment with which its compilers find the build's sccache server."""
    # a server that is gone fails no compilation: the next client starts one that caches locally
    made = _without_storage(env) | {
        **address,
        "SCCACHE_IDLE_TIMEOUT": _IDLE_SECONDS,
        "SCCACHE_IGNORE_SERVER_IO_ERROR": "1",
    }
    return made | ({"SCCACHE_LOCAL_RW_MODE": "READ_ONLY"} if storage.access == "read-only" else {})


def _without_storage(env: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in env.items() if not name.startswith("SCCACHE_") or name in _KEPT}
    # the user's file may name another storage, which would go before
    return kept | {"SCCACHE_CONF": os.devnull}


def ccache_env(storage: Storage, *, log: str, base_dir: str, env: Mapping[str, str]) -> dict[str, str]:
    """Return a command's whole environment with which its compilers go through ccache."""
    # the compiler's date, which is ccache's default, differs from machine to machine
    made = {"CCACHE_COMPILERCHECK": "content", **env}
    made |= {"CCACHE_BASEDIR": base_dir, "CCACHE_NOHASHDIR": "true", "CCACHE_STATSLOG": log}
    if storage.kind == "folder":
        made["CCACHE_REMOTE_STORAGE"] = f"file:{storage.where}"
    elif storage.kind == "http":
        made["CCACHE_REMOTE_STORAGE"] = storage.where
    elif storage.kind == "local":
        made = {
            name: value
            for name, value in made.items()
            if name not in {"CCACHE_REMOTE_ONLY", *cache_rules().own_settings["ccache"]}
        }
    return made | ({"CCACHE_READONLY": "true"} if storage.access == "read-only" else {})


def parse_statistics(kind: str, text: str, *, read_only: bool = False) -> Counter[str]:
    """Read hits, misses, uncacheable compilations and errors out of a cache's own statistics.

    Those are ccache's log (seen with 4.7), or ``sccache --show-stats --stats-format json`` (with 0.16).
    """
    try:
        return (
            _ccache_statistics(text) if kind == "ccache" else _sccache_statistics(text, read_only=read_only)
        )
    except _UNREADABLE as problem:
        raise DataError(
            f"The statistics of {kind} cannot be read ({problem!r}): {text[:200]!r}",
            hint=f"Update {kind}, or build without --compiler-cache.",
        ) from problem


def _ccache_statistics(text: str) -> Counter[str]:
    """Add up the log: a comment names each file, and lines below it the counters that went up by one."""
    counters = Counter(line for line in text.splitlines() if line and line[0] != "#")
    if strange := [name for name in counters if not re.fullmatch(r"[a-z]+(_[a-z0-9]+)+", name)]:
        raise ValueError(f"{strange[0]!r} is not a counter")
    return Counter(
        hits=counters["direct_cache_hit"] + counters["preprocessed_cache_hit"],
        misses=counters["cache_miss"],
        uncacheable=sum(counters[name] for name in cache_rules().ccache.uncacheable),
        errors=sum(counters[name] for name in cache_rules().ccache.errors),
    )


def _sccache_statistics(text: str, *, read_only: bool) -> Counter[str]:
    stats: dict[str, Any] = json.loads(text)["stats"]
    known = cache_rules().sccache
    return Counter(
        hits=_per_language(stats["cache_hits"]),
        misses=_per_language(stats["cache_misses"]),
        uncacheable=sum(stats[name] for name in known.uncacheable),
        errors=_per_language(stats["cache_errors"])
        + sum(stats[name] for name in known.errors if not (read_only and name == "cache_write_errors")),
    )


def unwritten(text: str) -> int:
    """Count the compilations that sccache has still to store, by its statistics; 0 where they do not say."""
    try:
        stats = json.loads(text)["stats"]
        return int(_per_language(stats["cache_misses"]) - stats["cache_writes"] - stats["cache_write_errors"])
    except _UNREADABLE:
        return 0


def _per_language(counts: dict[str, Any]) -> int:
    """Add up the languages. Device passes count as languages of their own beside their file's."""
    return sum(int(count) for count in counts["counts"].values())
