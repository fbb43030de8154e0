"""The workflows of `.github/workflows`, read as data."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from core.cli.options import ROOT

FOLDER = ROOT / ".github" / "workflows"
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)
REFERENCE = re.compile(r"\b(inputs|needs|steps|jobs)((?:\.[\w-]+)+)")


@dataclass(frozen=True, kw_only=True)
class Workflow:
    """One workflow; `on` is YAML's true."""

    name: str
    text: str
    tree: Mapping[str, Any]

    @property
    def on(self) -> Mapping[str, Any]:
        found: Any = self.tree[True]  # type: ignore[index]
        return {name: value or {} for name, value in found.items()}

    @property
    def jobs(self) -> Mapping[str, Any]:
        jobs: Mapping[str, Any] = self.tree["jobs"]
        return jobs

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs of a call, or of a dispatch where it cannot be called."""
        called: Mapping[str, Any] = self.on.get("workflow_call", self.on.get("workflow_dispatch", {})).get(
            "inputs", {}
        )
        return called


@cache
def workflow(path: Path) -> Workflow:
    text = path.read_text(encoding="utf-8")
    return Workflow(name=path.name, text=text, tree=yaml.safe_load(text))


@cache
def workflows() -> Mapping[str, Workflow]:
    return {path.name: workflow(path) for path in sorted(FOLDER.glob("*.yml"))}


def steps() -> Iterator[tuple[str, Workflow, Mapping[str, Any], Mapping[str, Any]]]:
    for name, one in workflows().items():
        for job_name, job in one.jobs.items():
            for step in job.get("steps", []):
                yield f"{name}, {job_name}, {step.get('name', step.get('uses'))}", one, job, step


def expressions(value: object) -> Iterator[str]:
    """Return every expression in a part of a workflow; an `if` need not be marked as one."""
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
    found = set()
    for expression in expressions(value):
        bare = re.sub(r"'[^']*'", "''", expression)
        found |= {tuple(path[1:].split(".")) for name, path in REFERENCE.findall(bare) if name == kind}
    return found


def called(job: Mapping[str, Any]) -> Workflow | None:
    used = job.get("uses", "")
    return workflows()[used.rpartition("/")[2]] if used else None


def calls() -> Iterator[tuple[str, Workflow, Mapping[str, Any], Workflow]]:
    for name, one in workflows().items():
        for job_name, job in one.jobs.items():
            target = called(job)
            if target is not None:
                yield f"{name}, {job_name}", one, job, target
