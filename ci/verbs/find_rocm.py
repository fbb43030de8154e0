"""`find-rocm`: a plan -> the same plan, completed with where ROCm comes from for each family."""

import argparse
from dataclasses import replace
from pathlib import Path

from ci.github import from_environment
from ci.plan import data
from ci.plan.artifacts import Place, find_place
from ci.plan.origins import Search, completed, needs
from ci.plan.outputs import outputs
from core import console
from core.cli.options import common_from, environment
from core.run import Platform
from core.run.job_files import set_outputs
from core.run.plan import Plan


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "a plan that `configure` wrote; it is completed"
    parser.add_argument("--plan", type=Path, required=True, metavar="FILE", help=what)


def run(arguments: argparse.Namespace) -> None:
    """Find it once for the whole run, pin it, and write the job's outputs."""
    common, env = common_from(arguments), environment()
    path = common.root / arguments.plan
    plan = Plan.read(path)
    wanted = needs(plan)

    def place(repository: str, run_id: str, fork: bool, platform: Platform, store: str) -> Place:  # noqa: FBT001
        there = replace(common, run_id=run_id, platform=platform, release_type=plan.release_type)
        return find_place(there, store, repository, fork=fork)

    if wanted:
        search = Search(
            requested=plan.rocm,
            repository=plan.event.repository,
            release_type=plan.release_type,
            data=data.rocm(),
            github=from_environment(env),
            place=place,
            notes=[],
        )
        plan = completed(plan, search.origins(wanted), search.notes)
    show(plan)
    if not common.dry_run:
        plan.write(path)
        for platform in dict.fromkeys(one.platform for one in plan.cells):
            run_outputs = replace(common.outputs, platform=platform)
            common.open_store().put_bytes(run_outputs.plan_key, path.read_bytes())
    set_outputs(env, outputs(plan))


def show(plan: Plan) -> None:
    """Print where ROCm comes from."""
    for note in plan.notes:
        console.warn(note, title="plan")
    rows = []
    for one in plan.rocm.origins:
        source = f"{one.version} of {one.index_url}" if one.index_url else f"run {one.run_id} in {one.store}"
        count = str(len(one.artifacts) or "")
        rows.append((one.artifact_group, one.platform, source, count, one.reason))
    console.table(("artifact group", "platform", "ROCm from", "artifacts", "why"), rows)
    if not rows:
        console.done("find_rocm: nothing in the plan needs ROCm from elsewhere")
