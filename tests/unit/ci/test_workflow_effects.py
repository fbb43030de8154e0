"""Every input of a workflow changes what is done, every output is taken: each is followed to its end."""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from core.cli.options import ROOT
from tests.kit.workflow_files import Workflow, called, calls, references, steps, workflows

LAYERS = ("core", "rocm_packaging", "pytorch_build", "ci")
# of a job or step, what decides where, when and for how long it runs; its name and its group do not
STEERING = ("if", "runs-on", "container", "strategy", "environment", "continue-on-error", "timeout-minutes")
WHOLE = re.compile(r"toJSON\(inputs\)")


@cache
def variables() -> frozenset[str]:
    """List the words in the product that could be variables which a stage reads."""
    text = "\n".join(
        path.read_text(encoding="utf-8") for layer in LAYERS for path in (ROOT / layer).rglob("*.py")
    )
    return frozenset(re.findall(r'"([A-Z][A-Z_]+)"', text))


def taken(env: Mapping[str, str], run: str) -> Iterator[str]:
    """Return the values that a command takes: in its words, or by a variable that a stage reads."""
    used = set(re.findall(r"\$\{?([A-Z_]+)", run)) | set(re.findall(r"!([A-Z_]+)!", run))
    yield from (value for name, value in env.items() if name in used | variables())


def ends(one: Workflow) -> Iterator[object]:
    """Return every part of a workflow that does something, but for what it hands to another one."""
    for job in one.jobs.values():
        yield {key: value for key, value in job.items() if key in STEERING}
        for step in job.get("steps", []):
            yield {key: value for key, value in step.items() if key in STEERING}
            yield step.get("with", {})
            env = {**one.tree.get("env", {}), **job.get("env", {}), **step.get("env", {})}
            yield from taken(env, step["run"]) if "run" in step else ()


@cache
def effective(name: str) -> frozenset[str]:
    """List the inputs of a workflow that reach a session, or what decides about one."""
    one = workflows()[name]
    found = {path[0] for part in ends(one) for path in references(part, "inputs")}
    for where, _, job, target in calls():
        if where.startswith(f"{name}, "):
            for key, value in job.get("with", {}).items():
                if key in effective(target.name):
                    found |= {path[0] for path in references({key: value}, "inputs")}
                    found |= set(one.inputs) if WHOLE.search(str(value)) else set()
    return frozenset(found)


@pytest.mark.parametrize("name", workflows())
def test_every_input_has_an_effect(name: str) -> None:
    one = workflows()[name]
    for event in ("workflow_call", "workflow_dispatch"):
        assert set(one.on.get(event, {}).get("inputs", {})) <= effective(name), event


@pytest.mark.parametrize("name", workflows())
def test_every_value_given_to_a_step_is_used(name: str) -> None:
    """A variable that no command names and no stage reads is decoration."""
    one = workflows()[name]
    for job_name, job in one.jobs.items():
        runs = [step for step in job.get("steps", []) if "run" in step]
        text = "\n".join(step["run"] for step in runs)
        for given in (*([one.tree.get("env", {})] if runs else []), job.get("env", {})):
            unused = {
                key for key in given if key not in variables() and not re.search(rf"[$!]{{?{key}\b", text)
            }
            assert not unused or given is one.tree.get("env"), f"{job_name}: {unused}"
    everything = "\n".join(step["run"] for _, each, _, step in steps() if each is one and "run" in step)
    for key in one.tree.get("env", {}):
        used = key in variables() or re.search(rf"[$!]{{?{key}\b", everything) or f"env.{key}" in one.text
        assert used, key


def consumers(one: Workflow) -> set[str]:
    """List the inputs that the user may hand an output on to: of what is dispatched, what says it the same.

    `rocm_package_index_url` takes a `package_index_url`. What is never dispatched is read by its callers.
    """
    if "workflow_dispatch" not in one.on:
        return set()
    names = {name for each in workflows() for name in effective(each)}
    return names | {name.removeprefix("rocm_") for name in names}


@pytest.mark.parametrize("name", workflows())
def test_every_output_is_used(name: str) -> None:
    one = workflows()[name]
    outputs: Mapping[str, Any] = one.on.get("workflow_call", {}).get("outputs", {})
    read = {
        path[2]
        for _, caller, _, target in calls()
        if target is one
        for job in caller.jobs.values()
        for path in references(job, "needs")
        if path[1] == "outputs" and called(caller.jobs[path[0]]) is one
    }
    # handed on by who calls, whose own outputs are looked at by themselves
    read |= {
        path[2]
        for each in workflows().values()
        for path in references(each.on.get("workflow_call", {}).get("outputs", {}), "jobs")
        if called(each.jobs[path[0]]) is one
    }
    assert set(outputs) <= read | consumers(one)
    behind = {path[2] for each in outputs.values() for path in references(each["value"], "jobs")}
    for job_name, job in one.jobs.items():
        beside = {
            path[2]
            for each in one.jobs.values()
            for path in references(each, "needs")
            if path[0] == job_name and path[1] == "outputs"
        }
        assert set(job.get("outputs", {})) <= behind | beside, job_name
