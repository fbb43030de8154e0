"""Tests that were requested and that no job of a plan runs: a run that is green must not pass for tested."""

from collections.abc import Iterator, Mapping

from ci.plan.data import Test
from ci.plan.inputs import TEST
from core.run import Platform
from core.run.plan import LeftOut, Plan, PlannedJob


def notes_on_missing_tests(plan: Plan, tests: Mapping[str, Test]) -> Iterator[str]:
    """Yield a note for each requested test that no job runs, on any platform that it is requested for."""
    for label, platforms in _platforms_by_label(plan).items():
        test = tests[label.removeprefix(TEST)]
        if any(job.platform in platforms and _runs_test(job, test) for job in plan.cells):
            continue

        reason = _reason(plan, test, platforms)
        yield f"{label} is requested, and no job runs it: {reason}; {_worth_of(plan)}"


def _platforms_by_label(plan: Plan) -> Mapping[str, list[Platform]]:
    """Return the platforms that each test is requested for, by its label."""
    platforms_by_label: dict[str, list[Platform]] = {}
    for platform, labels in plan.test_labels.items():
        for label in labels:
            platforms_by_label.setdefault(label, []).append(platform)
    return platforms_by_label


def _runs_test(job: PlannedJob, test: Test) -> bool:
    return job.stage == test.stage and job.config == test.config and test.session in job.sessions


def _reason(plan: Plan, test: Test, platforms: list[Platform]) -> str:
    """Return why a test is left out, or what it would test."""
    stage = test.stage if test.config is None else f"{test.stage} {test.config}"
    needed_build = "build_rocm" if test.stage == "test_rocm" else "build_pytorch"
    for subject in (stage, needed_build, "everything"):
        for row in plan.left_out:
            if row.what.partition(",")[0] == subject and _is_on(row, platforms):
                return row.reason
    return "the plan builds nothing that it could install"


def _is_on(row: LeftOut, platforms: list[Platform]) -> bool:
    """Return whether a row is about one of these platforms, or about all of them."""
    return "," not in row.what or any(f" on {platform}" in row.what for platform in platforms)


def _worth_of(plan: Plan) -> str:
    """Return what the run's result says without the test."""
    if any(job.stage.startswith("test_") for job in plan.cells):
        return "the plan's other tests count"
    if plan.cells:
        return "the run builds and checks, and tests nothing"
    return "the run builds nothing"
