from __future__ import annotations

import json
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import DataError, UsageError
from pytorch_build.builds.compiler_cache import (
    CacheStatistics,
    CompilerCache,
    launcher_env,
    parse_statistics,
    statistics_command,
    zero_command,
)

CCACHE = CompilerCache(kind="ccache", program=PurePosixPath("/usr/bin/ccache"))
SCCACHE = CompilerCache(kind="sccache", program=PurePosixPath("/opt/bin/sccache"))


def sccache_text(**changes: Any) -> str:
    """Output of sccache 0.16.0 for one miss, one hit and one `gcc -E`, with changes."""
    stats = {
        "compile_requests": 3,
        "requests_unsupported_compiler": 0,
        "requests_not_compile": 0,
        "requests_not_cacheable": 1,
        "requests_executed": 2,
        "cache_errors": {"counts": {}, "adv_counts": {}},
        "cache_hits": {"counts": {"C/C++": 1}, "adv_counts": {"c [gcc]": 1}},
        "cache_misses": {"counts": {"C/C++": 1}, "adv_counts": {"c [gcc]": 1}},
        "cache_timeouts": 0,
        "cache_read_errors": 0,
        "non_cacheable_compilations": 0,
        "forced_recaches": 0,
        "cache_write_errors": 0,
        "cache_writes": 1,
        "cache_write_duration": {"secs": 0, "nanos": 208078},
        "compile_fails": 0,
        "not_cached": {"-E": 1},
    } | changes
    return json.dumps({"stats": stats, "cache_location": "Local disk", "version": "0.16.0"})


# Output of ccache 4.7.5 for the same three calls, shortened by counters that are 0.
CCACHE_TEXT = """\
autoconf_test\t0
cache_miss\t1
cache_size_kibibyte\t8
called_for_link\t0
called_for_preprocessing\t1
direct_cache_hit\t1
direct_cache_miss\t1
files_in_cache\t2
internal_error\t0
local_storage_hit\t1
local_storage_miss\t1
preprocessed_cache_hit\t0
preprocessed_cache_miss\t1
stats_updated_timestamp\t1795271467
stats_zeroed_timestamp\t1795271467
"""


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


def test_commands() -> None:
    assert zero_command(CCACHE) == ("/usr/bin/ccache", "--zero-stats")
    assert statistics_command(CCACHE) == ("/usr/bin/ccache", "--print-stats")
    assert zero_command(SCCACHE) == ("/opt/bin/sccache", "--zero-stats")
    assert statistics_command(SCCACHE) == ("/opt/bin/sccache", "--show-stats", "--stats-format", "json")


def test_a_cache_of_unknown_kind_or_place_is_refused() -> None:
    with pytest.raises(UsageError, match="'cache'"):
        CompilerCache(kind="cache", program=PurePosixPath("/usr/bin/ccache"))
    with pytest.raises(UsageError, match="absolute path"):
        CompilerCache(kind="ccache", program=PurePosixPath("ccache"))


def test_statistics_of_ccache() -> None:
    assert parse_statistics("ccache", CCACHE_TEXT) == CacheStatistics(
        kind="ccache", hits=1, misses=1, uncacheable=1, errors=0
    )


def test_statistics_of_sccache() -> None:
    found = parse_statistics("sccache", sccache_text())
    assert found == CacheStatistics(kind="sccache", hits=1, misses=1, uncacheable=1, errors=0)
    assert found.hit_rate == 0.5


def test_statistics_of_sccache_add_languages_and_errors() -> None:
    text = sccache_text(
        cache_hits={"counts": {"C/C++": 7, "HIP": 2}},
        cache_misses={"counts": {}},
        cache_errors={"counts": {"C/C++": 1}},
        cache_timeouts=1,
        cache_read_errors=1,
        cache_write_errors=1,
        requests_not_compile=3,
    )
    found = parse_statistics("sccache", text)
    assert found == CacheStatistics(kind="sccache", hits=9, misses=0, uncacheable=4, errors=4)
    assert found.hit_rate == 1.0


def test_a_build_that_compiled_nothing_has_no_hits() -> None:
    assert CacheStatistics(kind="ccache", hits=0, misses=0, uncacheable=0, errors=0).hit_rate == 0.0


@pytest.mark.parametrize("kind", ["ccache", "sccache"])
@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"stats": []}', "cache_miss\tmany", "cache_miss", "1\t2\t3"]
)
def test_what_no_cache_printed_is_refused(kind: str, text: str) -> None:
    with pytest.raises(DataError, match=f"statistics of {kind}"):
        parse_statistics(kind, text)


@given(st.text(), st.sampled_from(["ccache", "sccache"]))
def test_any_text_is_read_or_refused(text: str, kind: str) -> None:
    with pytest.raises(DataError):
        parse_statistics(kind, text)
