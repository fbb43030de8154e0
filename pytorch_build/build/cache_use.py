"""A build's use of a compiler cache: started, watched, its statistics reported, stopped.

sccache's work is done by a server. Each build has one of its own, which never outlives it and is the only
process that gets the storage's credentials: a server that sccache starts by itself has its first client's
environment. A server that does not start, or whose storage falls silent, costs a build its cache and no more.

It tries compilers out with its environment, so credentials are in a file there, and not in variables.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, SSLError
from botocore.httpsession import URLLib3Session
from botocore.utils import get_environ_proxies

from core import console, process, temporary
from core.environment import allowed
from core.errors import DataError, FatalError, ProcessError
from core.stores.s3_client import shared_connection
from core.stores.s3_errors import explained
from pytorch_build.build.cache import (
    CacheStatistics,
    CompilerCache,
    ccache_env,
    client_env,
    read_ccache_statistics,
    read_sccache_statistics,
    server_env,
)

if TYPE_CHECKING:
    from core.stores.s3_client import Connection


_START_SECONDS = 20.0
# How long the last entries may take to be stored.
_STORE_SECONDS = 30.0
# When a bucket's service is given up: seconds between two questions, how many in a row have had no answer,
# and the seconds that each waits for one.
WATCH_SECONDS = 15.0
MOST_UNANSWERED = 3
ANSWER_SECONDS = 10


class CacheUse(ABC):
    """A compiler cache in use by one running build."""

    def __init__(self, cache: CompilerCache) -> None:
        self.cache = cache

    @property
    def failure_reason(self) -> str | None:
        """Why the cache stopped working during the build; None where it did not."""
        return None

    @abstractmethod
    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return a command's environment variables, completed so that its compilers use the cache."""

    @abstractmethod
    def statistics(self) -> CacheStatistics:
        """Return the cache's hits, misses and failures so far."""

    def report_statistics(self) -> Mapping[str, Any] | None:
        """Print hits and misses, and return them as data for the record; None where they cannot be read."""
        cache = self.cache
        try:
            statistics = self.statistics()
        except (ProcessError, DataError) as problem:
            # Hours of building are not thrown away for a counter.
            console.warn(f"No statistics of {cache.kind}: {problem.message}")
            return None

        console.say(
            f"{cache.kind}: {statistics.hits} hits, {statistics.misses} misses "
            f"({statistics.hit_rate:.0%}) in {cache.storage}, {cache.access}"
        )
        if statistics.errors and self.failure_reason is None:
            console.warn(
                f"{cache.kind} failed {statistics.errors} times to read or store an entry in {cache.storage};"
                " what it failed on was compiled, so the wheel is complete."
            )
        return {
            "kind": cache.kind,
            "hits": statistics.hits,
            "misses": statistics.misses,
            "uncacheable": statistics.uncacheable,
            "errors": statistics.errors,
            "hit_rate": round(statistics.hit_rate, 4),
            "storage": cache.storage,
            "access": cache.access,
            "lost": self.failure_reason or "",
        }


class _CcacheUse(CacheUse):
    """ccache, which works in the compilers' own processes."""

    def __init__(self, cache: CompilerCache, *, base_dir: Path, log: Path) -> None:
        super().__init__(cache)
        self._base_dir = base_dir
        self._log = log

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return a command's environment variables, completed so that its compilers use ccache."""
        return ccache_env(
            self.cache,
            log=str(self._log),
            base_dir=str(self._base_dir),
            env=env,
        )

    def statistics(self) -> CacheStatistics:
        """Return the statistics in ccache's log; zeros where nothing was compiled."""
        if not self._log.is_file():
            # Without a single compilation there is no log.
            return CacheStatistics()
        return read_ccache_statistics(self._log.read_text(encoding="utf-8", errors="replace"))


class _SccacheUse(CacheUse):
    """sccache with a server of the build's own, which runs until `stop`."""

    def __init__(
        self,
        cache: CompilerCache,
        *,
        base_dirs: Sequence[Path],
        base_env: Mapping[str, str],
        folder: Path,
    ) -> None:
        super().__init__(cache)
        self._base_env = base_env
        self._folder = folder
        self._address = {
            **_new_address(folder),
            "SCCACHE_BASEDIRS": os.pathsep.join(dict.fromkeys(map(str, base_dirs))),
        }
        # What was done before the cache was given up.
        self._last_statistics: CacheStatistics | None = None
        self._build_has_ended = threading.Event()
        self._endpoint: str | None = None
        self._server = self._start_server()
        self._storage_watcher = threading.Thread(
            target=self._watch_storage,
            daemon=True,
        )
        self._storage_watcher.start()

    @property
    def failure_reason(self) -> str | None:
        """Why the server was stopped during the build; None where it was not."""
        if self._last_statistics is None:
            return None
        return "its storage stopped answering during the build"

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return a command's environment variables, completed so that its compilers use the server."""
        return client_env(
            self.cache,
            address=self._address,
            env=env,
        )

    def statistics(self) -> CacheStatistics:
        """Return the server's statistics once all entries are stored, or after waiting some time for that."""
        end = time.monotonic() + _STORE_SECONDS
        while self._last_statistics is None:
            statistics = self._read_statistics()
            if statistics.unwritten <= 0 or time.monotonic() > end:
                return statistics
            time.sleep(0.1)
        return self._last_statistics

    def stop(self) -> None:
        """Stop the server, and the thread that watches its storage."""
        self._build_has_ended.set()
        self._storage_watcher.join()
        self._server.kill()

    def _start_server(self) -> process.Child:
        """Start the server, with credentials where its storage is a bucket."""
        env = server_env(
            self.cache,
            address=self._address,
            base_env=self._base_env,
        )
        if "SCCACHE_BUCKET" not in env:
            return self._start_program(env)

        credentials_file = self._folder / "credentials"
        access = bucket_access(env, credentials_file=credentials_file)
        self._endpoint = access.endpoint
        if access.is_anonymous:
            self.cache = replace(self.cache, read_only=True)
        try:
            if access.credentials is not None:
                credentials_file.touch(mode=0o600)
                credentials_file.write_text(access.credentials, encoding="utf-8")
            return self._start_program(access.variables)
        finally:
            # The server reads it when it looks whether its storage is there, and remembers it from then on.
            credentials_file.unlink(missing_ok=True)

    def _start_program(self, env: Mapping[str, str]) -> process.Child:
        """Start the server's program, and wait until it listens."""
        log = self._folder / "server.log"
        server = process.start(
            [Path(self.cache.program)],
            cwd=self._folder,
            env=env,
            output=log,
        )
        end = time.monotonic() + _START_SECONDS
        while not _is_listening(self._address):
            if server.wait(0.02) is not None:
                raise ProcessError(_start_failure_in(log.read_text(encoding="utf-8", errors="replace")))
            if time.monotonic() > end:
                server.kill()
                raise ProcessError(f"it did not start within {_START_SECONDS:.0f} s.")
        return server

    def _watch_storage(self) -> None:
        """Stop the server when its bucket falls silent: its clients would wait minutes for each file.

        They then compile by themselves what they wait for.
        """
        if self._endpoint is None:
            return
        unanswered = 0
        while not self._build_has_ended.wait(WATCH_SECONDS):
            if does_answer(self._endpoint, seconds=ANSWER_SECONDS):
                unanswered = 0
                continue
            unanswered += 1
            if unanswered == MOST_UNANSWERED:
                break
        else:
            return

        console.warn(
            f"The compiler cache's storage, {self.cache.storage}, does not answer: "
            "the build continues without it."
        )
        self._last_statistics = CacheStatistics()
        # What it has done so far is worth a line in the record, and no failure.
        with suppress(FatalError):
            self._last_statistics = self._read_statistics()
        self._server.kill()

    def _read_statistics(self) -> CacheStatistics:
        """Return the statistics that the server reports now."""
        env = self.environment(allowed(self._base_env))
        command = (Path(self.cache.program), "--show-stats", "--stats-format", "json")
        output = process.capture(command, env=env, timeout=10.0).stdout
        return read_sccache_statistics(output, read_only=self.cache.read_only)


@contextmanager
def use_cache(
    cache: CompilerCache, *, base_dirs: Sequence[Path], base_env: Mapping[str, str]
) -> Iterator[CacheUse | None]:
    """Start a compiler cache for the block and give it; None, with a warning, where it does not start.

    Args:
        cache: The cache, as the run may use it.
        base_dirs: Folders that lie elsewhere on another machine, and whose paths must not keep it from hits:
            the source tree first, the checkout last.
        base_env: The user's variables.
    """
    # Its path is short, because a socket's may have 107 bytes.
    with temporary.folder(cache.kind) as folder:
        if cache.kind == "ccache":
            # It knows one folder alone: the checkout, or a developer's own tree outside.
            tree = base_dirs[0]
            root = base_dirs[-1]
            base_dir = root if tree.is_relative_to(root) else tree
            yield _CcacheUse(
                cache,
                base_dir=base_dir,
                log=folder / "statistics",
            )
            return

        try:
            cache_use = _SccacheUse(
                cache,
                base_dirs=base_dirs,
                base_env=base_env,
                folder=folder,
            )
        except FatalError as problem:
            console.warn(
                f"sccache does not start with {cache.storage}: {problem.message} "
                "This build runs without a cache."
            )
            yield None
            return
        try:
            yield cache_use
        finally:
            cache_use.stop()


def _new_address(folder: Path) -> Mapping[str, str]:
    """Return the sccache variable with a new server's address: a private socket, else a free port."""
    if os.name == "posix":
        return {"SCCACHE_SERVER_UDS": str(folder / "socket")}
    with socket.create_server(("127.0.0.1", 0)) as server:
        return {"SCCACHE_SERVER_PORT": str(server.getsockname()[1])}


def _is_listening(address: Mapping[str, str]) -> bool:
    """Return whether an sccache server accepts connections at its address."""
    path = address.get("SCCACHE_SERVER_UDS")
    with suppress(OSError):
        if path is None:
            socket.create_connection(("127.0.0.1", int(address["SCCACHE_SERVER_PORT"])), timeout=1).close()
        else:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
        return True
    return False


def _start_failure_in(server_log: str) -> str:
    """Return why an sccache server did not start: the last error in its log."""
    for pattern in (r"Source:\s+(\S.*)", r"sccache: error: (.*)", r"(\S.*)\s*\Z"):
        match = re.search(pattern, server_log)
        if match is not None:
            return f"{match[1].strip().removesuffix('.')}."
    return "it gave no reason."


# sccache finds these by itself, and renews them. Others are handed to it as they are now.
_RENEWED_BY_SCCACHE = ("assume-role-with-web-identity", "iam-role")


@dataclass(frozen=True, kw_only=True)
class BucketAccess:
    """What an sccache server needs to reach its bucket: endpoint, environment and credentials.

    Attributes:
        endpoint: The service's address.
        variables: The server's whole environment.
        is_anonymous: Whether it has no credentials, with which a bucket can be read at most.
        credentials: The text of its credentials file; None where it needs none.
    """

    endpoint: str
    variables: Mapping[str, str]
    is_anonymous: bool = False
    credentials: str | None = field(default=None, repr=False)


def bucket_access(env: Mapping[str, str], *, credentials_file: Path) -> BucketAccess:
    """Return what an sccache server needs to reach the bucket that is named in its variables."""
    connection = shared_connection()
    variables = {**_service_variables(connection), **env}
    credentials: str | None = None
    if connection.signed:
        credentials = _credentials_text(env["SCCACHE_BUCKET"])
    else:
        variables["SCCACHE_S3_NO_CREDENTIALS"] = "true"
        variables["SCCACHE_S3_RW_MODE"] = "READ_ONLY"

    if credentials is not None:
        variables = {name: value for name, value in variables.items() if not name.startswith("AWS_")}
        variables["AWS_CONFIG_FILE"] = os.devnull
        variables["AWS_SHARED_CREDENTIALS_FILE"] = str(credentials_file)
    return BucketAccess(
        endpoint=connection.endpoint,
        variables=variables,
        is_anonymous=not connection.signed,
        credentials=credentials,
    )


def does_answer(endpoint: str, *, seconds: int) -> bool:
    """Return whether a service answers at all, be it with an error or an untrusted certificate."""
    session = URLLib3Session(
        timeout=seconds,
        proxies=get_environ_proxies(endpoint),
    )
    try:
        session.send(AWSRequest("HEAD", endpoint).prepare())
    except SSLError:
        return True
    except (BotoCoreError, ValueError):
        return False
    return True


def _service_variables(connection: Connection) -> Mapping[str, str]:
    """Return sccache's variables for a bucket's region, and for an endpoint other than Amazon's."""
    variables = {"SCCACHE_REGION": connection.client.meta.region_name or "us-east-1"}
    if not connection.is_amazon:
        variables["SCCACHE_ENDPOINT"] = connection.endpoint
        variables["SCCACHE_S3_USE_SSL"] = str(connection.endpoint.startswith("https:")).lower()
    return variables


def _credentials_text(bucket: str) -> str | None:
    """Return the text of an AWS credentials file; None where sccache finds credentials by itself."""
    with explained(f"s3://{bucket}"):
        credentials = boto3.session.Session().get_credentials()
        if credentials is None or credentials.method in _RENEWED_BY_SCCACHE:
            return None
        keys = credentials.get_frozen_credentials()

    lines = [
        "[default]",
        f"aws_access_key_id = {keys.access_key}",
        f"aws_secret_access_key = {keys.secret_key}",
    ]
    if keys.token:
        lines.append(f"aws_session_token = {keys.token}")
    return "\n".join([*lines, ""])
