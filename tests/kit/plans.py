"""Plans of a few jobs, for tests of what is made of plans."""

from collections.abc import Mapping, Sequence
from typing import Any

from core.run import Platform
from core.run.plan import Decision, Plan, PlanEvent, PlannedJob, Stage

YES = Decision(value=True, reason="a test")
NO = Decision(value=False, reason="a test")


def make_job(
    stage: Stage = "build_pytorch",
    gpu_family: str = "gfx94X-dcgpu",
    *,
    name: str = "",
    platform: Platform = "linux",
    sessions: Sequence[str] = (),
    artifact_group: str = "",
    runner: str = "ubuntu-24.04",
    torch_ref: str | None = None,
    python: str | None = "3.12",
    shard: str | None = None,
    versions: Mapping[str, str] | None = None,
    expect_failure: bool = False,
) -> PlannedJob:
    """Return a job; without `sessions` it has the one that is named after its stage."""
    return PlannedJob(
        name=name or f"{stage} {gpu_family} {torch_ref or ''} {python or ''} {shard or ''}",
        platform=platform,
        stage=stage,
        sessions=tuple(sessions) or (stage,),
        runner=runner,
        gpu_family=gpu_family,
        artifact_group=artifact_group or gpu_family,
        torch_ref=torch_ref,
        python=python,
        shard=shard,
        versions=dict(versions or {}),
        expect_failure=expect_failure,
        reason="a test",
    )


def make_plan(*jobs: PlannedJob, promote: Decision = YES) -> Plan:
    """Return a plan of these jobs, with a yes to all else."""
    return Plan(
        event=PlanEvent(name="push", repository="ROCm/TheRock"),
        release_type="ci",
        trusted=YES,
        enable_build_jobs=YES,
        build_pytorch=YES,
        upload=YES,
        promote=promote,
        test_type="quick",
        test_type_reason="a test",
        test_labels={},
        jobs=jobs,
    )


def pytorch_job(
    stage: Stage = "build_pytorch", *, torch_ref: str = "nightly", sessions: Sequence[str] = (), **facts: Any
) -> PlannedJob:
    """Return a job of PyTorch, by default one that builds torch and vision of ``nightly``."""
    names = tuple(sessions) or ("build_torch", "build_vision", "check_wheels")
    return make_job(stage, torch_ref=torch_ref, sessions=names, **facts)
