from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.report.cells import moment, time_line
from ci.report.model import StageRun

BEGAN = datetime(2026, 11, 21, tzinfo=UTC)


def stage(name: str, start: float, seconds: float) -> StageRun:
    started = (BEGAN + timedelta(seconds=start)).isoformat()
    return StageRun(stage=name, state="ok", started=started, seconds=seconds)


def test_the_critical_path_is_what_the_end_waited_for() -> None:
    line = time_line(
        [
            stage("build_rocm", 0, 100),
            stage("build_triton", 100, 20),
            stage("build_torch", 121, 500),
            stage("build_audio", 622, 30),
            stage("build_vision", 622, 60),
            stage("test_smoke", 690, 10),
        ]
    )
    assert [(step.stage, step.waited) for step in line.path] == [
        ("build_rocm", 0),
        ("build_triton", 0),
        ("build_torch", 1),
        ("build_vision", 1),
        ("test_smoke", 8),
    ]
    assert [bar.stage for bar in line.bars if not bar.critical] == ["build_audio"]
    assert line.elapsed == 700
    assert line.idle == ()


def test_shards_of_a_configuration_wait_as_their_stage_does() -> None:
    line = time_line([stage("test_smoke", 0, 5), stage("test_torch_distributed-2-of-6", 6, 9)])
    assert [step.stage for step in line.path] == ["test_smoke", "test_torch_distributed-2-of-6"]


def test_a_stage_that_ran_again_after_those_that_need_it_is_no_part_of_their_path() -> None:
    line = time_line([stage("build_torch", 50, 10), stage("test_smoke", 20, 100)])
    assert [step.stage for step in line.path] == ["test_smoke"]


def test_long_idle_times_are_drawn_short() -> None:
    line = time_line([stage("build_torch", 0, 100), stage("test_smoke", 100_000, 100)])
    assert line.elapsed == 100_100
    assert [round(cut.seconds) for cut in line.idle] == [99_900]
    assert line.length == pytest.approx(210)
    assert line.bars[1].start == pytest.approx(110)
    assert line.bars[0].seconds <= line.idle[0].at <= line.bars[1].start


def test_stages_without_a_start_are_not_drawn() -> None:
    assert time_line([StageRun(stage="build_torch", state="missing")]).bars == ()
    assert moment("yesterday") is None
    assert moment("") is None


spans = st.tuples(
    st.sampled_from(["build_rocm", "build_torch", "build_audio", "test_smoke", "x"]),
    st.floats(0, 1e7),
    st.floats(0, 1e6),
)


@given(st.lists(spans, min_size=1, max_size=9, unique_by=lambda one: one[0]))
def test_every_bar_lies_within_the_drawing(found: list[tuple[str, float, float]]) -> None:
    line = time_line([stage(*one) for one in found])
    assert len(line.bars) == len(found)
    for bar in line.bars:
        assert bar.start >= -0.01
        assert bar.start + bar.seconds <= line.length + 0.1
    assert line.length <= line.elapsed + 10
    names = [step.stage for step in line.path]
    assert 0 < len(names) == len(set(names))
