"""`plan-job`: sets the variables of a job's later steps, from the plan that all jobs of the run share.

CELL is the job's row of its matrix, as JSON, and PLAN_DIGEST the digest of the plan that has the job.
Without a plan, CELL has everything: a workflow that is dispatched for one job writes it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ci.plan.job_variables import DispatchedJob, JobValues, job_variables, values_of_planned_job
from core import console
from core.cli.options import RUN_OPTIONS, add_platform, common_from, environment
from core.data import json_object, parse_json
from core.errors import DataError, UsageError
from core.run.job_files import job_files
from core.run.plan import Plan
from pytorch_build.lock.source_lock import SourceLock

if TYPE_CHECKING:
    import argparse

    from core.run import RunOutputs
    from core.run.plan import PlannedJob

CELL = "CELL"
PLAN_DIGEST = "PLAN_DIGEST"

_ANOTHER_PLAN_HINT = "Run the workflow again from its first job, which plans."

COMMON_OPTIONS = (*RUN_OPTIONS,)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "--plan",
        type=Path,
        default=Path(".cache/plan"),
        metavar="DIR",
        help="what the job that planned the run has handed over: plan.json, and out/ with source locks "
        "(default: .cache/plan)",
    )
    add_platform(parser)


def run(arguments: argparse.Namespace) -> None:
    """Set the variables of the job."""
    common = common_from(arguments)
    env = environment()
    if not env.get(CELL):
        raise UsageError(
            "CELL names no job.",
            hint='Set it to a row of a matrix that `configure` wrote: {"job": "test_rocm gfx94X-dcgpu"}.',
        )

    digest = env.get(PLAN_DIGEST)
    if digest:
        outputs = replace(common.outputs, platform=arguments.platform or common.outputs.platform)
        values = _read_planned_values(common.root / arguments.plan, outputs, env[CELL], digest)
    else:
        values = parse_json(env[CELL], DispatchedJob, where=CELL)

    step = job_files(env)
    for name, value in job_variables(values).items():
        step.set_variable(name, value)
    console.done(f"plan_job: {values.gpu_family}, {values.sessions or 'no sessions'}")


def _read_planned_values(
    folder: Path,
    outputs: RunOutputs,
    row_text: str,
    planned_digest: str,
) -> JobValues:
    """Return the values of a job of the plan in a folder, which has to be the plan with this digest."""
    path = folder / "plan.json"
    plan = Plan.read(path)
    if plan.digest() != planned_digest:
        raise DataError(
            f"{path} is not the plan that this run was started with: its digest is not {planned_digest}.",
            hint=_ANOTHER_PLAN_HINT,
        )

    row = json_object(row_text, where=CELL)
    job = plan.find_job(outputs.platform, str(row.get("job", "")))
    lock = _source_lock(plan, job, folder / "out", outputs)
    return values_of_planned_job(plan, job, None if lock is None else lock.compact())


def _source_lock(
    plan: Plan,
    job: PlannedJob,
    folder: Path,
    outputs: RunOutputs,
) -> SourceLock | None:
    """Return the lock of a job's torch ref; None for packages of ROCm, and where nothing was resolved."""
    if job.torch_ref is None or job.stage.endswith("rocm"):
        return None
    digest = plan.locks.get(job.platform, {}).get(job.torch_ref)
    if digest is None:
        return None

    path = folder / outputs.source_lock_key(job.torch_ref)
    lock = SourceLock.read(path)
    if lock.digest() != digest:
        raise DataError(
            f"{path} is another lock than the one that the plan names: its digest is not {digest}.",
            hint=_ANOTHER_PLAN_HINT,
        )
    return lock
