"""The graphs of the workflows, beside the pipeline's and one machine's: who waits for whom."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from ci.flow import make_plan, with_placeholders
from ci.jobs import FlowSettings, Job, jobs_of_plan, nightly_jobs
from ci.pipeline import STEPS_BY_NAME, steps_of_job
from tests.kit.job_plans import PULL_REQUEST, stages_of
from tests.kit.workflow_files import READING, SESSIONS, Workflow, called_sessions, calls, workflows

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
        # One machine has the plan at hand. In CI, who is told is decided behind the pipeline.
        if "run" in step and not is_of_windows:
            called = called_sessions(step["run"])
            sessions += [session for session in called if session not in {READING, "notify"}]
    return sessions


def sessions_of_step_names(names: Iterable[str]) -> list[str]:
    """Return the sessions that do these steps."""
    return [STEPS_BY_NAME[name].session for name in names]


@pytest.mark.parametrize("kind", ["setup", "build_rocm", "upload", "test_report"])
def test_a_job_runs_the_sessions_of_its_steps_in_order(kind: Any) -> None:
    file, job_name = JOBS_OF_WORKFLOWS[kind]
    sessions = sessions_of(workflows()[file].jobs[job_name])
    if kind == "setup":
        # What was found is uploaded by the job itself, which runs nothing of upstream's.
        assert sessions.pop() == "upload"

    assert sessions == [step.session for step in steps_of_job(kind)]


@pytest.mark.parametrize("kind", ["test_rocm", "test_pytorch", "test_torch"])
def test_a_test_job_runs_the_sessions_that_the_plan_names(kind: str) -> None:
    file, job_name = JOBS_OF_WORKFLOWS[kind]

    assert sessions_of(workflows()[file].jobs[job_name]) == [SESSIONS]


def test_the_job_that_builds_pytorch_builds_and_checks_a_forks_rocm_before() -> None:
    sessions = sessions_of(workflows()["build_pytorch.yml"].jobs["build"])

    assert sessions == [*sessions_of_step_names(["fetch_artifacts", "build_rocm", "check_rocm"]), SESSIONS]


@pytest.mark.parametrize("platform", ["linux", "windows"])
def test_a_dispatched_build_runs_the_builds_and_the_check_in_the_order_of_the_pipeline(platform: str) -> None:
    file = {"linux": "build_portable_linux_pytorch_wheels.yml", "windows": "build_windows_pytorch_wheels.yml"}
    sessions = workflows()[file[platform]].inputs["sessions"]["default"].split()
    in_order = [step.session for step in steps_of_job("build_pytorch")]

    assert sessions == [session for session in in_order if session in sessions]
    assert sessions[-1] == "check_wheels"


def test_a_run_of_ci_ends_with_its_report() -> None:
    sessions = sessions_of(workflows()["ci.yml"].jobs["summary"])
    last_steps = sessions_of_step_names(["test_report", "report"])

    # On one platform and on the other one.
    assert sessions == [*last_steps, *last_steps]


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
    return jobs_of_plan(with_placeholders(make_plan(options, settings)), "linux", settings)


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
    kinds = {kind_of(job) for job in jobs_of_event(*SAMPLE)}

    assert kinds == {*workflows()["ci_family.yml"].jobs, "test_report", "summary"}


def direct_needs(workflow: Workflow) -> Mapping[str, set[str]]:
    """Return the jobs that each job of a workflow names as those it waits for."""
    needs: dict[str, set[str]] = {}
    for name, job in workflow.jobs.items():
        names = job.get("needs", [])
        needs[name] = {names} if isinstance(names, str) else set(names)
    return needs


def direct_needs_of_plan(jobs: Sequence[Job]) -> Mapping[str, set[str]]:
    """Return the kinds of jobs that each kind waits for on one machine."""
    kinds = {job.name: kind_of(job) for job in jobs}
    needs: dict[str, set[str]] = {}
    for job in jobs:
        needs.setdefault(kind_of(job), set()).update(kinds[name] for name in job.needs)
    return needs


def all_needs(needs: Mapping[str, set[str]], name: str) -> set[str]:
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


def needs_of_a_release() -> Mapping[str, set[str]]:
    """Return the jobs that each job of a release waits for, with those of the workflows for each family."""
    families = {"build": "build_family.yml", "test": "test_family.yml"}
    jobs_of_families = {caller: {*workflows()[file].jobs} for caller, file in families.items()}

    needs: dict[str, set[str]] = {}
    for name, names in direct_needs(workflows()["release.yml"]).items():
        with_families: set[str] = set()
        for need in names:
            with_families |= jobs_of_families.get(need, {need})
        if name not in families:
            needs[name] = with_families
            continue
        for inner_name, inner_needs in direct_needs(workflows()[families[name]]).items():
            needs[inner_name] = with_families | inner_needs
    return needs


def test_jobs_of_a_release_wait_for_whatever_they_wait_for_on_one_machine() -> None:
    planned_needs = direct_needs_of_plan(jobs_of_event(*RELEASE))
    workflow_needs = needs_of_a_release()

    assert {"build_rocm", "build_pytorch", "stage", "promote", "summary"} <= set(planned_needs)
    for name in planned_needs:
        assert all_needs(planned_needs, name) <= all_needs(workflow_needs, name), name


def test_a_release_tests_what_is_staged_before_it_promotes() -> None:
    needs = needs_of_a_release()
    tests = {"test_rocm", "test_pytorch", "test_torch"}

    assert {"build_rocm", "build_pytorch"} <= all_needs(needs, "stage")
    assert not tests & all_needs(needs, "stage")
    for name in tests:
        assert "stage" in needs[name]
    assert tests <= all_needs(needs, "test_report")
    assert {"stage", "test_report", *tests} <= all_needs(needs, "promote")


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
    for name, workflow in workflows().items():
        for job_name, job in workflow.jobs.items():
            if "strategy" in job:
                assert job["strategy"]["fail-fast"] is False, f"{name}, {job_name}"
                matrices += 1
    assert matrices > 10


def test_reviewers_approve_all_sets_of_a_release_at_once() -> None:
    """GitHub approves the jobs that wait at that moment, and asks again for those that come later."""
    promote = workflows()["release.yml"].jobs["promote"]

    assert "release_type" in promote["environment"]
    assert "max-parallel" not in promote["strategy"]


def test_a_nightly_is_the_same_chain_on_one_machine() -> None:
    jobs = workflows()["therock-nightly.yml"].jobs
    for job in nightly_jobs(torch_ref="nightly", gpu_family="gfx94X-dcgpu", python="3.11", repository=None):
        workflow_job = jobs[kind_of(job)]
        sessions = ["test_smoke" if session == SESSIONS else session for session in sessions_of(workflow_job)]

        assert sessions_of_planned_job(job) == sessions
        assert workflow_job["needs"]


@pytest.mark.parametrize(
    "name",
    ["release_portable_linux_pytorch_wheels.yml", "release_windows_pytorch_wheels.yml"],
    ids=["linux", "windows"],
)
def test_releases_run_every_night_and_when_dispatched_or_called(name: str) -> None:
    triggers = workflows()[name].on

    assert set(triggers) == {"schedule", "workflow_dispatch", "workflow_call"}
    (schedule,) = triggers["schedule"]
    minute, hour, *days = schedule["cron"].split()
    assert minute.isdigit()
    assert hour.isdigit()
    assert days == ["*", "*", "*"]


@pytest.mark.parametrize("variable", ["COMPILER_CACHE", "COMPILER_CACHE_STORE"])
def test_builds_take_a_compiler_cache_from_the_repositorys_variables(variable: str) -> None:
    jobs = workflows()["build_pytorch.yml"].jobs

    values = [job["env"][variable] for job in jobs.values() if variable in job.get("env", {})]

    assert values == [f"${{{{ vars.{variable} }}}}"]
