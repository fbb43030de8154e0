"""A build's use of a compiler cache: started, watched, its statistics reported, stopped.

sccache's work is done by a server. Each build has one of its own, which never outlives it and is the only
process that gets the store's credentials: a server that sccache starts by itself has its first client's
environment. sccache also refuses to start without its storage, and waits for minutes for each file where a
storage stops answering. A build continues either way, with a local cache, and says so.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError, ClientError, SSLError
from botocore.httpsession import URLLib3Session
from botocore.utils import get_environ_proxies

from core import console, process, temporary
from core.environment import allowed
from core.errors import DataError, FatalError, ProcessError
from core.run.locations import origin_from, run_buckets
from core.stores.s3_client import shared_connection
from core.stores.s3_errors import explained
from pytorch_build.build.cache import (
    CompilerCache,
    S3Access,
    Storage,
    Wanted,
    cache_rules,
    ccache_env,
    client_env,
    parse_statistics,
    server_env,
    storage_for,
    unwritten,
)

if TYPE_CHECKING:
    from collections import Counter

    from types_boto3_s3 import S3Client

    from core.cli.options import Common

_START_SECONDS = 20.0
# when a storage that does not answer is given up: seconds between probes, failures in a row, seconds of each
EVERY, SILENT, ANSWER = 15.0, 3, 10
_STATISTICS = ("--show-stats", "--stats-format", "json")


class CacheUse(ABC):
    """A compiler cache while a build goes through it; `lost` says why its storage was given up."""

    def __init__(self, cache: CompilerCache) -> None:
        self.cache, self.storage, self.lost = cache, cache.storage, ""

    @abstractmethod
    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return a command's environment with what leads its compilers to the cache."""

    @abstractmethod
    def statistics(self) -> Counter[str]:
        """Return what the cache did so far."""

    def refuse(self, reason: str) -> None:
        """Go on with a local cache from the start, and say so."""
        kind = self.cache.kind
        console.warn(f"{kind} cannot use {self.storage}: {reason} This build uses a local cache instead.")
        self.give_up(reason)

    def give_up(self, reason: str) -> None:
        """Go on with a local cache."""
        self.storage, self.lost = Storage(access=self.storage.access), reason

    def details(self) -> Mapping[str, Any] | None:
        """Report what the cache did, and return it for the record; None where it does not say."""
        kind, storage = self.cache.kind, self.cache.storage
        try:
            found = self.statistics()
        except (ProcessError, DataError) as problem:
            # hours of building are not thrown away for a counter
            console.warn(f"No statistics of {kind}: {problem.message}")
            return None
        hits, misses = found["hits"], found["misses"]
        rate, where = hits / max(hits + misses, 1), "a local cache" if self.lost else str(storage)
        console.say(f"{kind}: {hits} hits, {misses} misses ({rate:.0%}) in {where}, {storage.access}")
        if found["errors"] and not self.lost:
            console.warn(
                f"{kind} failed {found['errors']} times to read or store an entry in {storage};"
                " what it failed on was compiled, so the wheel is complete."
            )
        return {
            "kind": kind,
            **{name: found[name] for name in ("hits", "misses", "uncacheable", "errors")},
            "hit_rate": round(rate, 4),
            "storage": str(storage),
            "access": storage.access,
            "lost": console.mask(self.lost),
        }


class _Ccache(CacheUse):
    def __init__(self, cache: CompilerCache, base_dir: str, folder: Path) -> None:
        super().__init__(cache)
        self._base_dir, self._log = base_dir, folder / "statistics"
        url = self.storage.where.partition("|")[0]
        if self.storage.kind == "http" and not answers(url, seconds=ANSWER):
            self.refuse("it did not answer.")

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return ccache_env(self.storage, log=str(self._log), base_dir=self._base_dir, env=env)

    def statistics(self) -> Counter[str]:
        # without a single compilation there is no log
        log = self._log
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        return parse_statistics("ccache", text)


class _Sccache(CacheUse):
    """A server and, should its storage be lost, the one that takes its place."""

    def __init__(
        self, cache: CompilerCache, base_dirs: tuple[str, ...], base_env: Mapping[str, str], folder: Path
    ) -> None:
        super().__init__(cache)
        self._program, self._base_env, self._folder = Path(cache.program), base_env, folder
        self._child: process.Child | None = None
        self._before: Counter[str] | None = None
        self._address = {**_address(folder), "SCCACHE_BASEDIRS": os.pathsep.join(base_dirs)}
        self._s3: S3Access | None = None

    def start(self) -> None:
        """Start with the storage that was chosen, else with a local one."""
        try:
            if self.storage.kind == "s3":
                self._s3 = s3_access(self.storage.bucket)
            self._start()
        except FatalError as problem:
            if self.storage.kind == "local":
                raise
            self.refuse(problem.message)
            self._start()

    def environment(self, env: Mapping[str, str]) -> dict[str, str]:
        return client_env(self.storage, address=self._address, env=env)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the storage while the block runs: one that stops answering is given up."""
        if self._s3 is None or self.lost:
            yield
            return
        done = threading.Event()
        watch = threading.Thread(target=self._watch, args=(done, self._s3.endpoint), daemon=True)
        watch.start()
        try:
            yield
        finally:
            done.set()
            watch.join()

    def _watch(self, done: threading.Event, endpoint: str) -> None:
        silent = 0
        while not done.wait(EVERY):
            silent = 0 if answers(endpoint, seconds=ANSWER) else silent + 1
            if silent < SILENT:
                continue
            console.warn(
                f"The compiler cache's storage {self.storage} does not answer: "
                "the build continues with a local cache."
            )
            with suppress(FatalError):
                self._before = self._statistics(self._said(*_STATISTICS))
            # its clients compile by themselves what they wait for
            self._kill()
            self.give_up("it stopped answering during the build")
            with suppress(FatalError):  # else the next client starts one
                self._start()
            return

    def statistics(self) -> Counter[str]:
        """Return what was done for the build so far, once all entries are stored."""
        end = time.monotonic() + (0 if self.lost else 30.0)
        while unwritten(said := self._said(*_STATISTICS)) > 0 and time.monotonic() < end:
            time.sleep(0.1)
        now = self._statistics(said)
        return self._before + now if self._before else now

    def stop(self) -> None:
        """Stop what listens at the address, whoever started it."""
        if _listens(self._address):
            with suppress(ProcessError):
                self._said("--stop-server")
        self._kill()

    def _said(self, *words: str) -> str:
        env = self.environment(allowed(self._base_env))
        return process.capture([self._program, *words], env=env, timeout=10.0).stdout

    def _statistics(self, said: str) -> Counter[str]:
        return parse_statistics("sccache", said, read_only=self.storage.access == "read-only")

    def _start(self) -> None:
        secret, s3 = self._folder / "credentials", None if self.lost else self._s3
        at, log = self._address, self._folder / f"{self.storage.kind}.log"
        env = server_env(self.storage, address=at, base_env=self._base_env, s3=s3, credentials=str(secret))
        try:
            if s3 is not None and s3.credentials:
                secret.touch(mode=0o600)
                secret.write_text(s3.credentials, encoding="utf-8")
            self._child = process.start([self._program], cwd=self._folder, env=env, output=log)
            end = time.monotonic() + _START_SECONDS
            while not _listens(at):
                if self._child.wait(0.02) is not None:
                    raise ProcessError(_reason(log.read_text(encoding="utf-8", errors="replace")))
                if time.monotonic() > end:
                    self._kill()
                    raise ProcessError(f"it did not start within {_START_SECONDS:.0f} s.")
        finally:
            # read when the server looks whether its storage is there, and kept by it from then on
            secret.unlink(missing_ok=True)

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None


def located(cache: CompilerCache, common: Common, *, env: Mapping[str, str]) -> CompilerCache:
    """Return the cache with the storage that this build may use."""
    buckets = run_buckets()
    wanted = Wanted(
        cache=cache,
        store=common.store,
        release_type=common.release_type,
        origin=origin_from(env, buckets),
        buckets=buckets,
    )
    storage = storage_for(wanted, rules=cache_rules(), env=env)
    if storage.access == "none":
        console.warn(f"No compiler cache: other repositories write to {storage}, too, so it is not trusted.")
    elif cache.kind == "ccache" and not cache.location and common.store.startswith("s3://"):
        console.say("ccache does not speak S3: entries stay on this machine (--compiler-cache-store).")
    return replace(cache, storage=storage)


@contextmanager
def in_use(
    cache: CompilerCache, *, base_dirs: Sequence[Path], base_env: Mapping[str, str]
) -> Iterator[CacheUse | None]:
    """Make a cache ready for the block; what cannot be used is not an error, and None where nothing starts.

    `base_dirs` lie elsewhere on another machine, and their paths must not keep it from hits: the tree first,
    the checkout last.
    """
    if cache.storage.access == "none":
        yield None
        return
    with ExitStack() as stack:
        # short, because a socket's path may have 107 bytes
        folder = stack.enter_context(temporary.folder(cache.kind))
        if cache.kind == "ccache":
            # it knows one folder alone: the checkout, or a developer's own tree outside
            tree, *_, root = base_dirs
            yield _Ccache(cache, str(root if tree.is_relative_to(root) else tree), folder)
            return
        folders = tuple(dict.fromkeys(map(str, base_dirs)))
        server = _Sccache(cache, folders, base_env, folder)
        stack.callback(server.stop)
        try:
            server.start()
        except FatalError as problem:
            console.warn(f"sccache does not start: {problem.message} This build runs without a cache.")
            yield None
            return
        stack.enter_context(server.watched())
        yield server


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
    words = (source or error or re.search(r"(\S.*)\s*\Z", said) or ["", "no error message"])[1].strip()
    return f"{words.removesuffix('.')}."


def s3_access(bucket: str) -> S3Access:
    """Query botocore for the endpoint, the bucket's region and the credentials."""
    connection = shared_connection()
    region, endpoint = connection.client.meta.region_name or "us-east-1", connection.endpoint
    if connection.is_amazon and (there := _region(connection.client, bucket)) not in ("", region):
        region, endpoint = there, f"https://s3.{there}.amazonaws.com"
    lines: dict[str, str | None] = {}
    with explained(f"s3://{bucket}"):
        found = boto3.session.Session().get_credentials() if connection.signed else None
        # sccache finds these by itself and renews them; others are handed to it as they are now
        if found and found.method not in {"assume-role-with-web-identity", "iam-role"}:
            keys = found.get_frozen_credentials()
            lines = {
                "aws_access_key_id": keys.access_key,
                "aws_secret_access_key": keys.secret_key,
                "aws_session_token": keys.token,
            }
    text = "".join(f"{name} = {value}\n" for name, value in lines.items() if value)
    return S3Access(
        endpoint=endpoint,
        region=region,
        credentials=f"[default]\n{text}" if text else "",
        anonymous=not connection.signed,
    )


def _region(client: S3Client, bucket: str) -> str:
    """Query a bucket's region; "" where unknown. S3 names it in refusals, too."""
    headers: Mapping[str, Any]
    try:
        headers = client.head_bucket(Bucket=bucket)["ResponseMetadata"]["HTTPHeaders"]
    except ClientError as problem:
        headers = problem.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    except (BotoCoreError, OSError):
        return ""
    return str(headers.get("x-amz-bucket-region", ""))


def answers(endpoint: str, *, seconds: int) -> bool:
    """Return whether a service answers at all, be it with an error or an untrusted certificate."""
    try:
        session = URLLib3Session(timeout=seconds, proxies=get_environ_proxies(endpoint))
        session.send(AWSRequest("HEAD", endpoint).prepare())
    except SSLError:
        return True
    except (BotoCoreError, ValueError):
        return False
    return True
