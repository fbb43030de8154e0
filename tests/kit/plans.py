"""Plans of a few jobs, for tests of what is made of plans."""

from typing import Any

from core.run.plan import Cell, Decision, Plan, PlanEvent

YES, NO = (Decision(value=value, reason="a test") for value in (True, False))


def cell(stage: str = "build_pytorch", gpu_family: str = "gfx94X-dcgpu", **facts: Any) -> Cell:
    """Return a job; its sessions are named after the stage where no others are given."""
    values = {
        "name": f"{stage} {gpu_family} {sorted(facts.items())}",
        "platform": "linux",
        "stage": stage,
        "sessions": (stage,),
        "runner": "ubuntu-24.04",
        "gpu_family": gpu_family,
        "artifact_group": gpu_family,
        "python": "3.12",
        "reason": "a test",
    }
    return Cell.model_validate({**values, **facts})


def plan(*cells: Cell, promote: Decision = YES) -> Plan:
    """Return a plan of these jobs, with a yes to all else."""
    decisions = dict.fromkeys(("trusted", "enable_build_jobs", "build_pytorch", "upload"), YES)
    tests: dict[str, Any] = {"test_type": "quick", "test_type_reason": "a test", "test_labels": {}}
    event = PlanEvent(name="push", repository="ROCm/TheRock")
    return Plan(event=event, promote=promote, release_type="ci", cells=cells, **tests, **decisions)


def pytorch_cell(stage: str = "build_pytorch", **facts: Any) -> Cell:
    """Return a job of PyTorch, by default one that builds torch and vision of ``nightly``."""
    sessions = ("build_torch", "build_vision", "check_wheels")
    return cell(stage, **{"torch_ref": "nightly", "sessions": sessions, **facts})
