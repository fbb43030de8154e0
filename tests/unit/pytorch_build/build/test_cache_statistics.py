import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import DataError
from pytorch_build.build.cache import (
    CacheStatistics,
    read_ccache_statistics,
    read_sccache_statistics,
)

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
    ("log", "statistics"),
    [
        pytest.param(CCACHE_LOG, CacheStatistics(hits=1, misses=1, uncacheable=1), id="hit, miss, gcc -E"),
        pytest.param(
            CCACHE_LOG_WITH_ERRORS, CacheStatistics(hits=2, misses=1, uncacheable=1, errors=2), id="errors"
        ),
        pytest.param("", CacheStatistics(), id="no compilation"),
    ],
)
def test_reads_the_log_of_ccache(log: str, statistics: CacheStatistics) -> None:
    assert read_ccache_statistics(log) == statistics


@pytest.mark.parametrize(
    ("output", "statistics"),
    [
        pytest.param(
            sccache_output(), CacheStatistics(hits=1, misses=1, uncacheable=1), id="hit, miss, gcc -E"
        ),
        pytest.param(
            SCCACHE_OUTPUT_OF_LANGUAGES,
            CacheStatistics(hits=9, misses=0, uncacheable=4, errors=4, unwritten=-2),
            id="languages",
        ),
        pytest.param(
            sccache_output(cache_misses={"counts": {"C/C++": 4, "HIP": 1}}, cache_writes=1),
            CacheStatistics(hits=1, misses=5, uncacheable=1, unwritten=4),
            id="entries still to be stored",
        ),
    ],
)
def test_reads_the_output_of_sccache(output: str, statistics: CacheStatistics) -> None:
    assert read_sccache_statistics(output) == statistics


@pytest.mark.parametrize(("read_only", "errors"), [(False, 4), (True, 1)])
def test_counts_no_failed_write_of_a_cache_that_may_only_read(errors: int, *, read_only: bool) -> None:
    output = sccache_output(cache_write_errors=3, cache_read_errors=1)

    assert read_sccache_statistics(output, read_only=read_only).errors == errors


@pytest.mark.parametrize("output", ["", "{}", "[]", '{"stats": []}', "cache_miss"])
def test_rejects_output_that_sccache_did_not_print(output: str) -> None:
    with pytest.raises(DataError, match="sccache"):
        read_sccache_statistics(output)


@pytest.mark.parametrize("log", ["{}", "cache_miss\tmany", "1\t2\t3"])
def test_rejects_a_log_that_ccache_did_not_write(log: str) -> None:
    with pytest.raises(DataError, match="ccache"):
        read_ccache_statistics(log)


@given(st.text())
def test_reads_any_log_of_ccache_or_rejects_it(log: str) -> None:
    try:
        statistics = read_ccache_statistics(log)
    except DataError:
        return
    assert statistics.hits + statistics.misses + statistics.uncacheable <= len(log.splitlines())
