"""Make the page of a run from what the run holds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from ci.report.cells import make_cells, stages_of_cells
from ci.report.compare import compare_pages
from ci.report.model import BuildRow, GroupRow, ReportedProblem, RunPage, StageRun
from ci.report.names import cell_of_record, cell_text
from ci.report.results import merge_tests, reasons_of_failed_tests
from ci.report.time_line import make_time_line
from ci.report.wheels import list_sources, list_wheels
from core.run.records import BORROWED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from ci.report.cells import StagesOfCells
    from ci.report.facts import CellStage, RunFacts
    from ci.report.model import CaseRow, RunTests, StageTests
    from core.cell import GroupCell
    from core.run.records import Record


# A problem names so many of the tests that failed.
_MOST_TESTS = 5


def make_page(facts: RunFacts, previous_facts: RunFacts | None = None) -> RunPage:
    """Return the page of a run, compared with the run before it if that is given."""
    tests = merge_tests(facts)
    wheels, gone_files = list_wheels(facts, previous_facts)
    builds, problems_of_builds = _list_builds(facts)
    runs_of_cells = stages_of_cells(facts)
    problems = [*_list_problems(facts, runs_of_cells, tests), *problems_of_builds]
    whole_line = make_time_line(chain.from_iterable(runs_of_cells.values()))
    page = RunPage(
        run_id=facts.run_id,
        platform=facts.platform,
        started=whole_line.started,
        busy=whole_line.busy,
        elapsed=whole_line.elapsed,
        problems=tuple(_merge_problems(problems)),
        groups=_list_groups(facts, runs_of_cells),
        cells=make_cells(facts, runs_of_cells, wheels, reasons_of_failed_tests(tests)),
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
                build = _read_build(cell, record, details=record.details)
            except ValidationError as error:
                first_error = error.errors()[0]
                path = ".".join(str(part) for part in first_error["loc"])
                message = f"details.{path}: {first_error['msg']}."
                problems.append(ReportedProblem(where=f"{record.stage} {cell_text(cell)}", what=message))
                # The build is shown all the same, without what they say.
                build = _read_build(cell, record, details={})
            builds.append(build)
    builds.sort(key=lambda build: (not build.failed, -build.seconds, build.cell, build.stage))
    return tuple(builds), problems


def _read_build(cell: GroupCell, record: Record, *, details: Mapping[str, Any]) -> BuildRow:
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


# What went wrong


def _list_problems(facts: RunFacts, runs_of_cells: StagesOfCells, tests: RunTests) -> list[ReportedProblem]:
    """Return the problems of a run: failed stages, interrupted ones, failed tests, unreadable documents."""
    unsuccessful_runs = _unsuccessful_runs(runs_of_cells)
    problems: list[ReportedProblem] = []
    reported: set[CellStage] = set()
    for cell, stage_run in unsuccessful_runs:
        problem = ReportedProblem(
            where=f"{stage_run.stage} {cell_text(cell)}",
            what=stage_run.cause or stage_run.error or "It ended without an error message.",
            around=stage_run.around,
            again=stage_run.again,
            log=stage_run.log,
        )
        problems.append(problem)
        # Shards are stages of their own, and their results are those of the whole.
        whole_stage, _, _ = stage_run.stage.partition("-")
        reported.add((cell, whole_stage))

    for stage_tests in tests.runs:
        is_reported = (stage_tests.cell, stage_tests.stage) in reported
        if stage_tests.passed or stage_tests.missing or is_reported:
            continue
        failures = [case for case in tests.failures if stage_tests.stage_and_cell in case.cells]
        problems.append(_problem_of_tests(stage_tests, failures))

    problems += facts.problems
    for group in facts.groups:
        problems += group.problems
    return problems


def _unsuccessful_runs(runs_of_cells: StagesOfCells) -> Sequence[tuple[GroupCell, StageRun]]:
    """Return the stages that failed, and after them those that were interrupted, by cell."""
    failed_runs: list[tuple[GroupCell, StageRun]] = []
    interrupted_runs: list[tuple[GroupCell, StageRun]] = []
    for cell, stage_runs in sorted(runs_of_cells.items()):
        for stage_run in stage_runs:
            if stage_run.state == "failed":
                failed_runs.append((cell, stage_run))
            elif stage_run.state == "interrupted":
                interrupted_runs.append((cell, stage_run))
    return failed_runs + interrupted_runs


def _problem_of_tests(stage_tests: StageTests, failures: Sequence[CaseRow]) -> ReportedProblem:
    """Return which tests failed, with the command that runs the first one again."""
    first_failures = failures[:_MOST_TESTS]
    messages = [f"{case.test}: {case.line}" for case in first_failures]
    if not messages:
        messages = [*stage_tests.problems, "It failed."]
    return ReportedProblem(
        where=stage_tests.stage_and_cell,
        what=messages[0],
        around=tuple(messages) if len(messages) > 1 else (),
        again=failures[0].command if failures else "",
    )


def _merge_problems(problems: Iterable[ReportedProblem]) -> Iterator[ReportedProblem]:
    """Yield each problem once, with all the places in which the same went wrong."""
    problems_by_error: dict[str, list[ReportedProblem]] = defaultdict(list)
    for problem in problems:
        problems_by_error[problem.what].append(problem)
    for first_problem, *same_problems in problems_by_error.values():
        places = [problem.where for problem in same_problems]
        yield replace(first_problem, also=tuple(places))
