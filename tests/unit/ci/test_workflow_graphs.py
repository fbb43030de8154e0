"""The graphs of the workflows, beside the pipeline's and one machine's: who waits for whom."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from ci.flow import make_plan, with_placeholders
from ci.jobs import FlowSettings, Job, jobs_of_plan, nightly_jobs
from ci.pipeline import STEPS_BY_NAME, JobKind, Step, steps_of_job
from tests.kit.job_plans import PULL_REQUEST, stages_of
from tests.kit.workflow_files import (
    READING,
    SESSIONS,
    Workflow,
    called_sessions,
    calls,
    needs_of,
    workflow_jobs,
    workflows,
)

# Where the jobs of the pipeline's steps stand.
JOBS_OF_WORKFLOWS = {
    "setup": ("setup.yml", "setup"),
    "build_rocm": ("build_rocm.yml", "build"),
    "test_rocm": ("test_rocm.yml", "test"),
    "build_pytorch": ("build_pytorch.yml", "build"),
    "upload": ("publish.yml", "publish"),
    "test_pytorch": ("test_pytorch.yml", "test"),
    "test_torch": ("test_pytorch.yml", "test"),
    "test_report": ("release.yml", "test_report"),
}


def sessions_of(job: Mapping[str, Any]) -> list[str]:
    """Return the sessions that a job runs on Linux, in order; those that the plan writes are one word."""
    sessions: list[str] = []
    for step in job["steps"]:
        is_of_windows = "'windows'" in str(step.get("if", ""))
        if "run" in step and not is_of_windows:
            sessions += called_sessions(step["run"])

    # One machine has the plan at hand. In CI, who is told is decided behind the pipeline.
    return [session for session in sessions if session not in {READING, "notify"}]


def sessions_of_workflow_job(kind: str) -> list[str]:
    """Return the sessions of the job in the workflows that does a kind of the pipeline's jobs."""
    file, job_name = JOBS_OF_WORKFLOWS[kind]
    return sessions_of(workflows()[file].jobs[job_name])


def sessions_of_steps(steps: Iterable[Step]) -> list[str]:
    """Return the sessions that do these steps of the pipeline."""
    return [step.session for step in steps]


@pytest.mark.parametrize("kind", ["build_rocm", "upload", "test_report"])
def test_a_job_runs_the_sessions_of_its_steps_in_order(kind: JobKind) -> None:
    assert sessions_of_workflow_job(kind) == sessions_of_steps(steps_of_job(kind))


def test_the_first_job_uploads_what_it_has_decided() -> None:
    sessions = sessions_of_workflow_job("setup")

    # It uploads by itself, as it runs nothing of upstream's.
    assert sessions == [*sessions_of_steps(steps_of_job("setup")), "upload"]


@pytest.mark.parametrize("kind", ["test_rocm", "test_pytorch", "test_torch"])
def test_a_test_job_runs_the_sessions_that_the_plan_names(kind: str) -> None:
    assert sessions_of_workflow_job(kind) == [SESSIONS]


def test_the_job_that_builds_pytorch_builds_and_checks_a_forks_rocm_before() -> None:
    steps_of_rocm = [
        STEPS_BY_NAME["fetch_artifacts"],
        STEPS_BY_NAME["build_rocm"],
        STEPS_BY_NAME["check_rocm"],
    ]

    assert sessions_of_workflow_job("build_pytorch") == [*sessions_of_steps(steps_of_rocm), SESSIONS]


@pytest.mark.parametrize(
    "file",
    ["build_portable_linux_pytorch_wheels.yml", "build_windows_pytorch_wheels.yml"],
    ids=["linux", "windows"],
)
def test_a_dispatched_build_runs_the_builds_and_the_check_in_the_order_of_the_pipeline(file: str) -> None:
    sessions = workflows()[file].inputs["sessions"]["default"].split()
    sessions_in_order = sessions_of_steps(steps_of_job("build_pytorch"))

    assert sessions == [session for session in sessions_in_order if session in sessions]
    assert sessions[-1] == "check_wheels"


def test_a_run_of_ci_ends_with_its_report() -> None:
    sessions = sessions_of(workflows()["ci.yml"].jobs["summary"])
    last_steps = [STEPS_BY_NAME["test_report"], STEPS_BY_NAME["report"]]
    last_sessions = sessions_of_steps(last_steps)

    # On one platform and on the other one.
    assert sessions == [*last_sessions, *last_sessions]


SAMPLE = (*PULL_REQUEST, "--label=test_filter:comprehensive")
RELEASE = (
    "--event=workflow_dispatch",
    "--input=linux_amdgpu_families=gfx94X-dcgpu",
    "--input=release_type=nightly",
    "--input=pytorch_git_refs=release/2.14",
    "--input=pytorch_python_versions=3.12",
)


def jobs_of_event(*options: str) -> Sequence[Job]:
    """Return the jobs of an event's plan on Linux, as one machine runs them."""
    settings = FlowSettings()
    plan = make_plan(options, settings)
    return jobs_of_plan(with_placeholders(plan), "linux", settings)


def kind_of(job: Job) -> str:
    """Return the job of the workflows that a job of one machine is."""
    (kind,) = stages_of([job])
    return kind


def sessions_of_planned_job(job: Job) -> list[str]:
    """Return the sessions that one machine runs for a job, in order."""
    sessions: list[str] = []
    for call in job.calls:
        sessions += call.sessions
    return sessions


def test_one_machine_runs_every_job_of_ci() -> None:
    kinds = set(map(kind_of, jobs_of_event(*SAMPLE)))

    assert kinds == {*workflows()["ci_family.yml"].jobs, "test_report", "summary"}


# The jobs that each job waits for, by its name.
Needs = Mapping[str, set[str]]


def direct_needs(workflow: Workflow) -> Needs:
    """Return the jobs that each job of a workflow names as those it waits for."""
    needs: dict[str, set[str]] = {}
    for name, job in workflow.jobs.items():
        needs[name] = set(needs_of(job))
    return needs


def direct_needs_of_plan(jobs: Sequence[Job]) -> Needs:
    """Return the kinds of jobs that each kind waits for on one machine."""
    kinds = {job.name: kind_of(job) for job in jobs}

    needs: dict[str, set[str]] = {}
    for job in jobs:
        needs_of_kind = needs.setdefault(kind_of(job), set())
        for name in job.needs:
            needs_of_kind.add(kinds[name])
    return needs


def all_needs(needs: Needs, name: str) -> set[str]:
    """Return the jobs that a job waits for, those included that it does not name itself."""
    reached: set[str] = set()
    for need in needs[name]:
        reached |= {need, *all_needs(needs, need)}
    return reached


def test_jobs_of_ci_wait_for_the_same_jobs_on_one_machine() -> None:
    planned_needs = direct_needs_of_plan(jobs_of_event(*SAMPLE))
    workflow_needs = direct_needs(workflows()["ci_family.yml"])

    for name in workflow_needs:
        assert all_needs(workflow_needs, name) == all_needs(planned_needs, name), name


# The jobs of a release that call a workflow for each of its families.
CALLERS_OF_FAMILIES = {"build": "build_family.yml", "test": "test_family.yml"}


def with_jobs_of_families(names: Iterable[str]) -> set[str]:
    """Return jobs of a release, with those of the workflows for each family in the place of their callers."""
    jobs: set[str] = set()
    for name in names:
        if name in CALLERS_OF_FAMILIES:
            jobs.update(workflows()[CALLERS_OF_FAMILIES[name]].jobs)
        else:
            jobs.add(name)
    return jobs


def needs_of_a_release() -> Needs:
    """Return the jobs that each job of a release waits for, with those of the workflows for each family."""
    needs: dict[str, set[str]] = {}
    for name, names in direct_needs(workflows()["release.yml"]).items():
        needs_of_job = with_jobs_of_families(names)
        if name not in CALLERS_OF_FAMILIES:
            needs[name] = needs_of_job
            continue

        # Its jobs wait for what it waits for, and for each other.
        called_workflow = workflows()[CALLERS_OF_FAMILIES[name]]
        for inner_name, inner_needs in direct_needs(called_workflow).items():
            needs[inner_name] = needs_of_job | inner_needs
    return needs


def test_jobs_of_a_release_wait_for_whatever_they_wait_for_on_one_machine() -> None:
    planned_needs = direct_needs_of_plan(jobs_of_event(*RELEASE))
    workflow_needs = needs_of_a_release()

    assert {"build_rocm", "build_pytorch", "stage", "promote", "summary"} <= set(planned_needs)
    for name in planned_needs:
        assert all_needs(planned_needs, name) <= all_needs(workflow_needs, name), name


TESTS = {"test_rocm", "test_pytorch", "test_torch"}


def test_a_release_tests_what_it_has_staged() -> None:
    needs = needs_of_a_release()
    needs_of_staging = all_needs(needs, "stage")

    assert {"build_rocm", "build_pytorch"} <= needs_of_staging
    assert not TESTS & needs_of_staging
    for name in TESTS:
        assert "stage" in needs[name]


def test_a_release_is_tested_before_it_is_promoted() -> None:
    needs = needs_of_a_release()

    assert all_needs(needs, "test_report") >= TESTS
    assert all_needs(needs, "promote") >= {"stage", "test_report", *TESTS}


def test_only_a_release_installs_from_staging() -> None:
    callers: dict[str, str] = {}
    for call in calls():
        if "staged" in call.inputs:
            callers[call.path] = call.inputs["staged"]

    staged = "${{ needs.stage.result != 'skipped' && vars.READ_ROLE == '' }}"
    assert callers == {
        "release.yml, test": staged,
        "test_family.yml, test_rocm": "${{ inputs.staged }}",
        "test_family.yml, test_pytorch": "${{ inputs.staged }}",
        "test_family.yml, test_torch": "${{ inputs.staged }}",
        "test_rocm_wheels.yml, test": "${{ inputs.staged }}",
        "test_pytorch_wheels.yml, test": "${{ inputs.staged }}",
    }


@pytest.mark.parametrize("name", ["stage", "test", "test_report", "promote"])
def test_a_set_that_failed_keeps_no_other_one_back(name: str) -> None:
    job = workflows()["release.yml"].jobs[name]

    assert "!cancelled()" in job["if"]


def test_no_job_of_a_matrix_ends_the_others() -> None:
    matrices = 0
    for job in workflow_jobs():
        if "strategy" in job.tree:
            assert job.tree["strategy"]["fail-fast"] is False, job.path
            matrices += 1
    assert matrices > 10


def test_reviewers_approve_all_sets_of_a_release_at_once() -> None:
    """GitHub approves the jobs that wait at that moment, and asks again for those that come later."""
    promote = workflows()["release.yml"].jobs["promote"]

    assert "release_type" in promote["environment"]
    assert "max-parallel" not in promote["strategy"]


def test_a_nightly_is_the_same_chain_on_one_machine() -> None:
    jobs_of_workflow = workflows()["therock-nightly.yml"].jobs
    jobs = nightly_jobs(
        torch_ref="nightly",
        gpu_family="gfx94X-dcgpu",
        python="3.11",
        repository=None,
    )

    for job in jobs:
        workflow_job = jobs_of_workflow[kind_of(job)]
        sessions = sessions_of(workflow_job)
        # The plan lets a nightly's wheels be tested by this session alone.
        sessions = ["test_smoke" if session == SESSIONS else session for session in sessions]
        assert sessions_of_planned_job(job) == sessions
        assert workflow_job["needs"]


@pytest.mark.parametrize(
    "file",
    ["release_portable_linux_pytorch_wheels.yml", "release_windows_pytorch_wheels.yml"],
    ids=["linux", "windows"],
)
def test_releases_run_every_night_and_when_dispatched_or_called(file: str) -> None:
    triggers = workflows()[file].on

    assert set(triggers) == {"schedule", "workflow_dispatch", "workflow_call"}
    (schedule,) = triggers["schedule"]
    minute, hour, *days = schedule["cron"].split()
    assert minute.isdigit()
    assert hour.isdigit()
    assert days == ["*", "*", "*"]


@pytest.mark.parametrize("variable", ["COMPILER_CACHE", "COMPILER_CACHE_STORE"])
def test_builds_take_a_compiler_cache_from_the_repositorys_variables(variable: str) -> None:
    jobs = workflows()["build_pytorch.yml"].jobs.values()

    values = [job["env"][variable] for job in jobs if variable in job.get("env", {})]

    assert values == [f"${{{{ vars.{variable} }}}}"]
