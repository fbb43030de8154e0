"""The matrix of a run: its cells, how each of their stages ended, and when.

The critical path of a cell is the chain of stages that its end depended on.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from math import isfinite, log2
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, NamedTuple

from ci.report.model import (
    STATES,
    Bar,
    Idle,
    Problem,
    Progress,
    StageRun,
    StageState,
    State,
    TimeLine,
    cell_of_record,
    cell_text,
)
from ci.report.text import natural
from core.cell import GroupCell
from core.errors import InterruptedStageError
from core.families import CPU
from core.run import LOCAL_RUN
from pytorch_build.build.build import BORROWED
from pytorch_build.components import COMPONENTS
from rocm_packaging.packages.layouts import device_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ci.report.facts import GroupFacts, RunFacts
    from ci.report.model import CaseLine, RunTests, StageTests, Wheel
    from core.run.records import Record
    from pytorch_build.lock.source_lock import SourceLock

TEST = "test_smoke"
# bookkeeping of `upload`, which no cell waits for
_UPLOAD = "upload-"


def _needs_of_builds() -> Mapping[str, tuple[str, ...]]:
    """Return what the build of each component waits for, in build order."""
    needs: dict[str, tuple[str, ...]] = {}
    for name, component in COMPONENTS.items():
        needs[f"build_{name}"] = (*(f"build_{first}" for first in component.built_first), "build_rocm")
    return needs


# what a stage waits for, as `nox` and the workflows run them
NEEDS: Mapping[str, tuple[str, ...]] = {
    "build_rocm": ("fetch_artifacts",),
    "test_rocm": ("build_rocm",),
    **_needs_of_builds(),
    "test_smoke": tuple(_needs_of_builds()),
    "test_torch": ("test_smoke", "build_torch"),
}
# records name a start to the second
_TOLERANCE = 1.5
# nothing ran for longer than this part of the time in which something did: folded; what is drawn of it then
_FOLDED, _SHOWN, _MORE, _MOST = 0.2, 0.06, 0.02, 0.19
_TICKS = 6
# what the marks of an axis are apart
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_STEPS = [(count, name) for name in _UNITS for count in (1, 2, 5, 10, 20, 30)]
_ROUNDED = 0.002
# the widest label, as a part of the drawing on a phone
_LABEL = 0.1


def runs_of(facts: RunFacts) -> Mapping[GroupCell, Sequence[StageRun]]:
    """List how a run's stages ended, by cell; stages that belong to no cell have no ref.

    A failure lies beside the last success, and is the later of the two.
    """
    found: dict[tuple[GroupCell, str], StageRun] = {}
    for group in facts.groups:
        for _, record in sorted(group.records, key=lambda one: (one[1].status != "ok", one[0])):
            if not record.stage.startswith(_UPLOAD):
                name = cell_of_record(group.name, record)
                found[name, record.stage] = _run(record, group.missing.get((name, record.stage), ""))
        for name, run in group.unreadable:
            found.setdefault((name, run.stage), run)
    by_cell: dict[GroupCell, list[StageRun]] = defaultdict(list)
    at = {stage: place for place, stage in enumerate(NEEDS)}
    for (name, _), run in found.items():
        by_cell[name].append(run)
    for runs in by_cell.values():
        runs.sort(key=lambda run: (not run.started, run.started, at.get(run.stage, 0), run.stage))
    return by_cell


def _run(record: Record, missing: str) -> StageRun:
    interrupted = record.exit_code == InterruptedStageError.exit_code
    failed: StageState = "interrupted" if interrupted else "failed"
    borrowed = str(record.details.get(BORROWED) or "")
    return StageRun(
        stage=record.stage,
        state="missing" if missing else "ok" if record.status == "ok" else failed,
        started=record.started,
        # an infinite number cannot be drawn
        seconds=record.seconds if isfinite(record.seconds) else 0.0,
        exit_code=record.exit_code,
        error=missing or record.error,
        cause=record.cause.headline if record.cause else "",
        around=record.cause.around if record.cause else (),
        again=record.again,
        borrowed=borrowed,
        edited=record.edited,
        # the page lies in a folder beside that of the logs, but for what was borrowed
        log=f"../logs/{record.log.partition('/logs/')[2]}" if record.log and not borrowed else "",
    )


def cells_of(
    facts: RunFacts, wheels: Sequence[Wheel], failing: Mapping[GroupCell, Mapping[str, str]]
) -> tuple[Progress, ...]:
    """Return the matrix; `failing`: why tests of cells did not pass, by their stages."""
    runs = runs_of(facts)
    wheels_of_cells: dict[GroupCell, list[Wheel]] = defaultdict(list)
    for wheel in wheels:
        wheels_of_cells[wheel.cell].append(wheel)

    groups = {group.name: group for group in facts.groups}
    # A run of changed trees makes these, whatever a lock has.
    locks = {} if _has_changed_trees(facts) else facts.locks
    done = _stages_done(runs)
    cells = [cell for cell in runs if cell.torch_ref is not None]
    cells.sort(key=lambda cell: natural(cell_text(cell)))
    return tuple(
        _progress(
            cell,
            runs,
            wheels_of_cells[cell],
            group=groups[cell.artifact_group or ""],
            expected=_expected(cell, locks.get(cell.torch_ref or ""), done[cell.torch_ref]),
            failing=failing.get(cell, {}),
        )
        for cell in cells
    )


def _has_changed_trees(facts: RunFacts) -> bool:
    """Return whether the run builds a developer's trees, and no commits of a lock."""
    if facts.run_id == LOCAL_RUN:
        return False
    records = [record for group in facts.groups for _, record in group.records]
    return any(_is_of_own_tree(record) for record in records)


def _is_of_own_tree(record: Record) -> bool:
    """Return whether a step worked on a developer's tree; the source of a test is in words."""
    source = record.inputs.get("source")
    return isinstance(source, dict) and "tree" in source


def _stages_done(runs: Mapping[GroupCell, Sequence[StageRun]]) -> Mapping[str | None, set[str]]:
    """Return the stages that were successful in any cell of a torch ref."""
    done: dict[str | None, set[str]] = defaultdict(set)
    for cell, stage_runs in runs.items():
        done[cell.torch_ref].update(run.stage for run in stage_runs if run.state == "ok")
    return done


def _progress(
    cell: GroupCell,
    runs: Mapping[GroupCell, Sequence[StageRun]],
    wheels: Sequence[Wheel],
    *,
    group: GroupFacts,
    expected: Sequence[str],
    failing: Mapping[str, str],
) -> Progress:
    """Return how far one cell came; `failing`: why its tests did not pass, by their stages."""
    stage_runs = runs[cell]
    states = {run.stage: run.state for run in stage_runs}
    missing = [stage for stage in expected if states.get(stage, "missing") == "missing"]
    absent = [StageRun(stage=stage, state="missing") for stage in missing if stage not in states]
    state, reason = _state(stage_runs, missing, failing)

    runs_of_group = runs.get(GroupCell(artifact_group=cell.artifact_group), ())
    needed_runs = [run for run in runs_of_group if run.stage in NEEDS]
    builds = [run for run in (*needed_runs, *stage_runs) if run.stage.startswith("build_")]
    is_stale = any(run.state not in {"ok", "missing"} for run in builds)
    hosts = [wheel for wheel in wheels if not device_target(wheel.distribution)]
    lacking, elsewhere = _needed(group, cell)
    return Progress(
        name=cell,
        state=state,
        reason=reason,
        stages=(*stage_runs, *absent),
        line=time_line([*needed_runs, *stage_runs]),
        wheels=len(wheels),
        requirements=() if is_stale else tuple(wheel.requirement for wheel in hosts),
        lacking=lacking,
        elsewhere=elsewhere,
    )


def _needed(group: GroupFacts, name: GroupCell) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files that torch was built against and the run lacks, and pip's options that say where."""
    held = {one.name for _, record in group.records for one in record.files}
    for _, record in group.records:
        if record.stage == "build_torch" and cell_of_record(group.name, record) == name:
            match record.inputs.get("rocm"), record.details.get("rocm_options"):
                case [_, _, dict(digests)], found if lacking := sorted(digests.keys() - held):
                    return tuple(lacking), tuple(map(str, found)) if isinstance(found, list) else ()
    return (), ()


def _expected(cell: GroupCell, lock: SourceLock | None, seen: Iterable[str]) -> Sequence[str]:
    """Return a cell's stages: builds of what is locked, else those that other cells of the ref have."""
    kind = "cpu" if cell.artifact_group == CPU else "rocm"
    builds = sorted(stage for stage in seen if stage.startswith("build_"))
    if lock:
        projects = lock.projects.items()
        builds = [f"build_{name}" for name, one in projects if not one.prebuilt and kind in one.versions]
    if kind == "cpu":
        # It has no use for them, whatever the lock and other families have.
        unused = {f"build_{name}" for name, component in COMPONENTS.items() if component.serves_gpus_only}
        builds = [stage for stage in builds if stage not in unused]
    return [*builds, TEST]


def _state(
    found: Sequence[StageRun], missing: Sequence[str], failing: Mapping[str, str]
) -> tuple[State, str]:
    """Return the worst state, and its reason."""
    words = {"unreadable": "cannot be read", "interrupted": "was interrupted", "failed": "failed"}
    stages: dict[str, Sequence[str]] = {
        state: [run.stage for run in found if run.state == state and run.stage not in failing]
        for state in words
    }
    stages |= {"incomplete": [stage for stage in missing if stage != TEST], "untested": missing}
    said = {run.stage: f"{run.stage}: {run.error}" for run in found if run.state == "missing"}
    for state in reversed(STATES):
        some = stages.get(state)
        lack = "have no record" if some and some[1:] else "has no record"
        what = f"{', '.join(some)} {words.get(state, lack)}" if some else ""
        what = "; ".join(said.values()) if some and said.keys() >= set(some) else what
        reasons = [what] if what else []
        if state == "failed":
            reasons += failing.values()
        if reasons:
            return state, " and ".join(reasons)
    return STATES[0], ""


def problems_of(facts: RunFacts, tests: RunTests) -> list[Problem]:
    """List what a reader should know first: what failed, and what cannot be read."""
    ended = [
        (name, run)
        for name, runs in sorted(runs_of(facts).items())
        for run in runs
        if run.state in {"failed", "interrupted"}
    ]
    ended.sort(key=lambda one: one[1].state == "interrupted")
    problems = [
        Problem(
            where=f"{run.stage} {cell_text(name)}",
            what=run.cause or run.error or "It ended without an error message.",
            around=run.around,
            again=run.again,
            log=run.log,
        )
        for name, run in ended
    ]
    told = {(name, run.stage.partition("-")[0]) for name, run in ended}
    problems += [
        _tested(run, [line for line in tests.failures if run.place in line.cells])
        for run in tests.runs
        if not (run.passed or run.missing or (run.cell, run.stage) in told)
    ]
    return [*problems, *facts.problems, *(one for group in facts.groups for one in group.problems)]


def _tested(run: StageTests, failures: Sequence[CaseLine]) -> Problem:
    """Say of tests which failed, the first one with the command that runs it again."""
    said = [f"{one.test}: {one.line}" for one in failures[:5]] or [*run.problems, "It failed."]
    again = failures[0].command if failures else ""
    return Problem(where=run.place, what=said[0], around=tuple(said if said[1:] else ()), again=again)


def told_once(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Put together what went wrong alike in several places."""
    found: dict[str, list[Problem]] = defaultdict(list)
    for one in problems:
        found[one.what].append(one)
    return tuple(replace(one, also=tuple(other.where for other in more)) for one, *more in found.values())


class _Span(NamedTuple):
    start: float
    end: float
    stage: str
    run: StageRun


def time_line(stages: Iterable[StageRun]) -> TimeLine:
    """Lay stages out in time."""
    # what was borrowed, or is of earlier wheels, took none of the run's time
    own = (run for run in stages if not run.borrowed and run.state != "missing")
    starts = ((run, began.timestamp()) for run in own if (began := moment(run.started)))
    spans = [_Span(at, at + run.seconds, run.stage, run) for run, at in starts]
    if not spans:
        return TimeLine()
    spans.sort(key=lambda span: span[:3])
    path = _critical(spans)
    first = spans[0].start
    busy, elapsed, idle = _idle(spans)
    length = max(_drawn(elapsed, idle), 0.001)
    waited = {path[0].stage: 0.0} | {two.stage: max(0.0, two.start - one.end) for one, two in pairwise(path)}
    return TimeLine(
        bars=tuple(
            Bar(
                stage=span.stage,
                start=_drawn(span.start - first, idle),
                after=round(span.start - first, 3),
                seconds=span.run.seconds,
                critical=span.stage in waited,
                waited=round(waited.get(span.stage, 0.0), 3),
            )
            for span in spans
        ),
        started=spans[0].run.started,
        length=length,
        elapsed=elapsed,
        busy=busy,
        idle=idle,
        ticks=tuple(_ticks(length, idle)),
    )


def _ticks(length: float, idle: Sequence[Idle]) -> Iterator[tuple[float, str, Literal["start", "end"]]]:
    """Mark round times of each stretch between folded idle times, on its own clock.

    A label stands behind its mark; near the end of a stretch before it, or nowhere if the one before is near.
    """
    wide = (step for step in _STEPS if step[0] * _UNITS[step[1]] * _TICKS >= length)
    count, name = next(wide, _STEPS[-1])
    apart = count * _UNITS[name]
    starts = [0.0, *(one.start + one.width for one in idle)]
    ends = [*(one.start for one in idle), length]
    for start, end in zip(starts, ends, strict=True):
        yield start, "0", "start"
        for at in range(1, int((end - start) / apart) + 1):
            last = end - start - at * apart < length * _LABEL
            label = "" if last and apart < length * 2.2 * _LABEL else f"{at * count} {name}"
            yield round(start + at * apart, 3), label, "end" if last else "start"


def moment(started: str) -> datetime | None:
    """Read when a stage began; None where it does not say."""
    try:
        read = datetime.fromisoformat(started)
        found = (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return found if found.timestamp() >= 0 else None


def _critical(spans: Sequence[_Span]) -> list[_Span]:
    """Walk back from the last end: to the needed stage that ended last before each began."""
    path: list[_Span] = []
    before = spans
    while before:
        path.append(at := max(before, key=attrgetter("end", "stage")))
        needed = NEEDS.get(_kind(at.stage), ())
        others = [span for span in spans if _kind(span.stage) in needed and span not in path]
        before = [span for span in others if span.end <= at.start + _TOLERANCE]
    return path[::-1]


def _kind(stage: str) -> str:
    """Return a stage without its shard, configuration and Python."""
    first = re.split("[- ]", stage)[0]
    return "test_torch" if first.startswith("test_torch") else first


def _idle(spans: Sequence[_Span]) -> tuple[float, float, tuple[Idle, ...]]:
    """Return for how long something ran, in what time, and the idle times that are folded."""
    first, ends = spans[0].start, [*accumulate((span.end for span in spans), max)]
    pairs = zip(ends, spans[1:], strict=False)
    gaps = [(end - first, span.start - end) for end, span in pairs if span.start > end]
    elapsed = ends[-1] - first
    busy = elapsed - sum(seconds for _, seconds in gaps)
    least = max(busy * _FOLDED, 2.0)
    idle: list[Idle] = []
    for after, seconds in gaps:
        if seconds > least:
            width = least / _FOLDED * min(_SHOWN + _MORE * log2(seconds / least), _MOST)
            facts = {"after": round(after, 3), "width": round(width, 3), "seconds": round(seconds, 3)}
            idle.append(Idle(start=_drawn(after, idle), **facts))
    return round(busy, 3), round(elapsed, 3), tuple(idle)


def _drawn(at: float, idle: Iterable[Idle]) -> float:
    """Return where a moment is drawn, in seconds after the first start; it lies inside no folded time."""
    folded = (one for one in idle if one.after + one.seconds <= at + _ROUNDED)
    return round(at - sum(one.seconds - one.width for one in folded), 3)
