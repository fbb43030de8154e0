"""The stages of a cell in time, as they are drawn.

The critical path is the chain of stages that the end depended on. Long idle times are folded: drawn shorter
than they were.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from math import log2
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

from ci.report.model import Bar, IdleTime, StageRun, Tick, TimeLine
from pytorch_build.components import COMPONENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

# Records name a start to the second.
_TOLERANCE = 1.5

# An idle time longer than this part of the busy time is folded.
_LONGEST_IDLE = 0.2
_SHORTEST_FOLDED = 2.0  # seconds
# A folded time takes this part of the drawing, more with each doubling of its length, up to the widest.
_FOLD_WIDTH = 0.06
_FOLD_GROWTH = 0.02
_WIDEST_FOLD = 0.19

_MOST_TICKS = 6
_UNITS: Mapping[str, int] = {
    "s": 1,
    "min": 60,
    "h": 3600,
    "d": 86400,
}
_COUNTS = (1, 2, 5, 10, 20, 30)
# The widest label, as a part of the drawing on a phone.
_LABEL_WIDTH = 0.1
_TWO_LABELS = 0.22

# Drawn positions are rounded to milliseconds.
_ROUNDING = 0.002
_SHORTEST_LINE = 0.001


def _needs_of_builds() -> Mapping[str, tuple[str, ...]]:
    """Return what the build of each component waits for, in build order."""
    needs: dict[str, tuple[str, ...]] = {}
    for name, component in COMPONENTS.items():
        earlier_builds = [f"build_{earlier_name}" for earlier_name in component.built_first]
        needs[f"build_{name}"] = (*earlier_builds, "build_rocm")
    return needs


# What a stage waits for, in the pipeline's order.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "build_rocm": ("fetch_artifacts",),
    "test_rocm": ("build_rocm",),
    **_needs_of_builds(),
    "test_smoke": tuple(_needs_of_builds()),
    "test_torch": ("test_smoke", "build_torch"),
}


@dataclass(frozen=True, kw_only=True)
class _Span:
    """A stage that took time, from its first moment to its last, in seconds since 1970."""

    start: float
    end: float
    run: StageRun

    @property
    def stage(self) -> str:
        return self.run.stage


def make_time_line(stage_runs: Iterable[StageRun]) -> TimeLine:
    """Lay stages out in time."""
    spans = list(_spans(stage_runs))
    spans.sort(key=attrgetter("start", "end", "stage"))
    if not spans:
        return TimeLine()

    first_start = spans[0].start
    last_end = max(span.end for span in spans)
    elapsed = last_end - first_start
    gaps = _gaps(spans)
    busy = elapsed - sum(gaps.values())
    folds = _fold(gaps, busy)
    drawn_end = _drawn(round(elapsed, 3), folds)
    length = max(drawn_end, _SHORTEST_LINE)

    waits = _waits_on_critical_path(spans)
    bars: list[Bar] = []
    for span in spans:
        after = span.start - first_start
        bar = Bar(
            stage=span.stage,
            start=_drawn(after, folds),
            after=round(after, 3),
            seconds=span.run.seconds,
            critical=span.stage in waits,
            waited=round(waits.get(span.stage, 0.0), 3),
        )
        bars.append(bar)
    return TimeLine(
        bars=tuple(bars),
        started=spans[0].run.started,
        length=length,
        elapsed=round(elapsed, 3),
        busy=round(busy, 3),
        idle=tuple(folds),
        ticks=tuple(_ticks(length, folds)),
    )


def _spans(stage_runs: Iterable[StageRun]) -> Iterator[_Span]:
    """Yield the stages that took some of the run's time: not what was borrowed, or is of earlier wheels."""
    for stage_run in stage_runs:
        moment = read_moment(stage_run.started)
        if stage_run.borrowed or stage_run.state == "missing" or moment is None:
            continue
        start = moment.timestamp()
        yield _Span(
            start=start,
            end=start + stage_run.seconds,
            run=stage_run,
        )


def read_moment(text: str) -> datetime | None:
    """Return the moment that a text names; None where it names none."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        moment = moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    # Files and clocks that were never set have times about 1970; earlier ones cannot be drawn.
    if moment.timestamp() < 0:
        return None
    return moment


# --- The critical path


def _waits_on_critical_path(spans: Sequence[_Span]) -> Mapping[str, float]:
    """Return how long each stage of the critical path began after the end of the one before it."""
    path = _critical_path(spans)
    waits = {path[0].stage: 0.0}
    for previous_span, span in pairwise(path):
        seconds = span.start - previous_span.end
        waits[span.stage] = max(0.0, seconds)
    return waits


def _critical_path(spans: Sequence[_Span]) -> list[_Span]:
    """Return the stages that the end depended on, in the pipeline's order.

    From the last end back, each step leads to the needed stage that ended last before the stage began.
    """
    path: list[_Span] = []
    candidates = _last_of_pipeline(spans)
    while candidates:
        span = max(candidates, key=attrgetter("end", "stage"))
        path.append(span)
        needed_stages = NEEDS.get(_step_of(span.stage), ())
        latest_end = span.start + _TOLERANCE
        candidates = [
            earlier_span
            for earlier_span in spans
            if _step_of(earlier_span.stage) in needed_stages
            and earlier_span not in path
            and earlier_span.end <= latest_end
        ]
    path.reverse()
    return path


def _last_of_pipeline(spans: Sequence[_Span]) -> Sequence[_Span]:
    """Return the stages that no other one waits for.

    A build that ran once more after the tests is not where the pipeline ends, though its time is the last.
    """
    needed_stages: set[str] = set()
    for span in spans:
        step = _step_of(span.stage)
        needed_stages.update(NEEDS.get(step, ()))
    return [span for span in spans if _step_of(span.stage) not in needed_stages]


def _step_of(stage: str) -> str:
    """Return a stage without its shard, configuration and Python."""
    step = re.split("[- ]", stage)[0]
    if step.startswith("test_torch"):
        return "test_torch"
    return step


# --- Idle times


def _gaps(spans: Sequence[_Span]) -> Mapping[float, float]:
    """Return how long nothing ran, by how long after the first start that began."""
    gaps: dict[float, float] = {}
    first_start = spans[0].start
    last_end = first_start
    for span in spans:
        if span.start > last_end:
            gaps[last_end - first_start] = span.start - last_end
        last_end = max(last_end, span.end)
    return gaps


def _fold(gaps: Mapping[float, float], busy: float) -> Sequence[IdleTime]:
    """Return the long gaps as they are drawn: wider the longer they were, but never as long."""
    longest_drawn = max(busy * _LONGEST_IDLE, _SHORTEST_FOLDED)
    width_of_drawing = longest_drawn / _LONGEST_IDLE
    folds: list[IdleTime] = []
    for after, seconds in gaps.items():
        if seconds <= longest_drawn:
            continue

        doublings = log2(seconds / longest_drawn)
        part = min(_FOLD_WIDTH + _FOLD_GROWTH * doublings, _WIDEST_FOLD)
        idle_time = IdleTime(
            start=_drawn(after, folds),
            after=round(after, 3),
            width=round(width_of_drawing * part, 3),
            seconds=round(seconds, 3),
        )
        folds.append(idle_time)
    return folds


def _drawn(moment: float, folds: Iterable[IdleTime]) -> float:
    """Return where a moment is drawn, in seconds after the first start; it lies inside no folded time."""
    position = moment
    for fold in folds:
        if fold.after + fold.seconds <= moment + _ROUNDING:
            position -= fold.seconds - fold.width
    return round(position, 3)


# --- The axis


def _ticks(length: float, folds: Sequence[IdleTime]) -> Iterator[Tick]:
    """Mark round times of each stretch between folded idle times, on its own clock.

    A label stands behind its mark; near the end of a stretch before it, or nowhere if the one before is near.
    """
    count, unit = _distance_of_ticks(length)
    distance = count * _UNITS[unit]
    starts = [0.0, *(fold.start + fold.width for fold in folds)]
    ends = [*(fold.start for fold in folds), length]
    for start, end in zip(starts, ends, strict=True):
        yield Tick(start, "0", "start")
        width = end - start
        for number in range(1, int(width / distance) + 1):
            position = number * distance
            is_near_end = width - position < length * _LABEL_WIDTH
            label = f"{number * count} {unit}"
            if is_near_end and distance < length * _TWO_LABELS:
                label = ""
            anchor: Literal["start", "end"] = "end" if is_near_end else "start"
            yield Tick(round(start + position, 3), label, anchor)


def _distance_of_ticks(length: float) -> tuple[int, str]:
    """Return the smallest round time of which a few make the length: ``(20, "s")``."""
    for unit, seconds in _UNITS.items():
        for count in _COUNTS:
            if count * seconds * _MOST_TICKS >= length:
                return count, unit
    return _COUNTS[-1], "d"
