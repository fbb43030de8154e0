"""The matrix of a run: which cells it has, and how each of their stages ended."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, get_args

from ci.report.model import Bar, Cell, CellName, Idle, Problem, StageRun, StageState, State, Step, TimeLine
from ci.report.text import natural
from core.errors import InterruptedStageError
from core.families import CPU
from rocm_packaging.packages.layouts import device_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ci.report.facts import GroupFacts, RunFacts
    from ci.report.model import Wheel
    from core.run.records import Record
    from pytorch_build.lock.source_lock import SourceLock


STATES: tuple[State, ...] = get_args(State)
TEST = "test_smoke"
# bookkeeping of `upload`, which no cell waits for
_UPLOAD = "upload-"


def runs_of(group: GroupFacts) -> Mapping[CellName, tuple[StageRun, ...]]:
    """List how a group's stages ended, by cell; stages that are no cell's have no ref.

    A failure lies beside the last success, and is the later of the two.
    """
    found: dict[tuple[CellName, str], StageRun] = {}
    for key, record in sorted(group.records, key=lambda one: (one[1].status != "ok", one[0])):
        if not record.stage.startswith(_UPLOAD):
            name = CellName(group=group.name, torch_ref=record.cell.torch_ref, python=record.cell.python)
            found[name, record.stage] = _run(key, record)
    for one in group.unreadable:
        found.setdefault((one.cell, one.run.stage), one.run)
    by_cell: dict[CellName, list[StageRun]] = defaultdict(list)
    for (name, _), run in found.items():
        by_cell[name].append(run)
    return {name: tuple(sorted(runs, key=_order)) for name, runs in by_cell.items()}


def _run(key: str, record: Record) -> StageRun:
    interrupted = record.exit_code == InterruptedStageError.exit_code
    failed: StageState = "interrupted" if interrupted else "failed"
    return StageRun(
        stage=record.stage,
        state="ok" if record.status == "ok" else failed,
        started=record.started,
        # a number that no clock gives cannot be drawn
        seconds=record.seconds if isfinite(record.seconds) else 0.0,
        exit_code=record.exit_code,
        error=record.error,
        key=key,
    )


def _order(run: StageRun) -> tuple[bool, str, int, str]:
    names = list(NEEDS)
    return (not run.started, run.started, names.index(run.stage) if run.stage in names else 0, run.stage)


def cells_of(facts: RunFacts, wheels: Sequence[Wheel], failing: Mapping[CellName, str]) -> tuple[Cell, ...]:
    """Make the matrix."""
    runs = {name: found for group in facts.groups for name, found in runs_of(group).items()}
    made: dict[CellName, list[Wheel]] = defaultdict(list)
    for wheel in wheels:
        made[wheel.cell].append(wheel)
    seen: dict[str, set[str]] = defaultdict(set)
    for name, found in runs.items():
        seen[name.torch_ref] |= {run.stage for run in found if run.state == "ok"}
    cells = []
    for name in sorted((name for name in runs if name.torch_ref), key=_in_order):
        expected = _expected(name, facts.locks.get(name.torch_ref), seen[name.torch_ref])
        before = runs.get(CellName(group=name.group), ())
        cells.append(_cell(name, runs[name], expected, before, made[name], failing.get(name, "")))
    return tuple(cells)


def _in_order(name: CellName) -> tuple[object, ...]:
    return (natural(name.group), natural(name.torch_ref), natural(name.python), name)


def _expected(name: CellName, lock: SourceLock | None, seen: Iterable[str]) -> Sequence[str]:
    """Say which stages a cell has: builds of what is locked, else those that other cells of the ref have."""
    kind = "cpu" if name.group == CPU else "rocm"
    if lock is None:
        builds = sorted(stage for stage in seen if stage.startswith("build_"))
    else:
        builds = [
            f"build_{project}"
            for project, locked in lock.projects.items()
            if not locked.prebuilt and kind in locked.versions
        ]
    return [*builds, TEST]


def _cell(
    name: CellName,
    found: Sequence[StageRun],
    expected: Sequence[str],
    before: Sequence[StageRun],
    wheels: Sequence[Wheel],
    failing: str,
) -> Cell:
    known = {run.stage for run in found}
    missing = tuple(StageRun(stage=stage, state="missing") for stage in expected if stage not in known)
    state, reason = _state(found, [run.stage for run in missing], failing)
    return Cell(
        name=name,
        state=state,
        reason=reason,
        stages=(*found, *missing),
        line=time_line([*(run for run in before if run.stage in NEEDS), *found]),
        wheels=len(wheels),
        requirements=tuple(one.requirement for one in wheels if not device_target(one.distribution)),
    )


def _state(found: Sequence[StageRun], missing: Sequence[str], failing: str) -> tuple[State, str]:
    """Give the worst state, and why."""

    def named(state: str) -> list[str]:
        return [run.stage for run in found if run.state == state]

    unbuilt = [stage for stage in missing if stage != TEST]
    reasons: dict[State, str] = {
        "failed": " and ".join(filter(None, [_said(named("failed"), "failed"), failing])),
        "unreadable": _said(named("unreadable"), "cannot be read"),
        "interrupted": _said(named("interrupted"), "was interrupted"),
        "incomplete": _said(unbuilt, "has no record"),
        "untested": _said(missing, "has no record"),
    }
    for state in reversed(STATES):
        if reasons.get(state):
            return state, reasons[state]
    return "passed", ""


def _said(stages: Sequence[str], what: str) -> str:
    return f"{', '.join(stages)} {what}" if stages else ""


def problems_of(facts: RunFacts) -> tuple[Problem, ...]:
    """List what a reader should know first: what failed, and what cannot be read."""
    problems = list(facts.problems)
    for group in facts.groups:
        problems += [*(one.problem for one in group.unreadable), *group.problems]
        for name, runs in sorted(runs_of(group).items()):
            problems += [
                Problem(where=f"{run.stage} {name}", what=run.error or "It ended without saying why.")
                for run in runs
                if run.state in {"failed", "interrupted"}
            ]
    refs = {record.cell.torch_ref for group in facts.groups for _, record in group.records} - {""}
    problems += [
        Problem(
            where=f"source lock of {ref}",
            what="The run has none, so commits are only known where a build's record names them.",
        )
        for ref in sorted(refs - set(facts.locks))
    ]
    return tuple(problems)


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
