"""How long the values become that a run gives its jobs: an upper bound, from the text of the workflows."""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ci.plan.outputs import outputs
from core.data import compact
from core.run.plan import Plan, PlannedJob
from tests.kit.planning import nightly_plan, plan_event
from tests.kit.workflow_files import EXPRESSION, workflows

REFERENCE = re.compile(r"\b(?:needs|matrix|steps|inputs)(?:\.[\w-]+)*")
BY_PLATFORM = re.compile(r"\[format\('\{0\}(\w+)', inputs\.platform\)\]")
LONGEST_WORD = 256  # of what people set: a variable of the repository, a name, an address
TORCH_VERSION = "2.14.0a0+rocm10.1.0a20261121"
# The digest of a lock, and the commits and versions of five projects.
SOURCE_LOCK = "x" * 2048

LARGEST_RUNS = ("nightly", "prerelease", "dev")


@functools.cache
def largest_plan(release_type: str) -> Plan:
    """Return the largest plan of a release type: its whole matrix, on both platforms."""
    if release_type == "nightly":
        return nightly_plan()
    requested = {
        "linux_amdgpu_families": "all",
        "windows_amdgpu_families": "all",
        "rocm_package_version": "10.1.0rc1" if release_type == "prerelease" else "10.1.0",
    }
    return plan_event("workflow_call", inputs_of_call=requested, release_type=release_type)


@dataclass(frozen=True, kw_only=True)
class RunValues:
    """What the jobs of a run may read: the longest text of each value, by the path that names it."""

    longest: Mapping[str, str]

    def length(self, path: str) -> int:
        """Return how many bytes the value at a path has at most.

        A path that leads to several values, as ``needs`` does, has all of them, with their names.
        """
        if path in self.longest:
            return len(self.longest[path].encode())

        length = 0
        for name, text in self.longest.items():
            if name.startswith(f"{path}."):
                length += len(json.dumps({name: text}).encode())
            elif path.startswith(f"{name}."):
                # A member is no longer than what it is a part of.
                length = max(length, len(text.encode()))
        return length or LONGEST_WORD

    def length_of(self, template: str) -> int:
        """Return how many bytes a text with expressions has at most, once it is evaluated."""
        length = len(EXPRESSION.sub("", template).encode())
        for expression in EXPRESSION.findall(template):
            by_name = BY_PLATFORM.sub(r".linux\1", expression)
            # Values and words between the quotes alike.
            length += len(expression.encode())
            length += sum(self.length(path) for path in REFERENCE.findall(by_name))
        return length


def resolved(plan: Plan) -> Plan:
    """Return a plan with a version of torch in each of its jobs, as `resolve` writes them."""

    def with_version(job: PlannedJob) -> PlannedJob:
        return job.model_copy(update={"versions": {"torch": TORCH_VERSION}})

    return plan.model_copy(update={"cells": tuple(with_version(job) for job in plan.cells)})


def setup_outputs(plan: Plan) -> Mapping[str, str]:
    """Return the outputs of `setup.yml` for a plan."""
    planned = dict(outputs(resolved(plan)))
    refs = {job.torch_ref for job in plan.cells if job.torch_ref is not None}
    for platform in ("linux", "windows"):
        planned[f"{platform}_source_locks"] = compact(dict.fromkeys(sorted(refs), SOURCE_LOCK))
    planned["run"] = "x" * 2048

    names = workflows()["setup.yml"].on["workflow_call"]["outputs"]
    return {name: planned[name] for name in names}


def run_values(plan: Plan) -> RunValues:
    """Return the values that the jobs of a plan's run may read."""
    written = setup_outputs(plan)
    resolved_plan = resolved(plan)
    rows = [compact(resolved_plan.row(job)) for job in resolved_plan.cells]
    longest = {f"needs.setup.outputs.{name}": text for name, text in written.items()}
    cell = max(rows, key=len)
    return RunValues(
        longest={
            **longest,
            "matrix.cell": cell,
            "inputs.cell": cell,
            "inputs.run": written["run"],
            "inputs.source_lock": SOURCE_LOCK,
        }
    )
