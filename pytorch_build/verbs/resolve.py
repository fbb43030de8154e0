"""`resolve`: torch ref -> source lock, among the run's outputs; or those of a whole plan, completed."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from core import console
from core.cli.options import RUN_OPTIONS, Common, common_from, environment
from core.errors import UsageError
from core.families import CPU, gpu_targets
from core.run import Platform
from core.run.job_files import set_outputs
from core.run.plan import Plan, job_outputs
from core.status import Pending, Status
from core.stores.location import open_store
from pytorch_build.build.container import DATA, load_container
from pytorch_build.components import COMPONENTS
from pytorch_build.context import Context, add_git_mirror_option, find_family, find_ref, mirrors_from
from pytorch_build.lock.plan import complete_plan
from pytorch_build.lock.source_lock import kind_of_wheels
from pytorch_build.lock.stored import ensure_source_lock
from pytorch_build.sdk import RocmOptions, add_rocm_options, rocm_options_from
from rocm_packaging.origin import INDEXES_FILE, release_indexes

if TYPE_CHECKING:
    from pytorch_build.lock.source_lock import SourceLock, WheelKind

_COLUMNS = ("project", "commit", "version", "from")
_NEEDS_FAMILY = "depends on --gpu-family"

COMMON_OPTIONS = ("torch-ref", "gpu-family", *RUN_OPTIONS, "dry-run")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "--at",
        action="append",
        default=[],
        metavar="PROJECT=REF",
        help="take this branch, tag or commit of a project instead of the ref's; repeatable",
    )
    parser.add_argument(
        "--require-related-commit",
        action="store_true",
        help="refuse a project that torch's related_commits does not name",
    )
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="resolve every torch ref of a plan that `configure` wrote, and complete its cells with versions",
    )
    parser.add_argument(
        "--compact",
        action="store_true",
        help="print the lock as one line, for a job output",
    )
    add_git_mirror_option(parser)
    add_rocm_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Resolve a torch ref into the run's source lock, and print the commit and version of each project."""
    common = common_from(arguments)
    _warn_of_old_data(datetime.now(UTC).date())
    if arguments.plan:
        _complete_plan(arguments, common)
        return

    context = context_of_sources(common)
    lock = _resolve_with_options(arguments, context, rocm_options_from(arguments))
    kind: WheelKind | None = None
    if not _lacks_family(context):
        kind = kind_of_wheels(gpu=context.gpu)
    console.table(_COLUMNS, rows_of(lock, kind))
    if arguments.compact:
        console.result(lock.compact())


def look(arguments: argparse.Namespace) -> Status:
    """Return whether resolving would change the ref's source lock. Nothing is changed."""
    common = common_from(arguments)
    context = context_of_sources(replace(common, dry_run=True))
    store = open_store(common.store, root=common.root)
    if store.find(common.outputs.source_lock_key(context.ref.name)) is None:
        return Pending(reasons=("it was not resolved yet",))

    _resolve_with_options(arguments, context, rocm_options_from(arguments))
    return context.common.planned_status


def context_of_sources(common: Common) -> Context:
    """Return the torch ref and family to resolve for; without any GPU that is family ``cpu``."""
    ref = find_ref(common)
    try:
        gpu_family = find_family(common, ref)
    except UsageError:
        if common.gpu_family:
            raise
        console.say("GPU family: none given and no GPU here; commits are locked, and versions without ROCm")
        gpu_family = CPU
    return Context(
        common=common,
        ref=ref,
        gpu_family=gpu_family,
        gpu_targets=gpu_targets(gpu_family),
    )


def _resolve_with_options(
    arguments: argparse.Namespace,
    context: Context,
    options: RocmOptions,
    planned_refs: Collection[str] = (),
) -> SourceLock:
    """Return the run's source lock, resolved as arguments say; the local run's always anew."""
    return ensure_source_lock(
        context,
        options,
        # The local run's lock is resolved anew; any other run's once.
        update=not context.common.outputs.immutable,
        explicit_refs=_parse_project_refs(arguments.at),
        require_related_commit=arguments.require_related_commit,
        mirrors=mirrors_from(arguments),
        planned_refs=planned_refs,
    )


def _parse_project_refs(texts: Sequence[str]) -> dict[str, str]:
    """Return the refs in ``PROJECT=REF`` texts, by project."""
    refs: dict[str, str] = {}
    for text in texts:
        project, _equals, ref = text.partition("=")
        if not ref or project not in COMPONENTS:
            raise UsageError(f"--at {text!r} is not PROJECT=REF.", hint=f"Projects: {', '.join(COMPONENTS)}.")
        refs[project] = ref
    return refs


def _lacks_family(context: Context) -> bool:
    """Return whether no option and no GPU says a family, so that versions to build are unknown."""
    if context.gpu:
        return False
    return not context.common.gpu_family and not context.ref.default_family


def rows_of(lock: SourceLock, kind: WheelKind | None) -> Sequence[tuple[str, str, str, str]]:
    """Return a row for each project of a lock: name, short commit, version to come, origin and ref.

    Without a kind the versions say that they need a GPU family.
    """
    rows: list[tuple[str, str, str, str]] = []
    for name, project in lock.projects.items():
        if project.prebuilt:
            rows.append((name, "prebuilt", project.prebuilt, ""))
        else:
            version = _NEEDS_FAMILY if kind is None else project.versions[kind]
            rows.append((name, project.commit[:12], version, f"{project.origin} {project.ref}"))
    return rows


def _warn_of_old_data(today: date) -> None:
    """Warn of data files that were last compared with upstream too long ago."""
    dated_files = (
        ("release indexes", INDEXES_FILE, release_indexes()),
        ("the image that wheels are built in", DATA, load_container()),
    )
    for subject, file, data in dated_files:
        age = data.overdue(today)
        if age:
            console.warn(
                f"What {file.name} says of {subject} is {age}: compare it with upstream "
                "(nox -s upstream -- --therock DIR)."
            )


# --- A whole plan ----------------------------------------------------------------------------


def _complete_plan(arguments: argparse.Namespace, common: Common) -> None:
    """Resolve the torch refs of a plan, write versions into its file, and give the job's outputs."""
    if common.torch_ref or common.gpu_family:
        raise UsageError("A plan names its torch refs and GPU families.", hint="Leave them out with --plan.")
    path = arguments.plan
    plan = Plan.read(path)
    options = rocm_options_from(arguments)
    plan_version = plan.rocm.version or ""
    if plan_version and options.version not in {"", plan_version}:
        raise UsageError(f"The plan is for ROCm {plan_version}, not {options.version}.")
    version = options.version or plan_version
    options = replace(options, source=replace(options.source, version=version))
    planned_refs = {cell.torch_ref for cell in plan.jobs if cell.torch_ref is not None}

    def resolve_cell(
        platform: Platform,
        torch_ref: str,
        gpu_family: str,
    ) -> SourceLock:
        """Return the source lock of a torch ref for a platform and a GPU family."""
        cell_options = replace(
            common,
            torch_ref=torch_ref,
            gpu_family=gpu_family,
            platform=platform,
            release_type=plan.release_type,
        )
        return _resolve_with_options(arguments, context_of_sources(cell_options), options, planned_refs)

    completed_plan, locks = complete_plan(plan, resolve_cell)
    completed_plan.write(path)
    lock_count = 0
    for platform, locks_of_refs in locks.items():
        for lock in locks_of_refs.values():
            lock_count += 1
            console.say(f"{lock.torch_ref} on {platform}:")
            kind = kind_of_wheels(gpu=bool(lock.rocm_version))
            console.table(_COLUMNS, rows_of(lock, kind))
    set_outputs(environment(), job_outputs(completed_plan, {}))
    console.done(f"plan: {console.counted(lock_count, 'torch ref')} resolved, in {arguments.plan}")
