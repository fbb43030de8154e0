"""Where a compiler cache keeps its entries, and what a build may do there. Nothing here acts.

The layout and the rules are data: `compiler_cache.toml`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from pydantic import field_validator

from core.data import Model, load_toml
from core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.run.locations import Origin, RunBuckets

DATA = Path(__file__).with_name("compiler_cache.toml")
LOCAL = "local"
_S3 = "s3://"
_HTTP = ("http://", "https://")
Access = Literal["read-write", "read-only", "none"]
StorageKind = Literal["local", "own", "folder", "s3", "http"]

# A person's own settings of a shared storage, which are taken as they are.
_OWN = {
    "sccache": (
        "SCCACHE_AZURE_CONNECTION_STRING",
        "SCCACHE_BUCKET",
        "SCCACHE_COS_BUCKET",
        "SCCACHE_GCS_BUCKET",
        "SCCACHE_GHA_ENABLED",
        "SCCACHE_MEMCACHED",
        "SCCACHE_MEMCACHED_ENDPOINT",
        "SCCACHE_MULTILEVEL_CHAIN",
        "SCCACHE_OSS_BUCKET",
        "SCCACHE_REDIS",
        "SCCACHE_REDIS_CLUSTER_ENDPOINTS",
        "SCCACHE_REDIS_ENDPOINT",
        "SCCACHE_WEBDAV_ENDPOINT",
    ),
    "ccache": ("CCACHE_REMOTE_STORAGE", "CCACHE_SECONDARY_STORAGE"),
}


class AccessRules(Model):
    """What builds may do in a shared storage, by whose they are."""

    own: Access
    fork: Access
    shared: Access


class CacheRules(Model):
    """What `compiler_cache.toml` says."""

    layout: str
    access: AccessRules

    @field_validator("layout")
    @classmethod
    def _apart(cls, value: str) -> str:
        for field in ("{release_type}", "{kind}"):
            if field not in value:
                raise ValueError(f"{value!r} lacks {field}, so that entries would mix")
        return value


@functools.cache
def cache_rules() -> CacheRules:
    """Read the data."""
    return load_toml(DATA, CacheRules)


@dataclass(frozen=True, kw_only=True)
class Storage:
    """Where entries lie."""

    kind: StorageKind = "local"
    where: str = ""
    access: Access = "read-write"

    def __str__(self) -> str:
        """Name it for people, without credentials: a URL's stay out."""
        if self.kind == "s3":
            return f"{_S3}{self.where}"
        if self.kind == "http":
            parts = urlsplit(self.where.partition("|")[0])
            return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        return self.where or self.kind

    @property
    def bucket(self) -> str:
        """The bucket of S3."""
        return self.where.partition("/")[0]

    @property
    def prefix(self) -> str:
        """The keys' first part, without slash at its end."""
        return self.where.partition("/")[2]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a build's storage follows from."""

    kind: str
    asked: str = ""
    read_only: bool = False
    store: str = ""
    release_type: str = "ci"
    origin: Origin
    buckets: RunBuckets


def storage_for(wanted: Wanted, *, rules: CacheRules, env: Mapping[str, str]) -> Storage:
    """Choose the storage: what was asked for, else a person's own settings, else a bucket by the run's.

    A bucket is sccache's alone, as ccache does not speak S3. Runs that leave their outputs in the main
    repository's buckets have a bucket for caches, where the data names one, and else the run's own. A
    fork's run reads what the main repository's runs stored, not the bucket that forks leave their outputs in.
    """
    folder = rules.layout.format(release_type=wanted.release_type, kind=wanted.kind)
    if wanted.asked:
        chosen = _asked(wanted.kind, wanted.asked, folder)
    elif any(env.get(name) for name in _OWN[wanted.kind]):
        chosen = Storage(kind="own")
    elif wanted.kind == "sccache" and wanted.store.startswith(_S3):
        chosen = Storage(kind="s3", where=f"{_for_caches(wanted)}/{folder}")
    else:
        chosen = Storage()
    if chosen.kind == "s3":
        chosen = replace(chosen, where=f"{_main_bucket(chosen.bucket, wanted)}/{chosen.prefix}")
    return replace(chosen, access=_access(chosen, wanted, rules.access))


def require_usable(kind: str, asked: str) -> None:
    """Refuse a storage that the cache cannot use, before hours are spent."""
    if asked:
        _asked(kind, asked, "")


def _asked(kind: str, asked: str, folder: str) -> Storage:
    if asked == LOCAL:
        return Storage()
    if asked.startswith(_S3):
        if kind == "ccache":
            raise UsageError(
                f"ccache does not speak S3, so it cannot use {asked}.",
                hint="Take --compiler-cache sccache, or give ccache a folder or an HTTP server's address.",
            )
        place = asked.removeprefix(_S3).strip("/")
        if not place:
            raise UsageError("--compiler-cache-store s3:// names no bucket.", hint="Write s3://BUCKET.")
        return Storage(kind="s3", where=f"{place}/{folder}")
    if asked.startswith(_HTTP):
        if kind == "sccache" or not asked.startswith("http:"):
            raise UsageError(
                f"{kind} cannot use {asked.partition(':')[0]}: addresses here.",
                hint="http://… is for ccache; sccache takes s3://BUCKET. Both take a folder.",
            )
        # as it stands: ccache makes no folders on a server
        return Storage(kind="http", where=asked)
    if "://" in asked:
        raise UsageError(
            f"--compiler-cache-store {asked!r} is no store.",
            hint="A store is a folder, s3://BUCKET (sccache) or http://… (ccache); 'local' is none.",
        )
    return Storage(kind="folder", where=str(Path(asked).resolve() / folder))


def _for_caches(wanted: Wanted) -> str:
    """Return the bucket that caches of the run's bucket lie in: its own, or the run's."""
    place = wanted.store.removeprefix(_S3).strip("/")
    runs, caches = wanted.buckets.release_types.get(wanted.release_type), wanted.buckets.compiler_caches
    if runs and caches and _is_main(wanted) and place in {runs.bucket, runs.external_bucket}:
        return caches.bucket.replace("{type}", caches.types[wanted.release_type])
    return place


def _main_bucket(bucket: str, wanted: Wanted) -> str:
    """Give a bucket; for a fork's run in the one that forks share, that of the main repository."""
    chosen = wanted.buckets.release_types.get(wanted.release_type)
    if chosen and wanted.origin.fork and _is_main(wanted) and bucket == chosen.external_bucket:
        return chosen.bucket
    return bucket


def _is_main(wanted: Wanted) -> bool:
    return wanted.origin.repository.casefold() == wanted.buckets.repository.casefold()


def _access(chosen: Storage, wanted: Wanted, rules: AccessRules) -> Access:
    """Say what the build may do; asking can take away, never add."""
    known = {
        name
        for one in wanted.buckets.release_types.values()
        for name in (one.bucket, one.external_bucket)
        if name
    }
    if not _is_main(wanted) and chosen.kind == "s3" and chosen.bucket in known:
        allowed = rules.shared
    else:
        allowed = rules.fork if wanted.origin.fork else rules.own
    return "read-only" if wanted.read_only and allowed == "read-write" else allowed
