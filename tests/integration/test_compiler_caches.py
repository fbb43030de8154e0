"""Compiler caches that survive the machine: real sccache, real ccache, real S3, builds of the sample."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.cli.options import environment
from pytorch_build.build import cache_use
from pytorch_build.build.cache import CompilerCache, Storage
from tests.kit.clones import TAG, Clone
from tests.kit.s3_servers import S3Server, program, rclone_serving

PREFIX = "compiler-cache/ci/sccache"
SOURCES = 3
WITH_CCACHE = pytest.mark.skipif(
    process.which("ccache") is None, reason="ccache is a package of the system's"
)


class Machine(Clone):
    """A fresh checkout in a folder of its own, with an empty local cache."""

    def built(self, *words: str | Path) -> str:
        return self.run_checked(
            *("nox", "-s", *words),
            PATH=f"{Path(program('sccache')).parent}{os.pathsep}{environment()['PATH']}",
            SCCACHE_DIR=str(self.path.parent / "local cache"),
            GITHUB_REPOSITORY=None,
            GITHUB_EVENT_PATH=None,
        )

    def torch(self, bucket: str, *words: str | Path) -> tuple[Mapping[str, Any], str]:
        """Build torch; return what the record says of the cache, and the output."""
        cache = ("--compiler-cache=sccache", f"--compiler-cache-store=s3://{bucket}")
        printed = self.built("build_torch", "--", "--torch-ref=sample", *cache, *words)
        return self.record(f"build_torch-sample-{TAG}")["details"]["compiler_cache"], printed


def left_running(folder: Path) -> list[str]:
    """Find processes whose environment names a folder."""
    found = []
    for one in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(folder).encode() in one.read_bytes():
                found.append((one.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return [line for line in found if "sccache" in line]


def test_a_new_machine_gets_what_another_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rclone_serving(tmp_path / "s3") as server:
        server.use(monkeypatch)
        bucket = server.make_bucket()
        one = Machine.create(tmp_path / "one" / "checkout")
        one.built("build_rocm", "--", "--torch-ref=sample")
        first, _ = one.torch(bucket)
        rocm = f"--rocm-find-links={one.wheels()}"
        other = Machine.create(tmp_path / "another" / "place" / "altogether")
        second, said = other.torch(bucket, rocm)
    assert first["storage"] == second["storage"] == f"s3://{bucket}/{PREFIX}"
    assert (first["errors"], second["errors"]) == (0, 0)
    # host code and device passes
    assert first["hits"] + first["misses"] >= 7
    assert first["uncacheable"] == 0
    assert second["hits"] + second["misses"] == first["hits"] + first["misses"]
    assert second["hit_rate"] >= 0.95, second
    assert f"in s3://{bucket}/{PREFIX}, read-write" in said
    assert not left_running(tmp_path)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Return a tree with sources, and a server of S3 of the test's own, which it may break."""
    with rclone_serving(tmp_path / "s3") as server:
        server.use(monkeypatch)
        monkeypatch.setenv("SCCACHE_DIR", str(tmp_path / "local"))
        monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
        yield Shop(folder=tmp_path, server=server, bucket=server.make_bucket())
    assert not left_running(tmp_path)


@dataclass(frozen=True, kw_only=True)
class Shop:
    """Trees that are compiled through a cache, without a build around it."""

    folder: Path
    server: S3Server
    bucket: str

    def cache(self, program_name: str = "sccache", **storage: Any) -> CompilerCache:
        found = process.which(program_name) or Path(program(program_name))
        place = Storage(**{"kind": "s3", "where": f"{self.bucket}/{PREFIX}", **storage})
        return CompilerCache(kind=program_name, program=found, storage=place)

    def compiled(
        self,
        tree: str,
        cache: CompilerCache,
        *,
        between: Callable[[], None] = lambda: None,
        compiler: str = "g++",
    ) -> Mapping[str, Any]:
        """Compile every source, doing something before the last; give what the cache did."""
        root = self.folder / tree
        (root / "build").mkdir(parents=True)
        (root / "own.h").write_text("inline int own() { return 1; }\n")
        dirs = (root, root / "env", root)
        base_env = process.inherited()
        with cache_use.in_use(cache, base_dirs=dirs, base_env=base_env) as used:
            assert used is not None
            env = used.environment({n: v for n, v in base_env.items() if not n.startswith("AWS_")})
            if place := env.get("SCCACHE_SERVER_UDS"):
                assert Path(place).parent.stat().st_mode & 0o777 == 0o700, "no other user may send it work"
                assert not Path(place).with_name("credentials").exists(), "no compiler may find them"
            for number in range(SOURCES):
                source = root / f"{number}.cpp"
                source.write_text(f'#include "own.h"\nint f{number}() {{ return own() + {number}; }}\n')
                if number == SOURCES - 1:
                    between()
                argv = [cache.program, compiler, "-g", f"-I{root}", "-c", source, "-o", f"{number}.o"]
                process.run([str(word) for word in argv], cwd=root / "build", env=env)
                assert (root / "build" / f"{number}.o").is_file()
            return used.details() or {}

    @property
    def entries(self) -> int:
        assert self.server.folder is not None
        found = (self.server.folder / self.bucket).rglob("*")
        return sum(path.is_file() and not path.name.startswith(".") for path in found)


def counts(said: Mapping[str, Any]) -> tuple[int, int, int]:
    return said["hits"], said["misses"], said["errors"]


def test_forks_read_and_store_nothing(shop: Shop) -> None:
    cache = shop.cache(access="read-only")
    assert counts(shop.compiled("fork", cache)) == (0, SOURCES, 0)
    assert shop.entries == 0
    assert not list((shop.folder / "local").rglob("*.o"))
    assert counts(shop.compiled("own", shop.cache())) == (0, SOURCES, 0)
    assert shop.entries == SOURCES
    assert counts(shop.compiled("fork/again", cache)) == (SOURCES, 0, 0)


def test_the_stores_credentials_reach_no_compiler(shop: Shop) -> None:
    seen, compiler = shop.folder / "seen", shop.folder / "g++"
    compiler.write_text(f'#!/bin/sh\nenv >> {seen}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    assert counts(shop.compiled("own", shop.cache(), compiler=str(compiler))) == (0, SOURCES, 0)
    assert "SCCACHE_SERVER_UDS" in seen.read_text()
    assert shop.server.secret_key not in seen.read_text()


def test_a_store_that_is_not_there(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    said = shop.compiled("own", shop.cache())
    assert counts(said) == (0, SOURCES, 0)
    assert "onnection refused" in said["lost"]
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", shop.server.endpoint)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert "SignatureDoesNotMatch" in shop.compiled("wrong", shop.cache())["lost"]
    told = capsys.readouterr().err
    assert told.count(f"warning: sccache cannot use s3://{shop.bucket}/{PREFIX}: ") == 2
    assert told.count("This build uses a local cache instead.") == 2
    broken = replace(shop.cache(), program=Path("/bin/false"))
    with cache_use.in_use(broken, base_dirs=(tmp_path,) * 3, base_env=process.inherited()) as nothing:
        assert nothing is None
    assert "This build runs without a cache." in capsys.readouterr().err


def signalled(shop: Shop, number: int) -> None:
    os.kill(shop.server.pid, number)


def test_a_store_that_dies_while_the_build_runs(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    said = shop.compiled("own", shop.cache(), between=lambda: signalled(shop, signal.SIGKILL))
    assert counts(said) == (0, SOURCES, 1)
    assert "sccache failed 1 times to read or store an entry in s3://" in capsys.readouterr().err


def test_a_store_that_stops_answering_while_the_build_runs(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"EVERY": 0.2, "SILENT": 2, "ANSWER": 0.3}.items():
        monkeypatch.setattr(cache_use, name, value)
    try:
        said = shop.compiled("own", shop.cache(), between=lambda: signalled(shop, signal.SIGSTOP))
    finally:
        signalled(shop, signal.SIGCONT)
    # sccache itself would wait for minutes
    assert "does not answer: the build continues with a local cache" in capsys.readouterr().err
    assert said["lost"] == "it stopped answering during the build"
    assert said["misses"] >= SOURCES - 1


@pytest.mark.parametrize("kind", [pytest.param("ccache", marks=WITH_CCACHE), "sccache"])
def test_a_folder_is_a_store_too(shop: Shop, kind: str) -> None:
    folder: dict[str, Any] = {"kind": "folder", "where": str(shop.folder / "shared")}
    assert counts(shop.compiled("one", shop.cache(kind, **folder))) == (0, SOURCES, 0)
    shutil.rmtree(shop.folder / "ccache", ignore_errors=True)
    reader = shop.cache(kind, **folder, access="read-only")
    assert counts(shop.compiled("another/place", reader)) == (SOURCES, 0, 0)
