"""Which jobs GitHub starts for a plan: each job of the plan once, on its machine, with its variables."""

from collections.abc import Iterable, Iterator, Sequence

import pytest

from core.run import PLATFORMS, Platform
from core.run.plan import Plan, PlannedJob
from tests.kit.planning import plan_event, pull_request
from tests.kit.workflow_runs import RunOfPlan, StartedJob, StartedStep, plan_of_platform, resolved

NIGHTLY_IMAGE = {
    "linux_amdgpu_families": "gfx908 gfx90a gfx94X-dcgpu",
    "windows_amdgpu_families": "none",
    "build_pytorch": "true",
    "linux_test_labels": "smoke",
    "pytorch_git_refs": "nightly",
    "pytorch_python_versions": "3.11",
}


def ci_plan() -> Plan:
    """Return the plan of a pull request with every kind of job."""
    return resolved(plan_event("pull_request", pull_request("build:pytorch", "test_filter:comprehensive")))


def image_plan() -> Plan:
    """Return the plan of the nightly image; one of its families has no machine that tests it."""
    return resolved(plan_event("workflow_call", inputs_of_call=NIGHTLY_IMAGE))


def jobs_at_work(plan: Plan, workflow: str) -> Sequence[StartedJob]:
    """Return the jobs that build or test, without those that fetch or publish for them."""
    jobs: list[StartedJob] = []
    for job in RunOfPlan(plan=plan).jobs(workflow, {}):
        only_carries = job.path.startswith(("fetch.yml", "publish.yml"))
        if job.planned_job is not None and not only_carries:
            jobs.append(job)
    return jobs


def jobs_named(jobs: Iterable[StartedJob], name: str) -> Iterator[StartedJob]:
    """Yield those jobs that have a name in their workflow."""
    for job in jobs:
        if job.path.endswith(f", {name}"):
            yield job


def planned_jobs(jobs: Iterable[StartedJob]) -> Sequence[PlannedJob | None]:
    """Return the jobs of the plan that jobs were started for."""
    return [job.planned_job for job in jobs]


@pytest.mark.parametrize("platform", PLATFORMS)
def test_ci_has_jobs_on_each_platform(platform: Platform) -> None:
    assert plan_of_platform(ci_plan(), platform).jobs


def test_ci_starts_every_job_of_its_plan_once() -> None:
    plan = ci_plan()

    started_jobs = planned_jobs(jobs_at_work(plan, "ci.yml"))

    assert len(started_jobs) == len(plan.jobs)
    for job in plan.jobs:
        assert job in started_jobs


def test_a_job_starts_on_the_machine_of_the_plan() -> None:
    for job in jobs_at_work(ci_plan(), "ci.yml"):
        assert job.planned_job is not None
        assert job.runner == job.planned_job.runner


def test_a_job_takes_no_longer_than_its_machine_allows() -> None:
    for job in jobs_at_work(ci_plan(), "ci.yml"):
        assert job.planned_job is not None
        if job.planned_job.hosted:
            assert job.minutes <= 360
        else:
            assert job.minutes <= 720


def test_an_image_is_built_and_tested_for_each_family_that_has_a_machine() -> None:
    plan = image_plan()

    jobs = jobs_at_work(plan, "therock-nightly.yml")

    builds = planned_jobs(jobs_named(jobs, "build-pytorch-nightly"))
    assert builds == plan.matrix("linux", "build_pytorch")
    tests = planned_jobs(jobs_named(jobs, "test-pytorch-nightly"))
    assert tests == plan.matrix("linux", "test_pytorch")
    assert 0 < len(tests) < len(builds)


def step_that_builds(job: StartedJob) -> StartedStep:
    """Return the step of a job that runs the sessions of the plan, in the words of bash or cmd."""
    commands = ("nox -s $SESSIONS", "nox -s !SESSIONS!")
    (step,) = [step for step in job.steps if step.command.startswith(commands)]
    return step


@pytest.mark.parametrize("variable", ["GPU_FAMILY", "SESSIONS", "SOURCE_LOCK", "TORCH_REF"])
def test_a_build_knows_what_it_builds(variable: str) -> None:
    checked_jobs = 0
    for job in jobs_at_work(ci_plan(), "ci.yml"):
        if job.path == "build_pytorch.yml, build":
            assert step_that_builds(job).environment[variable]
            checked_jobs += 1
    assert checked_jobs > 0
