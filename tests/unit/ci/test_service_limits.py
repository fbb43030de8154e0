"""Every workflow, with the largest plans, held against what GitHub takes: `ci/github_limits.toml`."""

import fnmatch
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import pytest
import yaml  # type: ignore[import-untyped]

from ci.plan.data import MAX_HOSTED_MINUTES
from ci.plan.outputs import summary
from ci.verbs import notify
from core.cli.options import ROOT
from core.data import Model, read_toml
from core.run import PLATFORMS
from core.run.plan import MAX_JOBS, MAX_OUTPUTS, STAGES, wheel_sets_to_promote
from tests.kit.workflow_files import EXPRESSION, Workflow, calls, minutes_of, steps, workflows
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


def has_reason(user: str, limit: Limit) -> bool:
    """Return whether the data says why something is near a limit."""
    return any(fnmatch.fnmatchcase(user, pattern) for pattern in limit.near)


def users_near(name: str) -> list[str]:
    """Return what is near a limit."""
    limit = limits()[name]
    return [use.user for use in all_uses() if use.limit == name and limit.is_near(use.amount)]


@cache
def limits() -> Mapping[str, Limit]:
    """Return the limits of GitHub by name."""
    tables = read_toml(ROOT / "ci" / "github_limits.toml")
    return {name: Limit.model_validate(table) for name, table in tables.items()}


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


def levels(name: str) -> int:
    """Return how many workflows call each other below one, itself counted."""
    levels_below = [levels(call.target.name) for call in calls() if call.workflow.name == name]
    return 1 + max(levels_below, default=0)


def called_by(name: str) -> set[str]:
    """Return the workflows that a run of one calls."""
    called: set[str] = set()
    for call in calls():
        if call.workflow.name == name:
            called |= {call.target.name, *called_by(call.target.name)}
    return called


def uses_of_jobs(workflow: Workflow) -> Iterator[Use]:
    """Yield how long the jobs of a workflow may take, on each kind of machine that they may have."""
    for name, job in workflow.jobs.items():
        if "uses" in job:
            continue
        user = f"{workflow.name}, {name}"
        yield Use(limit="hosted_minutes", user=user, amount=minutes_of(job["timeout-minutes"], hosted=True))
        if job["runs-on"] != "ubuntu-24.04":
            minutes = minutes_of(job["timeout-minutes"], hosted=False)
            yield Use(limit="self_hosted_minutes", user=user, amount=minutes)


def uses_of_workflow(workflow: Workflow) -> Iterator[Use]:
    """Yield what a workflow takes of the limits, whatever is planned."""
    name = workflow.name
    templates = [text for text in texts(workflow.tree) if EXPRESSION.search(text)]
    yield Use(limit="expression", user=name, amount=max(map(len, templates), default=0))
    yield Use(limit="workflow_file", user=name, amount=len(workflow.text.encode()))
    yield Use(limit="workflow_levels", user=name, amount=levels(name))
    yield Use(limit="called_workflows", user=name, amount=len(called_by(name)))

    inputs = workflow.on.get("workflow_dispatch", {}).get("inputs", {})
    yield Use(limit="dispatch_inputs", user=name, amount=len(inputs))
    characters = sum(len(SOURCE_LOCK if key == "source_lock" else LONGEST_WORD) for key in inputs)
    yield Use(limit="dispatch_payload", user=name, amount=characters)

    concurrency = workflow.tree.get("concurrency")
    if concurrency is not None and "github.run_id" not in concurrency["group"]:
        yield Use(limit="waiting_runs", user=name, amount=1)
    yield from uses_of_jobs(workflow)


def uses_of_artifacts() -> Iterator[Use]:
    """Yield how long artifacts are kept."""
    for step in steps():
        if "actions/upload-artifact@" in step.action:
            days = step.tree["with"]["retention-days"]
            yield Use(limit="artifact_days", user=step.path, amount=days)
    path = ROOT / ".github" / "actions" / "hand_over" / "action.yml"
    action = yaml.safe_load(path.read_text(encoding="utf-8"))
    yield Use(limit="artifact_days", user="hand_over", amount=int(action["inputs"]["days"]["default"]))


def uses_of_run(name: str) -> Iterator[Use]:
    """Yield what the runs of the largest plan of a kind take of the limits: one on each platform."""
    yield Use(limit="summary", user=f"plan, {name}", amount=len(summary(largest_plan(name)).encode()))
    for platform in PLATFORMS:
        run = release_of(largest_plan(name), platform, settings={})
        run_name = f"{name}, {platform}"

        outputs = BYTES_OF_UTF16 * sum(len(text) for text in run.setup_outputs.values())
        yield Use(limit="job_outputs", user=run_name, amount=outputs)
        # The outputs of `setup` are those of its job, and of each workflow that it is called by.
        other_outputs = BYTES_OF_UTF16 * CHARACTERS_OF_A_JOB * len(run.plan.jobs)
        yield Use(limit="run_outputs", user=run_name, amount=2 * outputs + other_outputs)
        yield from uses_of_matrices(run, run_name)

    # CI plans both platforms at once.
    outputs = BYTES_OF_UTF16 * sum(map(len, RunOfPlan(plan=largest_plan(name)).setup_outputs.values()))
    yield Use(limit="job_outputs", user=f"{name}, both platforms", amount=outputs)


def uses_of_matrices(run: RunOfPlan, run_name: str) -> Iterator[Use]:
    """Yield how many jobs a run's matrices have: groups, each stage of a group, and sets of wheels."""
    groups = json.loads(run.setup_outputs[f"{run.platform}_groups"])
    yield Use(limit="matrix", user=f"groups, {run_name}", amount=len(groups))
    for stage in STAGES:
        longest = max(len(group[stage]) for group in groups)
        yield Use(limit="matrix", user=f"{stage} of a group, {run_name}", amount=longest)
    wheel_sets = wheel_sets_to_promote(run.plan, run.platform)
    yield Use(limit="matrix", user=f"sets of wheels, {run_name}", amount=len(wheel_sets))


def uses_of_environments() -> Iterator[Use]:
    """Yield how long the variables of the steps of a nightly's jobs are."""
    for platform in PLATFORMS:
        longest: dict[tuple[str, str], int] = {}
        for job in jobs_of_release(release_of(largest_plan("nightly"), platform, settings={})):
            for step in job.steps:
                environment = step.environment
                sizes = [bytes_of_variable(name, value) for name, value in environment.items()]
                user = f"{job.path}, {step.name}, {platform}"
                longest_variable = longest.get(("variable", user), 0)
                longest["variable", user] = max(longest_variable, *sizes)
                longest_environment = longest.get(("environment", user), 0)
                longest["environment", user] = max(longest_environment, bytes_of_environment(environment))
        for (limit, user), size in longest.items():
            yield Use(limit=limit, user=user, amount=size)


@cache
def all_uses() -> Sequence[Use]:
    """Return what everything takes of every limit."""
    uses = [use for workflow in workflows().values() for use in uses_of_workflow(workflow)]
    uses += uses_of_artifacts()
    uses += uses_of_environments()
    for name in LARGEST_RUNS:
        uses += uses_of_run(name)
    return uses


def test_every_limit_is_held_and_has_its_page() -> None:
    assert {use.limit for use in all_uses()} == {*limits()}
    for limit in limits().values():
        assert limit.page.startswith("https://")


@pytest.mark.parametrize("name", limits())
def test_nothing_takes_more_than_the_service_gives(name: str) -> None:
    limit = limits()[name]
    too_much = [use.user for use in all_uses() if use.limit == name and use.amount > limit.limit]

    assert not too_much, limit.of


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


def written_results(template: str) -> str:
    """Return the variable of a summary's step where every job succeeded."""
    return EXPRESSION.sub(lambda match: RESULT.sub('"success"', match[1]).strip(), template)


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_summary_is_told_the_result_of_every_job_that_it_waits_for(name: str) -> None:
    job = workflows()[name].jobs["summary"]
    (template,) = [step["env"]["NEEDS"] for step in job["steps"] if "NEEDS" in step.get("env", {})]
    needs = [job["needs"]] if isinstance(job["needs"], str) else job["needs"]

    assert RESULT.findall(template) == needs
    assert set(notify.read_needs(written_results(template)).values()) == {"success"}
