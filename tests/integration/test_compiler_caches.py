"""Compiler caches that survive the machine: real sccache, real ccache, real S3, builds of the sample."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from core import process
from core.cli.options import environment
from pytorch_build.build import cache_use as cache_use_module
from pytorch_build.build.cache import CompilerCache
from pytorch_build.build.cache_use import use_cache
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


def running_servers(folder: Path) -> Sequence[str]:
    """Return the command lines of sccache whose environment names a folder."""
    servers: list[str] = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        try:
            names_folder = str(folder).encode() in environ.read_bytes()
            command_line = (environ.parent / "cmdline").read_text().replace("\0", " ")
        except OSError:
            # The process has ended meanwhile, or is another user's.
            continue
        if names_folder and "sccache" in command_line:
            servers.append(command_line)
    return servers


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


@dataclass(frozen=True, kw_only=True)
class Shop:
    """Trees that are compiled through a cache, without a build around it."""

    folder: Path
    server: S3Server
    bucket: str

    @property
    def cache(self) -> CompilerCache:
        """The cache with its entries in the bucket."""
        return CompilerCache(
            kind="sccache", program=Path(program("sccache")), store=f"s3://{self.bucket}/{PREFIX}"
        )

    def compile_sources(
        self,
        tree: str,
        cache: CompilerCache,
        *,
        before_last: Callable[[], None] | None = None,
        compiler: str = "g++",
    ) -> Mapping[str, Any]:
        """Compile every source, doing something before the last; return what the cache did."""
        root = self.folder / tree
        (root / "build").mkdir(parents=True)
        (root / "own.h").write_text("inline int own() { return 1; }\n")
        base_env = process.inherited()

        with use_cache(cache, base_dirs=(root, root / "env", root), base_env=base_env) as cache_use:
            assert cache_use is not None
            variables = {name: value for name, value in base_env.items() if not name.startswith("AWS_")}
            env = cache_use.environment(variables)
            for number in range(SOURCES):
                if number == SOURCES - 1 and before_last is not None:
                    before_last()
                source = root / f"{number}.cpp"
                source.write_text(f'#include "own.h"\nint f{number}() {{ return own() + {number}; }}\n')
                command = [cache.program, compiler, "-g", f"-I{root}", "-c", source, "-o", f"{number}.o"]
                process.run([str(part) for part in command], cwd=root / "build", env=env)
                assert (root / "build" / f"{number}.o").is_file()
            return cache_use.report_statistics() or {}

    def count_entries(self) -> int:
        """Return how many entries the bucket has."""
        assert self.server.folder is not None
        paths = (self.server.folder / self.bucket).rglob("*")
        return len([path for path in paths if path.is_file() and not path.name.startswith(".")])

    def signal_server(self, number: int) -> None:
        """Send a signal to the store's server."""
        os.kill(self.server.pid, number)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """Return a tree with sources, and a server of S3 of the test's own, which it may break."""
    with rclone_serving(tmp_path / "s3") as server:
        server.use(monkeypatch)
        monkeypatch.setenv("SCCACHE_DIR", str(tmp_path / "local"))
        monkeypatch.setenv("CCACHE_DIR", str(tmp_path / "ccache"))
        yield Shop(folder=tmp_path, server=server, bucket=server.make_bucket())
    assert not running_servers(tmp_path)


def counts(use: Mapping[str, Any]) -> tuple[int, int, int]:
    """Return hits, misses and errors."""
    return use["hits"], use["misses"], use["errors"]


def test_forks_read_and_store_nothing(shop: Shop) -> None:
    forks_cache = replace(shop.cache, read_only=True)

    assert counts(shop.compile_sources("fork", forks_cache)) == (0, SOURCES, 0)
    assert shop.count_entries() == 0
    assert not list((shop.folder / "local").rglob("*.o"))

    assert counts(shop.compile_sources("own", shop.cache)) == (0, SOURCES, 0)
    assert shop.count_entries() == SOURCES
    assert counts(shop.compile_sources("fork/again", forks_cache)) == (SOURCES, 0, 0)


def test_the_users_own_bucket_is_used_as_it_is(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCCACHE_BUCKET", shop.bucket)
    users_cache = replace(shop.cache, store=None)

    assert counts(shop.compile_sources("one", users_cache)) == (0, SOURCES, 0)
    assert shop.count_entries() == SOURCES
    assert counts(shop.compile_sources("another/place", users_cache)) == (SOURCES, 0, 0)


def test_builds_without_credentials_only_read(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    assert counts(shop.compile_sources("own", shop.cache)) == (0, SOURCES, 0)
    assert shop.server.folder is not None
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    with rclone_serving(shop.server.folder.parent, is_public=True) as public_server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", public_server.endpoint)
        use = shop.compile_sources("another/place", shop.cache)
        other_use = shop.compile_sources("other", shop.cache, compiler="gcc")

    assert counts(use) == (SOURCES, 0, 0)
    assert counts(other_use) == (0, SOURCES, 0)
    assert use["access"] == "read-only"
    assert shop.count_entries() == SOURCES


@pytest.mark.parametrize("has_store", [True, False], ids=["named bucket", "user's own bucket"])
def test_the_stores_credentials_reach_no_compiler(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, *, has_store: bool
) -> None:
    cache = shop.cache
    if not has_store:
        monkeypatch.setenv("SCCACHE_BUCKET", shop.bucket)
        cache = replace(cache, store=None)
    # The address of the server is a socket in its folder.
    log = shop.folder / "seen"
    compiler = shop.folder / "g++"
    compiler.write_text(
        f'#!/bin/sh\n(env; ls -la "$(dirname "$SCCACHE_SERVER_UDS")") >> {log}\nexec g++ "$@"\n',
    )
    compiler.chmod(0o755)

    assert counts(shop.compile_sources("own", cache, compiler=str(compiler))) == (0, SOURCES, 0)

    seen_by_compilers = log.read_text()
    assert "SCCACHE_SERVER_UDS" in seen_by_compilers
    assert " socket\n" in seen_by_compilers
    assert shop.server.secret_key not in seen_by_compilers
    assert " credentials\n" not in seen_by_compilers
    # No other user may send the server work.
    assert re.search(r"^drwx------.* \.$", seen_by_compilers, re.MULTILINE)


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9", "onnection refused"),
        ("AWS_SECRET_ACCESS_KEY", "another", "SignatureDoesNotMatch"),
    ],
    ids=["no server", "wrong key"],
)
def test_builds_without_a_cache_where_the_store_refuses(
    shop: Shop,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variable: str,
    value: str,
    reason: str,
) -> None:
    monkeypatch.setenv(variable, value)

    with use_cache(shop.cache, base_dirs=(shop.folder,) * 3, base_env=process.inherited()) as cache_use:
        assert cache_use is None

    warning = capsys.readouterr().err
    assert f"s3://{shop.bucket}/{PREFIX}" in warning
    assert reason in warning
    assert "without a cache" in warning


def test_builds_without_a_cache_where_the_program_does_not_start(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    broken_cache = replace(shop.cache, program=Path("/bin/false"))

    with use_cache(broken_cache, base_dirs=(shop.folder,) * 3, base_env=process.inherited()) as cache_use:
        assert cache_use is None

    assert "without a cache" in capsys.readouterr().err


def test_completes_where_the_store_dies_during_the_build(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    use = shop.compile_sources("own", shop.cache, before_last=lambda: shop.signal_server(signal.SIGKILL))

    assert counts(use) == (0, SOURCES, 1)
    assert "sccache failed 1 times to read or store an entry in s3://" in capsys.readouterr().err


def test_completes_where_the_store_stops_answering_during_the_build(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"WATCH_SECONDS": 0.2, "MOST_UNANSWERED": 2, "ANSWER_SECONDS": 0.3}.items():
        monkeypatch.setattr(cache_use_module, name, value)

    # sccache itself would wait for minutes.
    try:
        use = shop.compile_sources("own", shop.cache, before_last=lambda: shop.signal_server(signal.SIGSTOP))
    finally:
        shop.signal_server(signal.SIGCONT)

    assert "does not answer: the build continues without it" in capsys.readouterr().err
    assert "stopped answering" in use["lost"]
    assert use["misses"] >= SOURCES - 1


@WITH_CCACHE
def test_ccache_uses_the_storage_that_the_user_has_set(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCACHE_REMOTE_STORAGE", f"file:{shop.folder / 'shared'}")
    cache = CompilerCache(kind="ccache", program=process.which("ccache") or Path())

    assert counts(shop.compile_sources("one", cache)) == (0, SOURCES, 0)
    monkeypatch.setenv("CCACHE_DIR", str(shop.folder / "another machine"))
    forks_cache = replace(cache, read_only=True)
    assert counts(shop.compile_sources("another/place", forks_cache)) == (SOURCES, 0, 0)
