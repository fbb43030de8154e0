"""The workflows of `.github/workflows`, read as data."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from core.cli.options import ROOT

FOLDER = ROOT / ".github" / "workflows"
ACTIONS = ROOT / ".github" / "actions"
# The plan writes the sessions of some jobs, which a step calls by this variable.
SESSIONS = "$SESSIONS"
# The session that reads a job in the plan, and sets the variables of the job's later steps.
READING = "plan_job"
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
REFERENCE = re.compile(r"\b(inputs|needs|steps|jobs)((?:\.[\w-]+)+)")
# `outputs[format('{0}_cells', inputs.platform)]`: the same output of each platform.
BY_PLATFORM = re.compile(r"([\w.-]+)\[format\('\{0\}(\w+)', inputs\.platform\)\]")
# `${{ matrix.cell.hosted && 360 || 720 }}`: minutes on a machine of GitHub's, and on any other one.
BY_MACHINE = re.compile(r"\$\{\{ \S+\.hosted && (\d+) \|\| (\d+) \}\}")
# `${{ fromJSON(inputs.cell).minutes || 300 }}`: what the plan says, or a default.
BY_PLAN = re.compile(r"\$\{\{ \S+\.minutes \|\| (\d+) \}\}")
MEMBER = re.compile(r"fromJSON\(inputs\.(\w+)\)\.([\w.]+)")


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """One workflow; `on` is YAML's true."""

    name: str
    text: str
    tree: Mapping[str, Any]

    @property
    def on(self) -> Mapping[str, Any]:
        """Return the events that start it, each with its settings."""
        events: Any = self.tree[True]  # type: ignore[index]
        return {name: settings or {} for name, settings in events.items()}

    @property
    def jobs(self) -> Mapping[str, Any]:
        """Return its jobs by name."""
        jobs: Mapping[str, Any] = self.tree["jobs"]
        return jobs

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Return the inputs of a call, or of a dispatch where it cannot be called."""
        event = "workflow_call" if "workflow_call" in self.on else "workflow_dispatch"
        return self.inputs_of(event)

    def inputs_of(self, event: str) -> Mapping[str, Any]:
        """Return the inputs that it declares for an event: ``workflow_call`` or ``workflow_dispatch``."""
        inputs: Mapping[str, Any] = self.on.get(event, {}).get("inputs", {})
        return inputs

    @property
    def outputs(self) -> Mapping[str, Any]:
        """Return the outputs that it declares for who calls it."""
        outputs: Mapping[str, Any] = self.on.get("workflow_call", {}).get("outputs", {})
        return outputs


@cache
def read_workflow(path: Path) -> Workflow:
    """Return a workflow's file, read."""
    text = path.read_text(encoding="utf-8")
    return Workflow(name=path.name, text=text, tree=yaml.load(text, Loader=yaml.CSafeLoader))


@cache
def workflows() -> Mapping[str, Workflow]:
    """Return the workflows of this repository by the names of their files."""
    return {path.name: read_workflow(path) for path in sorted(FOLDER.glob("*.yml"))}


def text_of_workflows() -> str:
    """Return the text of every workflow, one after the other."""
    return "\n".join(workflow.text for workflow in workflows().values())


@cache
def local_actions() -> Mapping[str, Mapping[str, Any]]:
    """Return the actions of this repository by the names of their folders."""
    actions: dict[str, Mapping[str, Any]] = {}
    for path in sorted(ACTIONS.rglob("action.yml")):
        text = path.read_text(encoding="utf-8")
        actions[path.parent.name] = yaml.load(text, Loader=yaml.CSafeLoader)
    return actions


@dataclass(frozen=True, kw_only=True)
class WorkflowJob:
    """One job of a workflow.

    Attributes:
        path: Its workflow and its name, for messages.
        tree: The job as it is written.
    """

    path: str
    name: str
    workflow: Workflow
    tree: Mapping[str, Any]


def workflow_jobs() -> Iterator[WorkflowJob]:
    """Yield every job of every workflow."""
    for file, workflow in workflows().items():
        for name, tree in workflow.jobs.items():
            yield WorkflowJob(path=f"{file}, {name}", name=name, workflow=workflow, tree=tree)


def needs_of(job: Mapping[str, Any]) -> Sequence[str]:
    """Return the jobs that a job waits for; a workflow may write a single one without a list."""
    needs: str | Sequence[str] = job.get("needs", [])
    return [needs] if isinstance(needs, str) else needs


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of a job.

    Attributes:
        path: Its workflow, its job and its name, for messages.
        tree: The step as it is written.
    """

    path: str
    workflow: Workflow
    job: Mapping[str, Any]
    tree: Mapping[str, Any]

    @property
    def command(self) -> str:
        """What it runs; empty where it uses an action."""
        command: str = self.tree.get("run", "")
        return command

    @property
    def action(self) -> str:
        """The action that it uses; empty where it runs a command."""
        action: str = self.tree.get("uses", "")
        return action


def steps() -> Iterator[Step]:
    """Yield every step of every workflow."""
    for job in workflow_jobs():
        for tree in job.tree.get("steps", []):
            path = f"{job.path}, {tree.get('name', tree.get('uses'))}"
            yield Step(path=path, workflow=job.workflow, job=job.tree, tree=tree)


def command_steps() -> Iterator[Step]:
    """Yield every step that runs a command."""
    for step in steps():
        if step.command:
            yield step


def minutes_of(limit: object, *, hosted: bool, planned: int | None = None) -> int:
    """Return how many minutes a ``timeout-minutes`` gives, on a machine of GitHub's or any other one.

    `planned` is what the plan says of the job, where it says anything.
    """
    by_machine = BY_MACHINE.fullmatch(str(limit))
    by_plan = BY_PLAN.fullmatch(str(limit))
    if by_machine:
        return int(by_machine[1] if hosted else by_machine[2])
    if by_plan:
        return int(by_plan[1]) if planned is None else planned
    return int(str(limit))


def expressions(value: object) -> Iterator[str]:
    """Yield every expression in a part of a workflow; an `if` need not be marked as one."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "if" and isinstance(inner, str) and "${{" not in inner:
                yield inner
            yield from expressions(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions(inner)
    elif isinstance(value, str):
        yield from EXPRESSION.findall(value)


def references(value: object, kind: str) -> set[tuple[str, ...]]:
    """Return what expressions refer to in a context such as ``inputs``: the parts of each name behind it."""
    paths: set[tuple[str, ...]] = set()
    for expression in expressions(value):
        by_name = BY_PLATFORM.sub(r"\1.linux\2 \1.windows\2 inputs.platform", expression)
        without_texts = re.sub(r"'[^']*'", "''", by_name)
        for context, path in REFERENCE.findall(without_texts):
            if context == kind:
                paths.add(tuple(path[1:].split(".")))
    return paths


def input_references(value: object) -> set[str]:
    """Return the inputs that expressions refer to, and of one in JSON its members: ``run.store``."""
    names = {path[0] for path in references(value, "inputs")}
    members: set[str] = set()
    for expression in expressions(value):
        for name, member in MEMBER.findall(expression):
            members.add(f"{name}.{member}")
            names.discard(name)
    return names | members


def json_members(template: str) -> Mapping[str, str]:
    """Return the members of a JSON object as a workflow writes it: their expressions by dotted paths.

    A constant has none, so its expression is empty.
    """
    texts: list[str] = []

    def placeholder(match: re.Match[str]) -> str:
        texts.append(match[1].strip())
        return f'{{"expression": {len(texts) - 1}}}'

    members: dict[str, str] = {}

    def collect(tree: Mapping[str, Any], prefix: str) -> None:
        for name, value in tree.items():
            if not isinstance(value, dict):
                members[prefix + name] = ""
            elif "expression" in value:
                members[prefix + name] = texts[value["expression"]]
            else:
                collect(value, f"{prefix}{name}.")

    collect(json.loads(EXPRESSION.sub(placeholder, template)), "")
    return members


def is_json_template(value: object) -> bool:
    """Return whether a value is a JSON object that a workflow writes."""
    return isinstance(value, str) and value.startswith("{")


def called(job: Mapping[str, Any]) -> Workflow | None:
    """Return the workflow that a job calls."""
    path = job.get("uses", "")
    return workflows()[path.rpartition("/")[2]] if path else None


@dataclass(frozen=True, kw_only=True)
class Call:
    """One job that calls a workflow.

    Attributes:
        path: The workflow that it stands in, and its name, for messages.
        job: The job as it is written.
        target: The workflow that it calls.
    """

    path: str
    workflow: Workflow
    job: Mapping[str, Any]
    target: Workflow

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs that it gives."""
        inputs: Mapping[str, Any] = self.job.get("with", {})
        return inputs


def calls() -> Iterator[Call]:
    """Yield every job that calls a workflow."""
    for job in workflow_jobs():
        target = called(job.tree)
        if target is not None:
            yield Call(path=job.path, workflow=job.workflow, job=job.tree, target=target)


def called_workflows(file: str) -> set[str]:
    """Return the workflows that one calls, and those that they call in turn."""
    files: set[str] = set()
    for call in calls():
        if call.workflow.name == file:
            files |= {call.target.name, *called_workflows(call.target.name)}
    return files


def words_of(command: str) -> list[str]:
    """Return the words of a command, with ``!NAME!`` of Windows' cmd as ``$NAME``."""
    return shlex.split(re.sub(r"!(\w+)!", r"$\1", command))


def called_sessions(command: str) -> list[str]:
    """Return the sessions that a call of nox names."""
    sessions: list[str] = []
    for word in words_of(command)[2:]:
        if word.startswith("-"):
            break
        sessions.append(word)
    return sessions
