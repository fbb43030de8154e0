"""Every workflow, with the largest plans, held against what GitHub takes: `ci/github_limits.toml`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

import pytest
import yaml  # type: ignore[import-untyped]

from ci.plan.outputs import summary
from ci.verbs import notify
from core.cli.options import ROOT
from core.data import Model, read_toml
from core.run.plan import MAX_JOBS, MAX_OUTPUTS, matrices
from tests.kit.workflow_files import EXPRESSION, Workflow, calls, steps, workflows
from tests.kit.workflow_values import LARGEST_RUNS, largest_plan, resolved, run_values, setup_outputs

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


@dataclass(frozen=True, kw_only=True)
class Use:
    """How much of a limit something takes."""

    limit: str
    what: str
    amount: int


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
    below = [levels(target.name) for _where, workflow, _job, target in calls() if workflow.name == name]
    return 1 + max(below, default=0)


def called_by(name: str) -> set[str]:
    """Return the workflows that a run of one calls."""
    called: set[str] = set()
    for _where, workflow, _job, target in calls():
        if workflow.name == name:
            called |= {target.name, *called_by(target.name)}
    return called


def uses_of_jobs(workflow: Workflow) -> Iterator[Use]:
    """Yield how long the jobs of a workflow may take."""
    for name, job in workflow.jobs.items():
        if "uses" not in job:
            is_hosted = job["runs-on"] == "ubuntu-24.04"
            limit = "hosted_minutes" if is_hosted else "self_hosted_minutes"
            yield Use(limit=limit, what=f"{workflow.name}, {name}", amount=job["timeout-minutes"])


def uses_of_workflow(workflow: Workflow) -> Iterator[Use]:
    """Yield what a workflow takes of the limits, whatever is planned."""
    name = workflow.name
    templates = [text for text in texts(workflow.tree) if EXPRESSION.search(text)]
    yield Use(limit="expression", what=name, amount=max(map(len, templates), default=0))
    yield Use(limit="workflow_file", what=name, amount=len(workflow.text.encode()))
    yield Use(limit="workflow_levels", what=name, amount=levels(name))
    yield Use(limit="called_workflows", what=name, amount=len(called_by(name)))

    inputs = workflow.on.get("workflow_dispatch", {}).get("inputs", {})
    yield Use(limit="dispatch_inputs", what=name, amount=len(inputs))

    concurrency = workflow.tree.get("concurrency")
    if concurrency is not None and "github.run_id" not in concurrency["group"]:
        yield Use(limit="waiting_runs", what=name, amount=1)
    yield from uses_of_jobs(workflow)


def uses_of_artifacts() -> Iterator[Use]:
    """Yield how long artifacts are kept."""
    for where, _workflow, _job, step in steps():
        if "actions/upload-artifact@" in step.get("uses", ""):
            yield Use(limit="artifact_days", what=where, amount=step["with"]["retention-days"])
    path = ROOT / ".github" / "actions" / "hand_over" / "action.yml"
    action = yaml.safe_load(path.read_text(encoding="utf-8"))
    yield Use(limit="artifact_days", what="hand_over", amount=int(action["inputs"]["days"]["default"]))


def uses_of_run(release_type: str) -> Iterator[Use]:
    """Yield what the run of the largest plan of a release type takes of the limits."""
    plan = largest_plan(release_type)
    values = run_values(plan)
    for where, workflow, job, step in steps():
        environment = {**workflow.tree.get("env", {}), **job.get("env", {}), **step.get("env", {})}
        for name, template in environment.items():
            length = len(f"{name}=") + values.length_of(str(template)) + 1
            yield Use(limit="variable", what=f"{where}, {name}, {release_type}", amount=length)

    outputs = BYTES_OF_UTF16 * sum(len(text) for text in setup_outputs(plan).values())
    yield Use(limit="job_outputs", what=f"setup, {release_type}", amount=outputs)
    # The outputs of `setup` are those of its job, and of each workflow that it is called by.
    other_outputs = BYTES_OF_UTF16 * CHARACTERS_OF_A_JOB * len(plan.cells)
    yield Use(limit="run_outputs", what=release_type, amount=2 * outputs + other_outputs)

    for name, rows in matrices(resolved(plan)).items():
        if name.endswith("_matrix") and isinstance(rows, Sequence):
            yield Use(limit="matrix", what=f"{name}, {release_type}", amount=len(rows))
    yield Use(limit="summary", what=f"plan, {release_type}", amount=len(summary(plan).encode()))


@cache
def all_uses() -> Sequence[Use]:
    """Return what everything takes of every limit."""
    uses = [use for workflow in workflows().values() for use in uses_of_workflow(workflow)]
    uses += uses_of_artifacts()
    for release_type in LARGEST_RUNS:
        uses += uses_of_run(release_type)
    return uses


def test_every_limit_is_held_and_has_its_page() -> None:
    assert {use.limit for use in all_uses()} == {*limits()}
    for limit in limits().values():
        assert limit.page.startswith("https://")


@pytest.mark.parametrize("name", limits())
def test_nothing_takes_more_than_the_service_gives(name: str) -> None:
    too_much = [use for use in all_uses() if use.limit == name and use.amount > limits()[name].limit]

    assert not too_much, limits()[name].of


@pytest.mark.parametrize("name", limits())
def test_needs_a_reason_within_a_quarter_of_a_limit(name: str) -> None:
    limit = limits()[name]
    unnamed = [
        use
        for use in all_uses()
        if use.limit == name
        and use.amount > NEAR * limit.limit
        and not any(fnmatchcase(use.what, pattern) for pattern in limit.near)
    ]

    assert not unnamed, f"{limit.limit} {limit.of}"


def test_the_product_refuses_a_plan_by_the_same_limits() -> None:
    assert limits()["matrix"].limit == MAX_JOBS
    assert limits()["job_outputs"].limit == MAX_OUTPUTS


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
