from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest

from core.cli.options import Common
from core.errors import DataError, ProcessError
from pytorch_build.build import compiler_cache_s3, compiler_cache_use
from pytorch_build.build.compiler_cache import CompilerCache
from pytorch_build.build.compiler_cache_statistics import CacheStatistics
from pytorch_build.build.compiler_cache_storage import Storage
from pytorch_build.build.compiler_cache_use import BaseDirs, in_use, located

if TYPE_CHECKING:
    from collections.abc import Iterator

DIRS = BaseDirs(tree=Path("/co/src/torch"), environment=Path("/co/.nox/env"), root=Path("/co"))
CCACHE = CompilerCache(kind="ccache", program=PurePosixPath("/usr/bin/ccache"))
SCCACHE = CompilerCache(kind="sccache", program=PurePosixPath("/usr/bin/sccache"))
FOUND = CacheStatistics(kind="sccache", hits=3, misses=1, uncacheable=2, errors=0)


class Server:
    """A server that tells what a test wants."""

    def __init__(self, told: CacheStatistics | Exception = FOUND, *, lost: str = "") -> None:
        self.told, self.lost, self.storage = told, lost, Storage()

    def environment(self, env: dict[str, str]) -> dict[str, str]:
        return {**env, "SERVER": "here"}

    def statistics(self) -> CacheStatistics:
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()

    @contextmanager
    def sccache_server(*_: Any, **__: Any) -> Iterator[Server]:
        yield made

    monkeypatch.setattr(compiler_cache_use, "sccache_server", sccache_server)
    return made


def test_no_cache_and_one_that_is_not_trusted_are_none() -> None:
    untrusted = replace(SCCACHE, storage=Storage(access="none"))
    for cache in (None, untrusted):
        with in_use(cache, base_dirs=DIRS, base_env={}) as found:
            assert found is None


def test_a_record_says_what_the_cache_did_and_where(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = Storage(kind="s3", where="bucket/cc", access="read-only")
    with in_use(replace(SCCACHE, storage=storage), base_dirs=DIRS, base_env={}) as found:
        assert found is not None
        assert found.environment({"A": "1"}) == {"A": "1", "SERVER": "here"}
        assert found.details() == {
            "kind": "sccache",
            "hits": 3,
            "misses": 1,
            "uncacheable": 2,
            "errors": 0,
            "hit_rate": 0.75,
            "storage": "s3://bucket/cc",
            "access": "read-only",
            "lost": "",
        }
    said = capsys.readouterr().err
    assert "sccache: 3 hits, 1 misses (75%) in s3://bucket/cc, read-only" in said
    assert "failed" not in said
    server.lost = "it is gone."
    with in_use(SCCACHE, base_dirs=DIRS, base_env={}) as found:
        assert found is not None
        assert (found.details() or {})["lost"] == "it is gone."
    assert "75%) in a local cache, read-write" in capsys.readouterr().err


def test_entries_that_were_not_stored_are_told(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.told = replace(FOUND, errors=2)
    with in_use(SCCACHE, base_dirs=DIRS, base_env={}) as found:
        assert found is not None
        assert (found.details() or {})["errors"] == 2
    assert "sccache failed 2 times to read or store an entry in local" in capsys.readouterr().err


@pytest.mark.parametrize("problem", [ProcessError("It is gone."), DataError("It talks nonsense.")])
def test_a_build_is_not_thrown_away_for_counters(
    server: Server, problem: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    server.told = problem
    with in_use(SCCACHE, base_dirs=DIRS, base_env={}) as found:
        assert found is not None
        assert found.details() is None
    assert f"What sccache did is not known: {problem}" in capsys.readouterr().err


def test_a_cache_that_does_not_start_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise ProcessError("It is broken.")

    monkeypatch.setattr(compiler_cache_use, "sccache_server", fails)
    with in_use(SCCACHE, base_dirs=DIRS, base_env={}) as found:
        assert found is None
    assert "It is broken. This build goes on without a cache." in capsys.readouterr().err


def test_ccaches_statistics_are_the_builds_own(tmp_path: Path) -> None:
    folder = Storage(kind="folder", where=str(tmp_path))
    with in_use(replace(CCACHE, storage=folder), base_dirs=DIRS, base_env={}) as found:
        assert found is not None
        env = found.environment({})
        log = Path(env["CCACHE_STATSLOG"])
        nothing = found.details() or {}
        assert (nothing["hits"], nothing["misses"]) == (0, 0)
        log.write_text("# a.c\ndirect_cache_hit\n# b.c\ncache_miss\n")
        some = found.details() or {}
        assert (some["hits"], some["misses"], some["storage"]) == (1, 1, str(tmp_path))
    assert env["CCACHE_REMOTE_STORAGE"] == f"file:{tmp_path}"
    assert env["CCACHE_BASEDIR"] == "/co"
    assert not log.parent.exists()


def test_a_server_of_ccaches_that_is_not_there_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def answers(url: str, **_: float) -> bool:
        asked.append(url)
        return False

    monkeypatch.setattr(compiler_cache_s3, "answers", answers)
    web = Storage(kind="http", where="http://host/c|layout=flat", access="read-only")
    with in_use(replace(CCACHE, storage=web), base_dirs=DIRS, base_env={}) as found:
        assert found is not None
        env = found.environment({})
        assert (found.details() or {})["lost"] == "it did not answer."
    assert asked == ["http://host/c"]
    assert "CCACHE_REMOTE_STORAGE" not in env
    assert env["CCACHE_READONLY"] == "true"
    assert "ccache cannot use http://host/c: it did not answer." in capsys.readouterr().err


def test_folders_that_differ_between_machines() -> None:
    assert DIRS.all == ("/co/src/torch", "/co/.nox/env", "/co")
    assert DIRS.one == "/co"
    own = replace(DIRS, tree=Path("/home/me/torch"))
    assert own.one == "/home/me/torch", "a developer's own tree lies outside"


def test_a_run_places_its_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def place(cache: CompilerCache, env: dict[str, str], *, asked: str = "", **common: Any) -> Storage:
        run = Common(root=tmp_path, **common)
        return located(cache, run, asked=asked, read_only=False, env=env).storage

    assert str(place(SCCACHE, {}, store="s3://mine")) == "s3://mine/compiler-cache/ci/sccache"
    assert place(SCCACHE, {}) == Storage()
    assert not capsys.readouterr().err
    assert place(CCACHE, {}, store="s3://mine") == Storage()
    assert "ccache does not speak S3: entries stay on this machine" in capsys.readouterr().err
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"head": {"repo": {"full_name": "me/TheRock"}}}}))
    fork = {"GITHUB_REPOSITORY": "ROCm/TheRock", "GITHUB_EVENT_PATH": str(event)}
    found = place(SCCACHE, fork, store="s3://therock-ci-artifacts-external")
    assert (found.bucket, found.access) == ("therock-pytorch-sccache-ci", "read-only")
    other = {"GITHUB_REPOSITORY": "me/mine"}
    assert place(SCCACHE, other, store="s3://therock-ci-artifacts-external").access == "none"
    assert "No compiler cache: other repositories write to" in capsys.readouterr().err
