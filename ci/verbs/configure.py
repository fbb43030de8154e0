"""`configure`: an event -> the plan of the run: families, jobs, machines, each with its reason.

In CI the event is the run's; on any other machine options describe one. With ``--plan`` a plan that was
written before is completed with where ROCm comes from.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ci.plan import data, events, inputs, outputs
from ci.plan.decisions import DISPATCHES, PlanBasis
from ci.plan.events import Changes, Event
from ci.plan.origins import with_rocm
from ci.plan.plan import plan
from ci.publish.buckets import buckets
from core import console
from core.cli.options import RUN_OPTIONS, Common, common_from, environment, named_store
from core.data import json_object, read_text, user_file
from core.errors import UsageError
from core.modes import declared_options, refuse_options
from core.run import LOCAL_RUN, PLATFORMS
from core.run.job_files import set_outputs
from core.run.plan import Plan
from pytorch_build.refs.torch_refs import load_refs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from ci.github import GitHub

INPUTS = "CI_INPUTS"
FORK = "somebody/a-fork"

# Options that describe an event. Its name is not among them, nor what describes every run.
_DESCRIPTIONS = ("label", "changed", "input", "fork", "base")
# Those that only some events have.
_EVENTS_OF_DESCRIPTIONS = {
    "label": ("pull_request",),
    "fork": ("pull_request",),
    "changed": ("pull_request", "push", "merge_group", "workflow_dispatch"),
}

COMMON_OPTIONS = ("torch-ref", "gpu-family", *RUN_OPTIONS, "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    _add_event_options(parser)

    add = parser.add_argument_group("the plan of an event").add_argument
    add(
        "--distribution-store",
        type=named_store,
        metavar="STORE",
        help="where promoted wheels go to (default: the release type's bucket)",
    )
    add(
        "--explain",
        nargs="?",
        const="",
        metavar="KEY",
        help="print the values in force, or those below KEY, and where each is from; of an event, why each "
        "job",
    )
    add("--json", action="store_true", help="print the plan as JSON")
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="write the plan, for MATRIX=FILE, --plan and resolve",
    )

    add = parser.add_argument_group("a plan that was written before").add_argument
    add(
        "--plan",
        type=Path,
        metavar="FILE",
        help="find where the ROCm of this plan comes from, pin it, and complete the file",
    )

    options_without_plan = declared_options(
        parser,
        "--event",
        "--payload",
        "--label",
        "--changed",
        "--input",
        "--base",
        "--branch",
        "--repository",
        "--fork",
        "--distribution-store",
        "--platforms",
        "--explain",
        "--json",
        "--output",
    )
    parser.set_defaults(event_options=options_without_plan)


def _add_event_options(parser: argparse.ArgumentParser) -> None:
    title = "an event to plan for (default: the one that CI runs for)"
    add = parser.add_argument_group(title).add_argument
    add(
        "--event",
        metavar="NAME",
        help=f"one of: {', '.join(events.EVENTS)}",
    )
    add(
        "--payload",
        type=Path,
        metavar="FILE",
        help="the event's JSON, as GitHub sends it",
    )

    add_repeatable = partial(add, action="append", default=[])
    add_repeatable(
        "--label",
        metavar="LABEL",
        help="a label of the pull request; repeatable",
    )
    add_repeatable(
        "--changed",
        metavar="PATH",
        help="a file that has changed, or @FILE with one a line; repeatable",
    )
    add_repeatable(
        "--input",
        metavar="NAME=VALUE",
        help="an input of a dispatch; repeatable",
    )

    add(
        "--base",
        metavar="REF",
        help="the commit that changes are counted from",
    )
    add(
        "--branch",
        default="main",
        metavar="BRANCH",
        help="pushed or merged into (default: main)",
    )
    add(
        "--repository",
        metavar="OWNER/NAME",
        help="whose run it is",
    )
    add("--fork", action="store_true", help="a pull request from a fork")

    add = parser.add_argument_group("which part of the event's plan").add_argument
    add(
        "--platforms",
        choices=("all", *PLATFORMS),
        default="all",
        help="plan one platform alone, for a workflow that builds no other one (default: all)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Plan; print the plan, and write the job's outputs, its summary, a file. Or complete a plan."""
    common = common_from(arguments)
    if arguments.plan is not None:
        refuse_options(
            arguments,
            arguments.event_options,
            mode="with --plan",
            hint="Plan an event first.",
        )
        _complete(arguments.plan, common)
        return

    _refuse_invalid_tables()
    if arguments.explain is not None:
        _explain(arguments, common)
        return

    event_plan = plan(plan_basis(arguments, common, environment()))
    outputs.show(event_plan)
    if arguments.json:
        document = event_plan.model_dump(mode="json", by_alias=True)
        console.result(json.dumps(document, indent=2, ensure_ascii=False))
    if arguments.output:
        event_plan.write(arguments.output)
    set_outputs(environment(), outputs.outputs(event_plan))
    console.summary(outputs.summary(event_plan))


def _refuse_invalid_tables() -> None:
    """Refuse a user's file whose tables no plan follows from, and which later jobs would refuse."""
    # These modules are slow to import, so only where the file has their tables.
    if "promotion" in user_file().tables:
        from ci.promote.policy import gates

        gates()
    if "needs" in user_file().tables:
        from pytorch_build.build.machine import load_needs

        load_needs()


def _explain(arguments: argparse.Namespace, common: Common) -> None:
    """Print the values in force, and why each job of the event's plan is there."""
    # Reading puts the values in force.
    data.load()
    buckets()
    load_refs()

    env = environment()
    event_plan: Plan | None = None
    if arguments.event or arguments.payload or env.get("GITHUB_EVENT_NAME"):
        event_plan = plan(plan_basis(arguments, common, env))
    outputs.explain(arguments.explain, event_plan, as_json=arguments.json)


def _complete(path: Path, common: Common) -> None:
    """Complete the plan in a file with where ROCm comes from, and write the job's outputs."""
    plan_of_event = Plan.read(path)
    completed_plan = with_rocm(plan_of_event, common)
    outputs.show_origins(completed_plan)
    if not common.dry_run:
        completed_plan.write(path)
        _store_plan(path, completed_plan, common)
    set_outputs(environment(), outputs.outputs(completed_plan))
    new_notes = outputs.summary_of_new_notes(plan_of_event, completed_plan)
    if new_notes:
        console.summary(new_notes)


def _store_plan(path: Path, completed_plan: Plan, common: Common) -> None:
    """Put the file of a plan among the run's outputs of each of its platforms."""
    content = path.read_bytes()
    store = common.open_store()
    for platform in sorted({job.platform for job in completed_plan.jobs}):
        run_outputs = replace(common.outputs, platform=platform)
        store.put_bytes(run_outputs.plan_key, content)


def plan_basis(
    arguments: argparse.Namespace,
    common: Common,
    env: Mapping[str, str],
) -> PlanBasis:
    """Return everything that the plan follows from."""
    is_described = bool(arguments.event or arguments.payload)
    event = _described_event(arguments) if is_described else _current_event(arguments, env)
    github = None if _is_event_from_options(arguments) else events.github_service(env)

    ci_data = data.load()
    labels, note = events.event_labels(event, github)
    requested = _inputs(arguments, common, event, ci_data.families, env)

    run_id = common.run_id
    if run_id == LOCAL_RUN and not is_described:
        run_id = env.get("GITHUB_RUN_ID", "")

    return PlanBasis(
        event=replace(event, labels=tuple(labels)),
        inputs=inputs.read_inputs(requested, exact=event.name in DISPATCHES),
        labels=inputs.read_labels(labels, ci_data),
        changes=_read_changes(arguments, event, common.root, github),
        data=ci_data,
        buckets=buckets(),
        refs={platform: load_refs(platform=platform) for platform in PLATFORMS},
        today=event.day or datetime.now(tz=UTC).date(),
        run_id=run_id,
        default_release_type=common.release_type,
        distribution_store=arguments.distribution_store or None,
        notes=() if note is None else (note,),
    )


def _current_event(
    arguments: argparse.Namespace,
    env: Mapping[str, str],
) -> Event:
    """Return the event that CI runs for."""
    name = env.get("GITHUB_EVENT_NAME")
    if not name:
        raise UsageError(
            "There is no event to plan for.",
            hint="Describe one: --event pull_request --label build:pytorch --changed ci/verbs/cells.py",
        )
    for option in _DESCRIPTIONS:
        if getattr(arguments, option):
            raise UsageError(f"--{option} describes an event.", hint="Name it with --event.")

    path = env.get("GITHUB_EVENT_PATH")
    repository = arguments.repository or env.get("GITHUB_REPOSITORY")
    return events.parse(
        name,
        events.read_payload(Path(path)) if path else {},
        repository=repository or buckets().repository,
        ref_name=env.get("GITHUB_REF_NAME"),
    )


def _described_event(arguments: argparse.Namespace) -> Event:
    """Return the event that options describe, as its payload would."""
    name = arguments.event
    repository = arguments.repository
    payload: Mapping[str, Any]
    if arguments.payload:
        for option in ("label", "fork"):
            if getattr(arguments, option):
                raise UsageError(f"--{option} has no effect with --payload.", hint="Leave it out.")
        payload = events.read_payload(arguments.payload)
        if not name and "pull_request" in payload:
            name = "pull_request"
        if not name:
            raise UsageError("--payload needs the event's name.", hint="Give --event.")
        repository = repository or events.repository_of(payload) or buckets().repository
    else:
        repository = repository or buckets().repository
        head_repository = FORK if arguments.fork else repository
        payload = {
            "ref": f"refs/heads/{arguments.branch}",
            "pull_request": {
                "labels": [{"name": label} for label in arguments.label],
                "head": {"repo": {"full_name": head_repository}},
                "base": {"ref": arguments.branch},
            },
        }

    for option, event_names in _EVENTS_OF_DESCRIPTIONS.items():
        if getattr(arguments, option) and name not in event_names:
            raise UsageError(
                f"--{option} has no effect on the event {name}.",
                hint=f"It describes {' or '.join(event_names)}.",
            )
    return events.parse(
        name,
        payload,
        repository=repository,
        ref_name=arguments.branch,
    )


def _is_event_from_options(arguments: argparse.Namespace) -> bool:
    """Return whether options alone describe the event, of which neither git nor GitHub knows anything."""
    return bool(arguments.event) and not arguments.payload


def _read_changes(
    arguments: argparse.Namespace,
    event: Event,
    root: Path,
    github: GitHub | None,
) -> Changes:
    """Return the changed files: those that options name, else the event's."""
    if arguments.changed:
        return Changes(files=_changed_paths(arguments.changed))
    if arguments.base:
        return Changes(files=events.difference(arguments.base, root))
    if _is_event_from_options(arguments):
        return Changes.all_files()
    return events.event_changes(event, root, github)


def _changed_paths(words: Sequence[str]) -> Sequence[str]:
    """Return the paths of ``--changed``; ``@FILE`` holds one a line."""
    paths: list[str] = []
    for path in words:
        if path.startswith("@"):
            lines = read_text(Path(path.removeprefix("@"))).splitlines()
            paths += [line for line in lines if line]
        elif path:
            paths.append(path)
    return paths


def _inputs(
    arguments: argparse.Namespace,
    common: Common,
    event: Event,
    families: data.Families,
    env: Mapping[str, str],
) -> Mapping[str, Any]:
    """Return the calling workflow's inputs, or else the event's, with those of options over them."""
    values = dict(event.inputs)
    if env.get(INPUTS) and not arguments.event:
        values = json_object(env[INPUTS], where=INPUTS, hint="Write it with toJSON(inputs).")

    if common.torch_ref:
        values["pytorch_git_refs"] = common.torch_ref
    if common.gpu_family:
        values.update(_families_by_input(common.gpu_family, families))
    for text in arguments.input:
        name, equals_sign, value = text.partition("=")
        if not equals_sign:
            raise UsageError(f"--input {text!r} is not NAME=VALUE.")
        values[name] = value

    for platform in PLATFORMS:
        if arguments.platforms not in ("all", platform):
            values[f"{platform}_amdgpu_families"] = inputs.NONE
    return values


def _families_by_input(text: str, families: data.Families) -> Mapping[str, str]:
    """Return the families of ``--gpu-family`` for each platform that has them, under the input's name."""
    parts = [part for part in re.split(r"[;,\s]+", text) if part]
    names = [inputs.named_family(part, families, noun="GPU family") for part in parts]

    families_by_input: dict[str, str] = {}
    for platform in PLATFORMS:
        platform_names = [name for name in names if platform in families.families[name]]
        families_by_input[f"{platform}_amdgpu_families"] = " ".join(platform_names) or inputs.NONE
    return families_by_input
