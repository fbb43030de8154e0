"""Stages in time, and the critical path: which chain of stages the end depended on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ci.report.model import Bar, Idle, StageRun, Step, TimeLine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COMPANIONS = ("build_audio", "build_vision", "build_apex")
# what a stage waits for, as `nox` and the workflows run them
NEEDS: Mapping[str, tuple[str, ...]] = {
    "build_rocm": ("fetch_artifacts",),
    "test_rocm": ("build_rocm",),
    "build_triton": ("build_rocm",),
    "build_torch": ("build_triton", "build_rocm"),
    **dict.fromkeys(_COMPANIONS, ("build_torch",)),
    "test_smoke": (*_COMPANIONS, "build_torch", "build_triton"),
    "test_torch": ("test_smoke", "build_torch"),
}
# records name a start to the second
_TOLERANCE = 1.5
# idle time is drawn as at most this part of the time in which something ran
_SHOWN_IDLE = 0.05


@dataclass(frozen=True, kw_only=True)
class _Span:
    run: StageRun
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class _Cut:
    """An idle time, in seconds after the first start."""

    start: float
    end: float
    drawn: float


def time_line(stages: Sequence[StageRun]) -> TimeLine:
    """Lay stages out in time."""
    spans = _spans(stages)
    if not spans:
        return TimeLine()
    path = _critical(spans)
    first, elapsed = spans[0].start, max(span.end for span in spans) - spans[0].start
    cuts = _cuts(spans)
    on_path = {span.run.stage for span in path}
    bars = tuple(
        Bar(
            stage=span.run.stage,
            state=span.run.state,
            start=_drawn(span.start - first, cuts),
            seconds=span.run.seconds,
            critical=span.run.stage in on_path,
        )
        for span in spans
    )
    return TimeLine(
        bars=bars,
        length=max(_drawn(elapsed, cuts), 0.001),
        elapsed=round(elapsed, 3),
        idle=tuple(
            Idle(at=round(_drawn(cut.end, cuts) - cut.drawn / 2, 3), seconds=round(cut.end - cut.start, 3))
            for cut in cuts
        ),
        path=_steps(path),
    )


def moment(started: str) -> float | None:
    """Read when a stage began, in seconds since 1970; None where it does not say."""
    try:
        read = datetime.fromisoformat(started)
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def _spans(stages: Sequence[StageRun]) -> list[_Span]:
    known = [(run, moment(run.started)) for run in stages]
    spans = [
        _Span(run=run, start=start, end=start + run.seconds) for run, start in known if start is not None
    ]
    return sorted(spans, key=lambda span: (span.start, span.end, span.run.stage))


def _critical(spans: Sequence[_Span]) -> list[_Span]:
    """Walk back from the last end: to the needed stage that ended last before each began."""
    at = max(spans, key=lambda span: (span.end, span.run.stage))
    path = [at]
    while True:
        needed = NEEDS.get(_kind(at.run.stage), ())
        before = [
            span
            for span in spans
            if _kind(span.run.stage) in needed and span.end <= at.start + _TOLERANCE and span not in path
        ]
        if not before:
            return path[::-1]
        at = max(before, key=lambda span: (span.end, span.run.stage))
        path.append(at)


def _kind(stage: str) -> str:
    """Name a stage without its shard and configuration."""
    first = stage.partition("-")[0]
    return "test_torch" if first.startswith("test_torch") else first


def _steps(path: Sequence[_Span]) -> tuple[Step, ...]:
    ends = [path[0].start, *(span.end for span in path)]
    return tuple(
        Step(stage=span.run.stage, seconds=span.run.seconds, waited=round(max(0.0, span.start - end), 3))
        for span, end in zip(path, ends, strict=False)
    )


def _cuts(spans: Sequence[_Span]) -> list[_Cut]:
    """Find the idle times that are drawn shorter than they were."""
    first, busy, end = spans[0].start, 0.0, spans[0].start
    gaps: list[tuple[float, float]] = []
    for span in spans:
        if span.start > end:
            gaps.append((end - first, span.start - first))
        busy += max(0.0, span.end - max(end, span.start))
        end = max(end, span.end)
    shown = max(busy * _SHOWN_IDLE, 1.0)
    return [_Cut(start=start, end=end, drawn=shown) for start, end in gaps if end - start > shown]


def _drawn(at: float, cuts: Sequence[_Cut]) -> float:
    """Say where a moment is drawn, both in seconds after the first start; it is in no cut's midst."""
    return round(at - sum(cut.end - cut.start - cut.drawn for cut in cuts if cut.end <= at), 3)
