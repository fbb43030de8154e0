"""Plans for made-up events, in one line each."""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from ci.github import Run, RunQuery
from ci.plan import data, events, inputs
from ci.plan.data import Data
from ci.plan.decisions import DISPATCHES, Question
from ci.plan.events import Changes
from ci.plan.plan import plan
from ci.publish.buckets import buckets
from core.errors import MissingInputError, ServiceError
from core.run import Platform
from core.run.plan import PLATFORMS, Plan
from pytorch_build.refs.torch_refs import TorchRef, load_refs

OURS = "ROCm/TheRock"
DAY = date(2026, 8, 31)


@functools.cache
def known() -> Data:
    return data.load()


@functools.cache
def refs() -> Mapping[Platform, Mapping[str, TorchRef]]:
    return {one: load_refs(platform=one) for one in PLATFORMS}


def pull_request(*names: str, head: str | None = OURS, base: str = "main") -> dict[str, Any]:
    """Return a pull request's payload, as far as GitHub's is looked at."""
    return {
        "pull_request": {
            "number": 7,
            "labels": [{"name": name} for name in names],
            "head": {"ref": "topic", "sha": "a" * 40, "repo": {"full_name": head} if head else None},
            "base": {"ref": base, "sha": "b" * 40},
        }
    }


def push(branch: str = "main", **facts: Any) -> dict[str, Any]:
    return {"ref": f"refs/heads/{branch}", "before": "a" * 40, "after": "b" * 40, **facts}


def asked(
    name: str,
    payload: Mapping[str, Any] | None = None,
    files: tuple[str, ...] | None = ("ci/verbs/cells.py",),
    given: Mapping[str, Any] | None = None,
    what: Data | None = None,
    **facts: Any,
) -> Question:
    repository = facts.pop("repository", OURS)
    event = events.parse(name, payload or {}, repository=repository, ref_name="main")
    what = what or known()
    values: dict[str, Any] = {
        "event": event,
        "inputs": inputs.read_inputs(event.inputs if given is None else given, exact=name in DISPATCHES),
        "labels": inputs.read_labels(event.labels or (), what),
        "changes": Changes(files=files),
        "data": what,
        "buckets": buckets(),
        "refs": refs(),
        "today": DAY,
        "run_id": "17",
    }
    return Question(**{**values, **facts})


def planned(*words: Any, **facts: Any) -> Plan:
    return plan(asked(*words, **facts))


def dispatched(**given: Any) -> Plan:
    return planned("workflow_dispatch", {"ref": "refs/heads/main", "inputs": given})


def changed(**tables: Any) -> Data:
    """Return CI's data with other keys in these of its tables."""
    raw = known().model_dump()
    return Data.model_validate({**raw, **{name: {**raw[name], **table} for name, table in tables.items()}})


def stages(made: Plan, platform: str = "linux") -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for cell in made.cells:
        if cell.platform == platform:
            found.setdefault(cell.stage, []).append(cell.gpu_family)
    return found


def why(made: Plan, what: str) -> str:
    return next(one.reason for one in made.left_out if one.what == what)


def made_run(run_id: str, workflow: str = "multi_arch_ci.yml", **facts: Any) -> Run:
    values: dict[str, Any] = {
        "run_id": run_id,
        "commit": "d" * 40,
        "status": "completed",
        "conclusion": "success",
        "created": f"2026-11-{run_id}",
        "url": "",
        "fork": False,
        "workflow": workflow,
    }
    return Run(**{**values, **facts})


@dataclass
class RunsOfGitHub:
    """GitHub with these runs, the newest first; notes queries and how many runs it gave."""

    known: list[Run] = field(default_factory=list)
    silent: bool = False
    asked: list[RunQuery] = field(default_factory=list)
    given: int = 0

    def whole_commit(self, _repository: str, commit: str) -> str:
        return commit.ljust(40, "d")

    def run(self, repository: str, run_id: str) -> Run:
        for one in self.known:
            if one.run_id == run_id:
                return one
        raise MissingInputError(f"GitHub has nothing at /repos/{repository}/actions/runs/{run_id}.")

    def runs(self, query: RunQuery) -> Iterator[Run]:
        self.asked.append(query)
        if self.silent:
            raise ServiceError("GitHub cannot be reached.")
        for one in self.known:
            if one.workflow in {"", query.workflow}:
                self.given += 1
                yield one
