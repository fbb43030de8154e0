"""A flow on one machine and the workflows do the same for a plan: every job, session, option and condition.

Both are asked for the same plan: the workflows by simulating a run, the flow by its jobs.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from ci.job_runner import run_all
from ci.jobs import FlowSettings, Job, jobs_of_plan
from core.errors import ProcessError
from core.run.plan import Plan
from tests.kit.job_comparison import Unit, unit_of_job, units_of_run
from tests.kit.planned_runs import PlannedRun, github_event
from tests.kit.planning import REPOSITORY, pull_request
from tests.kit.simulated_runs import Event, Fails, SimulatedJob, Simulation
from tests.kit.workflow_files import Workflow, workflows

VARIABLES = {
    "CI_CONFIG": "ours.toml",
    "DISTRIBUTION_STORE": "s3://our-releases",
    "PROMOTE_ROLE": "promoter",
    "STAGE_ROLE": "stager",
}


def never(_path: str) -> bool:
    return False


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What starts a run."""

    file: str
    event_name: str
    payload: Mapping[str, object] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Workflow] = field(default_factory=workflows)

    @property
    def event(self) -> Event:
        return Event(
            github=github_event(self.event_name, REPOSITORY, self.payload),
            inputs=self.inputs,
            variables=VARIABLES,
        )

    def simulate(self, folder: Path, fails: Fails = never) -> tuple[Plan, Sequence[SimulatedJob]]:
        """Return the plan of a run, and the jobs that it starts."""
        event = self.event
        planned_run = PlannedRun(folder=folder, event=event)
        simulation = Simulation(event=event, run_step=planned_run.run_step, fails=fails, files=self.files)
        jobs = simulation.run(self.file)
        assert planned_run.plan is not None
        return planned_run.plan, jobs


CI = "ci.yml"
RELEASE = "release_portable_linux_pytorch_wheels.yml"
SCENARIOS = {
    "a pull request": Scenario(
        file=CI, event_name="pull_request", payload=pull_request("build:pytorch", "test:torch", "gfx1151")
    ),
    "ROCm alone": Scenario(file=CI, event_name="pull_request", payload=pull_request("ci:asan")),
    "a fork's pull request": Scenario(
        file=CI, event_name="pull_request", payload=pull_request("build:pytorch", head="somebody/fork")
    ),
    "a dispatch of CI": Scenario(
        file=CI,
        event_name="workflow_dispatch",
        inputs={"linux_amdgpu_families": "gfx94X-dcgpu", "test_type": "full", "artifact_run_id": "99"},
    ),
    "a release": Scenario(
        file=RELEASE,
        event_name="workflow_dispatch",
        inputs={
            "linux_amdgpu_families": "gfx94X-dcgpu gfx1151",
            "release_type": "nightly",
            "pytorch_git_refs": "release/2.14",
            "pytorch_python_versions": "3.12 3.13",
        },
    ),
}


def settings_of(plan: Plan) -> FlowSettings:
    """Return the run that a flow makes, as the workflows' is."""
    return FlowSettings(
        run_id="17" if plan.upload.value else "local",
        store=plan.store.store or "auto",
        distribution_store=VARIABLES["DISTRIBUTION_STORE"],
        config_file=VARIABLES["CI_CONFIG"],
    )


def jobs_of_flow(plan: Plan) -> Sequence[Job]:
    return jobs_of_plan(plan, "linux", settings_of(plan))


def without_uploads(units: Sequence[Unit]) -> Counter[Unit]:
    """Leave out what is uploaded: a run that uploads nothing has no job for it on GitHub."""
    units_at_work: Counter[Unit] = Counter()
    for unit in units:
        if unit.kind in {"test_report", "summary"}:
            continue
        calls = tuple(call for call in unit.calls if call.session not in {"upload", "provenance"})
        units_at_work[Unit(kind=unit.kind, calls=calls)] += 1
    return units_at_work


# --- Sessions and their options ----------------------------------------------------------------


def check_sessions(scenario: Scenario, folder: Path) -> None:
    """Compare the calls of nox of a run with those of one machine."""
    plan, jobs = scenario.simulate(folder)
    units_of_workflows = units_of_run(jobs)
    units_of_flow = list(map(unit_of_job, jobs_of_flow(plan)))

    assert units_of_flow
    if plan.upload.value:
        assert sorted(units_of_workflows) == sorted(units_of_flow)
    else:
        assert without_uploads(units_of_workflows) == without_uploads(units_of_flow)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_workflows_call_the_sessions_of_one_machine_with_its_options(name: str, tmp_path: Path) -> None:
    check_sessions(SCENARIOS[name], tmp_path)


# --- Conditions --------------------------------------------------------------------------------


def jobs_that_one_machine_starts(plan: Plan, failing_kind: str) -> Counter[str]:
    """Return the kinds of the jobs that a flow starts where the first job of a kind fails."""
    jobs = jobs_of_flow(plan)
    failing_job = next(job for job in jobs if job.kind == failing_kind)

    def run_job(job: Job) -> None:
        if job.name == failing_job.name:
            raise ProcessError("It fails.", returncode=1)

    outcomes = run_all(jobs, run_job, keep_going=True)

    kinds = {job.name: job.kind for job in jobs}
    started_kinds: Counter[str] = Counter()
    for outcome in outcomes:
        if outcome.result != "left out":
            started_kinds[kinds[outcome.name]] += 1
    return started_kinds


def job_names_in(path: str) -> Sequence[str]:
    """Return the names of the jobs that led to a job, itself the last, without the cells of matrices."""
    return [segment.partition(" ")[0] for segment in path.split(" > ")]


def jobs_that_workflows_start(scenario: Scenario, folder: Path, failing_kind: str) -> Counter[str]:
    """Return the kinds of the jobs that a run starts where the first job of a kind fails."""
    failed_paths: list[str] = []

    def fails(path: str) -> bool:
        names = job_names_in(path)
        is_work = names[-1] not in {"fetch", "publish"}
        if failing_kind in names and is_work and not failed_paths:
            failed_paths.append(path)
        return path in failed_paths

    _plan, jobs = scenario.simulate(folder, fails)
    assert failed_paths
    return Counter(unit.kind for unit in units_of_run(jobs))


# A matrix starts as a whole, so GitHub starts the jobs on what a failed job has not made, too, which fail.
# Who promotes decides by records.
STARTED_ON_GITHUB_ALONE: Mapping[tuple[str, str], Mapping[str, int]] = {
    ("a pull request", "build_pytorch"): {"test_pytorch": 1, "test_torch": 2},
    ("a release", "build_rocm"): {
        "stage": 1,
        "test_rocm": 1,
        "test_pytorch": 2,
        "test_torch": 2,
        "promote": 1,
    },
    ("a release", "build_pytorch"): {"test_pytorch": 1, "test_torch": 2, "promote": 1},
    ("a release", "stage"): {"test_rocm": 1, "test_pytorch": 2, "test_torch": 2, "promote": 1},
}


def check_conditions(name: str, failing_kind: str, scenario: Scenario, folder: Path) -> None:
    """Compare the jobs that start where one fails with those of one machine."""
    plan, _jobs = scenario.simulate(folder)

    of_workflows = jobs_that_workflows_start(scenario, folder, failing_kind)
    of_flow = jobs_that_one_machine_starts(plan, failing_kind)

    assert of_workflows - of_flow == Counter(STARTED_ON_GITHUB_ALONE.get((name, failing_kind), {}))
    assert of_flow - of_workflows == Counter()


@pytest.mark.parametrize(
    ("name", "failing_kind"),
    [
        ("a pull request", "build_rocm"),
        ("a pull request", "build_pytorch"),
        ("a pull request", "test_rocm"),
        ("a pull request", "test_pytorch"),
        ("a pull request", "test_torch"),
        ("a release", "build_rocm"),
        ("a release", "build_pytorch"),
        ("a release", "stage"),
        ("a release", "test_rocm"),
        ("a release", "test_torch"),
        ("a release", "test_report"),
        ("a release", "promote"),
    ],
)
def test_the_same_jobs_start_where_one_fails(name: str, failing_kind: str, tmp_path: Path) -> None:
    check_conditions(name, failing_kind, SCENARIOS[name], tmp_path)


# --- Machines, environments and roles ----------------------------------------------------------

TESTED_WITHOUT_GPU = Scenario(
    file=CI, event_name="workflow_dispatch", inputs={"linux_amdgpu_families": "gfx94X-dcgpu gfx906"}
)
NIGHTLY_ROLE = "arn:aws:iam::692859939525:role/therock-nightly"
# By the job's name, those that have any.
ENVIRONMENTS_AND_ROLES = {
    "setup": ("", {NIGHTLY_ROLE}),
    "publish": ("", {NIGHTLY_ROLE}),
    "stage": ("nightly-staging", {"stager"}),
    "test_report": ("", {NIGHTLY_ROLE}),
    "promote": ("nightly", {"promoter"}),
    "summary": ("", {NIGHTLY_ROLE}),
}


def check_machines(scenario: Scenario, folder: Path) -> None:
    """Compare where builds and tests run with the plan, and what their containers get with the machines."""
    plan, jobs = scenario.simulate(folder)

    machines: Counter[str] = Counter()
    for job in jobs:
        if job.name not in {"build", "test"}:
            continue
        machines[job.machine] += 1
        has_gpu = job.name == "test" and job.machine != "ubuntu-24.04"
        has_devices = "--device" in job.container.get("options", "")
        assert has_devices == has_gpu, job.path
    assert machines == Counter(job.runner for job in plan.jobs)


def check_environments(scenario: Scenario, folder: Path) -> None:
    """Compare the environments and roles of a release's jobs with those that the roles trust."""
    _plan, jobs = scenario.simulate(folder)

    environments_and_roles: dict[str, tuple[str, set[str]]] = {}
    for job in jobs:
        roles = {step.inputs["role"] for step in job.steps if "role" in step.inputs}
        if roles or job.environment:
            # Jobs of one name, as those of a matrix, have the same.
            first = environments_and_roles.setdefault(job.name, (job.environment, roles))
            assert first == (job.environment, roles), job.path
    assert environments_and_roles == ENVIRONMENTS_AND_ROLES


def test_builds_and_tests_run_on_the_machines_of_the_plan(tmp_path: Path) -> None:
    check_machines(TESTED_WITHOUT_GPU, tmp_path)


def test_jobs_of_a_release_have_the_environments_and_roles_that_are_trusted(tmp_path: Path) -> None:
    check_environments(SCENARIOS["a release"], tmp_path)


# --- What has been wrong before ----------------------------------------------------------------

# In a nightly of two families, what grows with the matrix has four times as much, and nothing else a tenth.
MOST_BYTES = 4_096


def check_variables(scenario: Scenario, folder: Path) -> None:
    """Look for a variable that grows with the matrix, in a run of every Python and torch ref."""
    inputs = {"linux_amdgpu_families": "gfx94X-dcgpu gfx1151", "release_type": "nightly"}
    _plan, jobs = replace(scenario, inputs=inputs).simulate(folder)

    for job in jobs:
        for step in job.steps:
            for name, value in step.variables.items():
                assert len(value.encode()) < MOST_BYTES, f"{job.path}: {name}"


def check_schedules(scenario: Scenario, folder: Path) -> None:
    """Start whatever has a schedule in a copy that has not asked for it."""
    for file, workflow in scenario.files.items():
        if "schedule" in workflow.on:
            event = Event(github=github_event("schedule", "somebody/copy"))
            planned_run = PlannedRun(folder=folder, event=event)
            simulation = Simulation(event=event, run_step=planned_run.run_step, files=scenario.files)
            assert not simulation.run(file), file


def check_waiting(scenario: Scenario, _folder: Path) -> None:
    """Look for what lets a release wait for another one, or sets for a second approval."""
    for file in (RELEASE, "release_windows_pytorch_wheels.yml", "release.yml"):
        workflow = scenario.files[file]
        assert "concurrency" not in workflow.tree
        for job in workflow.jobs.values():
            environment = job.get("environment", "")
            # Nobody approves what is staged.
            if environment and not environment.endswith("-staging"):
                assert "max-parallel" not in job["strategy"]


def check_merge_queue(scenario: Scenario, _folder: Path) -> None:
    """Look for the event of a merge queue."""
    assert "merge_group" in scenario.files[CI].on


def check_registry(scenario: Scenario, folder: Path) -> None:
    """Push the nightly image to a registry that is not GitHub's."""
    variables = {**VARIABLES, "NIGHTLY_IMAGE": "registry.example/rocm/ci"}
    event = Event(github=github_event("workflow_dispatch", REPOSITORY), variables=variables)
    planned_run = PlannedRun(folder=folder, event=event)
    simulation = Simulation(event=event, run_step=planned_run.run_step, files=scenario.files)

    pushes = 0
    for job in simulation.run("therock-nightly.yml"):
        if job.name == "push-image":
            assert "a token" not in job.steps[-1].variables["REGISTRY_PASSWORD"]
            pushes += 1
    assert pushes > 0


@dataclass(frozen=True, kw_only=True)
class PlantedChange:
    """A change of a workflow that puts a fault into it, and the check that has to find it."""

    file: str
    text: str
    replacement: str
    check: Callable[[Scenario, Path], None]

    def plant(self) -> Mapping[str, Workflow]:
        """Return the workflows with the fault."""
        files = dict(workflows())
        text = files[self.file].text
        assert self.text in text
        changed_text = text.replace(self.text, self.replacement)
        tree = yaml.load(changed_text, Loader=yaml.CSafeLoader)
        files[self.file] = Workflow(name=self.file, text=changed_text, tree=tree)
        return files


def template_of_results() -> str:
    """Return what a release tells, of the results of its jobs, those who are told."""
    text = workflows()["release.yml"].text
    begin = text.index('>-\n            {"setup": {"result"')
    end = text.index("GITHUB_TOKEN", begin)
    return text[begin:end]


ASKED_FOR = "github.event_name != 'schedule' || contains(fromJSON(vars.SCHEDULES || '[]'), github.workflow)"
DEVICES = "!fromJSON(inputs.cell).without_gpu && "
PLANTED_CHANGES = {
    "every output as one variable": PlantedChange(
        file="release.yml",
        text=template_of_results(),
        replacement="${{ toJSON(needs) }}\n          ",
        check=check_variables,
    ),
    "a schedule that nobody asked for": PlantedChange(
        file="maintenance.yml", text=ASKED_FOR, replacement="true", check=check_schedules
    ),
    "devices of a GPU everywhere": PlantedChange(
        file="test_rocm.yml", text=DEVICES, replacement="true && ", check=check_machines
    ),
    "a group of releases": PlantedChange(
        file=RELEASE,
        text="permissions:\n  contents: read\n\n",
        replacement="permissions:\n  contents: read\n\nconcurrency:\n  group: release\n\n",
        check=check_waiting,
    ),
    "an approval for every four sets": PlantedChange(
        file="release.yml",
        text="      # No `max-parallel`",
        replacement="      max-parallel: 4\n      # No `max-parallel`",
        check=check_waiting,
    ),
    "no merge queue": PlantedChange(
        file=CI, text="  merge_group: #", replacement="  # ", check=check_merge_queue
    ),
    "GitHub's password in every registry": PlantedChange(
        file="therock-nightly.yml",
        text="startsWith(vars.NIGHTLY_IMAGE, 'ghcr.io/') && ",
        replacement="",
        check=check_registry,
    ),
    "a stage without the repository's data": PlantedChange(
        file="release.yml",
        text="      CI_CONFIG: ${{ vars.CI_CONFIG }}\n      DISTRIBUTION_STORE",
        replacement="      DISTRIBUTION_STORE",
        check=check_sessions,
    ),
    "tests of what is not staged": PlantedChange(
        file="release.yml",
        text="needs.stage.result != 'skipped' && vars",
        replacement="false && vars",
        check=check_sessions,
    ),
    "a promotion without its environment": PlantedChange(
        file="release.yml",
        text="    environment: ${{ fromJSON(needs.setup.outputs.run).release_type }}\n",
        replacement="",
        check=check_environments,
    ),
    "a family that holds up others": PlantedChange(
        file="release.yml",
        text="${{ !cancelled() && needs.setup.result == 'success'",
        replacement="${{ needs.setup.result == 'success'",
        check=partial(check_conditions, "a release", "build_rocm"),
    ),
    "a promotion that waits for green tests": PlantedChange(
        file="release.yml",
        text="${{ !cancelled() && needs.stage.result != 'skipped' }}",
        replacement="${{ needs.stage.result != 'skipped' }}",
        check=partial(check_conditions, "a release", "test_torch"),
    ),
}
# Those that are found in another run than a release's.
SCENARIOS_OF_CHANGES = {"devices of a GPU everywhere": TESTED_WITHOUT_GPU}


@pytest.mark.parametrize("name", PLANTED_CHANGES)
def test_a_fault_of_before_that_is_put_back_is_found(name: str, tmp_path: Path) -> None:
    planted_change = PLANTED_CHANGES[name]
    scenario = SCENARIOS_OF_CHANGES.get(name, SCENARIOS["a release"])
    planted_change.check(scenario, tmp_path)

    with pytest.raises(AssertionError):
        planted_change.check(replace(scenario, files=planted_change.plant()), tmp_path)


def test_a_forks_job_that_checks_rocm_last_is_found(tmp_path: Path) -> None:
    text = workflows()["build_pytorch.yml"].text
    begin = text.index("      - name: Check ROCm's packages\n")
    end = text.index("      - name: Build and check\n")
    check = text[begin:end]
    later_steps = text[end:].replace("      - name: Hand over", f"{check}      - name: Hand over", 1)
    planted_change = PlantedChange(
        file="build_pytorch.yml",
        text=text,
        replacement=text[:begin] + later_steps,
        check=check_sessions,
    )
    scenario = SCENARIOS["a fork's pull request"]

    with pytest.raises(AssertionError):
        planted_change.check(replace(scenario, files=planted_change.plant()), tmp_path)
