"""invoke's flows on this machine: one torch ref, a CI event or a release as its plan says, and given jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ci import jobs, pipeline
from ci.interpreters import require_pythons
from ci.job_runner import NoxRunner, Outcome, print_jobs, run_all, show_outcomes
from ci.jobs import Job, Target
from ci.looks import look_at, may_look
from ci.pipeline import FlowOptions, Step
from ci.plan import outputs
from ci.plan.data import OwnStore
from ci.plan.origins import needs
from ci.plan.plan import plan as plan_of
from ci.promote.runs import is_sample
from ci.verbs import configure
from core import console, errors
from core.cli import Verb, verb_parser
from core.cli.options import ROOT, Common, common_from, environment
from core.errors import MissingInputError, UsageError
from core.run import this_platform
from core.run.plan import Plan, RocmOrigin
from pytorch_build.context import context
from pytorch_build.refs.torch_refs import torch_ref

RELEASE_TYPES = ("nightly", "prerelease", "dev", "rehearsal")
_CONFIGURE = Verb("configure", "ci.verbs.configure", "an event -> the plan of the run")


def run_ref(
    common: Common,
    *,
    python: str | None = None,
    rocm_layout: str | None = None,
    policy: str | None = None,
) -> None:
    """Run the steps of one torch ref, and report on the run even where one fails."""
    if python is not None:
        require_pythons([python])

    ref_context = context(common)
    selection = pipeline.steps_of_ref(ref_context.ref, ref_context.gpu_family)
    if rocm_layout is not None and "build_rocm" in selection.left_out:
        raise UsageError(
            f"--rocm-layout is for build_rocm, which is left out: {selection.left_out['build_rocm']}.",
            hint="Leave the option out.",
        )
    for step_name, reason in selection.left_out.items():
        console.say(f"{step_name}: left out, {reason}")

    named_common = replace(common, torch_ref=ref_context.ref.name, gpu_family=ref_context.gpu_family)
    options = FlowOptions(
        common=jobs.common_options(named_common),
        by_topic={
            "store": jobs.store_options(common),
            "rocm packages": jobs.written_options({"rocm-layout": rocm_layout}),
            "policy": jobs.written_options({"policy": policy}),
            "page": ("--brief",),
        },
    )
    run_steps(common, ref_context.ref.name, selection.steps, options, python=python)


def run_steps(
    common: Common, job_name: str, steps: Sequence[Step], options: FlowOptions, *, python: str | None
) -> None:
    """Run steps one after another, and report on the run even where one fails."""
    if may_look(common):
        steps = pipeline.without_leading_up_to_date(steps, partial(look_at, options=options, python=python))

    work_steps = [step for step in steps if step.job != "summary"]
    report_steps = [step for step in steps if step.job == "summary"]
    work_job = Job(
        name=job_name,
        kind="build_pytorch",
        calls=tuple(pipeline.nox_calls(work_steps, options, python=python)),
    )
    report_job = Job(
        name="report",
        kind="summary",
        calls=tuple(pipeline.nox_calls(report_steps, options, python=python)),
        needs=(job_name,),
        requires="nothing",
    )
    run_jobs([work_job, report_job], dry_run=common.dry_run, root=common.root)


def run_plan(
    configure_options: Sequence[str],
    target: Target,
    *,
    at_once: int = 1,
    keep_going: bool = False,
    dry_run: bool = False,
    root: Path = ROOT,
) -> None:
    """Plan, resolve, and run every job of the plan on this platform."""
    plan = planned(configure_options, target)
    platform = this_platform()
    outputs.show(plan)

    setup_job = jobs.setup_job(plan, target)
    if dry_run:
        print_jobs([setup_job, *jobs.plan_jobs(unresolved(plan), platform, target)])
        return

    require_pythons(cell.python for cell in plan.cells if cell.platform == platform and cell.python)
    plan.write(root / jobs.PLAN_FILE)
    setup_outcomes: Sequence[Outcome] = []
    if plan.cells:
        setup_outcomes = run_all([setup_job], NoxRunner(root))
        if setup_outcomes[0].result != "ok":
            show_outcomes(setup_outcomes)
        plan = Plan.read(root / jobs.PLAN_FILE)

    plan_jobs = jobs.plan_jobs(plan, platform, target)
    if not plan_jobs:
        raise MissingInputError(
            f"The plan has no job on {platform}: {plan.enable_build_jobs.reason}.",
            hint="See what it leaves out, above.",
        )
    runner = NoxRunner(root, are_together=at_once > 1)
    outcomes = run_all(plan_jobs, runner, at_once=at_once, keep_going=keep_going)
    show_outcomes([*setup_outcomes, *outcomes])


def planned(configure_options: Sequence[str], target: Target) -> Plan:
    """Return the plan of an event that options describe, for a run whose outputs stay on this machine."""
    _module, parser = verb_parser("ci", _CONFIGURE)
    arguments = parser.parse_args(list(configure_options))
    question = configure.question(arguments, common_from(arguments), environment())
    data = question.data.model_copy(update={"upload": OwnStore(store=target.store)})
    return plan_of(replace(question, data=data))


def unresolved(plan: Plan) -> Plan:
    """Return a plan with names for what `configure --plan` and `resolve` would fill in, to show its jobs."""
    origins = []
    for groups in needs(plan).values():
        for group in groups:
            run_id = plan.rocm.artifact_run_id or f"<artifact run of {group.artifact_group}>"
            origins.append(
                RocmOrigin(platform=group.platform, artifact_group=group.artifact_group, run_id=run_id)
            )

    cells = []
    for cell in plan.cells:
        if cell.stage in {"build_rocm", "test_rocm"}:
            cells.append(cell)
        else:
            versions = {"torch": f"<torch of {cell.torch_ref}>"}
            cells.append(cell.model_copy(update={"versions": versions}))

    rocm = plan.rocm.model_copy(update={"origins": tuple(origins)})
    return plan.model_copy(update={"cells": tuple(cells), "rocm": rocm})


def release_options(release_type: str, *, families: str, torch_refs: str, pythons: str) -> Sequence[str]:
    """Return the options of `configure` for a release. Lists are separated by commas; "" is the matrix's."""
    if release_type not in RELEASE_TYPES:
        raise UsageError(
            f"--type {release_type!r} is not released by a flow.",
            hint=f"{errors.nearest(release_type, RELEASE_TYPES)} "
            "A final release is promoted: invoke promote.",
        )
    if release_type == "rehearsal":
        _require_sample(torch_refs)

    inputs = {
        f"{this_platform()}_amdgpu_families": families or "all",
        "release_type": release_type,
        "pytorch_git_refs": torch_refs,
        "pytorch_python_versions": pythons,
    }
    options = ["--event=workflow_dispatch"]
    options += [f"--input={name}={value}" for name, value in inputs.items() if value]
    return options


def _require_sample(torch_refs: str) -> None:
    names = [name.strip() for name in torch_refs.split(",")]
    for name in names:
        if name and not is_sample(f"+{torch_ref(name).local_label}"):
            raise UsageError(
                f"A rehearsal is of the sample's wheels alone, and torch ref {name} builds others.",
                hint="Leave --torch-ref out, or try these in a folder: --type dev --distribution-store DIR.",
            )


def run_jobs(flow_jobs: Sequence[Job], *, dry_run: bool = False, root: Path = ROOT) -> None:
    """Run jobs one after another, or print them."""
    if dry_run:
        print_jobs(flow_jobs)
        return
    require_pythons(call.python for job in flow_jobs for call in job.calls if call.python is not None)
    show_outcomes(run_all(flow_jobs, NoxRunner(root)))
