"""The variables of a workflow's job: of one in the plan of its run, or of one that is dispatched alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.data import Model, OptionalText
from core.run import PLAIN
from core.run.plan import FETCH

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core.run.plan import Plan, PlannedJob

_BUILD_ROCM = "build_rocm"
# Workflows have steps of their own for these: artifacts are of another run, and a check of ROCm has options.
_SESSIONS_WITH_OWN_STEPS = (FETCH, "check_rocm")


class JobRocm(Model):
    """Where the ROCm of a job comes from: an artifact run, an index, or a flat page."""

    run_id: OptionalText = None
    repository: OptionalText = None
    store: OptionalText = None
    digest: OptionalText = None
    index_url: OptionalText = None
    find_links_url: OptionalText = None
    version: OptionalText = None


class JobValues(Model):
    """What a job builds or tests, and with what."""

    gpu_family: str
    build_variant: str = PLAIN
    python: OptionalText = None
    torch_ref: OptionalText = None
    torch_version: OptionalText = None
    sessions: str = ""
    # Of upstream's tests the configuration, and which part of it: `default 2/6`.
    torch_tests: str = ""
    source_lock: OptionalText = None
    index_url: OptionalText = None
    find_links_url: OptionalText = None
    builds_rocm: bool = False  # before its sessions, where no other job hands ROCm's packages on
    rocm: JobRocm = JobRocm()


class DispatchedJob(JobValues):
    """A job as a dispatched workflow writes it: its values, beside what GitHub itself reads of a job."""

    job: str
    runner: str
    minutes: int = 0
    hosted: bool = False
    without_gpu: bool = False
    expect_failure: bool = False
    fetch: bool = False


def values_of_planned_job(plan: Plan, job: PlannedJob, source_lock: str | None) -> JobValues:
    """Return the values of a job of the plan; `source_lock` is the lock of its torch ref, as one line."""
    sessions = [session for session in job.sessions if session not in _SESSIONS_WITH_OWN_STEPS]
    builds_rocm = job.stage == "build_pytorch" and _BUILD_ROCM in sessions
    if builds_rocm:
        # Its packages have a version as an option, which sessions of PyTorch have not.
        sessions.remove(_BUILD_ROCM)

    rocm = JobRocm.model_validate(plan.rocm_row(job))
    is_build_without_index = job.stage == "build_pytorch" and rocm.version is None
    if job.stage == "build_rocm" or is_build_without_index:
        # The version that the run's own packages get.
        rocm = rocm.model_copy(update={"version": plan.rocm.version})
    return JobValues(
        gpu_family=job.gpu_family,
        build_variant=job.build_variant,
        python=job.python,
        torch_ref=job.torch_ref,
        torch_version=job.versions.get("torch"),
        sessions=" ".join(sessions),
        torch_tests=f"{job.config or ''} {job.shard or ''}".strip(),
        source_lock=source_lock,
        builds_rocm=builds_rocm,
        rocm=rocm,
    )


def job_variables(values: JobValues) -> Mapping[str, str]:
    """Return the variables of the job's steps; what it has not is empty."""
    configuration, _, part = values.torch_tests.partition(" ")
    variables: dict[str, str | None] = {
        "ARTIFACT_DIGEST": values.rocm.digest,
        "ARTIFACT_REPOSITORY": values.rocm.repository,
        "ARTIFACT_RUN_ID": values.rocm.run_id,
        "ARTIFACT_STORE": values.rocm.store,
        "BUILDS_ROCM": "true" if values.builds_rocm else None,
        "BUILD_VARIANT": values.build_variant,
        "GPU_FAMILY": values.gpu_family,
        "PACKAGE_FIND_LINKS_URL": values.find_links_url,
        "PACKAGE_INDEX_URL": values.index_url,
        "PYTHON_VERSION": values.python,
        "ROCM_PACKAGE_FIND_LINKS_URL": values.rocm.find_links_url,
        "ROCM_PACKAGE_INDEX_URL": values.rocm.index_url,
        "ROCM_PACKAGE_VERSION": values.rocm.version,
        "SESSIONS": values.sessions,
        "SOURCE_LOCK": values.source_lock,
        "TORCH_REF": values.torch_ref,
        "TORCH_TESTS": configuration,
        "TORCH_TESTS_PART": part.strip(),
        "TORCH_VERSION": values.torch_version,
    }
    return {name: value or "" for name, value in variables.items()}
