"""`resolve`: torch ref -> source lock, among the run's outputs; or those of a whole plan, completed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from core import console
from core.cli.options import Common, common_from, environment
from core.errors import UsageError
from core.families import CPU, gpu_targets
from core.run import Platform
from core.run.job_files import set_outputs
from core.run.plan import Plan, job_outputs
from core.status import Pending, Status
from core.stores.location import open_store
from pytorch_build.build.container import DATA, load_container
from pytorch_build.components import COMPONENTS
from pytorch_build.context import Context, add_source_options, find_family, find_ref, mirrors_from
from pytorch_build.lock.stored import complete, source_lock
from pytorch_build.sdk import RocmOptions, add_rocm_options, rocm_options_from
from rocm_packaging.origin import INDEXES_FILE, release_indexes

if TYPE_CHECKING:
    from pytorch_build.lock.source_lock import Kind, SourceLock


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "take this branch, tag or commit of a project instead of the ref's; repeatable"
    parser.add_argument("--at", action="append", default=[], metavar="PROJECT=REF", help=what)
    what = "refuse a project that torch's related_commits does not name"
    parser.add_argument("--require-related-commit", action="store_true", help=what)
    what = "resolve every torch ref of a plan that `configure` wrote, and complete its cells with versions"
    parser.add_argument("--plan", type=Path, metavar="FILE", help=what)
    parser.add_argument("--compact", action="store_true", help="print the lock as one line, for a job output")
    add_source_options(parser)
    add_rocm_options(parser)


def run(arguments: argparse.Namespace) -> None:
    """Resolve the ref, and print what every project is at."""
    common = common_from(arguments)
    _warn_of_old_data(datetime.now(UTC).date())
    if arguments.plan:
        _run_plan(arguments, common)
        return
    chosen = any_context(common)
    lock = _lock(arguments, chosen, rocm_options_from(arguments))
    console.table(("project", "commit", "version", "from"), rows(lock, gpu=chosen.gpu))
    if arguments.compact:
        console.result(lock.compact())


def look(arguments: argparse.Namespace) -> Status:
    """Return whether the ref's lock would change. Nothing is changed."""
    common = common_from(arguments)
    chosen = any_context(replace(common, dry_run=True))
    store = open_store(common.store, root=common.root)
    if store.find(common.outputs.source_lock_key(chosen.ref.name)) is None:
        return Pending(reasons=("it was not resolved yet",))

    _lock(arguments, chosen, rocm_options_from(arguments))
    return chosen.common.planned_status


def _lock(arguments: argparse.Namespace, chosen: Context, options: RocmOptions) -> SourceLock:
    return source_lock(
        chosen,
        options,
        # the local run's lock is resolved anew; any other run's once
        update=not chosen.common.outputs.immutable,
        explicit=explicit_refs(arguments.at),
        require_related_commit=arguments.require_related_commit,
        mirrors=mirrors_from(arguments),
    )


def _warn_of_old_data(today: date) -> None:
    for what, file, data in (
        ("release indexes", INDEXES_FILE, release_indexes()),
        ("the image that wheels are built in", DATA, load_container()),
    ):
        age = data.overdue(today)
        if age:
            console.warn(
                f"What {file.name} says of {what} is {age}: compare it with upstream "
                "(nox -s upstream -- --therock DIR)."
            )


def _run_plan(arguments: argparse.Namespace, common: Common) -> None:
    """Complete a plan, where it lies; give the job its matrices."""
    if common.torch_ref or common.gpu_family:
        raise UsageError("A plan names its torch refs and GPU families.", hint="Leave them out with --plan.")
    path = common.root / arguments.plan
    before = Plan.read(path)
    options = rocm_options_from(arguments)
    if before.rocm.version and options.version not in {"", before.rocm.version}:
        raise UsageError(f"The plan is for ROCm {before.rocm.version}, not {options.version}.")
    source = replace(options.source, version=options.version or before.rocm.version or "")
    options = replace(options, source=source)

    def lock_of(platform: Platform, torch_ref: str, gpu_family: str) -> SourceLock:
        wanted = replace(
            common,
            torch_ref=torch_ref,
            gpu_family=gpu_family,
            platform=platform,
            release_type=before.release_type,
        )
        return _lock(arguments, any_context(wanted), options)

    plan, locks = complete(before, lock_of)
    plan.write(path)
    for platform, by_ref in locks.items():
        for lock in by_ref.values():
            console.say(f"{lock.torch_ref} on {platform}:")
            console.table(("project", "commit", "version", "from"), rows(lock, gpu=bool(lock.rocm_version)))
    set_outputs(environment(), job_outputs(plan, {}))
    console.done(f"plan: {sum(map(len, locks.values()))} torch refs resolved, in {arguments.plan}")


def rows(lock: SourceLock, *, gpu: bool) -> Sequence[tuple[str, str, str, str]]:
    """Return a row a project: name, short commit, the version to come, where it comes from."""
    kind: Kind = "rocm" if gpu else "cpu"
    return [
        (name, "prebuilt", locked.prebuilt, "")
        if locked.prebuilt
        else (name, locked.commit[:12], locked.versions[kind], f"{locked.origin} {locked.ref}")
        for name, locked in lock.projects.items()
    ]


def explicit_refs(given: Sequence[str]) -> dict[str, str]:
    """Read ``PROJECT=REF`` pairs."""
    pairs = [pair.partition("=") for pair in given]
    if wrong := ["".join(one) for one in pairs if not all(one) or one[0] not in COMPONENTS]:
        raise UsageError(f"--at {wrong[0]!r} is not PROJECT=REF.", hint=f"Projects: {', '.join(COMPONENTS)}.")
    return {project: ref for project, _, ref in pairs}


def any_context(common: Common) -> Context:
    """Look up ref and family; a machine without a GPU can resolve all the same, for cpu."""
    ref = find_ref(common)
    try:
        name = find_family(common, ref)
    except UsageError:
        if common.gpu_family:
            raise
        console.say("GPU family: none given and no GPU here; versions without ROCm are locked")
        name = CPU
    return Context(common=common, ref=ref, gpu_family=name, gpu_targets=gpu_targets(name))
