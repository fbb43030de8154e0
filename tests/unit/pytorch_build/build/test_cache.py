import json
import os
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
SECRET = "of-the-run"  # noqa: S105 - of nobody
KEYS = S3Access(endpoint="http://127.0.0.1:9000", region="us-east-1", credentials=SECRET)
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


def launched(cache: CompilerCache | None, platform: str = "linux", rocm: str = "", **base_env: str) -> Any:
    return launcher_env(cache, platform=platform, rocm_version=rocm, by_cmake=True, base_env=base_env)


@pytest.mark.parametrize("cache", [CCACHE, SCCACHE])
def test_launchers(cache: CompilerCache) -> None:
    assert launched(None, rocm="7.13.0") == {}
    program = str(cache.program)
    plain = {"CMAKE_C_COMPILER_LAUNCHER": program, "CMAKE_CXX_COMPILER_LAUNCHER": program}
    assert launched(cache, rocm="7.12.9") == launched(cache, rocm="") == plain
    hip = {"HIP_CLANG_LAUNCHER": program} if cache.kind == "sccache" else {}
    for version in ("7.13.0.dev0+abc", "7.13.0a20260101", "7.99.0.dev0+sample", "10.1.0"):
        assert launched(cache, rocm=version) == plain | hip
    embedded = {"CMAKE_MSVC_DEBUG_INFORMATION_FORMAT": "Embedded"}
    assert launched(cache, "windows", "7.14.0") == plain | embedded


@pytest.mark.parametrize("cache", [CCACHE, SCCACHE])
def test_setup_py_gets_compilers_of_two_words(cache: CompilerCache) -> None:
    def wrapped(platform: str = "linux", **base_env: str) -> Any:
        return launcher_env(cache, platform=platform, rocm_version="", by_cmake=False, base_env=base_env)

    program = str(cache.program)
    assert wrapped() == {"CC": f"{program} cc", "CXX": f"{program} c++"}
    assert wrapped(CXX="/opt/g++ -m64") == {"CC": f"{program} cc", "CXX": f"{program} /opt/g++ -m64"}
    # the user's own wrapping is not wrapped again
    assert wrapped(CXX="/usr/lib/ccache/g++") == {"CC": f"{program} cc"}
    assert "CC" not in wrapped("windows"), "its compiler is found by Visual Studio's own means"


def test_the_server_alone_knows_the_store_and_its_credentials() -> None:
    env = server_env(BUCKET, address=ADDRESS, base_env=MINE, s3=KEYS, credentials="/run/s/credentials")
    assert env["SCCACHE_BUCKET"] == "bucket"
    assert env["SCCACHE_S3_KEY_PREFIX"] == "compiler-cache/ci/sccache"
    assert env["SCCACHE_ENDPOINT"] == "http://127.0.0.1:9000"
    assert env["SCCACHE_S3_USE_SSL"] == "false"
    assert (env["SCCACHE_REGION"], env["AWS_CONFIG_FILE"]) == ("us-east-1", os.devnull)
    assert env["AWS_SHARED_CREDENTIALS_FILE"] == "/run/s/credentials"
    assert env["SCCACHE_BASEDIRS"] == ADDRESS["SCCACHE_BASEDIRS"]
    assert env["SCCACHE_SERVER_UDS"] == "/run/s/socket"
    assert not {SECRET, "of-the-machine"} & set(env.values()), "compilers are tried out with it"
    # nothing of the user's own storage, profile or server is left, but how large a cache may be
    assert not {"AWS_PROFILE", "SCCACHE_REDIS", "SCCACHE_SERVER_PORT"} & env.keys()
    assert (env["SCCACHE_CONF"], env["SCCACHE_CACHE_SIZE"]) == (os.devnull, "5G")
    assert not [name for name in env if name.endswith("_RW_MODE")]
    assert SECRET not in repr(KEYS)

    # where there are none they are left to sccache
    for anonymous, name, value in (
        (False, "AWS_PROFILE", "mine"),
        (True, "SCCACHE_S3_NO_CREDENTIALS", "true"),
    ):
        access = S3Access(endpoint="https://s3", region="eu-1", anonymous=anonymous)
        own = server_env(BUCKET, address=ADDRESS, base_env=MINE, s3=access, credentials="/c")
        assert (own[name], own["SCCACHE_S3_USE_SSL"], own["AWS_PROFILE"]) == (value, "true", "mine")

    client = client_env(BUCKET, address=ADDRESS, env=MINE)
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


def test_who_may_only_read_stores_nothing_anywhere() -> None:
    env = server_env(READ_ONLY, address=ADDRESS, base_env={}, s3=KEYS)
    for backend in ("S3", "LOCAL", "GHA", "REDIS", "WEBDAV"):
        assert env[f"SCCACHE_{backend}_RW_MODE"] == "READ_ONLY"
    # neither does a server that a client starts in its place, nor ccache
    client = client_env(READ_ONLY, address=ADDRESS, env={})
    assert client["SCCACHE_LOCAL_RW_MODE"] == "READ_ONLY"
    assert (
        ccache_env(Storage(access="read-only"), log="/l", base_dir="/co", env={})["CCACHE_READONLY"] == "true"
    )


@pytest.mark.parametrize(
    ("storage", "gets"),
    [
        (Storage(kind="folder", where="/shared/cc"), {"SCCACHE_DIR": "/shared/cc", "SCCACHE_BUCKET": None}),
        (Storage(kind="own"), {"SCCACHE_BUCKET": "mine", "SCCACHE_CONF": "/home/me/sccache.toml"}),
        (Storage(), {"SCCACHE_DIR": "/mine", "SCCACHE_BUCKET": None}),
    ],
)
def test_folders_and_the_users_own_settings_of_sccache(storage: Storage, gets: dict[str, str | None]) -> None:
    env = server_env(storage, address=ADDRESS, base_env=MINE)
    assert {name: env.get(name) for name in gets} == gets


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
    own = {"CCACHE_BASEDIR": "/co", "CCACHE_NOHASHDIR": "true", "CCACHE_STATSLOG": "/run/c/log"}
    assert own.items() <= env.items()
    assert env["CCACHE_COMPILERCHECK"] == "content", "another machine's compiler has another date"
    kept = ccache_env(storage, log="/l", base_dir="/co", env={"CCACHE_COMPILERCHECK": "string:x"})
    assert kept["CCACHE_COMPILERCHECK"] == "string:x"
    assert "CCACHE_READONLY" not in env


BUCKETS = RunBuckets(
    repository="ROCm/TheRock",
    release_types={
        "ci": RunBucket(bucket="ours", external_bucket="everybodys"),
        "nightly": RunBucket(bucket="nightlies"),
    },
)
OWN = Origin(repository="rocm/therock")
FORK = Origin(repository="ROCm/TheRock", fork=True)
OTHER = Origin(repository="somebody/downstream")
RULES = cache_rules().model_copy(
    update={
        "layout": "cc/{release_type}/{kind}",
        "access": AccessRules(own="read-write", fork="read-only", shared="none"),
    }
)
WANTED = Wanted(cache=SCCACHE, store="s3://ours", origin=OWN, buckets=BUCKETS)


def chosen(wanted: Wanted = WANTED, env: dict[str, str] | None = None, **changes: object) -> Storage:
    own = {name: changes.pop(name) for name in ("kind", "location", "read_only") if name in changes}
    wanted = replace(wanted, cache=replace(wanted.cache, **own), **changes)  # type: ignore[arg-type]
    return storage_for(wanted, rules=RULES, env=env or {})


def test_the_data_keeps_release_types_apart_and_forks_from_writing() -> None:
    rules = cache_rules()
    places = {rules.layout.format(release_type=one, kind="sccache") for one in run_buckets().release_types}
    assert len(places) == len(run_buckets().release_types)
    assert (rules.access.own, rules.access.fork, rules.access.shared) == ("read-write", "read-only", "none")
    with pytest.raises(ValidationError, match="entries would mix"):
        type(rules).model_validate({**rules.model_dump(), "layout": "cache/{kind}"})
    caches = run_buckets().compiler_caches
    assert caches is not None
    assert caches.types.keys() == run_buckets().release_types.keys()
    assert [one for one in caches.types.items() if one[1] == "prerelease"] == [("prerelease", "prerelease")]


CACHES = CompilerCaches(
    region="us-east-1", bucket="caches-{type}", role="", session_seconds=21600, types={"ci": "ci"}
)
WITH_CACHES = BUCKETS.model_copy(update={"compiler_caches": CACHES})
OTHERS = "s3://everybodys"


@pytest.mark.parametrize(
    ("changes", "storage", "access"),
    [
        ({}, "s3://ours/cc/ci/sccache", "read-write"),
        (
            {"store": "s3://nightlies", "release_type": "nightly"},
            "s3://nightlies/cc/nightly/sccache",
            "read-write",
        ),
        # without a bucket the cache is local, and ccache does not speak S3
        ({"store": "out"}, "local", "read-write"),
        ({"kind": "ccache"}, "local", "read-write"),
        # runs in the main repository's buckets have one for caches
        ({"buckets": WITH_CACHES}, "s3://caches-ci/cc/ci/sccache", "read-write"),
        (
            {"buckets": WITH_CACHES, "store": OTHERS, "origin": FORK},
            "s3://caches-ci/cc/ci/sccache",
            "read-only",
        ),
        ({"buckets": WITH_CACHES, "store": OTHERS, "origin": OTHER}, f"{OTHERS}/cc/ci/sccache", "none"),
        # what a fork compiles reaches nothing else; entries that it reads are the main repository's
        ({"store": OTHERS, "origin": FORK}, "s3://ours/cc/ci/sccache", "read-only"),
        ({"location": OTHERS, "store": "out", "origin": FORK}, "s3://ours/cc/ci/sccache", "read-only"),
        ({"location": "s3://mine", "origin": FORK}, "s3://mine/cc/ci/sccache", "read-only"),
        ({"location": "/shared", "origin": FORK}, "/shared/cc/ci/sccache", "read-only"),
        ({"location": "local", "origin": FORK}, "local", "read-only"),
        ({"kind": "ccache", "location": "http://host/c", "origin": FORK}, "http://host/c", "read-only"),
        (
            {"store": "s3://theirs", "origin": replace(FORK, repository="some/other")},
            "s3://theirs/cc/ci/sccache",
            "read-only",
        ),
        # a bucket that other repositories write to is not trusted
        ({"store": OTHERS, "origin": OTHER}, f"{OTHERS}/cc/ci/sccache", "none"),
        (
            {"location": "s3://ours", "store": "out", "origin": OTHER, "read_only": True},
            "s3://ours/cc/ci/sccache",
            "none",
        ),
        ({"store": "s3://theirs", "origin": OTHER}, "s3://theirs/cc/ci/sccache", "read-write"),
        # the option can take writing away
        ({"read_only": True}, "s3://ours/cc/ci/sccache", "read-only"),
        # credentials of an address are not shown
        (
            {"kind": "ccache", "location": "http://me:secret@host:8080/c|layout=flat"},
            "http://host:8080/c",
            "read-write",
        ),
    ],
)
def test_where_entries_lie_and_who_may_do_what(changes: dict[str, Any], storage: str, access: str) -> None:
    found = chosen(**changes)
    assert (str(found), found.access) == (storage, access)


def test_the_users_own_settings_go_before_the_runs_bucket_and_after_the_option() -> None:
    mine = {"SCCACHE_BUCKET": "mine"}
    assert chosen(env=mine).kind == "own"
    assert chosen(env=mine, origin=FORK).access == "read-only"
    assert chosen(env={"CCACHE_REMOTE_STORAGE": "redis://mine"}, kind="ccache").kind == "own"
    assert chosen(env={"SCCACHE_BUCKET": "", "SCCACHE_DIR": "/mine"}).kind == "s3"
    assert str(chosen(env=mine, location="s3://theirs/deep/")) == "s3://theirs/deep/cc/ci/sccache"
    folder = chosen(kind="ccache", location="shared", release_type="nightly")
    assert (folder.kind, folder.where) == ("folder", os.path.abspath("shared/cc/nightly/ccache"))  # noqa: PTH100


@pytest.mark.parametrize(
    ("kind", "location", "said"),
    [
        ("ccache", "s3://bucket", "ccache does not speak S3"),
        ("sccache", "s3://", "names no bucket"),
        ("sccache", "http://host/c", "sccache cannot use http: addresses"),
        ("ccache", "https://host/c", "ccache cannot use https: addresses"),
        ("ccache", "redis://host", "is not a store"),
    ],
)
def test_what_a_cache_cannot_use_is_refused(kind: str, location: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        storage_at(kind, location)
    assert refused.value.hint


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


def sccache_text(**changes: Any) -> str:
    """Output of sccache 0.16.0 for one miss, one hit and one `gcc -E`, with changes."""
    one = {"counts": {"C/C++": 1}, "adv_counts": {"c [gcc]": 1}}
    some = {"requests_not_cacheable": 1, "cache_writes": 1, "cache_hits": one, "cache_misses": one}
    stats = {**dict.fromkeys(COUNTERS, 0), **some, "cache_errors": {"counts": {}}, **changes}
    return json.dumps({"stats": stats, "cache_location": "Local disk", "version": "0.16.0"})


# The statistics log of ccache 4.7.5 for a miss, a hit and one `gcc -E`.
CCACHE_TEXT = Path(__file__).with_name("recorded").joinpath("ccache-statistics.txt").read_text()


LANGUAGES = sccache_text(
    cache_hits={"counts": {"C/C++": 7, "HIP": 2}},
    cache_misses={"counts": {}},
    cache_errors={"counts": {"C/C++": 1}},
    cache_timeouts=1,
    cache_read_errors=1,
    cache_write_errors=1,
    requests_not_compile=3,
)
REMOTE = CCACHE_TEXT + "# b.c\npreprocessed_cache_hit\nremote_storage_error\nremote_storage_timeout\n"


@pytest.mark.parametrize(
    ("kind", "text", "counted"),
    [
        ("ccache", CCACHE_TEXT, (1, 1, 1, 0)),
        ("ccache", REMOTE, (2, 1, 1, 2)),
        ("ccache", "", (0, 0, 0, 0)),  # without a compilation there is no log
        ("sccache", sccache_text(), (1, 1, 1, 0)),
        ("sccache", LANGUAGES, (9, 0, 4, 4)),
    ],
)
def test_statistics(kind: str, text: str, counted: tuple[int, ...]) -> None:
    found = parse_statistics(kind, text)
    assert tuple(found[name] for name in ("hits", "misses", "uncacheable", "errors")) == counted


def test_entries_that_could_or_may_not_be_stored() -> None:
    text = sccache_text(cache_write_errors=3, cache_read_errors=1)
    assert parse_statistics("sccache", text)["errors"] == 4
    assert parse_statistics("sccache", text, read_only=True)["errors"] == 1
    misses = {"counts": {"C/C++": 4, "HIP": 1}}
    assert unwritten(sccache_text(cache_misses=misses, cache_writes=1, cache_write_errors=2)) == 2
    assert unwritten(sccache_text()) == unwritten("nothing") == unwritten('{"stats": []}') == 0


@pytest.mark.parametrize("kind", ["ccache", "sccache"])
@pytest.mark.parametrize("text", ["{}", "[]", '{"stats": []}', "cache_miss\tmany", "1\t2\t3"])
def test_what_no_cache_printed_is_refused(kind: str, text: str) -> None:
    with pytest.raises(DataError, match=f"statistics of {kind}"):
        parse_statistics(kind, text)


@given(st.text(), st.sampled_from(["ccache", "sccache"]))
def test_any_text_is_read_or_refused(text: str, kind: str) -> None:
    try:
        found = parse_statistics(kind, text)
    except DataError:
        return
    assert kind == "ccache"
    assert found.total() <= len(text.splitlines())
