"""The matrix of a run: how far each of its cells came, and why no further."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING

from ci.report.model import CellProgress, StageRun
from ci.report.names import cell_of_record, cell_text, natural_key
from ci.report.time_line import NEEDS, make_time_line
from core.cell import GroupCell
from core.errors import InterruptedStageError
from core.families import CPU
from core.run import LOCAL_RUN
from core.run.records import BORROWED, LEFT_OUT_TARGETS
from pytorch_build.components import COMPONENTS
from rocm_packaging.packages.layouts import device_target

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import TypeAlias

    from ci.report.facts import CellStage, GroupFacts, RunFacts
    from ci.report.model import StageState, State, WheelRow
    from core.run.records import Record
    from pytorch_build.lock.source_lock import SourceLock

    StagesOfCells: TypeAlias = Mapping[GroupCell, Sequence[StageRun]]

TEST = "test_smoke"
# These are bookkeeping of `upload`, which no cell waits for.
_UPLOAD = "upload-"
_ORDER = list(NEEDS)

# What has to be said of stages in a state; stages in the others have no record.
_WORDS_OF_STATES: Mapping[State, str] = {
    "unreadable": "cannot be read",
    "interrupted": "was interrupted",
    "failed": "failed",
}


def make_cells(
    facts: RunFacts,
    runs_of_cells: StagesOfCells,
    wheels: Sequence[WheelRow],
    reasons_of_failed_tests: Mapping[GroupCell, Mapping[str, str]],
) -> tuple[CellProgress, ...]:
    """Return the matrix; `reasons_of_failed_tests` says why tests of cells did not pass, by their stages."""
    wheels_of_cells: dict[GroupCell, list[WheelRow]] = defaultdict(list)
    for wheel in wheels:
        wheels_of_cells[wheel.cell].append(wheel)

    # A run of changed trees builds these, whatever a lock has.
    locks = {} if _builds_changed_trees(facts) else facts.locks
    successful_stages = _successful_stages_of_refs(runs_of_cells)
    groups = {group.name: group for group in facts.groups}
    progress: list[CellProgress] = []
    for cell in sorted(runs_of_cells, key=lambda cell: natural_key(cell_text(cell))):
        # What has no ref are stages of a whole group, such as ROCm's.
        if cell.torch_ref is None:
            continue
        lock = locks.get(cell.torch_ref)
        expected_stages = _expected_stages(cell, lock, successful_stages[cell.torch_ref])
        cell_progress = _make_progress(
            cell,
            runs_of_cells[cell],
            runs_of_group=runs_of_cells.get(GroupCell(artifact_group=cell.artifact_group), ()),
            group=groups[cell.artifact_group or ""],
            wheels=wheels_of_cells[cell],
            expected_stages=expected_stages,
            reasons_of_failed_tests=reasons_of_failed_tests.get(cell, {}),
        )
        progress.append(cell_progress)
    return tuple(progress)


def _builds_changed_trees(facts: RunFacts) -> bool:
    """Return whether the run builds a developer's trees, and no commits of a lock."""
    if facts.run_id == LOCAL_RUN:
        return False
    for record in facts.all_records:
        # The source of a test is in words.
        source = record.inputs.get("source")
        if isinstance(source, dict) and "tree" in source:
            return True
    return False


def _successful_stages_of_refs(runs_of_cells: StagesOfCells) -> Mapping[str | None, set[str]]:
    """Return the stages that were successful in any cell of a torch ref."""
    successful_stages: dict[str | None, set[str]] = defaultdict(set)
    for cell, stage_runs in runs_of_cells.items():
        for stage_run in stage_runs:
            if stage_run.state == "ok":
                successful_stages[cell.torch_ref].add(stage_run.stage)
    return successful_stages


def _expected_stages(
    cell: GroupCell, lock: SourceLock | None, successful_stages: Iterable[str]
) -> Sequence[str]:
    """Return a cell's stages: builds of what is locked, else those that other cells of the ref have."""
    is_cpu = cell.artifact_group == CPU
    builds = sorted(stage for stage in successful_stages if stage.startswith("build_"))
    if lock is not None:
        builds = _builds_of_lock(lock, "cpu" if is_cpu else "rocm")
    if is_cpu:
        # It has no use for them, whatever the lock and other families have.
        for name, component in COMPONENTS.items():
            stage = f"build_{name}"
            if component.serves_gpus_only and stage in builds:
                builds.remove(stage)
    return [*builds, TEST]


def _builds_of_lock(lock: SourceLock, version_kind: str) -> list[str]:
    """Return the builds of a lock's projects, of those that have a version for a kind of machine."""
    builds: list[str] = []
    for name, project in lock.projects.items():
        if not project.prebuilt and version_kind in project.versions:
            builds.append(f"build_{name}")
    return builds


def _make_progress(
    cell: GroupCell,
    stage_runs: Sequence[StageRun],
    *,
    runs_of_group: Sequence[StageRun],
    group: GroupFacts,
    wheels: Sequence[WheelRow],
    expected_stages: Sequence[str],
    reasons_of_failed_tests: Mapping[str, str],
) -> CellProgress:
    """Return how far one cell came."""
    states = {stage_run.stage: stage_run.state for stage_run in stage_runs}
    missing_stages: list[str] = []
    unrecorded_runs: list[StageRun] = []
    for stage in expected_stages:
        if stage not in states:
            unrecorded_runs.append(StageRun(stage=stage, state="missing"))
        if states.get(stage, "missing") == "missing":
            missing_stages.append(stage)

    state, reason = _state_and_reason(stage_runs, missing_stages, reasons_of_failed_tests)
    runs_before = [stage_run for stage_run in runs_of_group if stage_run.stage in NEEDS]
    lacking_files, pip_options = _lacking_rocm(group, cell)
    return CellProgress(
        name=cell,
        state=state,
        reason=reason,
        stages=(*stage_runs, *unrecorded_runs),
        line=make_time_line([*runs_before, *stage_runs]),
        wheels=len(wheels),
        requirements=_requirements_to_install(wheels, [*runs_before, *stage_runs]),
        lacking=lacking_files,
        elsewhere=pip_options,
    )


def _requirements_to_install(wheels: Sequence[WheelRow], stage_runs: Sequence[StageRun]) -> tuple[str, ...]:
    """Return what installs a cell's wheels; nothing where a build failed, as they are older than it."""
    for stage_run in stage_runs:
        is_build = stage_run.stage.startswith("build_")
        # Of a build that has not run there are no older wheels.
        if is_build and stage_run.state not in {"ok", "missing"}:
            return ()

    # Device code is an extra of the wheel that it belongs to.
    host_wheels = [wheel for wheel in wheels if not device_target(wheel.distribution)]
    return tuple(wheel.requirement for wheel in host_wheels)


def _lacking_rocm(group: GroupFacts, cell: GroupCell) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files that torch was built against and the run lacks, and pip's options that find them."""
    names_in_run: set[str] = set()
    for record in group.records:
        names_in_run.update(file.name for file in record.files)

    for record in group.records:
        if record.stage != "build_torch":
            continue
        if cell_of_record(group.name, record) != cell:
            continue
        files: Sequence[str] = ()
        match record.inputs.get("rocm"):
            case [_, _, dict(digests)]:
                files = sorted(digests.keys() - names_in_run)
        if files:
            options = record.details.get("rocm_options")
            pip_options = map(str, options) if isinstance(options, list) else ()
            return tuple(files), tuple(pip_options)
    return (), ()


def _state_and_reason(
    stage_runs: Sequence[StageRun], missing_stages: Sequence[str], reasons_of_failed_tests: Mapping[str, str]
) -> tuple[State, str]:
    """Return the worst state of a cell's stages, and its reason."""
    for state in ("failed", "unreadable", "interrupted"):
        stages = [stage_run.stage for stage_run in stage_runs if stage_run.state == state]
        # Of tests that failed, their results are the reason.
        stages = [stage for stage in stages if stage not in reasons_of_failed_tests]
        reasons: list[str] = []
        if stages:
            names = ", ".join(stages)
            reasons.append(f"{names} {_WORDS_OF_STATES[state]}")
        if state == "failed":
            reasons += reasons_of_failed_tests.values()
        if reasons:
            return state, " and ".join(reasons)

    missing_builds = [stage for stage in missing_stages if stage != TEST]
    if missing_builds:
        return "incomplete", _reason_of_missing(missing_builds, stage_runs)
    if missing_stages:
        return "untested", _reason_of_missing(missing_stages, stage_runs)
    return "passed", ""


def _reason_of_missing(missing_stages: Sequence[str], stage_runs: Sequence[StageRun]) -> str:
    """Return why stages are missing: their results count for nothing, or they have no record."""
    void_reasons: dict[str, str] = {}
    for stage_run in stage_runs:
        if stage_run.state == "missing":
            stage = stage_run.stage
            void_reasons[stage] = f"{stage}: {stage_run.error}"
    if void_reasons.keys() >= set(missing_stages):
        return "; ".join(void_reasons.values())

    names = ", ".join(missing_stages)
    if len(missing_stages) == 1:
        return f"{names} has no record"
    return f"{names} have no record"


# How stages ended


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
