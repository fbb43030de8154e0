"""Failures that CI's data expects: the jobs run, and their failure does not count until a day."""

from datetime import date
from typing import Any

from ci.plan.data import PlanData
from tests.kit.planning import (
    TODAY,
    changed_data,
    families_by_stage,
    plan_dispatch,
    plan_event,
    push,
    reason_left_out,
)

UNTESTED_WHEEL = "test_torch default, gfx94X-dcgpu, nightly, Python 3.12 on linux"


def data_with_expected_failure(
    *, until: date = TODAY, stages: tuple[str, ...] = (), torch_refs: tuple[str, ...] = ()
) -> PlanData:
    """Return CI's data with a failure of gfx94X-dcgpu on Linux that is expected."""
    row: dict[str, Any] = {
        "gpu_family": "gfx94X-dcgpu",
        "platform": "linux",
        "until": until,
        "reason": "it does not compile",
    }
    if stages:
        row["stages"] = stages
    if torch_refs:
        row["torch_refs"] = torch_refs
    return changed_data(families={"expect_failure": (row,)})


def test_an_expected_failure_does_not_count() -> None:
    data = data_with_expected_failure(stages=("build_pytorch",))

    plan = plan_event("push", push(), data=data)

    (job,) = plan.matrix("linux", "build_pytorch")
    assert job.expect_failure
    assert "2026-08-31" in job.reason
    assert "it does not compile" in job.reason
    assert not any(job.expect_failure for job in plan.matrix("linux", "build_rocm"))
    assert plan.notes == ()


def test_tests_nothing_whose_build_is_expected_to_fail() -> None:
    data = data_with_expected_failure(stages=("build_pytorch",))

    assert plan_event("push", push(), data=data).matrix("linux", "test_pytorch") == []
    scheduled = plan_event("schedule", data=data)
    assert "expected to fail" in reason_left_out(scheduled, UNTESTED_WHEEL)


def test_an_expected_failure_counts_again_after_its_last_day() -> None:
    data = data_with_expected_failure(stages=("build_pytorch",))

    plan = plan_event("push", push(), data=data, today=date(2026, 9, 1))

    assert not any(job.expect_failure for job in plan.jobs)
    assert "2026-08-31" in plan.notes[0]


def test_builds_nothing_on_rocm_packages_that_are_expected_to_fail() -> None:
    plan = plan_event("push", push(), data=data_with_expected_failure())

    group = plan.variants[0]
    assert group.expect_failure
    assert not group.build_pytorch
    assert "gfx94X-dcgpu" in families_by_stage(plan)["build_rocm"]
    assert "test_rocm" not in families_by_stage(plan)
    assert "it does not compile" in reason_left_out(plan, "build_pytorch, gfx94X-dcgpu on linux")


def test_an_expected_failure_of_one_ref_leaves_the_others() -> None:
    data = data_with_expected_failure(torch_refs=("release/2.10",))

    plan = plan_event("push", push(), data=data)

    assert not any(job.expect_failure for job in plan.jobs)


def test_a_dispatch_may_expect_to_fail() -> None:
    plan = plan_dispatch(linux_amdgpu_families="gfx94x", expect_failure="true")

    assert plan.variants[0].expect_failure
    assert families_by_stage(plan) == {"build_rocm": ["gfx94X-dcgpu"]}
