"""Jobs on machines of GitHub's, which ends a job after six hours."""

from collections.abc import Mapping
from typing import Any

from ci.plan.data import MAX_HOSTED_MINUTES, MAX_MINUTES, PlanData
from core.run.plan import PlannedJob
from tests.kit.planning import changed_data, ci_data, nightly_plan, plan_event

FORK = "somebody/TheRock"


def data_with_long_tests() -> PlanData:
    """Return data whose tests may all take as long as a machine of one's own allows."""
    tests: Mapping[str, Any] = ci_data().triggers.model_dump()["tests"]
    long_tests = {name: {**test, "minutes": MAX_MINUTES} for name, test in tests.items()}
    return changed_data(triggers={"tests": long_tests})


def jobs_of_fork(data: PlanData | None = None) -> list[PlannedJob]:
    """Return the jobs of a fork's nightly, which has no machines but GitHub's."""
    plan = plan_event("schedule", release_type="nightly", data=data, repository=FORK)
    return list(plan.jobs)


def test_a_job_says_whether_github_owns_its_machine() -> None:
    labels_of_github = ci_data().runners.github
    jobs = [*jobs_of_fork(), *nightly_plan().jobs]

    assert {job.hosted for job in jobs} == {True, False}
    for job in jobs:
        assert job.hosted is (job.runner in labels_of_github)


def test_a_test_on_a_machine_of_github_ends_before_github_ends_its_job() -> None:
    jobs = [*jobs_of_fork(data_with_long_tests()), *nightly_plan().jobs]

    for job in jobs:
        if job.hosted:
            assert job.minutes <= MAX_HOSTED_MINUTES


def test_a_test_on_another_machine_takes_as_long_as_the_data_says() -> None:
    plan = plan_event("schedule", release_type="nightly", data=data_with_long_tests())

    minutes = {job.minutes for job in plan.matrix("linux", "test_torch")}

    assert minutes == {MAX_MINUTES}


def test_a_build_on_a_machine_of_github_says_when_it_ends() -> None:
    plan = plan_event("schedule", release_type="nightly", repository=FORK)

    builds = plan.matrix("linux", "build_pytorch")

    assert builds
    for job in builds:
        assert job.reason.endswith(f"GitHub ends a job on {job.runner} after six hours")
