"""Plans for made-up events: an event's payload, the basis of its plan, and the plan."""

import functools
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from ci.plan import data, events, inputs
from ci.plan.data import PlanData
from ci.plan.decisions import DISPATCHES, PlanBasis
from ci.plan.events import Changes
from ci.plan.plan import plan
from ci.publish.buckets import buckets
from core.run import PLATFORMS, Platform
from core.run.plan import Plan
from pytorch_build.refs.torch_refs import TorchRef, load_refs

REPOSITORY = "ROCm/TheRock"
TODAY = date(2026, 8, 31)

# A change that every build has to be made for.
BUILT_FILE = "ci/verbs/cells.py"

Payload = Mapping[str, Any]


@functools.cache
def ci_data() -> PlanData:
    """Return the data that CI plans by."""
    return data.load()


@functools.cache
def torch_refs() -> Mapping[Platform, Mapping[str, TorchRef]]:
    """Return the torch refs that are built on each platform."""
    return {platform: load_refs(platform=platform) for platform in PLATFORMS}


def pull_request(*labels: str, head: str | None = REPOSITORY, base: str = "main") -> dict[str, Any]:
    """Return the payload of a pull request with labels, as far as GitHub's is looked at.

    `head` is the repository that it comes from, or None where that was deleted.
    """
    return {
        "pull_request": {
            "number": 7,
            "labels": [{"name": label} for label in labels],
            "head": {"ref": "topic", "sha": "a" * 40, "repo": {"full_name": head} if head else None},
            "base": {"ref": base, "sha": "b" * 40},
        }
    }


def push(branch: str = "main", *, before: str = "a" * 40, deleted: bool = False) -> dict[str, Any]:
    """Return the payload of a push to a branch."""
    payload: dict[str, Any] = {"ref": f"refs/heads/{branch}", "before": before, "after": "b" * 40}
    if deleted:
        payload["deleted"] = True
    return payload


def merge_group(branch: str = "main") -> dict[str, Any]:
    """Return the payload of a merge queue's group, which may be merged into a branch."""
    group = {
        "head_sha": "b" * 40,
        "head_ref": f"refs/heads/gh-readonly-queue/{branch}/pr-7-{'a' * 40}",
        "base_sha": "a" * 40,
        "base_ref": f"refs/heads/{branch}",
    }
    return {"action": "checks_requested", "merge_group": group}


def plan_basis(
    event_name: str,
    payload: Payload | None = None,
    *,
    files: Sequence[str] | None = (BUILT_FILE,),
    changes_note: str | None = None,
    inputs_of_call: Mapping[str, Any] | None = None,
    data: PlanData | None = None,
    repository: str = REPOSITORY,
    release_type: str = "ci",
    today: date = TODAY,
    run_id: str = "17",
) -> PlanBasis:
    """Return what the plan of an event is made from.

    `files` are those that changed, or None where nobody can say. `inputs_of_call` take the place of the
    payload's inputs, as those of a calling workflow do.
    """
    event = events.parse(event_name, payload or {}, repository=repository, ref_name="main")
    data = data or ci_data()
    requested = event.inputs if inputs_of_call is None else inputs_of_call
    return PlanBasis(
        event=event,
        inputs=inputs.read_inputs(requested, exact=event_name in DISPATCHES),
        labels=inputs.read_labels(event.labels or (), data),
        changes=Changes(files=files, note=changes_note),
        data=data,
        buckets=buckets(),
        refs=torch_refs(),
        today=today,
        run_id=run_id,
        default_release_type=release_type,
    )


def plan_event(
    event_name: str,
    payload: Payload | None = None,
    *,
    files: Sequence[str] | None = (BUILT_FILE,),
    changes_note: str | None = None,
    inputs_of_call: Mapping[str, Any] | None = None,
    data: PlanData | None = None,
    repository: str = REPOSITORY,
    release_type: str = "ci",
    today: date = TODAY,
    run_id: str = "17",
) -> Plan:
    """Return the plan for an event; the arguments are those of `plan_basis`."""
    return plan(
        plan_basis(
            event_name,
            payload,
            files=files,
            changes_note=changes_note,
            inputs_of_call=inputs_of_call,
            data=data,
            repository=repository,
            release_type=release_type,
            today=today,
            run_id=run_id,
        )
    )


def dispatch(**requested: object) -> dict[str, Any]:
    """Return the payload of a dispatch with these inputs."""
    return {"ref": "refs/heads/main", "inputs": requested}


def plan_dispatch(**requested: object) -> Plan:
    """Return the plan for a dispatch with these inputs."""
    return plan_event("workflow_dispatch", dispatch(**requested))


@functools.cache
def nightly_plan() -> Plan:
    """Return the largest plan that there is every day: that of a nightly release."""
    return plan_event("schedule", release_type="nightly")


def changed_data(**tables: Mapping[str, Any]) -> PlanData:
    """Return CI's data with other keys in some of its tables."""
    raw = ci_data().model_dump()
    for name, changes in tables.items():
        raw[name] = {**raw[name], **changes}
    return PlanData.model_validate(raw)


def changed_runners(**tables: Mapping[str, Any]) -> PlanData:
    """Return CI's data with other keys in some tables of its runners."""
    raw = ci_data().runners.model_dump()
    return changed_data(runners={name: {**raw[name], **changes} for name, changes in tables.items()})


def families_by_stage(plan: Plan, platform: str = "linux") -> dict[str, list[str]]:
    """Return the GPU families of a plan's jobs on a platform, by their stage."""
    families: dict[str, list[str]] = {}
    for cell in plan.jobs:
        if cell.platform == platform:
            families.setdefault(cell.stage, []).append(cell.gpu_family)
    return families


def reason_left_out(plan: Plan, job: str) -> str:
    """Return why a plan leaves a job, a family or a component out."""
    reasons = {left_out.what: left_out.reason for left_out in plan.left_out}
    assert job in reasons, f"The plan does not leave {job} out."
    return reasons[job]
