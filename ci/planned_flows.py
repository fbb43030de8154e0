"""The flows that follow a plan: a run of CI, a release, the nightly image; on one machine."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from ci import flow_graph, flow_running
from ci.flow_graph import Call, Node, Target
from ci.plan import telling
from ci.plan.data import OwnStore
from ci.plan.plan import plan as plan_of
from ci.plan.rocm import needs
from ci.verbs import configure
from core import console
from core.cli.frontdoor import Verb, verb_parser
from core.cli.options import ROOT, common_from, environment
from core.errors import MissingInputError, UsageError
from core.run.outputs import this_platform
from core.run.plan import Plan, RocmOrigin

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from ci.flow_running import Outcome

_CONFIGURE = Verb("configure", "ci.verbs.configure", "an event -> the plan of the run")
RELEASES = ("nightly", "prerelease", "dev")


def planned(words: Sequence[str], target: Target) -> Plan:
    """Make the plan of an event that options describe, for a run whose outputs stay on this machine."""
    _module, parser = verb_parser("ci", _CONFIGURE)
    arguments: argparse.Namespace = parser.parse_args(list(words))
    question = configure.question(arguments, common_from(arguments), environment())
    data = question.data.model_copy(update={"upload": OwnStore(store=target.store)})
    return plan_of(replace(question, data=data))


def run(
    words: Sequence[str],
    target: Target,
    *,
    jobs: int = 1,
    keep_going: bool = False,
    dry_run: bool = False,
    root: Path = ROOT,
) -> None:
    """Plan, resolve, and run every job of the plan on this platform."""
    plan, platform = planned(words, target), this_platform()
    telling.show(plan)
    file = root / flow_graph.PLAN_FILE
    first = flow_graph.completing(plan, target)
    if dry_run:
        _print([first, *flow_graph.nodes(unresolved(plan), platform, target)])
        return
    plan.write(file)
    work = flow_running.runner(root, together=jobs > 1)
    done: list[Outcome] = []
    if plan.cells:
        done += flow_running.run_all([first], flow_running.runner(root, together=False))
        if done[0].result != "ok":
            flow_running.show(done)
        plan = Plan.read(file)
    nodes = flow_graph.nodes(plan, platform, target)
    if not nodes:
        raise MissingInputError(
            f"The plan has no job on {platform}: {plan.enable_build_jobs.reason}.",
            hint="See what it leaves out, above.",
        )
    done += flow_running.run_all(nodes, work, jobs=jobs, keep_going=keep_going)
    flow_running.show(done)


def unresolved(plan: Plan) -> Plan:
    """Name what `find_rocm` and `resolve` would fill in, so that the chain can be shown before."""
    origins = tuple(
        RocmOrigin(
            platform=one.platform,
            artifact_group=one.artifact_group,
            run_id=plan.rocm.artifact_run_id or f"<artifact run of {one.artifact_group}>",
        )
        for needed in needs(plan).values()
        for one in needed
    )
    cells = tuple(
        cell.model_copy(update={"versions": {"torch": f"<torch of {cell.torch_ref}>"}})
        if not cell.stage.endswith("rocm")
        else cell
        for cell in plan.cells
    )
    rocm = plan.rocm.model_copy(update={"origins": origins})
    return plan.model_copy(update={"cells": cells, "rocm": rocm})


def target(
    *,
    run_id: str,
    store: str,
    refs_file: str = "",
    force: bool = False,
    distribution_store: str = "",
    rocm_layout: str = "",
) -> Target:
    """Say where a flow reads and writes."""
    options = [f"--refs-file={refs_file}"] if refs_file else []
    options += ["--force"] if force else []
    return Target(
        run_id=run_id,
        store=store,
        options=tuple(options),
        distribution_store=distribution_store,
        rocm_layout=rocm_layout,
    )


def promotion_nodes(
    where: Target, *, release_type: str, gpu_family: str, torch_version: str, pythons: str
) -> Sequence[Node]:
    """Give the job that promotes, for what a person names; what is not named is left to `promote`."""
    kind = f"--release-type={release_type}"
    store = (f"--distribution-store={where.distribution_store}",) if where.distribution_store else ()
    family = (f"--gpu-family={gpu_family}",) if gpu_family else ()
    shared = (*family, f"--platform={this_platform()}", kind, *where.written, *store)
    version = [f"--torch-version={torch_version}"] if torch_version else []
    version += [f"--pythons={pythons}"] if pythons else []
    calls = (
        Call(sessions=("stage",), posargs=shared),
        Call(sessions=("promote",), posargs=(*shared, *version)),
    )
    return (Node(name="promote", stage="promote", calls=calls),)


def nightly_nodes(torch_ref: str, gpu_family: str, python: str, registry: str) -> Sequence[Node]:
    """Give the jobs of `therock-nightly.yml` for one GPU family, as one machine runs them."""
    family, ref = f"--gpu-family={gpu_family}", f"--torch-ref={torch_ref}"
    push = (f"--push={registry}",) if registry else ()
    image = f"pytorch-therock-rocm-ci-{gpu_family.lower()}"
    built = Call(
        sessions=("build_image",), posargs=("--image=ubuntu-rocm", family, "--output=image.tar", *push)
    )
    sessions = "build_triton build_torch build_audio build_vision build_apex check_wheels index"
    inside = Call(
        sessions=("in_image",),
        posargs=(
            "--archive=image.tar",
            f"--image={image}",
            f"--sessions={sessions}",
            f"--session-python={python}",
            ref,
            family,
        ),
    )
    test = Call(sessions=("test_smoke",), python=python, posargs=(ref, family))
    report = Call(sessions=("report",), posargs=(family,))
    return (
        Node(name="image", stage="build-therock-docker", calls=(built,)),
        Node(name="pytorch", stage="build-pytorch-nightly", calls=(inside, report), needs=("image",)),
        Node(name="test", stage="test-pytorch-nightly", calls=(test,), needs=("pytorch",)),
    )


def run_nodes(nodes: Sequence[Node], *, dry_run: bool, root: Path = ROOT) -> None:
    """Run jobs one after another, or print them."""
    if dry_run:
        _print(nodes)
        return
    flow_running.show(flow_running.run_all(nodes, flow_running.runner(root, together=False)))


def release_words(
    kind: str, families: str, refs: str, pythons: str, more: Sequence[str] = ()
) -> Sequence[str]:
    """Write the options of a release's plan."""
    if kind not in RELEASES:
        raise UsageError(
            f"--type {kind!r} is not released by a flow.",
            hint=f"One of {', '.join(RELEASES)}; a final release is promoted: invoke promote.",
        )
    platform = this_platform()
    given = {
        f"{platform}_amdgpu_families": families or "all",
        "release_type": kind,
        "pytorch_git_refs": refs,
        "pytorch_python_versions": pythons,
    }
    pairs = [f"--input={name}={value}" for name, value in given.items() if value]
    return ("--event=workflow_dispatch", *pairs, *more)


def _print(nodes: Sequence[Node]) -> None:
    for node in nodes:
        after = f"  (after {', '.join(node.needs)})" if node.needs else ""
        console.say(f"{node.name}{after}")
        for call in node.calls:
            console.result(shlex.join(["nox", *call.words]))
