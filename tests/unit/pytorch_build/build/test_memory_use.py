from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from pytorch_build.build.metrics import MOST_SAMPLES, Samples, memory_use, watched

if TYPE_CHECKING:
    from pathlib import Path

SAID = "MemTotal:       16384 kB\nMemFree:  1 kB\nMemAvailable:    4096 kB\n"


def test_what_is_used_is_what_is_not_available() -> None:
    assert memory_use(SAID) == ((16384 - 4096) * 1024, 16384 * 1024)
    assert memory_use("MemTotal: 5 kB\n") is None
    assert memory_use("") is None


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=3 * MOST_SAMPLES))
def test_samples_are_bounded_and_keep_the_peak(used: list[int]) -> None:
    samples = Samples()
    for one in used:
        samples.add(one, 1 << 40)
    details = samples.details
    assert details is not None
    assert details["peak"] == max(used) == max(details["used"])
    assert 0 < len(details["used"]) <= MOST_SAMPLES
    assert details["total"] == 1 << 40


def test_a_machine_is_watched_while_something_runs(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(SAID)
    with watched(meminfo) as samples:
        deadline = time.monotonic() + 10
        while samples.details is None and time.monotonic() < deadline:
            time.sleep(0.01)
    assert samples.details == {"peak": 12582912, "total": 16777216, "used": [12582912]}


def test_where_nothing_can_be_seen_nothing_is_said(tmp_path: Path) -> None:
    with watched(tmp_path / "absent") as samples:
        pass
    assert samples.details is None
