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
from tests.kit.sample import SampleRun

pytestmark = pytest.mark.nightly

PREFIX = "compiler-cache/ci/sccache"
SOURCES = 3
WITH_CCACHE = pytest.mark.skipif(
    process.which("ccache") is None, reason="ccache is a package of the system's"
)


class Machine(Clone):
    """A fresh checkout in a folder of its own, with an empty local cache."""

    def build_torch(self, bucket: str, rocm: Path) -> str:
        """Build torch with a bucket as compiler cache, on ROCm's packages in a folder; return the output."""
        cache = ("--compiler-cache=sccache", f"--compiler-cache-store=s3://{bucket}")
        options = ("--torch-ref=sample", f"--rocm-find-links={rocm}", *cache)
        return self.run_checked(
            *("nox", "-s", "build_torch", "--", *options),
            PATH=f"{Path(program('sccache')).parent}{os.pathsep}{environment()['PATH']}",
            SCCACHE_DIR=str(self.path.parent / "local cache"),
            GITHUB_REPOSITORY=None,
            GITHUB_EVENT_PATH=None,
        )

    def cache_use(self) -> Mapping[str, Any]:
        """Return what the record of torch's build says of the cache."""
        use: Mapping[str, Any] = self.record(f"build_torch-sample-{TAG}")["details"]["compiler_cache"]
        return use


def running_servers(folder: Path) -> list[str]:
    """Return the command lines of sccache whose environment names a folder."""
    command_lines = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(folder).encode() in environ.read_bytes():
                command_lines.append((environ.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            # The process has ended meanwhile, or is another user's.
            continue
    return [line for line in command_lines if "sccache" in line]


def test_a_new_machine_gets_what_another_compiled(
    sample_run: SampleRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rocm = Clone(path=sample_run.clone).wheels()

    with rclone_serving(tmp_path / "s3") as server:
        server.use(monkeypatch)
        bucket = server.make_bucket()
        first_machine = Machine.create(tmp_path / "first" / "checkout")
        first_machine.build_torch(bucket, rocm)
        second_machine = Machine.create(tmp_path / "second" / "place" / "altogether")
        printed = second_machine.build_torch(bucket, rocm)

    first, second = first_machine.cache_use(), second_machine.cache_use()
    for use in (first, second):
        assert use["storage"] == f"s3://{bucket}/{PREFIX}"
        assert use["errors"] == 0
    # Of host code and device passes.
    assert first["hits"] + first["misses"] >= 7
    assert first["uncacheable"] == 0
    assert second["hits"] + second["misses"] == first["hits"] + first["misses"]
    assert second["hit_rate"] >= 0.95, second
    assert f"in s3://{bucket}/{PREFIX}, read-write" in printed
    assert not running_servers(tmp_path)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Return a tree with sources, and a server of S3 of the test's own, which it may break."""
    with rclone_serving(tmp_path / "s3") as server:
        server.use(monkeypatch)
        monkeypatch.setenv("SCCACHE_DIR", str(tmp_path / "local"))
        monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
        yield Shop(folder=tmp_path, server=server, bucket=server.make_bucket())
    assert not running_servers(tmp_path)


@dataclass(frozen=True, kw_only=True)
class Shop:
    """Trees that are compiled through a cache, without a build around it."""

    folder: Path
    server: S3Server
    bucket: str

    def cache(self, program_name: str = "sccache", **storage: Any) -> CompilerCache:
        """Return a cache in the bucket, or in another storage."""
        path = process.which(program_name) or Path(program(program_name))
        settings = {"kind": "s3", "where": f"{self.bucket}/{PREFIX}", **storage}
        return CompilerCache(kind=program_name, program=path, storage=Storage(**settings))

    def compile_sources(
        self,
        tree: str,
        cache: CompilerCache,
        *,
        between: Callable[[], None] = lambda: None,
        compiler: str = "g++",
    ) -> Mapping[str, Any]:
        """Compile every source, doing something before the last; return what the cache did."""
        root = self.folder / tree
        (root / "build").mkdir(parents=True)
        (root / "own.h").write_text("inline int own() { return 1; }\n")
        dirs = (root, root / "env", root)
        base_env = process.inherited()
        with cache_use.in_use(cache, base_dirs=dirs, base_env=base_env) as used:
            assert used is not None
            variables = {name: value for name, value in base_env.items() if not name.startswith("AWS_")}
            env = used.environment(variables)
            if socket := env.get("SCCACHE_SERVER_UDS"):
                assert Path(socket).parent.stat().st_mode & 0o777 == 0o700, "no other user may send it work"
                assert not Path(socket).with_name("credentials").exists(), "no compiler may find them"
            for number in range(SOURCES):
                source = root / f"{number}.cpp"
                source.write_text(f'#include "own.h"\nint f{number}() {{ return own() + {number}; }}\n')
                if number == SOURCES - 1:
                    between()
                argv = [cache.program, compiler, "-g", f"-I{root}", "-c", source, "-o", f"{number}.o"]
                process.run([str(word) for word in argv], cwd=root / "build", env=env)
                assert (root / "build" / f"{number}.o").is_file()
            return used.details() or {}

    def count_entries(self) -> int:
        """Return how many entries the bucket has."""
        assert self.server.folder is not None
        paths = (self.server.folder / self.bucket).rglob("*")
        return len([path for path in paths if path.is_file() and not path.name.startswith(".")])


def counts(use: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return hits, misses and errors."""
    return use["hits"], use["misses"], use["errors"]


def test_forks_read_and_store_nothing(shop: Shop) -> None:
    cache = shop.cache(access="read-only")
    assert counts(shop.compile_sources("fork", cache)) == (0, SOURCES, 0)
    assert shop.count_entries() == 0
    assert not list((shop.folder / "local").rglob("*.o"))
    assert counts(shop.compile_sources("own", shop.cache())) == (0, SOURCES, 0)
    assert shop.count_entries() == SOURCES
    assert counts(shop.compile_sources("fork/again", cache)) == (SOURCES, 0, 0)


def test_the_stores_credentials_reach_no_compiler(shop: Shop) -> None:
    seen, compiler = shop.folder / "seen", shop.folder / "g++"
    compiler.write_text(f'#!/bin/sh\nenv >> {seen}\nexec g++ "$@"\n')
    compiler.chmod(0o755)
    assert counts(shop.compile_sources("own", shop.cache(), compiler=str(compiler))) == (0, SOURCES, 0)
    assert "SCCACHE_SERVER_UDS" in seen.read_text()
    assert shop.server.secret_key not in seen.read_text()


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9", "onnection refused"),
        ("AWS_SECRET_ACCESS_KEY", "another", "SignatureDoesNotMatch"),
    ],
    ids=["no server", "wrong key"],
)
def test_uses_a_local_cache_where_the_store_refuses(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    reason: str,
) -> None:
    monkeypatch.setenv(variable, value)

    use = shop.compile_sources("own", shop.cache())

    assert counts(use) == (0, SOURCES, 0)
    assert reason in use["lost"]
    warning = capsys.readouterr().err
    assert f"s3://{shop.bucket}/{PREFIX}" in warning
    assert "local cache instead" in warning


def test_builds_without_a_cache_where_the_program_does_not_start(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = replace(shop.cache(), program=Path("/bin/false"))

    with cache_use.in_use(broken, base_dirs=(tmp_path,) * 3, base_env=process.inherited()) as used:
        assert used is None

    assert "without a cache" in capsys.readouterr().err


def signal_server(shop: Shop, number: int) -> None:
    """Send a signal to the store's server."""
    os.kill(shop.server.pid, number)


def test_completes_where_the_store_dies_during_the_build(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    use = shop.compile_sources("own", shop.cache(), between=lambda: signal_server(shop, signal.SIGKILL))
    assert counts(use) == (0, SOURCES, 1)
    assert "sccache failed 1 times to read or store an entry in s3://" in capsys.readouterr().err


def test_continues_locally_where_the_store_stops_answering(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"EVERY": 0.2, "SILENT": 2, "ANSWER": 0.3}.items():
        monkeypatch.setattr(cache_use, name, value)
    try:
        use = shop.compile_sources("own", shop.cache(), between=lambda: signal_server(shop, signal.SIGSTOP))
    finally:
        signal_server(shop, signal.SIGCONT)
    # sccache itself would wait for minutes.
    assert "does not answer: the build continues with a local cache" in capsys.readouterr().err
    assert use["lost"] == "it stopped answering during the build"
    assert use["misses"] >= SOURCES - 1


@pytest.mark.parametrize("kind", [pytest.param("ccache", marks=WITH_CCACHE), "sccache"])
def test_a_folder_serves_as_a_store(shop: Shop, kind: str) -> None:
    folder: dict[str, Any] = {"kind": "folder", "where": str(shop.folder / "shared")}
    assert counts(shop.compile_sources("one", shop.cache(kind, **folder))) == (0, SOURCES, 0)
    shutil.rmtree(shop.folder / "ccache", ignore_errors=True)
    reader = shop.cache(kind, **folder, access="read-only")
    assert counts(shop.compile_sources("another/place", reader)) == (SOURCES, 0, 0)
