"""Every input of a workflow changes what is done, every output is taken: each is followed to its end."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from ci.plan.job_variables import JobRocm, JobValues, job_variables
from core.cli.options import ROOT
from tests.kit.planning import plan_event
from tests.kit.workflow_files import (
    Call,
    Step,
    Workflow,
    called,
    calls,
    input_references,
    is_json_template,
    json_members,
    references,
    steps,
    workflows,
)

LAYERS = ("core", "rocm_packaging", "pytorch_build", "ci")
# of a job or step, what decides where, when and for how long it runs; its name and its group do not
STEERING = {
    "if",
    "runs-on",
    "container",
    "strategy",
    "environment",
    "continue-on-error",
    "timeout-minutes",
}
MEMBERS_OF_ROCM = {f"rocm.{name}" for name in JobRocm.model_fields}
# What `plan_job` reads of a job that is dispatched alone, which is handed ROCm's packages.
MEMBERS_OF_DISPATCHES = {*JobValues.model_fields, *MEMBERS_OF_ROCM} - {"rocm", "builds_rocm"}
ALL_INPUTS = re.compile(r"toJSON\(inputs\)")


@cache
def product_variables() -> frozenset[str]:
    """Return the words in the product that could be variables which a session reads."""
    names: set[str] = set()
    for layer in LAYERS:
        for path in (ROOT / layer).rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            names.update(re.findall(r'"([A-Z][A-Z_]+)"', source))
    return frozenset(names)


def is_used(variable: str, text: str) -> bool:
    """Return whether commands name a variable, or a session may read it."""
    if variable in product_variables():
        return True
    return re.search(rf"[$!]{{?{variable}\b", text) is not None


def steering_of(part: Mapping[str, Any]) -> Mapping[str, object]:
    """Return what decides where, when and for how long a job or a step runs."""
    return {key: value for key, value in part.items() if key in STEERING}


def used_values(step: Step) -> list[object]:
    """Return the values of the variables that a step's command uses."""
    if not step.command:
        return []
    environment: dict[str, object] = {}
    for part in (step.workflow.tree, step.job, step.tree):
        environment.update(part.get("env", {}))

    values: list[object] = []
    for variable, value in environment.items():
        if is_used(variable, step.command):
            values.append(value)
    return values


def effects(workflow: Workflow) -> Iterator[object]:
    """Yield every part of a workflow that does something, but for what it hands to another one."""
    for job in workflow.jobs.values():
        yield steering_of(job)
    for step in steps():
        if step.workflow is workflow:
            yield steering_of(step.tree)
            yield step.tree.get("with", {})
            yield used_values(step)


def variables_of_member(path: str) -> Iterator[str]:
    """Yield the variables that `plan_job` makes of a member of a cell: ``runner``, ``rocm.version``."""
    mark = "mark mark"  # a value of two words, as some are split
    outer, _, inner = path.partition(".")
    cell = {"gpu_family": "", outer: {inner: mark} if inner else mark}
    values = JobValues.model_validate(cell)

    for variable, text in job_variables(values).items():
        if "mark" in text:
            yield variable


@cache
def members_by_variable() -> Mapping[str, set[str]]:
    """Return which members of a cell each variable is made of that `plan_job` sets."""
    members: dict[str, set[str]] = {}
    for path in MEMBERS_OF_DISPATCHES:
        for variable in variables_of_member(path):
            members.setdefault(variable, set()).add(path)
    return members


def reads_cell(job: Mapping[str, Any]) -> bool:
    """Return whether a step of a job reads the cell that its workflow is given."""
    cells = [step.get("env", {}).get("CELL") for step in job.get("steps", [])]
    return "${{ inputs.cell }}" in cells


def commands_of(job: Mapping[str, Any]) -> str:
    """Return the commands of a job's steps, one after the other."""
    commands = [step.get("run", "") for step in job.get("steps", [])]
    return "\n".join(commands)


def effective_members_of_cell(workflow: Workflow) -> Iterator[str]:
    """Yield the members of a cell that reach a session by the variables which `plan_job` sets."""
    for job in workflow.jobs.values():
        if not reads_cell(job):
            continue
        for variable, members in members_by_variable().items():
            if is_used(variable, commands_of(job)):
                for member in members:
                    yield f"cell.{member}"


@cache
def effective_inputs(name: str) -> frozenset[str]:
    """Return the inputs of a workflow that reach a session, or what decides about one.

    Of an input in JSON these are its members: ``cell.runner``.
    """
    workflow = workflows()[name]

    effective: set[str] = set(effective_members_of_cell(workflow))
    for part in effects(workflow):
        effective |= input_references(part)
    for call in calls():
        if call.workflow is workflow:
            effective |= inputs_passed_with_effect(call)
    return frozenset(effective)


def inputs_passed_with_effect(call: Call) -> set[str]:
    """Return the inputs of a workflow that reach a session through one that it calls."""
    passed: set[str] = set()
    for key, value in call.inputs.items():
        effective = effective_inputs(call.target.name)
        members = members_of(key, effective)
        if is_json_template(value) and members:
            passed |= inputs_of_members(str(value), members)
        elif value == f"${{{{ inputs.{key} }}}}":
            # Passed on as a whole, with its members.
            passed |= {key} & effective
            for member in members:
                passed.add(f"{key}.{member}")
        elif key in effective or members:
            passed |= input_references(value)
            if ALL_INPUTS.search(str(value)):
                passed |= set(call.workflow.inputs)
    return passed


def members_of(key: str, paths: Iterable[str]) -> set[str]:
    """Return the members of a JSON input among dotted paths: ``runner`` of ``cell.runner``."""
    members: set[str] = set()
    for path in paths:
        name, _, member = path.partition(".")
        if name == key and member:
            members.add(member)
    return members


def inputs_of_members(template: str, members: set[str]) -> set[str]:
    """Return the inputs that a workflow writes into these members of a JSON object."""
    inputs: set[str] = set()
    for member, expression in json_members(template).items():
        if member in members:
            inputs |= input_references(f"${{{{ {expression} }}}}")
    return inputs


@pytest.mark.parametrize("file", workflows())
def test_every_input_has_an_effect(file: str) -> None:
    workflow = workflows()[file]
    effective: set[str] = set()
    for path in effective_inputs(file):
        effective.add(path.partition(".")[0])

    for event in ("workflow_call", "workflow_dispatch"):
        assert set(workflow.inputs_of(event)) <= effective, event


# What a job gets as JSON


def members_written(key: str) -> set[str]:
    """Return the members that workflows write into a JSON input."""
    members: set[str] = set()
    for call in calls():
        value = call.inputs.get(key)
        if is_json_template(value):
            members |= set(json_members(str(value)))
    return members


def members_read(key: str) -> set[str]:
    """Return the members of a JSON input that workflows read."""
    members: set[str] = set()
    for workflow in workflows().values():
        members |= members_of(key, input_references(workflow.tree))
    return members


def members_of_setup() -> set[str]:
    """Return the members of ``run``, as the job that plans a run writes them."""
    job = workflows()["setup.yml"].jobs["setup"]
    return set(json_members(job["outputs"]["run"]))


def members_of_plan() -> set[str]:
    """Return the members that a plan may write into a row of a matrix."""
    # A row has these only where they are set.
    flags = {
        "minutes": 300,
        "hosted": True,
        "without_gpu": True,
        "expect_failure": True,
    }
    plan = plan_event("schedule")

    members: set[str] = set()
    for job in plan.jobs:
        flagged_job = job.model_copy(update=flags)
        members.update(plan.row(flagged_job))
    return members


def test_jobs_read_of_a_run_exactly_what_setup_writes() -> None:
    assert members_read("run") == members_of_setup()


def test_a_dispatch_writes_of_a_run_nothing_that_no_job_reads() -> None:
    members = members_written("run")

    assert members
    assert members <= members_of_setup()


def test_github_reads_of_a_row_exactly_what_plans_write() -> None:
    assert members_read("cell") == members_of_plan()


def test_a_dispatch_writes_of_a_job_nothing_that_is_not_read() -> None:
    members = members_written("cell")

    assert {"gpu_family", "runner", "rocm.version"} <= members
    assert members <= members_of_plan() | MEMBERS_OF_DISPATCHES


# Variables and outputs


@pytest.mark.parametrize("file", workflows())
def test_every_variable_of_a_job_is_used(file: str) -> None:
    """A variable that no command names and no session reads is decoration."""
    for job in workflows()[file].jobs.values():
        commands = commands_of(job)
        for variable in job.get("env", {}):
            assert is_used(variable, commands), variable


@pytest.mark.parametrize("file", workflows())
def test_every_variable_of_a_workflow_is_used(file: str) -> None:
    workflow = workflows()[file]
    commands = "\n".join(map(commands_of, workflow.jobs.values()))

    for variable in workflow.tree.get("env", {}):
        is_in_expression = f"env.{variable}" in workflow.text
        assert is_in_expression or is_used(variable, commands), variable


def inputs_of_dispatches() -> set[str]:
    """Return the inputs that people enter, to whom a run's outputs say what to hand on."""
    inputs: set[str] = set()
    for workflow in workflows().values():
        for name in workflow.inputs_of("workflow_dispatch"):
            # `rocm_package_index_url` takes a `package_index_url`.
            inputs |= {name, name.removeprefix("rocm_")}
    return inputs


@dataclass(frozen=True, kw_only=True)
class JobOutput:
    """An output of a job of a workflow."""

    job: str
    name: str


def used_outputs(workflow: Workflow) -> set[JobOutput]:
    """Return the outputs of a workflow's jobs that other jobs read, or that it hands on as its own."""
    paths = references(workflow.outputs, "jobs")
    for job in workflow.jobs.values():
        paths |= references(job, "needs")

    outputs: set[JobOutput] = set()
    for path in paths:
        # The other one is the job's result.
        if path[1] == "outputs":
            outputs.add(JobOutput(job=path[0], name=path[2]))
    return outputs


def outputs_used_by_callers(workflow: Workflow) -> set[str]:
    """Return the outputs of a workflow that those who call it read, or hand on as outputs of their own."""
    names: set[str] = set()
    for caller in workflows().values():
        for output in used_outputs(caller):
            job = caller.jobs[output.job]
            if called(job) is workflow:
                names.add(output.name)
    return names


@pytest.mark.parametrize("file", workflows())
def test_every_output_of_a_workflow_is_used(file: str) -> None:
    workflow = workflows()[file]
    outputs = set(workflow.outputs)

    assert outputs <= outputs_used_by_callers(workflow) | inputs_of_dispatches()


@pytest.mark.parametrize("file", workflows())
def test_every_output_of_a_job_is_used(file: str) -> None:
    workflow = workflows()[file]

    for name, job in workflow.jobs.items():
        for output in job.get("outputs", {}):
            assert JobOutput(job=name, name=output) in used_outputs(workflow)
