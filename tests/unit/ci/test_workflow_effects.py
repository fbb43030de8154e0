"""Every input of a workflow changes what is done, every output is taken: each is followed to its end."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from ci.plan.job_variables import JobRocm, JobValues, job_variables
from core.cli.options import ROOT
from tests.kit.planning import plan_event
from tests.kit.workflow_files import (
    Workflow,
    called,
    calls,
    command_steps,
    input_references,
    is_json_template,
    json_members,
    references,
    workflows,
)

LAYERS = ("core", "rocm_packaging", "pytorch_build", "ci")
# of a job or step, what decides where, when and for how long it runs; its name and its group do not
STEERING = ("if", "runs-on", "container", "strategy", "environment", "continue-on-error", "timeout-minutes")
# What `plan_job` reads of a job that is dispatched alone.
MEMBERS_OF_CELL = {*JobValues.model_fields} - {"rocm"}
# Of these, what no dispatch writes: it is handed ROCm's packages.
MEMBERS_OF_PLANNED_JOBS = {"builds_rocm"}
MEMBERS_OF_ROCM = {f"rocm.{name}" for name in JobRocm.model_fields}
ALL_INPUTS = re.compile(r"toJSON\(inputs\)")


@cache
def product_variables() -> frozenset[str]:
    """Return the words in the product that could be variables which a session reads."""
    names: set[str] = set()
    for layer in LAYERS:
        for path in (ROOT / layer).rglob("*.py"):
            names.update(re.findall(r'"([A-Z][A-Z_]+)"', path.read_text(encoding="utf-8")))
    return frozenset(names)


def is_used(variable: str, text: str) -> bool:
    """Return whether commands name a variable, or a session may read it."""
    return variable in product_variables() or bool(re.search(rf"[$!]{{?{variable}\b", text))


def effects(workflow: Workflow) -> Iterator[object]:
    """Yield every part of a workflow that does something, but for what it hands to another one."""
    for job in workflow.jobs.values():
        yield {key: value for key, value in job.items() if key in STEERING}
        for step in job.get("steps", []):
            yield {key: value for key, value in step.items() if key in STEERING}
            yield step.get("with", {})
            env = {**workflow.tree.get("env", {}), **job.get("env", {}), **step.get("env", {})}
            yield [value for name, value in env.items() if "run" in step and is_used(name, step["run"])]


@cache
def members_by_variable() -> Mapping[str, set[str]]:
    """Return which members of a cell each variable is made of that `plan_job` sets."""
    members: dict[str, set[str]] = {}
    for path in (*MEMBERS_OF_CELL - MEMBERS_OF_PLANNED_JOBS, *MEMBERS_OF_ROCM):
        outer, _, inner = path.partition(".")
        mark = "mark mark"  # a value of two words, as some are split
        values = {"gpu_family": "", outer: {inner: mark} if inner else mark}
        for variable, text in job_variables(JobValues.model_validate(values)).items():
            if "mark" in text:
                members.setdefault(variable, set()).add(path)
    return members


def effective_members_of_cell(workflow: Workflow) -> Iterator[str]:
    """Yield the members of a cell that reach a session by the variables which `plan_job` sets."""
    for job in workflow.jobs.values():
        job_steps = job.get("steps", [])
        if not any(step.get("env", {}).get("CELL") == "${{ inputs.cell }}" for step in job_steps):
            continue
        commands = "\n".join(step.get("run", "") for step in job_steps)
        for variable, members in members_by_variable().items():
            if is_used(variable, commands):
                yield from (f"cell.{member}" for member in members)


@cache
def effective_inputs(name: str) -> frozenset[str]:
    """Return the inputs of a workflow that reach a session, or what decides about one.

    Of an input in JSON these are its members: ``cell.runner``.
    """
    workflow = workflows()[name]
    effective: set[str] = set()
    for part in effects(workflow):
        effective |= input_references(part)

    effective.update(effective_members_of_cell(workflow))

    for call in calls():
        if call.workflow is workflow:
            for key, value in call.inputs.items():
                effective |= passed_inputs(workflow, key, value, effective_inputs(call.target.name))
    return frozenset(effective)


def passed_inputs(workflow: Workflow, key: str, value: object, effective: frozenset[str]) -> set[str]:
    """Return the inputs of a workflow that have an effect in a called one, which gets them as an input."""
    members = {name.partition(".")[2] for name in effective if name.startswith(f"{key}.")}
    passed: set[str] = set()
    if is_json_template(value) and members:
        for name, expression in json_members(str(value)).items():
            if name in members:
                passed |= input_references(f"${{{{ {expression} }}}}")
    elif value == f"${{{{ inputs.{key} }}}}":
        # Passed on as a whole, with its members.
        passed |= {name for name in effective if name == key or name.startswith(f"{key}.")}
    elif key in effective or members:
        passed |= input_references(value)
        if ALL_INPUTS.search(str(value)):
            passed |= set(workflow.inputs)
    return passed


@pytest.mark.parametrize("name", workflows())
def test_every_input_has_an_effect(name: str) -> None:
    workflow = workflows()[name]
    effective = {path.partition(".")[0] for path in effective_inputs(name)}

    for event in ("workflow_call", "workflow_dispatch"):
        assert set(workflow.on.get(event, {}).get("inputs", {})) <= effective, event


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
    prefix = f"{key}."
    members: set[str] = set()
    for workflow in workflows().values():
        for path in input_references(workflow.tree):
            if path.startswith(prefix):
                members.add(path.removeprefix(prefix))
    return members


def members_of_setup() -> set[str]:
    """Return the members of ``run``, as the job that plans a run writes them."""
    return set(json_members(workflows()["setup.yml"].jobs["setup"]["outputs"]["run"]))


def members_of_plan() -> set[str]:
    """Return the members that a plan may write into a row of a matrix."""
    flags = {"minutes": 300, "hosted": True, "without_gpu": True, "expect_failure": True}
    plan = plan_event("schedule")

    members: set[str] = set()
    for job in plan.jobs:
        members.update(plan.row(job.model_copy(update=flags)))
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
    assert members <= {*members_of_plan(), *MEMBERS_OF_CELL - MEMBERS_OF_PLANNED_JOBS, *MEMBERS_OF_ROCM}


# Variables and outputs


@pytest.mark.parametrize("name", workflows())
def test_every_value_given_to_a_step_is_used(name: str) -> None:
    """A variable that no command names and no session reads is decoration."""
    workflow = workflows()[name]
    for job_name, job in workflow.jobs.items():
        commands = "\n".join(step.get("run", "") for step in job.get("steps", []))
        for variable in job.get("env", {}):
            assert is_used(variable, commands), f"{job_name}: {variable}"

    every_command = "\n".join(step.command for step in command_steps() if step.workflow is workflow)
    for variable in workflow.tree.get("env", {}):
        assert is_used(variable, every_command) or f"env.{variable}" in workflow.text, variable


def names_that_people_hand_on() -> set[str]:
    """Return the outputs that a caller may hand on to a dispatch, which has an input of that name.

    `rocm_package_index_url` takes a `package_index_url`.
    """
    names: set[str] = set()
    for workflow in workflows().values():
        names |= set(workflow.on.get("workflow_dispatch", {}).get("inputs", {}))
    return names | {name.removeprefix("rocm_") for name in names}


def outputs_read(workflow: Workflow) -> set[str]:
    """Return the outputs of a workflow that those who call it read, or hand on as outputs of their own."""
    read: set[str] = set()
    for call in calls():
        if call.target is not workflow:
            continue
        caller = call.workflow
        for job in caller.jobs.values():
            for path in references(job, "needs"):
                if path[1] == "outputs" and called(caller.jobs[path[0]]) is workflow:
                    read.add(path[2])
        own_outputs = caller.on.get("workflow_call", {}).get("outputs", {})
        for path in references(own_outputs, "jobs"):
            if called(caller.jobs[path[0]]) is workflow:
                read.add(path[2])
    return read


@pytest.mark.parametrize("name", workflows())
def test_every_output_is_used(name: str) -> None:
    workflow = workflows()[name]
    outputs: Mapping[str, Any] = workflow.on.get("workflow_call", {}).get("outputs", {})
    assert set(outputs) <= outputs_read(workflow) | names_that_people_hand_on()

    for job_name, job in workflow.jobs.items():
        used: set[str] = set()
        for output in outputs.values():
            used |= {path[2] for path in references(output["value"], "jobs") if path[0] == job_name}
        for reader in workflow.jobs.values():
            for path in references(reader, "needs"):
                if path[0] == job_name and path[1] == "outputs":
                    used.add(path[2])
        assert set(job.get("outputs", {})) <= used, job_name
