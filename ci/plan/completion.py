"""A plan -> the same plan, completed with where ROCm comes from for each family."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ci.github import from_environment
from ci.plan import data
from ci.plan.artifacts import Place, find_place
from ci.plan.origins import Search, completed, needs
from core import console
from core.cli.options import environment

if TYPE_CHECKING:
    from pathlib import Path

    from core.cli.options import Common
    from core.run import Platform
    from core.run.plan import Plan


def with_rocm(plan: Plan, common: Common) -> Plan:
    """Return a plan with where its ROCm comes from, pinned once for the whole run."""
    builds_by_variant = needs(plan)
    if not builds_by_variant:
        return plan

    def place(repository: str, run_id: str, fork: bool, platform: Platform, store: str) -> Place:  # noqa: FBT001
        there = replace(common, run_id=run_id, platform=platform, release_type=plan.release_type)
        return find_place(there, store, repository, fork=fork)

    search = Search(
        requested=plan.rocm,
        repository=plan.event.repository,
        release_type=plan.release_type,
        data=data.rocm(),
        github=from_environment(environment()),
        place=place,
        notes=[],
    )
    return completed(plan, search.origins(builds_by_variant), search.notes)


def store_plan(path: Path, plan: Plan, common: Common) -> None:
    """Put the file of a plan among the run's outputs of each of its platforms."""
    content = path.read_bytes()
    store = common.open_store()
    for platform in sorted({cell.platform for cell in plan.cells}):
        run_outputs = replace(common.outputs, platform=platform)
        store.put_bytes(run_outputs.plan_key, content)


def show_origins(plan: Plan) -> None:
    """Print where ROCm comes from."""
    for note in plan.notes:
        console.warn(note, title="plan")

    rows = []
    for origin in plan.rocm.origins:
        source = f"run {origin.run_id} in {origin.store}"
        if origin.index_url:
            source = f"{origin.version} of {origin.index_url}"
        count = str(len(origin.artifacts) or "")
        rows.append((origin.artifact_group, origin.platform, source, count, origin.reason))

    console.table(("artifact group", "platform", "ROCm from", "artifacts", "why"), rows)
    if not rows:
        console.done("configure: nothing in the plan needs ROCm from elsewhere")
