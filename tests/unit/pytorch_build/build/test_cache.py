import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from core.errors import DataError, UsageError
from core.run.locations import CompilerCaches, Origin, RunBucket, RunBuckets, run_buckets
from pytorch_build.build.cache import (
    AccessRules,
    CompilerCache,
    S3Access,
    Storage,
    Wanted,
    cache_rules,
    ccache_env,
    client_env,
    launcher_env,
    parse_statistics,
    server_env,
    storage_at,
    storage_for,
    unwritten,
)

CCACHE = CompilerCache(kind="ccache", program=PurePosixPath("/usr/bin/ccache"))
SCCACHE = CompilerCache(kind="sccache", program=PurePosixPath("/opt/bin/sccache"))
BUCKET = Storage(kind="s3", where="bucket/compiler-cache/ci/sccache")
READ_ONLY = Storage(kind="s3", where="bucket/compiler-cache/ci/sccache", access="read-only")
ADDRESS = {"SCCACHE_SERVER_UDS": "/run/s/socket", "SCCACHE_BASEDIRS": "/co/src/torch:/co"}
RUN_SECRET = "of-the-run"  # noqa: S105 - of nobody
MACHINE_SECRET = "of-the-machine"  # noqa: S105 - of nobody
ACCESS = S3Access(endpoint="http://127.0.0.1:9000", region="us-east-1", credentials=RUN_SECRET)
# What a machine may have: settings of the cache, and AWS's.
MACHINE_ENV = {
    "PATH": "/usr/bin",
    "AWS_PROFILE": "mine",
    "AWS_SECRET_ACCESS_KEY": MACHINE_SECRET,
    "SCCACHE_BUCKET": "mine",
    "SCCACHE_CACHE_SIZE": "5G",
    "SCCACHE_CONF": "/home/me/sccache.toml",
    "SCCACHE_DIR": "/mine",
    "SCCACHE_REDIS": "redis://mine",
    "SCCACHE_SERVER_PORT": "4226",
}

each_cache = pytest.mark.parametrize("cache", [CCACHE, SCCACHE], ids=["ccache", "sccache"])


# Launchers: how a build starts its compilers through a cache


def cmake_launchers(
    cache: CompilerCache | None, *, platform: str = "linux", rocm_version: str = ""
) -> Mapping[str, str]:
    """Return the variables that a build by CMake gets."""
    return launcher_env(cache, platform=platform, rocm_version=rocm_version, by_cmake=True, base_env={})


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
    return launcher_env(cache, platform=platform, rocm_version="", by_cmake=False, base_env=base_env or {})


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


def bucket_server_env(access: S3Access = ACCESS) -> Mapping[str, str]:
    """Return the environment of a server with a bucket, on a machine with settings of its own."""
    return server_env(
        BUCKET, address=ADDRESS, base_env=MACHINE_ENV, s3=access, credentials="/run/s/credentials"
    )


def test_leads_the_server_to_its_bucket() -> None:
    env = bucket_server_env()

    expected = {
        "SCCACHE_BUCKET": "bucket",
        "SCCACHE_S3_KEY_PREFIX": "compiler-cache/ci/sccache",
        "SCCACHE_ENDPOINT": "http://127.0.0.1:9000",
        "SCCACHE_S3_USE_SSL": "false",
        "SCCACHE_REGION": "us-east-1",
        "SCCACHE_BASEDIRS": ADDRESS["SCCACHE_BASEDIRS"],
        "SCCACHE_SERVER_UDS": "/run/s/socket",
    }
    assert env.items() >= expected.items()
    assert not [name for name in env if name.endswith("_RW_MODE")]


def test_gives_the_server_credentials_in_a_file_alone() -> None:
    env = bucket_server_env()

    assert env["AWS_SHARED_CREDENTIALS_FILE"] == "/run/s/credentials"
    assert env["AWS_CONFIG_FILE"] == os.devnull
    # Compilers are tried out with this environment.
    assert not {RUN_SECRET, MACHINE_SECRET} & set(env.values())
    assert RUN_SECRET not in repr(ACCESS)


def test_leaves_the_server_nothing_of_the_users_own_but_the_size_of_a_cache() -> None:
    env = bucket_server_env()

    assert not {"AWS_PROFILE", "SCCACHE_REDIS", "SCCACHE_SERVER_PORT"} & env.keys()
    assert env["SCCACHE_CONF"] == os.devnull
    assert env["SCCACHE_CACHE_SIZE"] == "5G"


@pytest.mark.parametrize(
    ("is_anonymous", "variable", "setting"),
    [(False, "AWS_PROFILE", "mine"), (True, "SCCACHE_S3_NO_CREDENTIALS", "true")],
    ids=["machine's credentials", "anonymous"],
)
def test_leaves_credentials_that_a_run_does_not_have_to_sccache(
    variable: str, setting: str, *, is_anonymous: bool
) -> None:
    access = S3Access(endpoint="https://s3", region="eu-1", anonymous=is_anonymous)

    env = bucket_server_env(access)

    assert env[variable] == setting
    assert env["SCCACHE_S3_USE_SSL"] == "true"
    assert env["AWS_PROFILE"] == "mine"


def test_leads_clients_to_the_server_and_to_nothing_else() -> None:
    env = client_env(BUCKET, address=ADDRESS, env=MACHINE_ENV)

    # Other programs of the build use AWS by the user's settings.
    assert env["AWS_SECRET_ACCESS_KEY"] == MACHINE_SECRET
    assert env["AWS_PROFILE"] == "mine"
    assert {name for name in env if name.startswith("SCCACHE_")} == {
        "SCCACHE_BASEDIRS",
        "SCCACHE_CACHE_SIZE",
        "SCCACHE_CONF",
        "SCCACHE_DIR",
        "SCCACHE_IDLE_TIMEOUT",
        "SCCACHE_IGNORE_SERVER_IO_ERROR",
        "SCCACHE_SERVER_UDS",
    }


@pytest.mark.parametrize("backend", ["S3", "LOCAL", "GHA", "REDIS", "WEBDAV"])
def test_lets_a_server_that_may_only_read_store_nothing_anywhere(backend: str) -> None:
    env = server_env(READ_ONLY, address=ADDRESS, base_env={}, s3=ACCESS)

    assert env[f"SCCACHE_{backend}_RW_MODE"] == "READ_ONLY"


def test_lets_a_server_that_a_client_starts_store_nothing_either() -> None:
    env = client_env(READ_ONLY, address=ADDRESS, env={})

    assert env["SCCACHE_LOCAL_RW_MODE"] == "READ_ONLY"


@pytest.mark.parametrize(
    ("storage", "settings"),
    [
        pytest.param(
            Storage(kind="folder", where="/shared/cc"),
            {"SCCACHE_DIR": "/shared/cc", "SCCACHE_BUCKET": None},
            id="folder",
        ),
        pytest.param(
            Storage(kind="own"),
            {"SCCACHE_BUCKET": "mine", "SCCACHE_CONF": "/home/me/sccache.toml"},
            id="user's own",
        ),
        pytest.param(Storage(), {"SCCACHE_DIR": "/mine", "SCCACHE_BUCKET": None}, id="this machine"),
    ],
)
def test_leads_a_server_to_other_storages(storage: Storage, settings: dict[str, str | None]) -> None:
    env = server_env(storage, address=ADDRESS, base_env=MACHINE_ENV)

    assert {name: env.get(name) for name in settings} == settings


# The environment of ccache


def ccache_variables(storage: Storage, env: dict[str, str]) -> Mapping[str, str]:
    """Return the environment of a build through ccache."""
    return ccache_env(storage, log="/run/c/log", base_dir="/co", env=env)


@pytest.mark.parametrize(
    ("storage", "remote_storage"),
    [
        (Storage(kind="folder", where="/shared/c"), "file:/shared/c"),
        (Storage(kind="http", where="http://host/c|layout=flat"), "http://host/c|layout=flat"),
        (Storage(), None),
        (Storage(kind="own"), "redis://mine"),
    ],
    ids=["folder", "server", "this machine", "user's own"],
)
def test_leads_ccache_to_its_storage(storage: Storage, remote_storage: str | None) -> None:
    env = ccache_variables(storage, {"CCACHE_REMOTE_STORAGE": "redis://mine", "PATH": "/usr/bin"})

    assert env.get("CCACHE_REMOTE_STORAGE") == remote_storage


def test_lets_ccache_hit_entries_of_other_folders_and_machines() -> None:
    env = ccache_variables(Storage(), {})

    expected = {
        "CCACHE_BASEDIR": "/co",
        "CCACHE_NOHASHDIR": "true",
        "CCACHE_STATSLOG": "/run/c/log",
        # Another machine's compiler has another date.
        "CCACHE_COMPILERCHECK": "content",
    }
    assert env.items() >= expected.items()


def test_keeps_a_users_way_to_know_compilers() -> None:
    env = ccache_variables(Storage(), {"CCACHE_COMPILERCHECK": "string:x"})

    assert env["CCACHE_COMPILERCHECK"] == "string:x"


@pytest.mark.parametrize(("storage", "setting"), [(Storage(), None), (Storage(access="read-only"), "true")])
def test_lets_ccache_store_nothing_where_it_may_only_read(storage: Storage, setting: str | None) -> None:
    assert ccache_variables(storage, {}).get("CCACHE_READONLY") == setting


# Where entries lie, and who may do what

BUCKETS = RunBuckets(
    repository="ROCm/TheRock",
    release_types={
        "ci": RunBucket(bucket="ours", external_bucket="everybodys"),
        "nightly": RunBucket(bucket="nightlies"),
    },
    distributions={},
)
CACHE_BUCKETS = CompilerCaches(
    region="us-east-1", bucket="caches-{type}", role="", session_seconds=21600, types={"ci": "ci"}
)
WITH_CACHE_BUCKETS = BUCKETS.model_copy(update={"compiler_caches": CACHE_BUCKETS})
EVERYBODYS = "s3://everybodys"
# The repository's name is compared without case.
MAIN_REPOSITORY = Origin(repository="rocm/therock")
FORK = Origin(repository="ROCm/TheRock", fork=True)
OTHER_REPOSITORY = Origin(repository="somebody/downstream")
RULES = cache_rules().model_copy(
    update={
        "layout": "cc/{release_type}/{kind}",
        "access": AccessRules(own="read-write", fork="read-only", shared="none"),
    }
)


def choose_storage(
    env: dict[str, str] | None = None,
    *,
    kind: str = "sccache",
    location: str = "",
    read_only: bool = False,
    store: str = "s3://ours",
    origin: Origin = MAIN_REPOSITORY,
    buckets: RunBuckets = BUCKETS,
    release_type: str = "ci",
) -> Storage:
    """Return the storage of a run's cache: by default, sccache's of a run of the main repository."""
    cache = SCCACHE if kind == "sccache" else CCACHE
    wanted = Wanted(
        cache=replace(cache, location=location, read_only=read_only),
        store=store,
        release_type=release_type,
        origin=origin,
        buckets=buckets,
    )
    return storage_for(wanted, rules=RULES, env=env or {})


@pytest.mark.parametrize(
    ("changes", "storage", "access"),
    [
        pytest.param({}, "s3://ours/cc/ci/sccache", "read-write", id="run's bucket"),
        pytest.param(
            {"store": "s3://nightlies", "release_type": "nightly"},
            "s3://nightlies/cc/nightly/sccache",
            "read-write",
            id="release type",
        ),
        pytest.param({"store": "out"}, "local", "read-write", id="no bucket"),
        # ccache does not speak S3.
        pytest.param({"kind": "ccache"}, "local", "read-write", id="ccache"),
        # Runs in the main repository's buckets have one for caches.
        pytest.param(
            {"buckets": WITH_CACHE_BUCKETS},
            "s3://caches-ci/cc/ci/sccache",
            "read-write",
            id="bucket for caches",
        ),
        pytest.param(
            {"buckets": WITH_CACHE_BUCKETS, "store": EVERYBODYS, "origin": FORK},
            "s3://caches-ci/cc/ci/sccache",
            "read-only",
            id="bucket for caches, fork",
        ),
        pytest.param(
            {"buckets": WITH_CACHE_BUCKETS, "store": EVERYBODYS, "origin": OTHER_REPOSITORY},
            f"{EVERYBODYS}/cc/ci/sccache",
            "none",
            id="bucket for caches, other repository",
        ),
        # What a fork compiles reaches nothing else; entries that it reads are the main repository's.
        pytest.param(
            {"store": EVERYBODYS, "origin": FORK}, "s3://ours/cc/ci/sccache", "read-only", id="fork"
        ),
        pytest.param(
            {"location": EVERYBODYS, "store": "out", "origin": FORK},
            "s3://ours/cc/ci/sccache",
            "read-only",
            id="fork names the shared bucket",
        ),
        pytest.param(
            {"location": "s3://mine", "origin": FORK},
            "s3://mine/cc/ci/sccache",
            "read-only",
            id="fork names a bucket",
        ),
        pytest.param(
            {"location": "/shared", "origin": FORK},
            "/shared/cc/ci/sccache",
            "read-only",
            id="fork names a folder",
        ),
        pytest.param(
            {"location": "local", "origin": FORK}, "local", "read-only", id="fork names this machine"
        ),
        pytest.param(
            {"kind": "ccache", "location": "http://host/c", "origin": FORK},
            "http://host/c",
            "read-only",
            id="fork names a server",
        ),
        pytest.param(
            {"store": "s3://theirs", "origin": replace(FORK, repository="some/other")},
            "s3://theirs/cc/ci/sccache",
            "read-only",
            id="fork of another repository",
        ),
        # A bucket that other repositories write to is not trusted.
        pytest.param(
            {"store": EVERYBODYS, "origin": OTHER_REPOSITORY},
            f"{EVERYBODYS}/cc/ci/sccache",
            "none",
            id="shared bucket",
        ),
        pytest.param(
            {"location": "s3://ours", "store": "out", "origin": OTHER_REPOSITORY, "read_only": True},
            "s3://ours/cc/ci/sccache",
            "none",
            id="main repository's bucket",
        ),
        pytest.param(
            {"store": "s3://theirs", "origin": OTHER_REPOSITORY},
            "s3://theirs/cc/ci/sccache",
            "read-write",
            id="own bucket",
        ),
        pytest.param({"read_only": True}, "s3://ours/cc/ci/sccache", "read-only", id="user's option"),
        pytest.param(
            {"kind": "ccache", "location": "http://me:secret@host:8080/c|layout=flat"},
            "http://host:8080/c",
            "read-write",
            id="credentials are hidden",
        ),
    ],
)
def test_chooses_where_entries_lie_and_who_may_do_what(
    changes: Mapping[str, Any], storage: str, access: str
) -> None:
    chosen_storage = choose_storage(**changes)

    assert str(chosen_storage) == storage
    assert chosen_storage.access == access


@pytest.mark.parametrize(
    ("kind", "env", "storage_kind"),
    [
        ("sccache", {"SCCACHE_BUCKET": "mine"}, "own"),
        ("ccache", {"CCACHE_REMOTE_STORAGE": "redis://mine"}, "own"),
        # An empty setting is none, and a folder is no storage.
        ("sccache", {"SCCACHE_BUCKET": "", "SCCACHE_DIR": "/mine"}, "s3"),
    ],
)
def test_takes_the_users_own_settings_before_the_runs_bucket(
    kind: str, env: dict[str, str], storage_kind: str
) -> None:
    assert choose_storage(env, kind=kind).kind == storage_kind


def test_lets_a_fork_only_read_the_users_own_storage() -> None:
    assert choose_storage({"SCCACHE_BUCKET": "mine"}, origin=FORK).access == "read-only"


def test_takes_the_option_before_the_users_own_settings() -> None:
    storage = choose_storage({"SCCACHE_BUCKET": "mine"}, location="s3://theirs/deep/")

    assert str(storage) == "s3://theirs/deep/cc/ci/sccache"


def test_takes_a_relative_folder_from_here() -> None:
    storage = choose_storage(kind="ccache", location="shared", release_type="nightly")

    assert storage.kind == "folder"
    assert storage.where == str(Path.cwd() / "shared/cc/nightly/ccache")


@pytest.mark.parametrize(
    ("kind", "location", "name"),
    [
        ("ccache", "s3://bucket", "S3"),
        ("sccache", "s3://", "bucket"),
        ("sccache", "http://host/c", "http:"),
        ("ccache", "https://host/c", "https:"),
        ("ccache", "redis://host", "redis://host"),
    ],
)
def test_rejects_a_storage_that_a_cache_cannot_use(kind: str, location: str, name: str) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        storage_at(kind, location)

    assert caught.value.hint


# The data


def test_the_data_keeps_release_types_apart() -> None:
    layout = cache_rules().layout
    release_types = run_buckets().release_types

    folders = {layout.format(release_type=release_type, kind="sccache") for release_type in release_types}

    assert len(folders) == len(release_types)


def test_rejects_a_layout_that_would_mix_entries_of_release_types() -> None:
    rules = cache_rules()

    with pytest.raises(ValidationError):
        type(rules).model_validate({**rules.model_dump(), "layout": "cache/{kind}"})


def test_the_data_keeps_forks_from_writing() -> None:
    access = cache_rules().access

    assert access == AccessRules(own="read-write", fork="read-only", shared="none")


def test_the_data_has_caches_for_every_release_type() -> None:
    caches = run_buckets().compiler_caches

    assert caches is not None
    assert caches.types.keys() == run_buckets().release_types.keys()


def test_the_data_keeps_prereleases_apart_from_all_other_caches() -> None:
    caches = run_buckets().compiler_caches

    assert caches is not None
    users = [release_type for release_type, cache in caches.types.items() if cache == "prerelease"]
    assert users == ["prerelease"]


# Statistics

COUNTERS = [
    "compile_requests",
    "compile_fails",
    "requests_unsupported_compiler",
    "requests_not_compile",
    "forced_recaches",
    "cache_timeouts",
    "cache_read_errors",
    "cache_write_errors",
    "non_cacheable_compilations",
]
# The statistics log of ccache 4.7.5 for a miss, a hit and one `gcc -E`.
RECORDED = Path(__file__).with_name("recorded")
CCACHE_LOG = RECORDED.joinpath("ccache-statistics.txt").read_text(encoding="utf-8")
CCACHE_LOG_WITH_ERRORS = (
    f"{CCACHE_LOG}# b.c\npreprocessed_cache_hit\nremote_storage_error\nremote_storage_timeout\n"
)


def sccache_output(**changes: Any) -> str:
    """Return the output of sccache 0.16.0 for one miss, one hit and one `gcc -E`, with changes."""
    once = {"counts": {"C/C++": 1}, "adv_counts": {"c [gcc]": 1}}
    stats = {
        **dict.fromkeys(COUNTERS, 0),
        "requests_not_cacheable": 1,
        "cache_writes": 1,
        "cache_hits": once,
        "cache_misses": once,
        "cache_errors": {"counts": {}},
        **changes,
    }
    return json.dumps({"stats": stats, "cache_location": "Local disk", "version": "0.16.0"})


SCCACHE_OUTPUT_OF_LANGUAGES = sccache_output(
    cache_hits={"counts": {"C/C++": 7, "HIP": 2}},
    cache_misses={"counts": {}},
    cache_errors={"counts": {"C/C++": 1}},
    cache_timeouts=1,
    cache_read_errors=1,
    cache_write_errors=1,
    requests_not_compile=3,
)


@pytest.mark.parametrize(
    ("kind", "output", "counts"),
    [
        pytest.param("ccache", CCACHE_LOG, [1, 1, 1, 0], id="ccache"),
        pytest.param("ccache", CCACHE_LOG_WITH_ERRORS, [2, 1, 1, 2], id="ccache, errors"),
        # Without a compilation there is no log.
        pytest.param("ccache", "", [0, 0, 0, 0], id="ccache, nothing"),
        pytest.param("sccache", sccache_output(), [1, 1, 1, 0], id="sccache"),
        pytest.param("sccache", SCCACHE_OUTPUT_OF_LANGUAGES, [9, 0, 4, 4], id="sccache, languages"),
    ],
)
def test_reads_the_statistics_of_each_cache(kind: str, output: str, counts: list[int]) -> None:
    statistics = parse_statistics(kind, output)

    assert [statistics[name] for name in ("hits", "misses", "uncacheable", "errors")] == counts


@pytest.mark.parametrize(("read_only", "errors"), [(False, 4), (True, 1)])
def test_counts_no_failed_write_of_a_cache_that_may_only_read(errors: int, *, read_only: bool) -> None:
    output = sccache_output(cache_write_errors=3, cache_read_errors=1)

    assert parse_statistics("sccache", output, read_only=read_only)["errors"] == errors


@pytest.mark.parametrize(
    ("output", "count"),
    [
        pytest.param(
            sccache_output(
                cache_misses={"counts": {"C/C++": 4, "HIP": 1}}, cache_writes=1, cache_write_errors=2
            ),
            2,
            id="some",
        ),
        pytest.param(sccache_output(), 0, id="none"),
        pytest.param("nothing", 0, id="no JSON"),
        pytest.param('{"stats": []}', 0, id="no counters"),
    ],
)
def test_counts_entries_that_are_still_to_be_stored(output: str, count: int) -> None:
    assert unwritten(output) == count


@pytest.mark.parametrize("kind", ["ccache", "sccache"])
@pytest.mark.parametrize("output", ["{}", "[]", '{"stats": []}', "cache_miss\tmany", "1\t2\t3"])
def test_rejects_output_that_no_cache_printed(kind: str, output: str) -> None:
    with pytest.raises(DataError, match=f"statistics of {kind}"):
        parse_statistics(kind, output)


@given(st.text())
def test_reads_any_log_of_ccache_or_rejects_it(output: str) -> None:
    try:
        statistics = parse_statistics("ccache", output)
    except DataError:
        return
    assert statistics.total() <= len(output.splitlines())


@given(st.text())
def test_rejects_any_output_of_sccache_that_has_no_counters(output: str) -> None:
    with pytest.raises(DataError):
        parse_statistics("sccache", output)
