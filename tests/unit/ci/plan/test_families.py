"""Which machines test a GPU family, and which build."""

import pytest

from core.errors import DataError, UsageError
from core.run.plan import Plan, PlannedJob
from tests.kit.planning import (
    changed_runners,
    plan_dispatch,
    plan_event,
    pull_request,
    push,
    reason_left_out,
)

RUNNER = "linux-gfx1151-gpu-rocm"
OTHER_RUNNER = "linux-gfx110X-gpu-rocm"
BUILD_RUNNER = "aws-linux-scale-rocm-prod"


def rocm_test(plan: Plan, family: str) -> PlannedJob:
    """Return the job on Linux that tests the ROCm of a family."""
    (job,) = [job for job in plan.matrix("linux", "test_rocm") if job.gpu_family == family]
    return job


def test_runs_are_spread_over_machines_with_different_labels() -> None:
    machines = {"test_runner": RUNNER, "more_test_runners": (OTHER_RUNNER,)}
    data = changed_runners(families={"gfx1151": {"linux": machines}})
    run_ids = [str(number) for number in range(8)]

    def runner(run_id: str) -> str:
        plan = plan_event("pull_request", pull_request("gfx1151"), data=data, run_id=run_id)
        return rocm_test(plan, "gfx1151").runner

    runners = [runner(run_id) for run_id in run_ids]

    assert set(runners) == {RUNNER, OTHER_RUNNER}
    # A job that is run again waits for the same machine.
    assert [runner(run_id) for run_id in run_ids] == runners


@pytest.mark.parametrize(
    "job", ["test_rocm, gfx1151 on linux", "test_pytorch, gfx1151, nightly, Python 3.12 on linux"]
)
def test_leaves_out_tests_whose_machine_is_out_of_service(job: str) -> None:
    data = changed_runners(out_of_service={RUNNER: "moved to another rack"})

    plan = plan_event("pull_request", pull_request("gfx1151", "build:pytorch"), data=data)

    reason = reason_left_out(plan, job)
    assert RUNNER in reason
    assert "moved to another rack" in reason


def test_tests_without_a_gpu_after_a_merge_where_the_machine_is_out_of_service() -> None:
    data = changed_runners(out_of_service={RUNNER: "moved to another rack"})

    plan = plan_event("schedule", data=data)

    assert rocm_test(plan, "gfx1151").runner == "ubuntu-24.04"


def test_builds_on_another_machine_where_the_usual_one_is_out_of_service() -> None:
    data = changed_runners(out_of_service={BUILD_RUNNER: "no capacity"})

    plan = plan_event("push", push(), data=data)

    assert plan.variants[0].build_runner == "ubuntu-24.04"


def test_refuses_a_plan_that_no_machine_can_build() -> None:
    data = changed_runners(out_of_service={BUILD_RUNNER: "x", "ubuntu-24.04": "y"})

    with pytest.raises(DataError, match="linux"):
        plan_event("push", push(), data=data)


def test_tests_a_kernel_only_on_machines_that_have_it() -> None:
    plan = plan_event("pull_request", pull_request("test_runner:oem"))

    (job,) = plan.matrix("linux", "test_rocm")
    assert job.gpu_family == "gfx1151"
    assert job.runner == "linux-strix-halo-gpu-rocm-oem"
    assert "oem" in reason_left_out(plan, "test_rocm, gfx94X-dcgpu on linux")


def test_a_dispatch_names_the_machines_of_its_jobs() -> None:
    plan = plan_dispatch(
        linux_amdgpu_families="gfx906",
        linux_test_runner="linux-gfx90a-1gpu-ossci-rocm",
        linux_build_runner="ubuntu-22.04",
    )

    assert {job.runner for job in plan.jobs} == {"linux-gfx90a-1gpu-ossci-rocm", "ubuntu-22.04"}


def test_refuses_a_machine_that_nobody_serves() -> None:
    with pytest.raises(UsageError) as caught:
        plan_dispatch(linux_amdgpu_families="gfx906", linux_test_runner="linux-gfx90a-1gpu-ossci-rcm")

    assert "'linux-gfx90a-1gpu-ossci-rcm'" in str(caught.value)
    assert "'linux-gfx90a-1gpu-ossci-rocm'" in str(caught.value)
