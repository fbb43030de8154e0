"""The options of an event that plans every kind of job, and the jobs of such a plan."""

from collections.abc import Iterable

from ci.jobs import Job

PULL_REQUEST = (
    "--event=pull_request",
    "--label=build:pytorch",
    "--torch-ref=sample",
    "--gpu-family=gfx94X-dcgpu",
)


def stages_of(jobs: Iterable[Job]) -> list[str]:
    """Return the stages of jobs, in order."""
    return [job.kind for job in jobs]
