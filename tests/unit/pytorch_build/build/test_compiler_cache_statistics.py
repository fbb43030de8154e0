from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import DataError
from pytorch_build.build.compiler_cache_statistics import CacheStatistics, parse_statistics, unwritten


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


# The statistics log of ccache 4.7.5 for a miss, a hit and one `gcc -E`.
CCACHE_TEXT = """\
# a.c
cache_miss
direct_cache_miss
local_storage_miss
local_storage_write
preprocessed_cache_miss
# a.c
direct_cache_hit
local_storage_hit
# a.c
called_for_preprocessing
"""


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


def test_ccache_without_a_compilation_leaves_no_log() -> None:
    found = parse_statistics("ccache", "")
    assert (found.hits, found.misses, found.errors) == (0, 0, 0)


def test_errors_of_ccaches_remote_storage_are_counted() -> None:
    text = CCACHE_TEXT + "# b.c\npreprocessed_cache_hit\nremote_storage_error\nremote_storage_timeout\n"
    found = parse_statistics("ccache", text)
    assert (found.hits, found.misses, found.errors) == (2, 1, 2)


def test_what_sccache_may_not_store_is_no_error() -> None:
    text = sccache_text(cache_write_errors=3, cache_read_errors=1)
    assert parse_statistics("sccache", text).errors == 4
    assert parse_statistics("sccache", text, read_only=True).errors == 1


def test_two_servers_of_one_build_are_added_up() -> None:
    one = CacheStatistics(kind="sccache", hits=1, misses=2, uncacheable=3, errors=4)
    two = CacheStatistics(kind="sccache", hits=10, misses=20, uncacheable=30, errors=40)
    assert one + two == CacheStatistics(kind="sccache", hits=11, misses=22, uncacheable=33, errors=44)


def test_entries_that_are_still_to_be_stored_are_counted() -> None:
    misses = {"counts": {"C/C++": 4, "HIP": 1}}
    assert unwritten(sccache_text(cache_misses=misses, cache_writes=1, cache_write_errors=2)) == 2
    assert unwritten(sccache_text()) == 0
    assert unwritten("nothing") == unwritten('{"stats": []}') == 0


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
    assert found.hits + found.misses <= len(text.splitlines())
