"""Runs of the workflows as GitHub would start them, without a machine: which jobs, where, with which values.

Conditions, matrices, inputs, outputs and environments are evaluated. Sessions do not run, but the outputs
of `configure` and `resolve` and the variables of `plan_job` are those of a real plan.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.kit.github_expressions import STATUS, expand, expand_condition, expand_text, is_true
from tests.kit.workflow_files import Workflow, needs_of, workflows

STATUS_FUNCTION = re.compile(r"\b(success|failure|cancelled|always)\(\)")

# What tells the cells of a matrix apart.
_KEYS_OF_NAMES = ("name", "job", "artifact_group", "store")

# What a step leaves: a session of nox, or an action.
RunStep = Callable[["SimulatedStep"], "StepResult"]
# Whether a job fails, by its path.
Fails = Callable[[str], bool]


@dataclass(frozen=True, kw_only=True)
class SimulatedStep:
    """A step of a job that has started."""

    name: str
    id: str
    action: str
    command: str
    variables: Mapping[str, str]
    inputs: Mapping[str, str]

    @property
    def words(self) -> Sequence[str]:
        """The words of its command, with its variables in their place."""
        command = re.sub(r"!(\w+)!", r"$\1", self.command)  # as cmd reads it
        arguments: list[str] = []
        for raw_argument in re.findall(r'(?:[^\s"]|"[^"]*")+', command):
            argument = re.sub(r"\$(\w+)", self._value, raw_argument.replace('"', ""))
            arguments += [argument] if '"' in raw_argument else argument.split()
        return arguments

    def _value(self, match: re.Match[str]) -> str:
        return self.variables.get(match[1], "")


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step leaves to those after it: its outputs, and variables of its job."""

    outputs: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A job that has started on a machine."""

    path: str  # the workflow that was started, and the jobs that led to it, each with the cell of its matrix
    file: str
    name: str
    machine: str
    environment: str
    container: Mapping[str, str]
    variables: Mapping[str, str]  # with those that its steps set
    steps: Sequence[SimulatedStep]
    has_failed: bool = False

    def texts(self) -> Iterator[str]:
        """Yield every text that the job gets."""
        yield from (self.machine, self.environment, *self.container.values(), *self.variables.values())
        for step in self.steps:
            yield from (*step.variables.values(), *step.inputs.values(), step.command)


@dataclass(frozen=True, kw_only=True)
class Event:
    """What starts a run: GitHub's context, the inputs of a dispatch, and the repository's variables."""

    github: Mapping[str, Any]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Result:
    result: str
    outputs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """A simulator of runs over a set of workflows."""

    event: Event
    run_step: RunStep
    fails: Fails = lambda _path: False
    files: Mapping[str, Workflow] = field(default_factory=workflows)

    def run(self, file: str) -> Sequence[SimulatedJob]:
        """Return the jobs of a run of a workflow that start on machines, in order."""
        github = {**self.event.github, "workflow": self.files[file].tree["name"]}
        simulation = replace(self, event=replace(self.event, github=github))
        jobs: list[SimulatedJob] = []
        simulation._run_workflow(file, self._dispatch_inputs(file), file, jobs)
        return jobs

    def _dispatch_inputs(self, file: str) -> Mapping[str, Any]:
        """Return the inputs of a dispatch, with the form's defaults; of other events there are none."""
        if self.event.github["event_name"] != "workflow_dispatch":
            return {}
        declared = self.files[file].on["workflow_dispatch"].get("inputs", {})
        defaults = {name: settings.get("default", "") for name, settings in declared.items()}
        return {**defaults, **self.event.inputs}

    def _run_workflow(
        self, file: str, inputs: Mapping[str, Any], path: str, jobs: list[SimulatedJob]
    ) -> _Result:
        workflow = self.files[file]
        contexts: dict[str, Any] = {
            "github": self.event.github,
            "vars": self.event.variables,
            "secrets": {},
            "inputs": inputs,
        }
        results_by_job: dict[str, _Result] = {}
        for name in _in_order(workflow):
            tree = workflow.jobs[name]
            needs: dict[str, Any] = {}
            for need in needs_of(tree):
                needs[need] = {"result": results_by_job[need].result, "outputs": results_by_job[need].outputs}
            results = [results_by_job[ancestor].result for ancestor in _ancestors(workflow, name)]
            job_contexts = {**contexts, "needs": needs}
            if _starts(tree.get("if", ""), job_contexts, results):
                job_path = f"{path} > {name}"
                results_by_job[name] = self._run_matrix(workflow, name, tree, job_contexts, job_path, jobs)
            else:
                results_by_job[name] = _Result(result="skipped")

        contexts["jobs"] = {name: {"outputs": job.outputs} for name, job in results_by_job.items()}
        outputs = {name: expand_text(output["value"], contexts) for name, output in workflow.outputs.items()}
        return _Result(result=_result([job.result for job in results_by_job.values()]), outputs=outputs)

    def _run_matrix(
        self,
        workflow: Workflow,
        name: str,
        tree: Mapping[str, Any],
        contexts: Mapping[str, Any],
        path: str,
        jobs: list[SimulatedJob],
    ) -> _Result:
        cells: list[Mapping[str, Any]] = [{}]
        for key, values in expand(tree.get("strategy", {}).get("matrix", {}), contexts).items():
            cells = [{**cell, key: value} for cell in cells for value in values]
        assert cells, f"{path} has an empty matrix"

        cell_results: list[_Result] = []
        for cell in cells:
            cell_path = path + "".join(f" {_cell_name(value)}" for value in cell.values())
            cell_contexts = {**contexts, "matrix": cell}
            if "uses" in tree:
                inputs = self._call_inputs(tree, cell_contexts)
                called_file = tree["uses"].rpartition("/")[2]
                cell_results.append(self._run_workflow(called_file, inputs, cell_path, jobs))
            else:
                cell_results.append(self._run_job(workflow, name, tree, cell_contexts, cell_path, jobs))
        return _Result(result=_result([job.result for job in cell_results]), outputs=cell_results[-1].outputs)

    def _call_inputs(self, tree: Mapping[str, Any], contexts: Mapping[str, Any]) -> Mapping[str, Any]:
        declared = self.files[tree["uses"].rpartition("/")[2]].inputs
        defaults = {name: settings.get("default", "") for name, settings in declared.items()}
        return {**defaults, **expand(tree.get("with", {}), contexts)}

    def _run_job(
        self,
        workflow: Workflow,
        name: str,
        tree: Mapping[str, Any],
        contexts: Mapping[str, Any],
        path: str,
        jobs: list[SimulatedJob],
    ) -> _Result:
        has_failed = self.fails(path)
        variables = {**workflow.tree.get("env", {}), **tree.get("env", {})}
        environment = {key: expand_text(value, contexts) for key, value in variables.items()}
        step_results: dict[str, Any] = {}
        step_contexts = {**contexts, "env": environment, "steps": step_results}

        steps: list[SimulatedStep] = []
        for step_tree in tree["steps"]:
            condition = str(step_tree.get("if", ""))
            # A session that fails leaves what comes after it to the steps that run in any case.
            results = ["failure"] if has_failed and any(step.command for step in steps) else []
            if not _starts(condition, step_contexts, results):
                if "id" in step_tree:
                    step_results[step_tree["id"]] = {"outcome": "skipped", "outputs": {}}
                continue
            step = _simulated_step(step_tree, step_contexts)
            steps.append(step)
            result = self.run_step(step)
            environment.update(result.variables)
            if step.id:
                outcome = "failure" if has_failed and step.command else "success"
                step_results[step.id] = {"outcome": outcome, "outputs": result.outputs}

        container = expand(tree.get("container", {}), contexts)
        job = SimulatedJob(
            path=path,
            file=workflow.name,
            name=name,
            machine=expand_text(tree["runs-on"], contexts),
            environment=expand_text(tree.get("environment", ""), contexts),
            container={key: expand_text(value, contexts) for key, value in container.items()},
            variables=environment,
            steps=steps,
            has_failed=has_failed,
        )
        jobs.append(job)
        outputs = {key: expand_text(value, step_contexts) for key, value in tree.get("outputs", {}).items()}
        counts = has_failed and not is_true(expand(tree.get("continue-on-error", False), contexts))
        return _Result(result="failure" if counts else "success", outputs=outputs)


def _simulated_step(tree: Mapping[str, Any], contexts: Mapping[str, Any]) -> SimulatedStep:
    variables = dict(contexts["env"])
    variables.update({key: expand_text(value, contexts) for key, value in tree.get("env", {}).items()})
    return SimulatedStep(
        name=tree.get("name", ""),
        id=tree.get("id", ""),
        action=tree.get("uses", ""),
        command=tree.get("run", ""),
        variables=variables,
        inputs={key: expand_text(value, contexts) for key, value in tree.get("with", {}).items()},
    )


def _ancestors(workflow: Workflow, name: str) -> set[str]:
    """Return the jobs that a job waits for, and those that these wait for."""
    ancestors: set[str] = set()
    for need in needs_of(workflow.jobs[name]):
        ancestors |= {need, *_ancestors(workflow, need)}
    return ancestors


def _in_order(workflow: Workflow) -> Sequence[str]:
    """Return the jobs of a workflow, each behind those that it needs."""
    ordered: list[str] = []
    while len(ordered) < len(workflow.jobs):
        for name, tree in workflow.jobs.items():
            if name not in ordered and set(needs_of(tree)) <= {*ordered}:
                ordered.append(name)
    return ordered


def _starts(condition: str, contexts: Mapping[str, Any], results: Sequence[str]) -> bool:
    """Return whether a job or a step starts, by how those before it ended."""
    status = {
        "success": all(result == "success" for result in results),
        "failure": "failure" in results,
        "cancelled": False,
        "always": True,
    }
    if not STATUS_FUNCTION.search(condition) and not status["success"]:
        return False
    return not condition or expand_condition(condition, {**contexts, STATUS: status})


def _result(results: Sequence[str]) -> str:
    """Return how a matrix or a workflow ended."""
    if "failure" in results:
        return "failure"
    return "success" if "success" in results else "skipped"


def _cell_name(value: object) -> str:
    """Return what a cell of a matrix is of."""
    if not isinstance(value, dict):
        return str(value)
    return " ".join(str(value[key]) for key in _KEYS_OF_NAMES if value.get(key))
