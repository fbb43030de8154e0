"""A run of the workflows, as GitHub starts its jobs: which there are, and the variables of their steps.

Nothing is executed. Jobs succeed; what they hand on, and what people set, is as long as it may be.
"""

import functools
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ci.plan.job_variables import job_variables, values_of_planned_job
from ci.plan.outputs import outputs
from core.run import Platform
from core.run.plan import Plan, PlannedJob, job_outputs
from tests.kit.github_expressions import Contexts, expand, expand_condition, expand_text
from tests.kit.planning import nightly_plan, plan_event
from tests.kit.workflow_files import Workflow, called, workflows

# What people set: a variable of the repository, a secret, a name, an address.
LONGEST_WORD = "x" * 256
TORCH_VERSION = "2.14.0a0+rocm10.1.0a20261121"
# The digest of a lock, and the commits and versions of five projects.
SOURCE_LOCK = "x" * 2048
READING = "nox -s plan_job"

LARGEST_RUNS = ("nightly", "prerelease", "dev", "grown nightly")  # the last has more families and refs
MORE_FAMILIES = 10
MORE_REFS = 5


@dataclass(frozen=True, kw_only=True)
class StartedStep:
    """A step of a job that GitHub starts, with its own and its job's variables."""

    name: str
    command: str
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class StartedJob:
    """A job that GitHub starts."""

    path: str  # through which jobs of workflows
    runner: str
    minutes: int
    planned_job: PlannedJob | None  # the job of the plan that it is
    steps: Sequence[StartedStep]


@dataclass(frozen=True, kw_only=True)
class RunOfPlan:
    """A run for a plan: its workflows are called with the outputs of `setup.yml`."""

    plan: Plan
    platform: Platform = "linux"  # of jobs that do not say it themselves
    settings: Mapping[str, str] = field(
        default_factory=dict
    )  # the variables of the repository; all others have the longest word
    secrets: Mapping[str, str] = field(default_factory=dict)  # in the same way
    results: Mapping[str, str] = field(default_factory=dict)  # of jobs that did not succeed

    @functools.cached_property
    def contexts(self) -> Contexts:
        """What every job may read."""
        github = {
            "event_name": "schedule",
            "event": {},
            "run_id": "17123441190",
            "token": LONGEST_WORD,
            "actor": LONGEST_WORD,
        }
        return {
            "github": github,
            "vars": _WithDefault(self.settings),
            "secrets": _WithDefault(self.secrets),
            "env": {},
            "inputs": {},
            "needs": {},
            "steps": {},
        }

    @functools.cached_property
    def setup_outputs(self) -> Mapping[str, str]:
        """The outputs of `setup.yml`, which its job writes from those of its steps."""
        steps = {
            "configure": {"outputs": outputs(self.plan)},
            "rocm": {"outputs": outputs(self.plan)},
            "resolve": {"outputs": job_outputs(self.plan, {})},
            "plan": {"outputs": {"artifact_id": f"plan-1700000000-3276732767@{'1' * 64}"}},
        }
        workflow = workflows()["setup.yml"]
        contexts = {**self.contexts, "steps": steps}
        written = {
            name: expand_text(template, contexts)
            for name, template in workflow.jobs["setup"]["outputs"].items()
        }
        names = workflow.on["workflow_call"]["outputs"]
        return {name: written[name] for name in names}

    def jobs(self, name: str, inputs: Mapping[str, object]) -> Iterator[StartedJob]:
        """Yield the jobs that a workflow starts, and those of the workflows that it calls."""
        workflow = workflows()[name]
        needs: dict[str, Any] = {}
        for job_name, job in workflow.jobs.items():
            target = called(job)
            if target is not None and target.name == "setup.yml":
                needs[job_name] = {"result": "success", "outputs": self.setup_outputs}
                continue

            path = f"{name}, {job_name}"
            contexts = {**self.contexts, "inputs": inputs, "needs": needs}
            needs[job_name] = {"result": "skipped", "outputs": {}}
            if not expand_condition(job.get("if", "true"), contexts):
                continue
            result = self.results.get(job_name, "success")
            needs[job_name] = {"result": result, "outputs": _WithDefault({})}
            for matrix in _combinations(job, contexts):
                of_matrix = {**contexts, "matrix": matrix}
                if target is None:
                    yield self._start(path, workflow, job, of_matrix)
                else:
                    passed = {key: expand(value, of_matrix) for key, value in job["with"].items()}
                    yield from self.jobs(target.name, passed)

    @functools.cached_property
    def _digest(self) -> str:
        return self.plan.digest()

    @functools.cached_property
    def _jobs_by_key(self) -> Mapping[tuple[str, str], PlannedJob]:
        return {(job.platform, job.key): job for job in self.plan.jobs}

    def _start(self, path: str, workflow: Workflow, job: Mapping[str, Any], contexts: Contexts) -> StartedJob:
        environment = {
            name: expand_text(value, contexts)
            for name, value in {**workflow.tree.get("env", {}), **job.get("env", {})}.items()
        }
        outcomes = _WithDefault({}, default={"outcome": "success", "outputs": _WithDefault({})})
        planned_job = None
        started_steps: list[StartedStep] = []
        for step in job["steps"]:
            contexts_of_step = {**contexts, "env": environment, "steps": outcomes}
            if not expand_condition(step.get("if", "true"), contexts_of_step):
                continue
            if "run" not in step:
                continue
            variables = {
                name: expand_text(value, contexts_of_step) for name, value in step.get("env", {}).items()
            }
            started_step = StartedStep(
                name=step["name"], command=step["run"], environment={**environment, **variables}
            )
            started_steps.append(started_step)
            if started_step.command.startswith(READING):
                planned_job = self._find(started_step.environment)
                environment = {**environment, **self._variables(planned_job)}

        return StartedJob(
            path=path,
            runner=expand_text(job["runs-on"], contexts),
            minutes=int(expand(job["timeout-minutes"], contexts)),
            planned_job=planned_job,
            steps=started_steps,
        )

    def _find(self, environment: Mapping[str, str]) -> PlannedJob:
        """Return the job of the plan that a job was started for, as `plan_job` does."""
        assert environment["PLAN_DIGEST"] == self._digest
        platform = environment.get("PLATFORM", self.platform)
        return self._jobs_by_key[platform, json.loads(environment["CELL"])["job"]]

    def _variables(self, job: PlannedJob) -> Mapping[str, str]:
        lock = None if job.stage.endswith("rocm") else SOURCE_LOCK
        return job_variables(values_of_planned_job(self.plan, job, lock))


class _WithDefault(defaultdict[str, Any]):
    """Values by their names, and one for every other name."""

    def __init__(self, values: Mapping[str, Any], default: object = LONGEST_WORD) -> None:
        super().__init__(lambda: default, values)


def _combinations(job: Mapping[str, Any], contexts: Contexts) -> Iterator[Mapping[str, object]]:
    """Yield the combinations of a job's matrix; one without values, where it has none."""
    matrix = job.get("strategy", {}).get("matrix", {})
    values_by_name = {
        name: values if isinstance(values, list) else expand(values, contexts)
        for name, values in matrix.items()
    }
    for values in itertools.product(*values_by_name.values()):
        yield dict(zip(values_by_name, values, strict=True))


def bytes_of_variable(name: str, value: str) -> int:
    """Return how many bytes Linux counts for a variable: ``NAME=VALUE``, and a zero behind it."""
    return len(f"{name}={value}".encode()) + 1


def bytes_of_environment(environment: Mapping[str, str]) -> int:
    """Return how many bytes Linux counts for an environment: its variables, and an address for each."""
    variables = sum(bytes_of_variable(name, value) for name, value in environment.items())
    return variables + 8 * len(environment)


# The largest plans


def resolved(plan: Plan) -> Plan:
    """Return a plan with a version of torch in each of its jobs, as `resolve` writes them."""
    jobs: list[PlannedJob] = []
    for job in plan.jobs:
        # Each ref has a version of its own, or fewer sets would be promoted.
        version = f"{TORCH_VERSION}.{job.torch_ref}"
        is_rocm = job.stage.endswith("rocm")
        jobs.append(job if is_rocm else job.model_copy(update={"versions": {"torch": version}}))
    return plan.model_copy(update={"jobs": tuple(jobs)})


def grown(plan: Plan) -> Plan:
    """Return a plan with ten GPU families and five torch refs more, each like one that there is."""
    jobs = list(plan.jobs)
    for number in range(MORE_REFS):
        torch_ref = f"release/2.{90 + number}"
        for job in plan.jobs:
            if job.torch_ref == "nightly":
                name = job.name.replace("nightly", torch_ref)
                jobs.append(job.model_copy(update={"torch_ref": torch_ref, "name": name}))

    for number in range(MORE_FAMILIES):
        gpu_family = f"gfx99{number}X-dcgpu"
        for job in tuple(jobs):
            # The one with the most tests.
            if job.artifact_group == "gfx94X-dcgpu":
                name = job.name.replace(job.gpu_family, gpu_family)
                update = {"gpu_family": gpu_family, "artifact_group": gpu_family, "name": name}
                jobs.append(job.model_copy(update=update))
    return plan.model_copy(update={"jobs": tuple(jobs)})


@functools.cache
def largest_plan(run: str) -> Plan:
    """Return the largest plan of a kind of run: its whole matrix, on both platforms."""
    if run == "nightly":
        return resolved(nightly_plan())
    if run == "grown nightly":
        return resolved(grown(nightly_plan()))
    requested = {
        "linux_amdgpu_families": "all",
        "windows_amdgpu_families": "all",
        "rocm_package_version": "10.1.0rc1" if run == "prerelease" else "10.1.0",
    }
    return resolved(plan_event("workflow_call", inputs_of_call=requested, release_type=run))


def plan_of_platform(plan: Plan, platform: Platform) -> Plan:
    """Return what a workflow plans that builds one platform alone."""
    cells = tuple(job for job in plan.jobs if job.platform == platform)
    variants = tuple(variant for variant in plan.variants if variant.platform == platform)
    return plan.model_copy(update={"jobs": cells, "variants": variants})


def release_of(plan: Plan, platform: Platform, *, settings: Mapping[str, str]) -> RunOfPlan:
    """Return the run of a release on a platform; `settings` are the variables of the repository."""
    return RunOfPlan(plan=plan_of_platform(plan, platform), platform=platform, settings=settings)


def jobs_of_release(run: RunOfPlan) -> Iterator[StartedJob]:
    """Yield the jobs of a release."""
    inputs = {"platform": run.platform, "request": "{}", "release_type": run.plan.release_type}
    yield from run.jobs("release.yml", inputs)
