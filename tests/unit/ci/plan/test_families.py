from typing import Any

import pytest

from core.errors import DataError, UsageError
from tests.unit.ci.plan.planning import changed, dispatched, known, planned, pull_request, push, why


def runners(**tables: Any) -> Any:
    raw = known().runners.model_dump()
    return changed(runners={name: {**raw[name], **table} for name, table in tables.items()})


def test_labels_that_share_the_work_are_chosen_by_the_run() -> None:
    both = {"test_runner": "linux-gfx1151-gpu-rocm", "more_test_runners": ("linux-gfx110X-gpu-rocm",)}
    data = runners(families={"gfx1151": {"linux": both}})

    def chosen(run_id: str) -> str:
        made = planned("schedule", what=data, run_id=run_id)
        return next(one.runner for one in made.matrix("linux", "test_rocm") if one.gpu_family == "gfx1151")

    found = [chosen(str(number)) for number in range(12)]
    assert set(found) == {"linux-gfx1151-gpu-rocm", "linux-gfx110X-gpu-rocm"}
    assert found == [chosen(str(number)) for number in range(12)]


def test_what_is_out_of_service_is_said_before_it_queues() -> None:
    data = runners(out_of_service={"linux-gfx1151-gpu-rocm": "moved to another rack"})
    made = planned("pull_request", pull_request("gfx1151", "build:pytorch"), what=data)
    said = "linux-gfx1151-gpu-rocm is out of service: moved to another rack"
    assert why(made, "test_rocm, gfx1151 on linux") == said
    assert why(made, "test_pytorch, gfx1151, nightly, Python 3.12 on linux") == said
    merged = planned("schedule", what=data)
    (cell,) = [one for one in merged.matrix("linux", "test_rocm") if one.gpu_family == "gfx1151"]
    assert cell.runner == "ubuntu-24.04"


def test_builds_move_where_their_machines_are_out_of_service() -> None:
    data = runners(out_of_service={"aws-linux-scale-rocm-prod": "no capacity"})
    assert planned("push", push(), what=data).variants[0].build_runner == "ubuntu-24.04"
    none = runners(out_of_service={"aws-linux-scale-rocm-prod": "x", "ubuntu-24.04": "y"})
    with pytest.raises(DataError, match="No machine builds on linux: ubuntu"):
        planned("push", push(), what=none)


def test_a_kernel_is_tested_where_somebody_has_it() -> None:
    made = planned("pull_request", pull_request("test_runner:oem"))
    assert [(one.gpu_family, one.runner) for one in made.matrix("linux", "test_rocm")] == [
        ("gfx1151", "linux-strix-halo-gpu-rocm-oem")
    ]
    assert "has the kernel oem" in why(made, "test_rocm, gfx94X-dcgpu on linux")


def test_a_dispatch_names_machines_that_somebody_serves() -> None:
    given = {"linux_amdgpu_families": "gfx906", "linux_test_runner": "linux-gfx90a-1gpu-ossci-rocm"}
    made = dispatched(**given, linux_build_runner="ubuntu-22.04")
    assert {cell.runner for cell in made.cells} == {"linux-gfx90a-1gpu-ossci-rocm", "ubuntu-22.04"}
    with pytest.raises(UsageError) as caught:
        dispatched(**{**given, "linux_test_runner": "linux-gfx90a-1gpu-ossci-rcm"})
    assert "no machine has the runner label" in str(caught.value)
    assert "Did you mean 'linux-gfx90a-1gpu-ossci-rocm'" in str(caught.value)
