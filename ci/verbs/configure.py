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

from ci.plan import completion, data, events, inputs, outputs
from ci.plan.decisions import DISPATCHES, Question
from ci.plan.events import Changes, Event
from ci.plan.plan import plan
from ci.publish.buckets import buckets
from core import console
from core.cli.options import Common, common_from, environment
from core.data import json_object, own, read_text
from core.errors import UsageError
from core.modes import declared_options, refuse_options
from core.run import LOCAL_RUN, PLATFORMS
from core.run.job_files import set_outputs
from core.run.plan import Plan
from pytorch_build.refs.torch_refs import load_refs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

INPUTS = "CI_INPUTS"
FORK = "somebody/a-fork"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    title = "an event to plan for (default: the one that CI runs for)"
    add = parser.add_argument_group(title).add_argument
    add("--event", default="", metavar="NAME", help=f"one of: {', '.join(events.EVENTS)}")
    add("--payload", type=Path, metavar="FILE", help="the event's JSON, as GitHub sends it")
    many = partial(add, action="append", default=[])
    many("--label", metavar="LABEL", help="a label of the pull request; repeatable")
    many("--changed", metavar="PATH", help="a file that has changed, or @FILE with one a line; repeatable")
    many("--input", metavar="NAME=VALUE", help="an input of a dispatch; repeatable")
    add("--base", default="", metavar="REF", help="the commit that changes are counted from")
    add("--branch", default="main", metavar="BRANCH", help="pushed or merged into (default: main)")
    add("--repository", default="", metavar="OWNER/NAME", help="whose run it is")
    add("--fork", action="store_true", help="a pull request from a fork")

    add = parser.add_argument_group("the plan of an event").add_argument
    what = "print the values in force, or those below KEY, and where each is from; of an event, why each job"
    add("--explain", nargs="?", const="", metavar="KEY", help=what)
    add("--json", action="store_true", help="print the plan as JSON")
    add("--output", type=Path, metavar="FILE", help="write the plan, for MATRIX=FILE, --plan and resolve")

    add = parser.add_argument_group("a plan that was written before").add_argument
    what = "find where the ROCm of this plan comes from, pin it, and complete the file"
    add("--plan", type=Path, metavar="FILE", help=what)

    event = ("--event", "--payload", "--label", "--changed", "--input", "--base", "--branch", "--repository")
    plan_of_event = ("--fork", "--explain", "--json", "--output")
    parser.set_defaults(event_options=declared_options(parser, *event, *plan_of_event))


def run(arguments: argparse.Namespace) -> None:
    """Plan; print the plan, and write the job's outputs, its summary, a file. Or complete a plan."""
    common, env = common_from(arguments), environment()
    if arguments.plan is not None:
        refuse_options(arguments, arguments.event_options, mode="with --plan", hint="Plan an event first.")
        _complete(common.root / arguments.plan, common)
        return

    # what follows is slow to import, and of no plan
    if "promotion" in own().tables:
        from ci.promote.policy import gates

        gates()
    if "needs" in own().tables:
        from pytorch_build.build.machine import load_needs

        load_needs()
    if arguments.explain is not None:
        for validated in (data.load, buckets, load_refs):
            validated()
        named = arguments.event or arguments.payload or env.get("GITHUB_EVENT_NAME")
        made = plan(question(arguments, common, env)) if named else None
        outputs.explain(arguments.explain, made, as_json=arguments.json)
        return
    made = plan(question(arguments, common, env))
    outputs.show(made)
    if arguments.json:
        console.result(json.dumps(made.model_dump(mode="json"), indent=2, ensure_ascii=False))
    if arguments.output:
        made.write(common.root / arguments.output)
    set_outputs(env, outputs.outputs(made))
    console.summary(outputs.summary(made))


def _complete(path: Path, common: Common) -> None:
    """Complete the plan in a file with where ROCm comes from, and write the job's outputs."""
    plan = completion.with_rocm(Plan.read(path), common)
    completion.show_origins(plan)
    if not common.dry_run:
        plan.write(path)
        completion.store_plan(path, plan, common)
    set_outputs(environment(), outputs.outputs(plan))


def question(arguments: argparse.Namespace, common: Common, env: Mapping[str, str]) -> Question:
    """Gather everything that the plan follows from."""
    described = bool(arguments.event or arguments.payload)
    known = data.load()
    event = _described(arguments) if described else _current(arguments, env)
    github = None if described else events.github_service(env)
    labels, note = events.event_labels(event, github)
    if arguments.changed:
        changes = Changes(files=_paths(arguments.changed))
    elif arguments.base:
        changes = Changes(files=events.difference(arguments.base, common.root))
    else:
        changes = Changes() if described else events.event_changes(event, common.root, github)
    given = _inputs(arguments, common, event, known.families, env)
    of_job = common.run_id == LOCAL_RUN and not described
    return Question(
        event=replace(event, labels=tuple(labels)),
        inputs=inputs.read_inputs(given, exact=event.name in DISPATCHES),
        labels=inputs.read_labels(labels, known),
        changes=changes,
        data=known,
        buckets=buckets(),
        refs={one: load_refs(platform=one) for one in PLATFORMS},
        today=event.day or datetime.now(tz=UTC).date(),
        run_id=env.get("GITHUB_RUN_ID", "") if of_job else common.run_id,
        release_type=common.release_type,
        notes=(note,) if note else (),
    )


def _current(arguments: argparse.Namespace, env: Mapping[str, str]) -> Event:
    name, path = env.get("GITHUB_EVENT_NAME", ""), env.get("GITHUB_EVENT_PATH", "")
    if not name:
        raise UsageError(
            "There is no event to plan for.",
            hint="Describe one: --event pull_request --label build:pytorch --changed ci/verbs/cells.py",
        )
    given = [word for word in ("label", "changed", "input", "fork", "base") if getattr(arguments, word)]
    if given:
        raise UsageError(f"--{given[0]} describes an event.", hint="Name it with --event.")
    payload = events.read_payload(Path(path)) if path else {}
    repository = arguments.repository or env.get("GITHUB_REPOSITORY") or buckets().repository
    return events.parse(name, payload, repository=repository, ref_name=env.get("GITHUB_REF_NAME", ""))


def _described(arguments: argparse.Namespace) -> Event:
    """Make the event that options describe, as its payload would say it."""
    repository = arguments.repository or buckets().repository
    name = arguments.event
    if arguments.label and (arguments.payload or name != "pull_request"):
        raise UsageError("--label is for a pull request that options describe.", hint="--event pull_request")
    if arguments.payload:
        payload = events.read_payload(arguments.payload)
        name = name or ("pull_request" if "pull_request" in payload else "")
        if not name:
            raise UsageError("--payload needs the event's name.", hint="Give --event.")
    else:
        payload = {
            "ref": f"refs/heads/{arguments.branch}",
            "pull_request": {
                "labels": [{"name": label} for label in arguments.label],
                "head": {"repo": {"full_name": FORK if arguments.fork else repository}},
                "base": {"ref": arguments.branch},
            },
        }
    return events.parse(name, payload, repository=repository, ref_name=arguments.branch)


def _inputs(
    arguments: argparse.Namespace, common: Common, event: Event, known: data.Families, env: Mapping[str, str]
) -> Mapping[str, Any]:
    """Put inputs together: the calling workflow's (or else the event's), then the options'."""
    given = dict(event.inputs)
    if env.get(INPUTS) and not arguments.event:
        given = json_object(env[INPUTS], where=INPUTS, hint="Write it with toJSON(inputs).")
    if common.torch_ref:
        given["pytorch_git_refs"] = common.torch_ref
    if common.gpu_family:
        given |= _on_platforms(common.gpu_family, known)
    for pair in arguments.input:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"--input {pair!r} is not NAME=VALUE.")
        given[name] = value
    return given


def _on_platforms(words: str, known: data.Families) -> Mapping[str, str]:
    """Return the families of ``--gpu-family`` for each platform that has them."""
    split = filter(None, re.split(r"[;,\s]+", words))
    names = [inputs.named_family(word, known, what="GPU family") for word in split]
    return {
        f"{platform}_amdgpu_families": " ".join(name for name in names if platform in known.families[name])
        or inputs.NONE
        for platform in PLATFORMS
    }


def _paths(words: list[str]) -> list[str]:
    """Read paths; ``@FILE`` holds one a line."""
    lines = (read_text(Path(one[1:])).splitlines() if one.startswith("@") else [one] for one in words)
    return [path for some in lines for path in some if path]
