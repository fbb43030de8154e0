from __future__ import annotations

import json
from typing import Any

import pytest

from core.errors import SourceError
from core.plans import Cell, Decision, Plan, PlanEvent
from pytorch_build.lock.planned import complete, outputs
from pytorch_build.lock.source_lock import LockedProject, SourceLock

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def cell(stage: Any = "build_pytorch", **facts: Any) -> Cell:
    values: dict[str, Any] = {
        "name": f"{stage} {sorted(facts.items())}",
        "platform": "linux",
        "stage": stage,
        "sessions": ("build_torch", "build_vision", "check_wheels"),
        "runner": "ubuntu-24.04",
        "gpu_family": "gfx94X-dcgpu",
        "artifact_group": facts.get("gpu_family", "gfx94X-dcgpu"),
        "python": "3.12",
        "torch_ref": "nightly",
        "reason": "a test",
    }
    return Cell(**{**values, **facts})


def plan(*cells: Cell) -> Plan:
    yes = Decision(value=True, reason="a test")
    return Plan(
        event=PlanEvent(name="push", repository="a/b"),
        trusted=yes,
        enable_build_jobs=yes,
        build_pytorch=yes,
        upload=yes,
        promote=yes,
        release_type="ci",
        test_type="quick",
        test_type_reason="a test",
        test_labels={},
        cells=cells,
    )


class Locks:
    """Resolves refs, and writes down for what."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []

    def __call__(self, platform: Any, torch_ref: str, gpu_family: str) -> SourceLock:
        self.asked.append((platform, torch_ref, gpu_family))
        versions: Any = {"rocm": f"2.10+rocm7.{platform}", "cpu": "2.10+cpu"}
        projects = {
            name: LockedProject(
                project=name, origin="o", ref="r", commit=COMMIT, base_version="2.10", versions=versions
            )
            for name in ("torch", "audio", "vision")
        }
        return SourceLock(torch_ref=torch_ref, release_type="ci", rocm_version="7", projects=projects)


def test_every_cell_gets_the_versions_of_the_wheels_that_its_job_builds() -> None:
    built = (cell(), cell(gpu_family="cpu"), cell(platform="windows"), cell(python="3.13", torch_ref="main"))
    tested = cell("test_pytorch", sessions=("test_smoke",))
    rocm = cell("build_rocm", torch_ref="", python="", sessions=("build_rocm",))
    locks = Locks()
    completed, found = complete(plan(*built, tested, rocm), locks)
    assert locks.asked == [
        ("linux", "nightly", "gfx94X-dcgpu"),
        ("linux", "main", "gfx94X-dcgpu"),
        ("windows", "nightly", "gfx94X-dcgpu"),
    ]
    versions = [one.versions for one in completed.cells]
    gpu = "2.10+rocm7.linux"
    assert versions[0] == versions[3] == versions[4] == {"torch": gpu, "torchvision": gpu}
    assert versions[1] == {"torch": "2.10+cpu", "torchvision": "2.10+cpu"}
    assert versions[2]["torch"] == "2.10+rocm7.windows"
    assert versions[5] == {}
    assert completed.locks["linux"]["main"] == found["linux"]["main"].digest()
    assert completed.digest() != plan(*built, tested, rocm).digest()


def test_a_ref_that_is_built_without_rocm_alone_is_locked_so() -> None:
    locks = Locks()
    complete(plan(cell(gpu_family="cpu")), locks)
    assert locks.asked == [("linux", "nightly", "cpu")]


def test_each_lock_is_the_line_that_a_job_takes() -> None:
    completed, locks = complete(plan(cell()), Locks())
    written = outputs(completed, locks)
    line = json.loads(written["linux_source_locks"])["nightly"]
    assert SourceLock.from_compact(line) == locks["linux"]["nightly"]
    assert json.loads(written["windows_source_locks"]) == {}
    assert json.loads(written["linux_build_pytorch_matrix"])[0]["versions"]["torch"] == "2.10+rocm7.linux"
    assert written["plan_digest"] == completed.digest()


def test_a_wheel_that_the_lock_does_not_promise_is_an_error() -> None:
    with pytest.raises(SourceError, match="does not hold apex"):
        complete(plan(cell(sessions=("build_apex",))), Locks())


def test_a_plan_without_pytorch_has_nothing_to_resolve() -> None:
    locks = Locks()
    completed, found = complete(plan(cell("build_rocm", torch_ref="")), locks)
    assert (locks.asked, found) == ([], {"linux": {}, "windows": {}})
    assert completed.cells[0].versions == {}
