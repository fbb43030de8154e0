"""What a reader should know first of a run: what failed, and what cannot be read."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from ci.report.model import ReportedProblem
from ci.report.names import cell_text
from ci.report.stages import stages_of_cells

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ci.report.facts import CellStage, RunFacts
    from ci.report.model import CaseRow, RunTests, StageRun, StageTests
    from core.cell import GroupCell

# A problem names so many of the tests that failed.
_MOST_TESTS = 5


def list_problems(facts: RunFacts, tests: RunTests) -> list[ReportedProblem]:
    """Return the problems of a run: failed stages, interrupted ones, failed tests, unreadable documents."""
    unsuccessful_runs = _unsuccessful_runs(facts)
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
        failures = [case for case in tests.failures if stage_tests.place in case.cells]
        problems.append(_problem_of_tests(stage_tests, failures))

    problems += facts.problems
    for group in facts.groups:
        problems += group.problems
    return problems


def _unsuccessful_runs(facts: RunFacts) -> Sequence[tuple[GroupCell, StageRun]]:
    """Return the stages that failed, and after them those that were interrupted, by cell."""
    failed_runs: list[tuple[GroupCell, StageRun]] = []
    interrupted_runs: list[tuple[GroupCell, StageRun]] = []
    for cell, stage_runs in sorted(stages_of_cells(facts).items()):
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
        where=stage_tests.place,
        what=messages[0],
        around=tuple(messages) if len(messages) > 1 else (),
        again=failures[0].command if failures else "",
    )


def merge_problems(problems: Iterable[ReportedProblem]) -> Iterator[ReportedProblem]:
    """Yield each problem once, with all the places in which the same went wrong."""
    problems_by_error: dict[str, list[ReportedProblem]] = defaultdict(list)
    for problem in problems:
        problems_by_error[problem.what].append(problem)
    for first_problem, *same_problems in problems_by_error.values():
        places = [problem.where for problem in same_problems]
        yield replace(first_problem, also=tuple(places))
