"""Make the page of a run from what the run holds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from ci.report.cells import make_cells
from ci.report.compare import compare_pages
from ci.report.model import BuildRow, GroupRow, ReportedProblem, RunPage, StageRun
from ci.report.names import cell_of_record, cell_text
from ci.report.problems import list_problems, merge_problems
from ci.report.results import merge_tests, reasons_of_failed_tests
from ci.report.stages import stages_of_cells
from ci.report.time_line import make_time_line
from ci.report.wheels import list_sources, list_wheels
from core.run.records import BORROWED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ci.report.facts import RunFacts
    from ci.report.stages import StagesOfCells
    from core.cell import GroupCell
    from core.run.records import Record


def make_page(facts: RunFacts, previous_facts: RunFacts | None = None) -> RunPage:
    """Return the page of a run, compared with the run before it if that is given."""
    tests = merge_tests(facts)
    wheels, gone_files = list_wheels(facts, previous_facts)
    builds, problems_of_builds = _list_builds(facts)
    problems = [*list_problems(facts, tests), *problems_of_builds]
    runs_of_cells = stages_of_cells(facts)
    whole_line = make_time_line(chain.from_iterable(runs_of_cells.values()))
    page = RunPage(
        run_id=facts.run_id,
        platform=facts.platform,
        started=whole_line.started,
        busy=whole_line.busy,
        elapsed=whole_line.elapsed,
        problems=tuple(merge_problems(problems)),
        groups=_list_groups(facts, runs_of_cells),
        cells=make_cells(facts, wheels, reasons_of_failed_tests(tests)),
        wheels=wheels,
        gone=gone_files,
        builds=builds,
        tests=tests,
        sources=list_sources(facts, previous_facts),
        releases=facts.releases,
    )
    if previous_facts is None:
        return page
    previous_page = make_page(previous_facts)
    return replace(page, against=previous_facts.run_id, changes=compare_pages(previous_page, page))


def _list_groups(facts: RunFacts, runs_of_cells: StagesOfCells) -> tuple[GroupRow, ...]:
    """Return the artifact groups, with the stages that are of a whole group, such as ROCm's."""
    stages_of_groups: dict[str | None, list[StageRun]] = defaultdict(list)
    for cell, stage_runs in runs_of_cells.items():
        if cell.torch_ref is not None:
            continue
        for stage_run in stage_runs:
            stage = stage_run.stage
            if cell.python is not None:
                stage = f"{stage} {cell.python_tag}"
            stages_of_groups[cell.artifact_group].append(replace(stage_run, stage=stage))

    groups: list[GroupRow] = []
    for group in facts.groups:
        stages = stages_of_groups[group.name]
        row = GroupRow(
            name=group.name,
            find_links=group.find_links,
            stages=tuple(stages),
            line=make_time_line(stages),
        )
        groups.append(row)
    return tuple(groups)


def _list_builds(facts: RunFacts) -> tuple[tuple[BuildRow, ...], Sequence[ReportedProblem]]:
    """Return the inside of builds, failed ones first, then the longest; and details that make no sense."""
    builds: list[BuildRow] = []
    problems: list[ReportedProblem] = []
    for group in facts.groups:
        for record in group.records:
            is_build = record.stage.startswith("build_")
            if not is_build or BORROWED in record.details:
                continue
            cell = cell_of_record(group.name, record)
            try:
                build = _read_build(cell, record, record.details)
            except ValidationError as error:
                first_error = error.errors()[0]
                path = ".".join(str(part) for part in first_error["loc"])
                message = f"details.{path}: {first_error['msg']}."
                problems.append(ReportedProblem(where=f"{record.stage} {cell_text(cell)}", what=message))
                build = _read_build(cell, record, {})
            builds.append(build)
    builds.sort(key=lambda build: (not build.failed, -build.seconds, build.cell, build.stage))
    return tuple(builds), problems


def _read_build(cell: GroupCell, record: Record, details: Mapping[str, Any]) -> BuildRow:
    """Return a build with what the details of its record say."""
    memory = details.get("memory")
    if isinstance(memory, dict) and "used" in memory:
        # Older versions recorded the memory that all of the machine's programs used.
        memory = None
    values = {
        **details,
        "memory": memory,
        "cell": cell,
        "stage": record.stage,
        "seconds": record.seconds,
        "failed": record.status != "ok",
    }
    return _BUILD_ROW.validate_python(values)


_BUILD_ROW = TypeAdapter(BuildRow)
