"""The flows of `invoke` on this machine: one torch ref, or the plan of a CI event or a release."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ci import jobs, pipeline
from ci.interpreters import require_pythons, warn_of_missing_pythons
from ci.job_runner import NoxRunner, Outcome, print_jobs, run_all, show_outcomes
from ci.jobs import FlowSettings, Job
from ci.looks import can_look_at_steps, look_at
from ci.pipeline import FlowOptions, Step
from ci.plan import outputs
from ci.plan.data import OwnStore
from ci.plan.origins import groups_that_need_rocm
from ci.plan.plan import plan as plan_of
from ci.verbs import configure
from core import console, errors
from core.cli import Verb, verb_parser
from core.cli.options import ROOT, Common, common_from, environment
from core.errors import MissingInputError, UsageError
from core.run import Platform, this_platform
from core.run.locations import distribution_store, run_buckets
from core.run.plan import Plan, RocmOrigin
from pytorch_build.context import find_context
from pytorch_build.refs.torch_refs import TorchRef, torch_ref

RELEASE_TYPES = ("nightly", "prerelease", "dev", "rehearsal")
# Inputs of the release workflow that a flow's own options say.
_OPTIONS_OF_INPUTS = {
    "release_type": "Use --type.",
    "linux_amdgpu_families": "Use --gpu-family.",
    "windows_amdgpu_families": "Use --gpu-family.",
    "pytorch_git_refs": "Use --torch-ref.",
    "pytorch_python_versions": "Use --python.",
}
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

    ref_context = find_context(common)
    _require_components(ref_context.ref, common.outputs.platform)
    steps, left_out = pipeline.steps_of_ref(ref_context.ref, ref_context.gpu_family)
    if rocm_layout is not None and "build_rocm" in left_out:
        raise UsageError(
            f"--rocm-layout is for build_rocm, which is left out: {left_out['build_rocm']}.",
            hint="Leave the option out.",
        )
    for step_name, reason in left_out.items():
        console.say(f"{step_name}: left out, {reason}")

    named_common = replace(common, torch_ref=ref_context.ref.name, gpu_family=ref_context.gpu_family)
    options = FlowOptions(
        common=jobs.common_options(named_common),
        by_topic={
            "store": jobs.store_options(common),
            "rocm packages": jobs.as_options({"rocm-layout": rocm_layout}),
            "policy": jobs.as_options({"policy": policy}),
            "page": ("--brief",),
        },
    )
    run_steps(common, ref_context.ref.name, steps, options, python=python)


def _require_components(ref: TorchRef, platform: Platform) -> None:
    """Refuse a ref of which nothing is built on a platform, before what it needs of a machine is missed."""
    if ref.components:
        return
    raise UsageError(
        f"Nothing of {ref.name} is built on {platform}.",
        hint="Choose another ref: docs/support.md lists what is built on each platform.",
    )


def run_steps(
    common: Common, job_name: str, steps: Sequence[Step], options: FlowOptions, *, python: str | None
) -> None:
    """Run steps one after another, and report on the run even where one fails."""
    if can_look_at_steps(common):
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
        starts_when="all ended",
    )
    run_jobs([work_job, report_job], dry_run=common.dry_run, root=common.root)


def run_plan(
    configure_options: Sequence[str],
    settings: FlowSettings,
    *,
    at_once: int = 1,
    keep_going: bool = False,
    dry_run: bool = False,
    root: Path = ROOT,
) -> None:
    """Plan, resolve, and run every job of the plan on this platform."""
    plan = make_plan(configure_options, settings)
    platform = this_platform()
    if settings.rocm_layout is not None and not _packages_rocm(plan, platform):
        raise UsageError(
            "--rocm-layout is for build_rocm, which no job of the plan does.", hint="Leave the option out."
        )
    outputs.show(plan)
    _say_where(plan, settings)
    job_count_elsewhere = sum(job.platform != platform for job in plan.jobs)
    if job_count_elsewhere:
        console.say(f"{console.counted(job_count_elsewhere, 'job')} for another platform: not run here")

    setup_job = jobs.setup_job(plan, settings)
    pythons = {job.python for job in plan.jobs if job.platform == platform and job.python}
    if dry_run:
        warn_of_missing_pythons(pythons)
        setup_jobs = [setup_job] if plan.jobs else []
        print_jobs([*setup_jobs, *jobs.jobs_of_plan(with_placeholders(plan), platform, settings)])
        return

    require_pythons(pythons)
    plan.write(root / settings.plan_file)
    setup_outcomes: Sequence[Outcome] = []
    if plan.jobs:
        setup_outcomes = run_all([setup_job], NoxRunner(root))
        if setup_outcomes[0].result != "ok":
            show_outcomes(setup_outcomes)
        plan = Plan.read(root / settings.plan_file)

    plan_jobs = jobs.jobs_of_plan(plan, platform, settings)
    if not plan_jobs:
        raise MissingInputError(
            f"The plan has no job on {platform}: {plan.enable_build_jobs.reason}.",
            hint="See what it leaves out, above.",
        )
    runner = NoxRunner(root, holds_output_back=at_once > 1)
    outcomes = run_all(plan_jobs, runner, at_once=at_once, keep_going=keep_going)
    show_outcomes([*setup_outcomes, *outcomes])


def _packages_rocm(plan: Plan, platform: Platform) -> bool:
    """Return whether a job on this platform makes packages of ROCm."""
    return any("build_rocm" in job.sessions for job in plan.jobs if job.platform == platform)


def _say_where(plan: Plan, settings: FlowSettings) -> None:
    """Say where a release puts wheels, before anything is done."""
    if not plan.promote.value:
        return
    store = distribution_store(run_buckets(), plan.release_type, settings.distribution_store or "")
    console.say(f"run outputs: {settings.store}; staging and release index: {store}")


def make_plan(configure_options: Sequence[str], settings: FlowSettings) -> Plan:
    """Return the plan of an event that options describe, for a run whose outputs go to the flow's store."""
    _module, parser = verb_parser("ci", _CONFIGURE)
    arguments = parser.parse_args(list(configure_options))
    basis = configure.plan_basis(arguments, common_from(arguments), environment())
    data = basis.data.model_copy(update={"upload": OwnStore(store=settings.store)})
    return plan_of(replace(basis, data=data, distribution_store=settings.distribution_store))


def with_placeholders(plan: Plan) -> Plan:
    """Return a plan with names for what `configure --plan` and `resolve` would fill in, to show its jobs."""
    origins = []
    for groups in groups_that_need_rocm(plan).values():
        for group in groups:
            run_id = plan.rocm.artifact_run_id or f"<artifact run of {group.artifact_group}>"
            origins.append(
                RocmOrigin(platform=group.platform, artifact_group=group.artifact_group, run_id=run_id)
            )

    planned_jobs = []
    for job in plan.jobs:
        if job.stage in {"build_rocm", "test_rocm"}:
            planned_jobs.append(job)
        else:
            versions = {"torch": f"<torch of {job.torch_ref}>"}
            planned_jobs.append(job.model_copy(update={"versions": versions}))

    rocm = plan.rocm.model_copy(update={"origins": tuple(origins)})
    return plan.model_copy(update={"jobs": tuple(planned_jobs), "rocm": rocm})


def configure_options_of_release(
    release_type: str,
    *,
    families: str = "",
    torch_refs: str = "",
    pythons: str = "",
    inputs: Sequence[str] = (),
) -> Sequence[str]:
    """Return the options of `configure` for a release.

    Lists are separated by commas; "" is the matrix's. `inputs` are ``NAME=VALUE`` of the release workflow.
    """
    if release_type not in RELEASE_TYPES:
        raise UsageError(
            f"--type {release_type!r} is not released by a flow.",
            hint=f"{errors.nearest(release_type, RELEASE_TYPES)} "
            "A final release is promoted: invoke promote.",
        )
    if release_type == "rehearsal":
        _require_sample(torch_refs)

    for assignment in inputs:
        name = assignment.partition("=")[0]
        if name in _OPTIONS_OF_INPUTS:
            raise UsageError(f"--input {name} has an option of its own.", hint=_OPTIONS_OF_INPUTS[name])

    values = {
        f"{this_platform()}_amdgpu_families": families or "all",
        "release_type": release_type,
        "pytorch_git_refs": torch_refs,
        "pytorch_python_versions": pythons,
    }
    options = ["--event=workflow_dispatch"]
    options += [f"--input={name}={value}" for name, value in values.items() if value]
    options += [f"--input={assignment}" for assignment in inputs]
    return options


def _require_sample(torch_refs: str) -> None:
    names = [name.strip() for name in torch_refs.split(",")]
    for name in names:
        if name and torch_ref(name).is_publishable:
            raise UsageError(
                f"A rehearsal is of the sample's wheels alone, and torch ref {name} builds others.",
                hint="Leave --torch-ref out, or try these in a folder: --type dev --distribution-store DIR.",
            )


def run_jobs(flow_jobs: Sequence[Job], *, dry_run: bool = False, root: Path = ROOT) -> None:
    """Run jobs one after another, or print them."""
    pythons = {call.python for job in flow_jobs for call in job.calls if call.python is not None}
    if dry_run:
        warn_of_missing_pythons(pythons)
        print_jobs(flow_jobs)
        return
    require_pythons(pythons)
    show_outcomes(run_all(flow_jobs, NoxRunner(root)))
