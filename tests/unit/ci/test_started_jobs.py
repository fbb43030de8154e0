"""Which jobs GitHub starts for a plan: each job of the plan once, on its machine, with its variables."""

from collections.abc import Sequence

import pytest

from core.run.plan import Plan
from tests.kit.planning import plan_event, pull_request
from tests.kit.workflow_runs import RunOfPlan, StartedJob, resolved

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
    jobs = RunOfPlan(plan=plan).jobs(workflow, {})
    carriers = ("fetch.yml", "publish.yml")
    return [job for job in jobs if job.planned_job is not None and not job.path.startswith(carriers)]


def test_ci_starts_every_job_of_its_plan_once() -> None:
    plan = ci_plan()

    started = [job.planned_job for job in jobs_at_work(plan, "ci.yml")]

    assert {job.platform for job in plan.jobs} == {"linux", "windows"}
    assert len(started) == len(plan.jobs)
    assert all(job in started for job in plan.jobs)


def test_a_job_starts_on_the_machine_of_the_plan() -> None:
    for job in jobs_at_work(ci_plan(), "ci.yml"):
        assert job.planned_job is not None
        assert job.runner == job.planned_job.runner
        assert job.minutes <= (360 if job.planned_job.hosted else 720)


def test_an_image_is_built_and_tested_for_each_family_that_has_a_machine() -> None:
    plan = image_plan()
    tests = plan.matrix("linux", "test_pytorch")

    started = jobs_at_work(plan, "therock-nightly.yml")

    of_tests = [job.planned_job for job in started if job.path.endswith("test-pytorch-nightly")]
    of_builds = [job.planned_job for job in started if job.path.endswith("build-pytorch-nightly")]
    assert 0 < len(tests) < len(of_builds)
    assert of_tests == tests
    assert of_builds == plan.matrix("linux", "build_pytorch")


@pytest.mark.parametrize("variable", ["GPU_FAMILY", "SESSIONS", "SOURCE_LOCK", "TORCH_REF"])
def test_a_build_knows_what_it_builds(variable: str) -> None:
    for job in jobs_at_work(ci_plan(), "ci.yml"):
        if job.path == "build_pytorch.yml, build":
            (step,) = [step for step in job.steps if step.command.startswith(("nox -s $S", "nox -s !S"))]
            assert step.environment[variable]
