"""How the stages of a run ended, by cell."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

from ci.report.model import StageRun
from ci.report.names import cell_of_record
from core.errors import InterruptedStageError
from core.run.records import BORROWED, LEFT_OUT_TARGETS
from pytorch_build.components import COMPONENTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TypeAlias

    from ci.report.facts import CellStage, RunFacts
    from ci.report.model import StageState
    from core.cell import GroupCell
    from core.run.records import Record

    StagesOfCells: TypeAlias = Mapping[GroupCell, Sequence[StageRun]]

TEST = "test_smoke"
_BUILD = "build_{}"
# These are bookkeeping of `upload`, which no cell waits for.
_UPLOAD = "upload-"


def _needs_of_builds() -> Mapping[str, tuple[str, ...]]:
    """Return what the build of each component waits for, in build order."""
    needs: dict[str, tuple[str, ...]] = {}
    for name, component in COMPONENTS.items():
        earlier_builds = map(_BUILD.format, component.built_first)
        needs[_BUILD.format(name)] = (*earlier_builds, "build_rocm")
    return needs


# What a stage waits for, in the pipeline's order.
NEEDS: Mapping[str, tuple[str, ...]] = {
    "build_rocm": ("fetch_artifacts",),
    "test_rocm": ("build_rocm",),
    **_needs_of_builds(),
    "test_smoke": tuple(_needs_of_builds()),
    "test_torch": ("test_smoke", "build_torch"),
}
_ORDER = list(NEEDS)


def stages_of_cells(facts: RunFacts) -> StagesOfCells:
    """Return how a run's stages ended, by cell; stages that belong to no cell have no ref."""
    last_runs: dict[CellStage, StageRun] = {}
    for group in facts.groups:
        # A failure lies beside the last success, and is the later of the two.
        for record in sorted(group.records, key=lambda record: record.status != "ok"):
            if record.stage.startswith(_UPLOAD):
                continue
            cell = cell_of_record(group.name, record)
            void_reason = group.void_tests.get((cell, record.stage))
            last_runs[cell, record.stage] = _stage_run(record, void_reason)
        for cell, unreadable_run in group.unreadable:
            last_runs.setdefault((cell, unreadable_run.stage), unreadable_run)

    runs_of_cells: dict[GroupCell, list[StageRun]] = defaultdict(list)
    for (cell, _), stage_run in last_runs.items():
        runs_of_cells[cell].append(stage_run)
    for stage_runs in runs_of_cells.values():
        stage_runs.sort(key=_order_of_stage)
    return runs_of_cells


def _order_of_stage(stage_run: StageRun) -> tuple[bool, str, int, str]:
    """Return what stages are sorted by: their start, and the pipeline's order where two start together."""
    stage = stage_run.stage
    has_no_start = not stage_run.started
    position = _ORDER.index(stage) if stage in _ORDER else 0
    return has_no_start, stage_run.started, position, stage


def _stage_run(record: Record, void_reason: str | None) -> StageRun:
    """Return what a record says of its stage; `void_reason` is why its results count as missing."""
    borrowed = str(record.details.get(BORROWED) or "")
    log = ""
    if record.log and not borrowed:
        # The page lies in a folder beside that of the logs, but not beside those of a lending run.
        _, _, path = record.log.partition("/logs/")
        log = f"../logs/{path}"

    stage_run = StageRun(
        stage=record.stage,
        state=_state(record),
        started=record.started,
        # An infinite time cannot be drawn.
        seconds=record.seconds if isfinite(record.seconds) else 0.0,
        exit_code=record.exit_code,
        error=record.error,
        again=record.again,
        borrowed=borrowed,
        edited=record.edited,
        left_out_targets=tuple(record.details.get(LEFT_OUT_TARGETS, ())),
        log=log,
    )
    if record.cause is not None:
        stage_run = replace(stage_run, cause=record.cause.headline, around=record.cause.around)
    if void_reason is not None:
        stage_run = replace(stage_run, state="missing", error=void_reason)
    return stage_run


def _state(record: Record) -> StageState:
    if record.status == "ok":
        return "ok"
    if record.exit_code == InterruptedStageError.exit_code:
        return "interrupted"
    return "failed"
