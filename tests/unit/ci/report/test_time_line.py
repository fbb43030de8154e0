"""The stages of a cell in time, as they are drawn."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.report.model import StageRun, TimeLine
from ci.report.time_line import make_time_line, read_moment

BEGAN = datetime(2026, 11, 21, tzinfo=UTC)

Span = tuple[float, float]


def line_of(spans: dict[str, Span]) -> TimeLine:
    """Return the time line of stages: when each started, and how many seconds it took."""
    stages: list[StageRun] = []
    for name, (start, seconds) in spans.items():
        started = (BEGAN + timedelta(seconds=start)).isoformat()
        stages.append(
            StageRun(
                stage=name,
                state="ok",
                started=started,
                seconds=seconds,
            )
        )
    return make_time_line(stages)


def path_of(line: TimeLine) -> list[str]:
    return [step.stage for step in line.critical_path]


def test_the_critical_path_is_what_the_end_waited_for() -> None:
    line = line_of(
        {
            "build_rocm": (0, 100),
            "build_triton": (100, 20),
            "build_torch": (121, 500),
            "build_audio": (622, 30),
            "build_vision": (622, 60),
            "test_smoke": (690, 10),
        }
    )

    assert path_of(line) == ["build_rocm", "build_triton", "build_torch", "build_vision", "test_smoke"]
    rocm, triton, torch, vision, smoke = line.critical_path
    assert rocm.waited == triton.waited == 0
    assert torch.waited == vision.waited == 1
    assert smoke.waited == 8
    assert line.elapsed == 700
    assert line.idle == ()


def test_a_shard_waits_as_its_stage_does() -> None:
    line = line_of({"test_smoke": (0, 5), "test_torch_distributed-2-of-6": (6, 9)})

    assert path_of(line) == ["test_smoke", "test_torch_distributed-2-of-6"]


def test_a_stage_that_ran_again_later_is_not_on_the_path() -> None:
    line = line_of({"build_torch": (50, 10), "test_smoke": (20, 100)})

    assert path_of(line) == ["test_smoke"]


def test_the_critical_path_ends_where_the_pipeline_does() -> None:
    line = line_of(
        {
            "build_torch": (0, 100),
            "test_smoke": (101, 30),
            "build_rocm": (200, 0.8),
        }
    )

    assert path_of(line) == ["build_torch", "test_smoke"]


def test_a_stage_without_a_start_is_not_drawn() -> None:
    assert make_time_line([StageRun(stage="build_torch", state="missing")]).bars == ()


@pytest.mark.parametrize("text", ["yesterday", ""])
def test_text_that_is_no_time_is_no_moment(text: str) -> None:
    assert read_moment(text) is None


def test_folds_a_long_idle_time_and_draws_a_short_one() -> None:
    line = line_of(
        {
            "build_rocm": (0, 60),
            "build_torch": (89, 60),
            "test_smoke": (329, 60),
        }
    )

    (gap,) = line.idle
    assert gap.seconds == 180
    # 29 s after builds of a minute are drawn as they were.
    assert line.bars[1].start == 89
    assert line.elapsed == 389
    assert line.busy == 180


@pytest.fixture
def line_with_two_gaps() -> TimeLine:
    return line_of(
        {
            "build_rocm": (0, 20),
            "build_torch": (49, 20),
            "test_smoke": (249, 20),
        }
    )


def test_draws_a_longer_gap_wider(line_with_two_gaps: TimeLine) -> None:
    short, long = line_with_two_gaps.idle

    assert short.seconds == 29
    assert long.seconds == 180
    assert short.width * 1.5 < long.width < 20


def test_the_time_axis_restarts_after_each_gap(line_with_two_gaps: TimeLine) -> None:
    short, long = line_with_two_gaps.idle

    ticks = line_with_two_gaps.ticks

    assert ticks[0].position == 0
    assert ticks[2].position == pytest.approx(short.start + short.width)
    assert ticks[4].position == pytest.approx(long.start + long.width)
    assert [tick.label for tick in ticks] == ["0", "20 s"] * 3


def test_the_time_axis_ends_with_a_round_time() -> None:
    line = line_of({"build_torch": (0, 4 * 3600)})

    assert line.ticks[-1].label == "4 h"
    assert line.ticks[-1].anchor == "end"


def test_the_last_label_does_not_lie_on_the_one_before() -> None:
    line = line_of({"build_torch": (0, 306)})

    assert line.ticks[-2].label == "4 min"
    assert line.ticks[-1].label == ""


@given(
    st.dictionaries(
        st.sampled_from(["build_rocm", "build_torch", "build_audio", "test_smoke", "x"]),
        st.tuples(st.floats(0, 1e7), st.floats(0, 1e6)),
        min_size=1,
    )
)
def test_draws_every_stage_within_the_make_time_line(spans: dict[str, Span]) -> None:
    line = line_of(spans)

    assert len(line.bars) == len(spans)
    for bar in line.bars:
        assert bar.start >= -0.01
        assert bar.start + bar.seconds <= line.length + 0.1
    for position, *_ in line.ticks:
        assert 0 <= position <= line.length + 0.1


@given(
    st.dictionaries(
        st.sampled_from(["build_rocm", "build_torch", "build_audio", "test_smoke", "x"]),
        st.tuples(st.floats(0, 1e7), st.floats(0, 1e6)),
        min_size=1,
    )
)
def test_a_time_line_is_no_longer_than_the_time_that_passed(spans: dict[str, Span]) -> None:
    line = line_of(spans)

    assert line.length <= line.elapsed + 10
    assert line.busy <= line.elapsed + 0.1
    assert len(line.ticks) <= 8 + len(line.idle)
    assert len(path_of(line)) == len(set(path_of(line))) > 0
