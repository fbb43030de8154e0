"""A build's use of a compiler cache: made ready, taken by its commands, told about at its end."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from core import console
from core.errors import DataError, FatalError, ProcessError
from core.run.locations import origin_from, run_buckets
from pytorch_build.build.compiler_cache import ccache_env
from pytorch_build.build.compiler_cache_server import Patience, SccacheServer, sccache_server
from pytorch_build.build.compiler_cache_statistics import parse_statistics
from pytorch_build.build.compiler_cache_storage import Storage, Wanted, cache_rules, storage_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from core.cli.options import Common
    from pytorch_build.build.compiler_cache import CompilerCache
    from pytorch_build.build.compiler_cache_statistics import CacheStatistics

_PROBE_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class BaseDirs:
    """Folders that lie elsewhere on another machine, and whose paths must not keep it from hits."""

    tree: Path
    environment: Path
    root: Path

    @property
    def all(self) -> tuple[str, ...]:
        """Every one; sccache takes the longest that fits."""
        return tuple(dict.fromkeys(str(path) for path in (self.tree, self.environment, self.root)))

    @property
    def one(self) -> str:
        """The one for ccache, which knows no more: the checkout, or a developer's own tree outside."""
        return str(self.root if self.tree.is_relative_to(self.root) else self.tree)


class _Running(Protocol):
    storage: Storage
    lost: str

    def environment(self, env: Mapping[str, str]) -> dict[str, str]: ...

    def statistics(self) -> CacheStatistics: ...


@dataclass
class _Ccache:
    storage: Storage
    lost: str
    log: Path
    base_dir: str

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return ccache_env(self.storage, log=str(self.log), base_dir=self.base_dir, env=env)

    def statistics(self) -> CacheStatistics:
        # without a single compilation there is no log
        said = self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""
        return parse_statistics("ccache", said)


@dataclass(frozen=True, kw_only=True)
class CacheInUse:
    """A compiler cache while a build goes through it."""

    cache: CompilerCache
    running: _Running

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Give a command's environment with what leads its compilers to the cache."""
        return self.running.environment(env)

    def details(self) -> Mapping[str, Any] | None:
        """Say what the cache did, to people and for the record; None where it does not tell."""
        cache = self.cache
        try:
            found = self.running.statistics()
        except (ProcessError, DataError) as problem:
            # hours of building are not thrown away for a counter
            console.warn(f"What {cache.kind} did is not known: {problem.message}")
            return None
        where = "a local cache" if self.running.lost else str(cache.storage)
        console.say(
            f"{cache.kind}: {found.hits} hits, {found.misses} misses ({found.hit_rate:.0%})"
            f" in {where}, {cache.storage.access}"
        )
        if found.errors and not self.running.lost:
            console.warn(
                f"{cache.kind} failed {found.errors} times to read or store an entry in {cache.storage};"
                " what it failed on was compiled, so the wheel is whole."
            )
        return {
            **asdict(found),
            "hit_rate": round(found.hit_rate, 4),
            "storage": str(cache.storage),
            "access": cache.storage.access,
            "lost": console.mask(self.running.lost),
        }


def located(
    cache: CompilerCache, common: Common, *, asked: str, read_only: bool, env: Mapping[str, str]
) -> CompilerCache:
    """Give the cache with the storage that this build may use."""
    buckets = run_buckets()
    wanted = Wanted(
        kind=cache.kind,
        asked=asked,
        read_only=read_only,
        store=common.store,
        release_type=common.release_type,
        origin=origin_from(env, buckets),
        buckets=buckets,
    )
    storage = storage_for(wanted, rules=cache_rules(), env=env)
    if storage.access == "none":
        console.warn(f"No compiler cache: other repositories write to {storage}, too, so it is not trusted.")
    elif cache.kind == "ccache" and not asked and common.store.startswith("s3://"):
        console.say("ccache does not speak S3: entries stay on this machine (--compiler-cache-store).")
    return replace(cache, storage=storage)


@contextmanager
def in_use(
    cache: CompilerCache | None,
    *,
    base_dirs: BaseDirs,
    base_env: Mapping[str, str],
    patience: Patience | None = None,
) -> Iterator[CacheInUse | None]:
    """Make a cache ready for the block, and take what it needs away afterwards.

    A storage that does not answer is no error: the build goes on with a local cache, and with none where
    not even that can be had. Either is said.
    """
    if cache is None or cache.storage.access == "none":
        yield None
    elif cache.kind == "ccache":
        folder = Path(tempfile.mkdtemp(prefix="ccache-"))
        try:
            yield CacheInUse(cache=cache, running=_ccache(cache, folder / "statistics", base_dirs))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    else:
        with _sccache(cache, base_dirs, base_env, patience or Patience()) as server:
            yield CacheInUse(cache=cache, running=server) if server else None


def _ccache(cache: CompilerCache, log: Path, base_dirs: BaseDirs) -> _Ccache:
    storage, lost = cache.storage, ""
    if storage.kind == "http":
        from pytorch_build.build.compiler_cache_s3 import answers

        if not answers(storage.where.partition("|")[0], seconds=_PROBE_SECONDS):
            lost = "it did not answer."
            console.warn(f"ccache cannot use {storage}: {lost} This build goes on with a local cache.")
            storage = Storage(access=storage.access)
    return _Ccache(storage=storage, lost=lost, log=log, base_dir=base_dirs.one)


@contextmanager
def _sccache(
    cache: CompilerCache, base_dirs: BaseDirs, base_env: Mapping[str, str], patience: Patience
) -> Iterator[SccacheServer | None]:
    with ExitStack() as stack:
        try:
            server = stack.enter_context(
                sccache_server(cache, base_dirs=base_dirs.all, base_env=base_env, patience=patience)
            )
        except FatalError as problem:
            console.warn(f"sccache does not start: {problem.message} This build goes on without a cache.")
            server = None
        yield server
