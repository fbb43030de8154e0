"""ccache and sccache: how a build is told to use one. Nothing here acts.

GPU targets must reach the compiler as flags: given by a variable (``HCC_AMDGPU_TARGET``),
either cache returns the object of another target, as the variable is no part of its key.
`pytorch_build.build` sees to that.

sccache's work is done by a server. A build has one of its own (`compiler_cache_server`), the only
process that gets the store's credentials. What the build's commands get would only serve to start
another one in its place, with a local cache.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.version import Version

from core.errors import UsageError, nearest
from pytorch_build.build.compiler_cache_storage import Storage

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePath

KINDS = ("ccache", "sccache")
# From this ROCm on, hipcc starts its clang through HIP_CLANG_LAUNCHER.
_FIRST_ROCM_WITH_LAUNCHER = (7, 13)
# Settings of sccache that say nothing of where entries lie; a person's are kept.
_KEPT = frozenset(
    {"SCCACHE_CACHE_SIZE", "SCCACHE_CACHE_ZSTD_LEVEL", "SCCACHE_DIR", "SCCACHE_DIRECT", "SCCACHE_RECACHE"}
)
_BACKENDS = ("AZURE", "COS", "GCS", "GHA", "LOCAL", "MEMCACHED", "OSS", "REDIS", "S3", "WEBDAV")
# Longer than any link, which is time without compilations; and an end, should nobody stop the server.
_IDLE_SECONDS = 7200


@dataclass(frozen=True, kw_only=True)
class CompilerCache:
    """A compiler cache that a build goes through; there is at most one."""

    kind: str
    program: PurePath
    wrap_hip: bool = True
    storage: Storage = field(default_factory=Storage)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"{self.kind!r} is no compiler cache.", hint=nearest(self.kind, KINDS))
        if not self.program.is_absolute():
            raise UsageError(f"The compiler cache {self.program} must be given by its absolute path.")


@dataclass(frozen=True, kw_only=True)
class S3Access:
    """How an S3 service is reached."""

    endpoint: str
    region: str
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    anonymous: bool = False


def launcher_env(
    cache: CompilerCache | None,
    *,
    platform: str,
    rocm_version: str,
    by_cmake: bool = True,
    base_env: Mapping[str, str] | None = None,
) -> Mapping[str, str]:
    """Give the variables that send a build's compilations through the cache."""
    if cache is None:
        return {}
    program, env = str(cache.program), {}
    if by_cmake or platform == "windows":
        env = {"CMAKE_C_COMPILER_LAUNCHER": program, "CMAKE_CXX_COMPILER_LAUNCHER": program}
    else:
        for name, default in (("CC", "cc"), ("CXX", "c++")):
            chosen = (base_env or {}).get(name, "").strip() or default
            if not any(kind in chosen for kind in KINDS):  # a person's own wrapping holds
                env[name] = f"{program} {chosen}"
    if platform == "windows":
        # Debug information in a file of its own (/Zi) cannot be cached.
        env["CMAKE_MSVC_DEBUG_INFORMATION_FORMAT"] = "Embedded"
    elif cache.kind == "sccache" and cache.wrap_hip and _has_hip_launcher(rocm_version):
        env["HIP_CLANG_LAUNCHER"] = program
    return env


def _has_hip_launcher(rocm_version: str) -> bool:
    return bool(rocm_version) and Version(rocm_version).release[:2] >= _FIRST_ROCM_WITH_LAUNCHER


def server_env(
    storage: Storage,
    *,
    address: Mapping[str, str],
    base_dirs: tuple[str, ...],
    base_env: Mapping[str, str],
    s3: S3Access | None = None,
    credentials: str = "",
) -> dict[str, str]:
    """Give the whole environment of a build's own sccache server.

    No secret stands in it: sccache tries compilers out with the environment that it has itself.
    """
    own = storage.kind == "own"
    env = dict(base_env) if own else _without_storage(base_env) | _storage_env(storage)
    if s3 is not None:
        env = {name: value for name, value in env.items() if not s3.access_key or not name.startswith("AWS_")}
        env |= _s3_env(s3, credentials)
    if storage.access == "read-only":
        env |= {f"SCCACHE_{backend}_RW_MODE": "READ_ONLY" for backend in _BACKENDS}
    return env | {
        **address,
        "SCCACHE_BASEDIRS": os.pathsep.join(base_dirs),
        "SCCACHE_IDLE_TIMEOUT": str(_IDLE_SECONDS),
        "SCCACHE_LOG": "error",
        "SCCACHE_NO_DAEMON": "1",
        "SCCACHE_START_SERVER": "1",
    }


def client_env(
    storage: Storage, *, address: Mapping[str, str], base_dirs: tuple[str, ...], env: Mapping[str, str]
) -> dict[str, str]:
    """Give a command's whole environment with which its compilers find the build's sccache server.

    A server that is gone fails no compilation: the next client starts one that caches locally.
    """
    made = _without_storage(env) | {
        **address,
        "SCCACHE_BASEDIRS": os.pathsep.join(base_dirs),
        "SCCACHE_IDLE_TIMEOUT": str(_IDLE_SECONDS),
        "SCCACHE_IGNORE_SERVER_IO_ERROR": "1",
    }
    return made | ({"SCCACHE_LOCAL_RW_MODE": "READ_ONLY"} if storage.access == "read-only" else {})


def ccache_env(storage: Storage, *, log: str, base_dir: str, env: Mapping[str, str]) -> dict[str, str]:
    """Give a command's whole environment with which its compilers go through ccache."""
    made = {
        # the compiler's date, which is ccache's default, differs from machine to machine
        "CCACHE_COMPILERCHECK": "content",
        **env,
        "CCACHE_BASEDIR": base_dir,
        "CCACHE_NOHASHDIR": "true",
        "CCACHE_STATSLOG": log,
    }
    if storage.kind == "folder":
        made["CCACHE_REMOTE_STORAGE"] = f"file:{storage.where}"
    elif storage.kind == "http":
        made["CCACHE_REMOTE_STORAGE"] = storage.where
    elif storage.kind == "local":
        made = {name: value for name, value in made.items() if name not in _CCACHE_REMOTE}
    return made | ({"CCACHE_READONLY": "true"} if storage.access == "read-only" else {})


_CCACHE_REMOTE = frozenset({"CCACHE_REMOTE_ONLY", "CCACHE_REMOTE_STORAGE", "CCACHE_SECONDARY_STORAGE"})


def _without_storage(env: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in env.items() if not name.startswith("SCCACHE_") or name in _KEPT}
    # a person's file may name another storage, which would go before
    return kept | {"SCCACHE_CONF": os.devnull}


def _storage_env(storage: Storage) -> dict[str, str]:
    if storage.kind == "s3":
        return {"SCCACHE_BUCKET": storage.bucket, "SCCACHE_S3_KEY_PREFIX": storage.prefix}
    if storage.kind == "folder":
        return {"SCCACHE_DIR": storage.where}
    return {}


def credentials_text(s3: S3Access) -> str:
    """Write credentials as AWS's shared credentials file has them."""
    lines = {
        "aws_access_key_id": s3.access_key,
        "aws_secret_access_key": s3.secret_key,
        "aws_session_token": s3.token,
    }
    return "[default]\n" + "".join(f"{name} = {value}\n" for name, value in lines.items() if value)


def _s3_env(s3: S3Access, credentials: str) -> dict[str, str]:
    env = {"SCCACHE_REGION": s3.region}
    if s3.endpoint:
        env |= {
            "SCCACHE_ENDPOINT": s3.endpoint,
            "SCCACHE_S3_USE_SSL": str(s3.endpoint.startswith("https:")).lower(),
        }
    if s3.access_key:
        env |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": credentials}
    if s3.anonymous:
        env["SCCACHE_S3_NO_CREDENTIALS"] = "true"
    return env
