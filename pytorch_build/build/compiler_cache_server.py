"""sccache's server of one build: started, watched, stopped. It never outlives the build.

sccache refuses to start without its storage, and waits for minutes for each file where a storage
stops to answer. A build goes on either way, with a local cache, and says so.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core import console, process
from core.errors import FatalError, ProcessError
from pytorch_build.build.compiler_cache import client_env, credentials_text, server_env
from pytorch_build.build.compiler_cache_statistics import parse_statistics, unwritten
from pytorch_build.build.compiler_cache_storage import Storage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from core.process import Child
    from pytorch_build.build.compiler_cache import CompilerCache, S3Access
    from pytorch_build.build.compiler_cache_statistics import CacheStatistics

_START_SECONDS = 20.0
_ASK_SECONDS = 10.0
_WRITE_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Patience:
    """When a storage that does not answer is given up."""

    every: float = 15.0
    silent: int = 3
    answer: float = 10.0


class SccacheServer:
    """A server and, should its storage be lost, the one that takes its place."""

    def __init__(
        self, cache: CompilerCache, *, base_dirs: tuple[str, ...], base_env: Mapping[str, str], folder: Path
    ) -> None:
        self.storage, self.lost = cache.storage, ""
        self._program, self._base_dirs, self._base_env = cache.program, base_dirs, base_env
        self._folder = folder
        self._child: Child | None = None
        self._before: CacheStatistics | None = None
        self._address = _address(folder)
        self._s3: S3Access | None = None

    def start(self) -> None:
        """Start with the storage that was chosen, else with a local one."""
        try:
            if self.storage.kind == "s3":
                from pytorch_build.build.compiler_cache_s3 import s3_access  # with it comes boto3

                self._s3 = s3_access(self.storage.bucket)
            self._start()
        except FatalError as problem:
            if self.storage.kind == "local":
                raise
            console.warn(
                f"sccache cannot use {self.storage}: {problem.message} This build goes on with a local cache."
            )
            self._give_up(problem.message)
            self._start()

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Give a command's environment with what leads its compilers here."""
        return client_env(self.storage, address=self._address, base_dirs=self._base_dirs, env=env)

    @contextmanager
    def watched(self, patience: Patience) -> Iterator[None]:
        """Look after the storage while the block runs: one that stops to answer is given up."""
        if self.storage.kind != "s3" or self._s3 is None:
            yield
            return
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(done, self._s3.endpoint, patience), daemon=True)
        watch.start()
        try:
            yield
        finally:
            done.set()
            watch.join()

    def _watch(self, done: threading.Event, endpoint: str, patience: Patience) -> None:
        from pytorch_build.build.compiler_cache_s3 import answers

        silent = 0
        while not done.wait(patience.every):
            silent = 0 if answers(endpoint, seconds=patience.answer) else silent + 1
            if silent < patience.silent:
                continue
            console.warn(
                f"The compiler cache's storage {self.storage} does not answer: "
                "the build goes on with a local cache."
            )
            with suppress(FatalError):
                self._before = self._ask()
            # its clients compile by themselves what they wait for
            self._kill()
            self._give_up("it stopped to answer while the build ran")
            with suppress(FatalError):  # else the next client starts one
                self._start()
            return

    def statistics(self) -> CacheStatistics:
        """Ask what was done for the build so far, once what is to be stored is stored."""
        end = time.monotonic() + (0 if self.lost else _WRITE_SECONDS)
        while unwritten(self._said()) > 0 and time.monotonic() < end:
            time.sleep(0.1)
        now = self._ask()
        return self._before + now if self._before else now

    def stop(self) -> None:
        """Stop what listens at the address, whoever started it."""
        if _listens(self._address):
            with suppress(ProcessError):
                process.capture(
                    [self._program_path, "--stop-server"],
                    env=self.environment(self._base_env),
                    check=False,
                    timeout=_ASK_SECONDS,
                )
        self._kill()

    @property
    def _program_path(self) -> Path:
        return Path(self._program)

    def _said(self) -> str:
        command: list[str | Path] = [self._program_path, "--show-stats", "--stats-format", "json"]
        env = self.environment(self._base_env)
        return process.capture(command, env=env, timeout=_ASK_SECONDS).stdout

    def _ask(self) -> CacheStatistics:
        return parse_statistics("sccache", self._said(), read_only=self.storage.access == "read-only")

    def _give_up(self, reason: str) -> None:
        self.storage, self.lost, self._s3 = Storage(access=self.storage.access), reason, None

    def _start(self) -> None:
        secret = self._folder / "credentials"
        env = server_env(
            self.storage,
            address=self._address,
            base_dirs=self._base_dirs,
            base_env=self._base_env,
            s3=self._s3,
            credentials=str(secret),
        )
        try:
            if self._s3 is not None and self._s3.access_key:
                secret.touch(mode=0o600)
                secret.write_text(credentials_text(self._s3), encoding="utf-8")
            self._run(env)
        finally:
            # read when the server looks whether its storage is there, and kept by it from then on
            secret.unlink(missing_ok=True)

    def _run(self, env: Mapping[str, str]) -> None:
        log = self._folder / f"{self.storage.kind}.log"
        self._child = process.start([self._program_path], cwd=self._folder, env=env, output=log)
        end = time.monotonic() + _START_SECONDS
        while not _listens(self._address):
            if self._child.wait(0.02) is not None:
                raise ProcessError(_reason(log.read_text(encoding="utf-8", errors="replace")))
            if time.monotonic() > end:
                self._kill()
                raise ProcessError(f"it did not start within {_START_SECONDS:.0f} s.")

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


@contextmanager
def sccache_server(
    cache: CompilerCache, *, base_dirs: tuple[str, ...], base_env: Mapping[str, str], patience: Patience
) -> Iterator[SccacheServer]:
    """Run a server for the block."""
    # short, because a socket's path may have 107 bytes
    folder = Path(tempfile.mkdtemp(prefix="sccache-"))
    server = SccacheServer(cache, base_dirs=base_dirs, base_env=base_env, folder=folder)
    try:
        server.start()
        with server.watched(patience):
            yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _address(folder: Path) -> Mapping[str, str]:
    """Choose where the server listens: a socket that only this user can open, else a free port."""
    if os.name == "posix":
        return {"SCCACHE_SERVER_UDS": str(folder / "socket")}
    with socket.create_server(("127.0.0.1", 0)) as found:
        return {"SCCACHE_SERVER_PORT": str(found.getsockname()[1])}


def _listens(address: Mapping[str, str]) -> bool:
    path = address.get("SCCACHE_SERVER_UDS")
    try:
        if path is None:
            socket.create_connection(("127.0.0.1", int(address["SCCACHE_SERVER_PORT"])), timeout=1).close()
        else:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
    except OSError:
        return False
    return True


def _reason(said: str) -> str:
    """Find in a server's last words why it does not start."""
    source = re.search(r"Source:\s+(\S.*)", said)
    error = re.search(r"sccache: error: (.*)", said)
    words = (source or error or re.search(r"(\S.*)\s*\Z", said) or ["", "it gave no reason"])[1].strip()
    return f"{words}." if not words.endswith(".") else words
