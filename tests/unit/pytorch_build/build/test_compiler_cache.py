from __future__ import annotations

import os
from dataclasses import replace
from pathlib import PurePosixPath, PureWindowsPath

import pytest

from core.errors import UsageError
from pytorch_build.build.compiler_cache import (
    CompilerCache,
    S3Access,
    ccache_env,
    client_env,
    credentials_text,
    launcher_env,
    server_env,
)
from pytorch_build.build.compiler_cache_storage import Storage

CCACHE = CompilerCache(kind="ccache", program=PurePosixPath("/usr/bin/ccache"))
SCCACHE = CompilerCache(kind="sccache", program=PurePosixPath("/opt/bin/sccache"))
BUCKET = Storage(kind="s3", where="bucket/compiler-cache/ci/sccache")
READ_ONLY = Storage(kind="s3", where="bucket/compiler-cache/ci/sccache", access="read-only")
ADDRESS = {"SCCACHE_SERVER_UDS": "/run/s/socket"}
DIRS = ("/co/src/torch", "/co/.nox/env", "/co")
SECRET = "of-the-run"  # noqa: S105 - of nobody
KEYS = S3Access(endpoint="http://127.0.0.1:9000", region="us-east-1", access_key="AKIA", secret_key=SECRET)
# what a machine may have: settings of the cache, and AWS's
MINE = {
    "PATH": "/usr/bin",
    "AWS_PROFILE": "mine",
    "AWS_SECRET_ACCESS_KEY": "of-the-machine",
    "SCCACHE_BUCKET": "mine",
    "SCCACHE_CACHE_SIZE": "5G",
    "SCCACHE_CONF": "/home/me/sccache.toml",
    "SCCACHE_DIR": "/mine",
    "SCCACHE_REDIS": "redis://mine",
    "SCCACHE_SERVER_PORT": "4226",
}


def test_no_cache_is_no_variables() -> None:
    assert launcher_env(None, platform="linux", rocm_version="7.13.0") == {}


def test_linux_launchers() -> None:
    ccache = {
        "CMAKE_C_COMPILER_LAUNCHER": "/usr/bin/ccache",
        "CMAKE_CXX_COMPILER_LAUNCHER": "/usr/bin/ccache",
    }
    assert launcher_env(CCACHE, platform="linux", rocm_version="7.14.0") == ccache
    sccache = dict.fromkeys(ccache, "/opt/bin/sccache")
    assert launcher_env(SCCACHE, platform="linux", rocm_version="7.12.9") == sccache
    assert launcher_env(SCCACHE, platform="linux", rocm_version="") == sccache
    wrapped = sccache | {"HIP_CLANG_LAUNCHER": "/opt/bin/sccache"}
    for version in ("7.13.0.dev0+abc", "7.13.0a20260101", "7.99.0.dev0+sample", "10.1.0"):
        assert launcher_env(SCCACHE, platform="linux", rocm_version=version) == wrapped
    plain = CompilerCache(kind="sccache", program=SCCACHE.program, wrap_hip=False)
    assert launcher_env(plain, platform="linux", rocm_version="7.13.0") == sccache


def test_windows_launchers_embed_debug_information() -> None:
    program = PureWindowsPath("C:/tools/sccache.exe")
    for kind in ("ccache", "sccache"):
        cache = CompilerCache(kind=kind, program=program)
        assert launcher_env(cache, platform="windows", rocm_version="7.14.0") == {
            "CMAKE_C_COMPILER_LAUNCHER": r"C:\tools\sccache.exe",
            "CMAKE_CXX_COMPILER_LAUNCHER": r"C:\tools\sccache.exe",
            "CMAKE_MSVC_DEBUG_INFORMATION_FORMAT": "Embedded",
        }


def test_a_cache_of_unknown_kind_or_place_is_refused() -> None:
    with pytest.raises(UsageError, match="'cache'"):
        CompilerCache(kind="cache", program=PurePosixPath("/usr/bin/ccache"))
    with pytest.raises(UsageError, match="absolute path"):
        CompilerCache(kind="ccache", program=PurePosixPath("ccache"))


@pytest.mark.parametrize("cache", [CCACHE, SCCACHE])
def test_setup_py_gets_compilers_of_two_words(cache: CompilerCache) -> None:
    def launched(platform: str = "linux", **base_env: str) -> dict[str, str]:
        found = launcher_env(cache, platform=platform, rocm_version="", by_cmake=False, base_env=base_env)
        return dict(found)

    program = str(cache.program)
    assert launched() == {"CC": f"{program} cc", "CXX": f"{program} c++"}
    assert launched(CXX="/opt/g++ -m64") == {"CC": f"{program} cc", "CXX": f"{program} /opt/g++ -m64"}
    # a person's own wrapping is not wrapped again
    assert launched(CXX="/usr/lib/ccache/g++") == {"CC": f"{program} cc"}
    assert "CC" not in launched("windows"), "its compiler is found by Visual Studio's own means"


def test_the_server_alone_knows_the_store_and_its_credentials() -> None:
    env = server_env(
        BUCKET, address=ADDRESS, base_dirs=DIRS, base_env=MINE, s3=KEYS, credentials="/run/s/credentials"
    )
    assert env["SCCACHE_BUCKET"] == "bucket"
    assert env["SCCACHE_S3_KEY_PREFIX"] == "compiler-cache/ci/sccache"
    assert env["SCCACHE_ENDPOINT"] == "http://127.0.0.1:9000"
    assert env["SCCACHE_S3_USE_SSL"] == "false"
    assert (env["SCCACHE_REGION"], env["AWS_CONFIG_FILE"]) == ("us-east-1", os.devnull)
    assert env["AWS_SHARED_CREDENTIALS_FILE"] == "/run/s/credentials"
    assert env["SCCACHE_BASEDIRS"] == os.pathsep.join(DIRS)
    assert env["SCCACHE_SERVER_UDS"] == "/run/s/socket"
    assert not {SECRET, "of-the-machine"} & set(env.values()), "compilers are tried out with it"
    # nothing of a person's own storage, profile or server is left, but how large a cache may be
    assert not {"AWS_PROFILE", "SCCACHE_REDIS", "SCCACHE_SERVER_PORT"} & env.keys()
    assert (env["SCCACHE_CONF"], env["SCCACHE_CACHE_SIZE"]) == (os.devnull, "5G")
    assert not [name for name in env if name.endswith("_RW_MODE")]
    assert SECRET not in repr(KEYS)

    client = client_env(BUCKET, address=ADDRESS, base_dirs=DIRS, env=MINE)
    assert {"AWS_SECRET_ACCESS_KEY": "of-the-machine", "AWS_PROFILE": "mine"}.items() <= client.items()
    assert {name for name in client if name.startswith("SCCACHE_")} == {
        "SCCACHE_BASEDIRS",
        "SCCACHE_CACHE_SIZE",
        "SCCACHE_CONF",
        "SCCACHE_DIR",
        "SCCACHE_IDLE_TIMEOUT",
        "SCCACHE_IGNORE_SERVER_IO_ERROR",
        "SCCACHE_SERVER_UDS",
    }


@pytest.mark.parametrize(
    ("access", "gets"),
    [
        (S3Access(endpoint="https://s3", region="eu-1"), {"AWS_PROFILE": "mine"}),
        (
            S3Access(endpoint="https://s3", region="eu-1", anonymous=True),
            {"SCCACHE_S3_NO_CREDENTIALS": "true"},
        ),
        (
            S3Access(endpoint="https://s3", region="eu-1", access_key="A", secret_key=SECRET, token=SECRET),
            {"AWS_SHARED_CREDENTIALS_FILE": "/c"},
        ),
    ],
)
def test_credentials_are_handed_over_or_left_to_sccache(access: S3Access, gets: dict[str, str]) -> None:
    env = server_env(BUCKET, address=ADDRESS, base_dirs=DIRS, base_env=MINE, s3=access, credentials="/c")
    assert gets.items() <= env.items()
    assert env["SCCACHE_S3_USE_SSL"] == "true"
    assert ("AWS_PROFILE" in env) == (not access.access_key)


def test_credentials_are_written_as_aws_has_them() -> None:
    text = credentials_text(KEYS)
    assert text == f"[default]\naws_access_key_id = AKIA\naws_secret_access_key = {SECRET}\n"
    session = replace(KEYS, token="of-a-session")  # noqa: S106 - of nobody
    assert credentials_text(session).endswith("aws_session_token = of-a-session\n")


def test_who_may_only_read_stores_nothing_anywhere() -> None:
    env = server_env(READ_ONLY, address=ADDRESS, base_dirs=DIRS, base_env={}, s3=KEYS)
    for backend in ("S3", "LOCAL", "GHA", "REDIS", "WEBDAV"):
        assert env[f"SCCACHE_{backend}_RW_MODE"] == "READ_ONLY"
    # neither does a server that a client starts in its place, nor ccache
    client = client_env(READ_ONLY, address=ADDRESS, base_dirs=DIRS, env={})
    assert client["SCCACHE_LOCAL_RW_MODE"] == "READ_ONLY"
    assert (
        ccache_env(Storage(access="read-only"), log="/l", base_dir="/co", env={})["CCACHE_READONLY"] == "true"
    )


def test_folders_and_a_persons_own_settings_of_sccache() -> None:
    folder = Storage(kind="folder", where="/shared/compiler-cache/ci/sccache")
    env = server_env(folder, address=ADDRESS, base_dirs=DIRS, base_env=MINE)
    assert env["SCCACHE_DIR"] == "/shared/compiler-cache/ci/sccache"
    assert "SCCACHE_BUCKET" not in env
    own = server_env(Storage(kind="own"), address=ADDRESS, base_dirs=DIRS, base_env=MINE)
    assert own["SCCACHE_BUCKET"] == "mine"
    assert own["SCCACHE_CONF"] == "/home/me/sccache.toml"
    local = server_env(Storage(), address=ADDRESS, base_dirs=DIRS, base_env=MINE)
    assert (local["SCCACHE_DIR"], "SCCACHE_BUCKET" in local) == ("/mine", False)


@pytest.mark.parametrize(
    ("storage", "remote"),
    [
        (Storage(kind="folder", where="/shared/c"), "file:/shared/c"),
        (Storage(kind="http", where="http://host/c|layout=flat"), "http://host/c|layout=flat"),
        (Storage(), None),
        (Storage(kind="own"), "redis://mine"),
    ],
)
def test_ccache_hits_in_other_folders_and_machines(storage: Storage, remote: str | None) -> None:
    mine = {"CCACHE_REMOTE_STORAGE": "redis://mine", "PATH": "/usr/bin"}
    env = ccache_env(storage, log="/run/c/log", base_dir="/co", env=mine)
    assert env.get("CCACHE_REMOTE_STORAGE") == remote
    assert (env["CCACHE_BASEDIR"], env["CCACHE_NOHASHDIR"], env["CCACHE_STATSLOG"]) == (
        "/co",
        "true",
        "/run/c/log",
    )
    assert env["CCACHE_COMPILERCHECK"] == "content", "another machine's compiler has another date"
    kept = ccache_env(storage, log="/l", base_dir="/co", env={"CCACHE_COMPILERCHECK": "string:x"})
    assert kept["CCACHE_COMPILERCHECK"] == "string:x"
    assert "CCACHE_READONLY" not in env
