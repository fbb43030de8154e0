import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from core.errors import UsageError
from core.run.locations import CompilerCaches, Origin, RunBucket, RunBuckets, run_buckets
from pytorch_build.build.cache import (
    CompilerCache,
    cache_of_run,
    ccache_env,
    client_env,
    launcher_env,
    require_usable_store,
    server_env,
)

CCACHE = CompilerCache(kind="ccache", program=PurePosixPath("/usr/bin/ccache"))
SCCACHE = CompilerCache(kind="sccache", program=PurePosixPath("/opt/bin/sccache"))
IN_BUCKET = replace(SCCACHE, store="s3://bucket/compiler-cache/ci/sccache")
ADDRESS = {"SCCACHE_SERVER_UDS": "/run/s/socket", "SCCACHE_BASEDIRS": "/co/src/torch:/co"}
# What a machine may have: settings of the cache, and AWS's.
MACHINE_ENV = {
    "PATH": "/usr/bin",
    "AWS_PROFILE": "mine",
    "GITHUB_TOKEN": "of-the-job",
    "SCCACHE_BUCKET": "mine",
    "SCCACHE_CACHE_SIZE": "5G",
    "SCCACHE_CONF": "/home/me/sccache.toml",
    "SCCACHE_DIR": "/mine",
    "SCCACHE_REDIS": "redis://me:word@mine",
    "SCCACHE_SERVER_PORT": "4226",
}

each_cache = pytest.mark.parametrize("cache", [CCACHE, SCCACHE], ids=["ccache", "sccache"])


# Launchers: how a build starts its compilers through a cache


def cmake_launchers(
    cache: CompilerCache | None, *, platform: str = "linux", rocm_version: str = ""
) -> Mapping[str, str]:
    """Return the variables that a build by CMake gets."""
    return launcher_env(
        cache, platform=platform, rocm_version=rocm_version, compiles_by_cmake=True, base_env={}
    )


def cmake_variables(cache: CompilerCache) -> dict[str, str]:
    """Return the variables that let CMake start C and C++ compilers through a cache."""
    program = str(cache.program)
    return {"CMAKE_C_COMPILER_LAUNCHER": program, "CMAKE_CXX_COMPILER_LAUNCHER": program}


def test_sets_no_launcher_without_a_cache() -> None:
    assert cmake_launchers(None, rocm_version="7.13.0") == {}


@each_cache
@pytest.mark.parametrize("rocm_version", ["7.12.9", ""])
def test_launches_the_compilers_of_cmake(cache: CompilerCache, rocm_version: str) -> None:
    assert cmake_launchers(cache, rocm_version=rocm_version) == cmake_variables(cache)


@pytest.mark.parametrize(
    "rocm_version", ["7.13.0.dev0+abc", "7.13.0a20260101", "7.99.0.dev0+sample", "10.1.0"]
)
@each_cache
def test_launches_a_newer_rocms_hip_compiler_through_sccache_alone(
    cache: CompilerCache, rocm_version: str
) -> None:
    expected = cmake_variables(cache)
    if cache.kind == "sccache":
        expected["HIP_CLANG_LAUNCHER"] = str(cache.program)

    assert cmake_launchers(cache, rocm_version=rocm_version) == expected


@each_cache
def test_embeds_debug_information_on_windows(cache: CompilerCache) -> None:
    env = cmake_launchers(cache, platform="windows", rocm_version="7.14.0")

    assert env == {**cmake_variables(cache), "CMAKE_MSVC_DEBUG_INFORMATION_FORMAT": "Embedded"}


def setup_py_launchers(
    cache: CompilerCache, base_env: dict[str, str] | None = None, *, platform: str = "linux"
) -> Mapping[str, str]:
    """Return the variables that a build by setuptools gets."""
    return launcher_env(
        cache, platform=platform, rocm_version="", compiles_by_cmake=False, base_env=base_env or {}
    )


@each_cache
@pytest.mark.parametrize(("base_env", "compiler"), [({}, "c++"), ({"CXX": "/opt/g++ -m64"}, "/opt/g++ -m64")])
def test_names_setup_py_the_cache_and_the_compiler(
    cache: CompilerCache, base_env: dict[str, str], compiler: str
) -> None:
    program = str(cache.program)

    env = setup_py_launchers(cache, base_env)

    assert env == {"CC": f"{program} cc", "CXX": f"{program} {compiler}"}


@each_cache
def test_launches_no_compiler_that_a_user_has_wrapped(cache: CompilerCache) -> None:
    env = setup_py_launchers(cache, {"CXX": "/usr/lib/ccache/g++"})

    assert env == {"CC": f"{cache.program} cc"}


@each_cache
def test_leaves_setup_pys_compiler_on_windows_to_visual_studio(cache: CompilerCache) -> None:
    assert "CC" not in setup_py_launchers(cache, platform="windows")


# The environments of sccache's server and of its clients


def test_gives_the_server_the_users_own_storage_as_it_is() -> None:
    env = server_env(SCCACHE, address={}, base_env=MACHINE_ENV)

    settings = {name: value for name, value in MACHINE_ENV.items() if name.startswith(("SCCACHE_", "AWS_"))}
    assert env.items() >= settings.items()
    assert "GITHUB_TOKEN" not in env


def test_leads_the_server_to_the_named_bucket_alone() -> None:
    env = server_env(IN_BUCKET, address=ADDRESS, base_env=MACHINE_ENV)

    assert env["SCCACHE_BUCKET"] == "bucket"
    assert env["SCCACHE_S3_KEY_PREFIX"] == "compiler-cache/ci/sccache"
    assert env["SCCACHE_SERVER_UDS"] == ADDRESS["SCCACHE_SERVER_UDS"]
    # The user's storages would be taken first.
    assert not {"SCCACHE_REDIS", "SCCACHE_SERVER_PORT"} & env.keys()
    assert env["SCCACHE_CONF"] == os.devnull
    assert env["SCCACHE_CACHE_SIZE"] == "5G"


@pytest.mark.parametrize("backend", ["S3", "LOCAL", "GHA", "REDIS", "WEBDAV"])
@pytest.mark.parametrize("is_read_only", [True, False])
def test_lets_a_server_that_may_only_read_store_nothing_anywhere(backend: str, *, is_read_only: bool) -> None:
    env = server_env(replace(SCCACHE, read_only=is_read_only), address=ADDRESS, base_env={})

    assert env.get(f"SCCACHE_{backend}_RW_MODE") == ("READ_ONLY" if is_read_only else None)


@pytest.mark.parametrize("cache", [SCCACHE, IN_BUCKET], ids=["user's own", "bucket"])
def test_leads_clients_to_the_server_and_to_no_storage(cache: CompilerCache) -> None:
    env = client_env(cache, address=ADDRESS, env=MACHINE_ENV)

    assert {name for name in env if name.startswith("SCCACHE_")} == {
        "SCCACHE_BASEDIRS",
        "SCCACHE_CACHE_SIZE",
        "SCCACHE_CONF",
        "SCCACHE_DIR",
        "SCCACHE_IDLE_TIMEOUT",
        "SCCACHE_IGNORE_SERVER_IO_ERROR",
        "SCCACHE_SERVER_UDS",
    }
    # Other programs of the build use AWS by the user's settings.
    assert env["AWS_PROFILE"] == "mine"


def test_lets_a_server_that_a_client_starts_store_nothing_either() -> None:
    env = client_env(replace(SCCACHE, read_only=True), address=ADDRESS, env={})

    assert env["SCCACHE_LOCAL_RW_MODE"] == "READ_ONLY"


# The environment of ccache


def ccache_variables(env: dict[str, str], cache: CompilerCache = CCACHE) -> Mapping[str, str]:
    """Return the environment of a build through ccache."""
    return ccache_env(cache, log="/run/c/log", base_dir="/co", env=env)


def test_lets_ccache_hit_entries_of_other_folders_and_machines() -> None:
    env = ccache_variables({})

    expected = {
        "CCACHE_BASEDIR": "/co",
        "CCACHE_NOHASHDIR": "true",
        "CCACHE_STATSLOG": "/run/c/log",
        # Another machine's compiler has another date.
        "CCACHE_COMPILERCHECK": "content",
    }
    assert env.items() >= expected.items()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("CCACHE_COMPILERCHECK", "string:x"), ("CCACHE_REMOTE_STORAGE", "http://host/c")],
)
def test_keeps_the_users_settings_of_ccache(variable: str, value: str) -> None:
    assert ccache_variables({variable: value})[variable] == value


@pytest.mark.parametrize(("is_read_only", "setting"), [(False, None), (True, "true")])
def test_lets_ccache_store_nothing_where_it_may_only_read(setting: str | None, *, is_read_only: bool) -> None:
    env = ccache_variables({}, replace(CCACHE, read_only=is_read_only))

    assert env.get("CCACHE_READONLY") == setting


# Where entries lie, and who may do what

MAIN = "ROCm/TheRock"
BUCKETS = RunBuckets(
    repository=MAIN,
    release_types={
        "ci": RunBucket(bucket="ours", external_bucket="everybodys"),
        "dev": RunBucket(bucket="ours-dev"),
    },
    distributions={},
    compiler_caches=CompilerCaches(
        region="us-east-1",
        bucket="caches-{type}",
        role="",
        session_seconds=21600,
        types={"ci": "ci", "dev": "other"},
    ),
)
# The repository's name is compared without case.
MAIN_REPOSITORY = Origin(repository="rocm/therock")
FORK = Origin(repository=MAIN, fork=True)
OTHER_REPOSITORY = Origin(repository="somebody/downstream")


def cache_in(
    run_store: str,
    cache: CompilerCache = SCCACHE,
    *,
    origin: Origin = MAIN_REPOSITORY,
    release_type: str = "ci",
) -> CompilerCache:
    """Return the cache as a run with a store may use it."""
    return cache_of_run(cache, run_store=run_store, release_type=release_type, origin=origin, buckets=BUCKETS)


def test_keeps_entries_of_release_types_apart_in_a_named_bucket() -> None:
    named_cache = replace(SCCACHE, store="s3://mine/")

    assert cache_in("out", named_cache).store == "s3://mine/compiler-cache/ci/sccache"
    assert (
        cache_in("out", named_cache, release_type="nightly").store
        == "s3://mine/compiler-cache/nightly/sccache"
    )


@pytest.mark.parametrize(
    ("run_store", "release_type", "store"),
    [
        ("s3://ours", "ci", "s3://caches-ci/compiler-cache/ci/sccache"),
        ("s3://everybodys", "ci", "s3://caches-ci/compiler-cache/ci/sccache"),
        ("s3://ours-dev", "dev", "s3://caches-other/compiler-cache/dev/sccache"),
        ("s3://ours-dev", "ci", None),
        ("s3://mine", "ci", None),
        ("out", "ci", None),
    ],
)
def test_takes_the_main_repositorys_caches_for_its_runs(
    run_store: str, release_type: str, store: str | None
) -> None:
    assert cache_in(run_store, release_type=release_type).store == store


@pytest.mark.parametrize(
    ("cache", "origin"),
    [(SCCACHE, OTHER_REPOSITORY), (CCACHE, MAIN_REPOSITORY)],
    ids=["other repository", "ccache"],
)
def test_leaves_other_caches_to_the_users_settings(cache: CompilerCache, origin: Origin) -> None:
    assert cache_in("s3://ours", cache, origin=origin).store is None


@pytest.mark.parametrize("store", [None, "s3://mine"])
@each_cache
def test_lets_a_fork_only_read(cache: CompilerCache, store: str | None) -> None:
    assert cache_in("s3://ours", replace(cache, store=store), origin=FORK).read_only


@each_cache
@pytest.mark.parametrize("is_read_only", [True, False])
def test_lets_other_runs_write_unless_the_user_forbids_it(
    cache: CompilerCache, *, is_read_only: bool
) -> None:
    run_cache = cache_in("s3://ours", replace(cache, read_only=is_read_only), origin=OTHER_REPOSITORY)

    assert run_cache.read_only == is_read_only


def test_lets_a_fork_read_what_the_main_repository_stored() -> None:
    assert cache_in("s3://everybodys", origin=FORK).store == cache_in("s3://ours").store


@pytest.mark.parametrize(
    ("kind", "store"),
    [
        ("ccache", "s3://mine"),
        ("sccache", "/shared"),
        ("sccache", "http://host/c"),
        ("sccache", "s3://"),
        ("sccache", ""),
    ],
)
def test_refuses_a_store_that_the_cache_cannot_use(kind: str, store: str) -> None:
    with pytest.raises(UsageError) as caught:
        require_usable_store(kind, store)

    assert store in caught.value.message
    assert "sccache" in caught.value.hint.lower()


def test_the_data_has_caches_for_every_release_type() -> None:
    caches = run_buckets().compiler_caches

    assert caches is not None
    assert caches.types.keys() == run_buckets().release_types.keys()


def test_the_data_keeps_prereleases_apart_from_all_other_caches() -> None:
    caches = run_buckets().compiler_caches

    assert caches is not None
    users = [release_type for release_type, cache in caches.types.items() if cache == "prerelease"]
    assert users == ["prerelease"]
