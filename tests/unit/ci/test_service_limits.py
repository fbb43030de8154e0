"""Every workflow, with the largest plans, held against what GitHub takes: `ci/github_limits.toml`."""

import fnmatch
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import pytest

from ci.plan.data import MAX_HOSTED_MINUTES
from ci.plan.outputs import summary
from ci.verbs import notify
from core.cli.options import ROOT
from core.data import Model, read_toml
from core.run import PLATFORMS
from core.run.plan import MAX_JOBS, MAX_OUTPUTS, STAGES, wheel_sets_to_promote
from tests.kit.workflow_files import (
    EXPRESSION,
    Workflow,
    called_workflows,
    calls,
    local_actions,
    minutes_of,
    needs_of,
    steps,
    workflows,
)
from tests.kit.workflow_runs import (
    LARGEST_RUNS,
    LONGEST_WORD,
    SOURCE_LOCK,
    RunOfPlan,
    bytes_of_environment,
    bytes_of_variable,
    jobs_of_release,
    largest_plan,
    release_of,
)

NEAR = 0.75
BYTES_OF_UTF16 = 2
# A job that builds or tests hands on an id, a version and two addresses, and who calls it does again.
CHARACTERS_OF_A_JOB = 2 * 1024
SUMMARIES = ("ci.yml", "maintenance.yml", "release.yml", "therock-nightly.yml")
RESULT = re.compile(r"toJSON\(needs\.([\w-]+)\.result\)")


class Limit(Model):
    """One limit; `github_limits.toml` explains the keys."""

    limit: int
    of: str
    page: str
    near: Mapping[str, str] = {}

    def is_near(self, amount: int) -> bool:
        """Return whether an amount is within a quarter of the limit, and no more than that."""
        return NEAR * self.limit < amount <= self.limit


@dataclass(frozen=True, kw_only=True)
class Use:
    """How much of a limit something takes."""

    limit: str
    user: str
    amount: int


@cache
def limits() -> Mapping[str, Limit]:
    """Return the limits of GitHub by name."""
    tables = read_toml(ROOT / "ci" / "github_limits.toml")
    return {name: Limit.model_validate(table) for name, table in tables.items()}


# What is taken


def texts(value: object) -> Iterator[str]:
    """Yield every text in a part of a workflow."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def levels(file: str) -> int:
    """Return how many workflows call each other below one, itself counted."""
    levels_below = 0
    for call in calls():
        if call.workflow.name == file:
            levels_below = max(levels_below, levels(call.target.name))
    return levels_below + 1


def uses_of_jobs(workflow: Workflow) -> Iterator[Use]:
    """Yield how long the jobs of a workflow may take, on each kind of machine that they may have."""
    for name, job in workflow.jobs.items():
        if "uses" in job:
            continue
        user = f"{workflow.name}, {name}"
        limit = job["timeout-minutes"]
        yield Use(limit="hosted_minutes", user=user, amount=minutes_of(limit, hosted=True))
        if job["runs-on"] != "ubuntu-24.04":
            yield Use(limit="self_hosted_minutes", user=user, amount=minutes_of(limit, hosted=False))


def length_of_longest_template(workflow: Workflow) -> int:
    """Return the length of the longest text with expressions in a workflow."""
    length = 0
    for text in texts(workflow.tree):
        if EXPRESSION.search(text):
            length = max(length, len(text))
    return length


def length_of_dispatch(inputs: Iterable[str]) -> int:
    """Return the length of what people enter for inputs, each as long as it may be."""
    length = 0
    for name in inputs:
        length += len(SOURCE_LOCK if name == "source_lock" else LONGEST_WORD)
    return length


def uses_of_workflow(workflow: Workflow) -> Iterator[Use]:
    """Yield what a workflow takes of the limits, whatever is planned."""
    inputs = workflow.inputs_of("workflow_dispatch")
    amounts = {
        "expression": length_of_longest_template(workflow),
        "workflow_file": len(workflow.text.encode()),
        "workflow_levels": levels(workflow.name),
        "called_workflows": len(called_workflows(workflow.name)),
        "dispatch_inputs": len(inputs),
        "dispatch_payload": length_of_dispatch(inputs),
    }
    concurrency = workflow.tree.get("concurrency")
    if concurrency is not None and "github.run_id" not in concurrency["group"]:
        amounts["waiting_runs"] = 1

    for limit, amount in amounts.items():
        yield Use(limit=limit, user=workflow.name, amount=amount)
    yield from uses_of_jobs(workflow)


def uses_of_artifacts() -> Iterator[Use]:
    """Yield how long artifacts are kept."""
    for step in steps():
        if "actions/upload-artifact@" in step.action:
            days = step.tree["with"]["retention-days"]
            yield Use(limit="artifact_days", user=step.path, amount=days)

    days_of_action = local_actions()["hand_over"]["inputs"]["days"]
    yield Use(limit="artifact_days", user="hand_over", amount=int(days_of_action["default"]))


def bytes_of_outputs(run: RunOfPlan) -> int:
    """Return how many bytes GitHub counts for the outputs of a run's first job."""
    characters = sum(map(len, run.setup_outputs.values()))
    return BYTES_OF_UTF16 * characters


def uses_of_run(name: str) -> Iterator[Use]:
    """Yield what the runs of the largest plan of a kind take of the limits: one on each platform."""
    plan = largest_plan(name)
    yield Use(limit="summary", user=f"plan, {name}", amount=len(summary(plan).encode()))

    for platform in PLATFORMS:
        run = release_of(plan, platform, settings={})
        user = f"{name}, {platform}"
        outputs = bytes_of_outputs(run)
        yield Use(limit="job_outputs", user=user, amount=outputs)

        # The outputs of `setup` are those of its job, and of each workflow that it is called by.
        other_outputs = BYTES_OF_UTF16 * CHARACTERS_OF_A_JOB * len(run.plan.jobs)
        yield Use(limit="run_outputs", user=user, amount=2 * outputs + other_outputs)
        yield from uses_of_matrices(run, user)

    # CI plans both platforms at once.
    outputs = bytes_of_outputs(RunOfPlan(plan=plan))
    yield Use(limit="job_outputs", user=f"{name}, both platforms", amount=outputs)


def uses_of_matrices(run: RunOfPlan, run_name: str) -> Iterator[Use]:
    """Yield how many jobs a run's matrices have: groups, each stage of a group, and sets of wheels."""
    groups = json.loads(run.setup_outputs[f"{run.platform}_groups"])
    yield Use(limit="matrix", user=f"groups, {run_name}", amount=len(groups))
    for stage in STAGES:
        longest = 0
        for group in groups:
            longest = max(longest, len(group[stage]))
        yield Use(limit="matrix", user=f"{stage} of a group, {run_name}", amount=longest)
    wheel_sets = wheel_sets_to_promote(run.plan, run.platform)
    yield Use(limit="matrix", user=f"sets of wheels, {run_name}", amount=len(wheel_sets))


def bytes_of_longest_variable(environment: Mapping[str, str]) -> int:
    """Return how many bytes Linux counts for the longest variable of an environment."""
    return max(bytes_of_variable(name, value) for name, value in environment.items())


def uses_of_environments() -> Iterator[Use]:
    """Yield how long the variables of the steps of a nightly's jobs are: of a matrix, its longest ones."""
    for platform in PLATFORMS:
        variables: dict[str, int] = {}
        environments: dict[str, int] = {}
        run = release_of(largest_plan("nightly"), platform, settings={})
        for job in jobs_of_release(run):
            for step in job.steps:
                user = f"{job.path}, {step.name}, {platform}"
                variable = bytes_of_longest_variable(step.environment)
                variables[user] = max(variable, variables.get(user, 0))
                environment = bytes_of_environment(step.environment)
                environments[user] = max(environment, environments.get(user, 0))

        for user, size in variables.items():
            yield Use(limit="variable", user=user, amount=size)
        for user, size in environments.items():
            yield Use(limit="environment", user=user, amount=size)


@cache
def all_uses() -> Sequence[Use]:
    """Return what everything takes of every limit."""
    uses: list[Use] = []
    for workflow in workflows().values():
        uses += uses_of_workflow(workflow)
    uses += uses_of_artifacts()
    uses += uses_of_environments()
    for name in LARGEST_RUNS:
        uses += uses_of_run(name)
    return uses


def uses_of_limit(name: str) -> list[Use]:
    """Return what everything takes of one limit."""
    return [use for use in all_uses() if use.limit == name]


def users_near(name: str) -> list[str]:
    """Return what is near a limit."""
    limit = limits()[name]
    return [use.user for use in uses_of_limit(name) if limit.is_near(use.amount)]


def has_reason(user: str, limit: Limit) -> bool:
    """Return whether the data says why something is near a limit."""
    return any(fnmatch.fnmatchcase(user, pattern) for pattern in limit.near)


# What is held


def test_every_limit_is_held() -> None:
    held_limits = {use.limit for use in all_uses()}

    assert held_limits == {*limits()}


@pytest.mark.parametrize("name", limits())
def test_every_limit_has_its_page(name: str) -> None:
    assert limits()[name].page.startswith("https://")


@pytest.mark.parametrize("name", limits())
def test_nothing_takes_more_than_the_service_gives(name: str) -> None:
    limit = limits()[name]

    for use in uses_of_limit(name):
        assert use.amount <= limit.limit, f"{use.user}: {limit.of}"


@pytest.mark.parametrize("name", limits())
def test_needs_a_reason_within_a_quarter_of_a_limit(name: str) -> None:
    limit = limits()[name]
    for user in users_near(name):
        assert has_reason(user, limit), f"{user}: {limit.limit} {limit.of}"


@pytest.mark.parametrize("name", limits())
def test_every_reason_is_of_something_that_is_near(name: str) -> None:
    for pattern in limits()[name].near:
        assert fnmatch.filter(users_near(name), pattern), pattern


def test_the_product_refuses_a_plan_by_the_same_limits() -> None:
    assert limits()["matrix"].limit == MAX_JOBS
    assert limits()["job_outputs"].limit == MAX_OUTPUTS
    assert limits()["hosted_minutes"].limit > MAX_HOSTED_MINUTES


# Results of jobs


def results_where_all_succeeded(template: str) -> str:
    """Return what a summary's step is told of the jobs before it, where each succeeded."""
    expressions = EXPRESSION.sub(lambda match: match[1].strip(), template)
    return RESULT.sub('"success"', expressions)


@pytest.mark.parametrize("file", SUMMARIES)
def test_a_summary_is_told_the_result_of_every_job_that_it_waits_for(file: str) -> None:
    job = workflows()[file].jobs["summary"]
    (step,) = [step for step in job["steps"] if "NEEDS" in step.get("env", {})]
    template = step["env"]["NEEDS"]

    results = notify.read_needs(results_where_all_succeeded(template))

    assert RESULT.findall(template) == needs_of(job)
    assert set(results.values()) == {"success"}
