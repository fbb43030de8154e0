"""Tests that were requested and that no job of a plan runs: a run that is green must not pass for tested."""

from collections.abc import Iterator, Mapping, Sequence

from ci.plan.data import Test
from ci.plan.inputs import TEST_PREFIX
from core.run import Platform
from core.run.plan import LeftOut, Plan


def notes_on_missing_tests(
    plan: Plan,
    tests: Mapping[str, Test],
) -> Iterator[str]:
    """Yield a note for each requested test that no job runs, on any platform that it is requested for."""
    for label, platforms in _platforms_by_label(plan).items():
        test = tests[label.removeprefix(TEST_PREFIX)]
        if not _is_run(plan, test, platforms):
            reason = _reason(plan, test, platforms)
            yield f"{label} is requested, and no job runs it: {reason}; {_worth_of(plan)}"


def _platforms_by_label(plan: Plan) -> Mapping[str, Sequence[Platform]]:
    """Return the platforms that each test is requested for, by its label."""
    platforms_by_label: dict[str, list[Platform]] = {}
    for platform, labels in plan.test_labels.items():
        for label in labels:
            platforms_by_label.setdefault(label, []).append(platform)
    return platforms_by_label


def _is_run(
    plan: Plan,
    test: Test,
    platforms: Sequence[Platform],
) -> bool:
    """Return whether a job on one of these platforms runs a test."""
    for platform in platforms:
        for job in plan.matrix(platform, test.stage):
            if job.config == test.config and test.session in job.sessions:
                return True
    return False


def _reason(
    plan: Plan,
    test: Test,
    platforms: Sequence[Platform],
) -> str:
    """Return why a test is left out, or why what it would test is."""
    for subject in _subjects(test):
        for row in plan.left_out:
            if _is_about(row, subject, platforms):
                return row.reason
    return "the plan builds nothing that it could install"


def _subjects(test: Test) -> Sequence[str]:
    """Return what rows about a test begin with, the nearest reason first."""
    named_test: str = test.stage
    if test.config is not None:
        named_test = f"{test.stage} {test.config}"
    needed_build = "build_pytorch"
    if test.stage == "test_rocm":
        needed_build = "build_rocm"
    return (named_test, needed_build, "everything")


def _is_about(
    row: LeftOut,
    subject: str,
    platforms: Sequence[Platform],
) -> bool:
    """Return whether a row is about a subject, on one of these platforms or on all."""
    if row.what == subject:
        return True
    if not row.what.startswith(f"{subject}, "):
        return False
    return any(f" on {platform}" in row.what for platform in platforms)


def _worth_of(plan: Plan) -> str:
    """Return what the run's result says without the test."""
    if not plan.jobs:
        return "the run builds nothing"
    if any(job.stage.startswith("test_") for job in plan.jobs):
        return "the plan's other tests count"
    return "the run builds and checks, and tests nothing"
