"""Build what a run lacks, in a run of this machine, from its lock and on its ROCm."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from ci import flow
from ci.jobs import Job, common_options, store_options
from ci.pipeline import STEPS, NoxCall
from core.cli.options import DEFAULT_STORE
from core.errors import MissingInputError, ProcessError
from core.families import group_families
from core.run import LOCAL_RUN, records
from core.wheel import distributions
from pytorch_build.components import COMPONENTS, components_built_before
from pytorch_build.context import find_context

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from packaging.requirements import Requirement

    from core.cell import GroupCell
    from core.cli.options import Common
    from core.packages.groups import RunGroup
    from pytorch_build.lock.source_lock import SourceLock
    from pytorch_build.refs.torch_refs import TorchRef


def make_local_run(
    common: Common,
    run_id: str,
    cell: GroupCell,
    lock: SourceLock | None,
) -> Common:
    """Return the run of this machine in which what another one lacks is built, whatever store that is in."""
    local_run = replace(
        common,
        run_id=f"{LOCAL_RUN}-bisect-{run_id}",
        torch_ref=cell.torch_ref or "",
        gpu_family=common.gpu_family or group_families(cell.artifact_group or ""),
        store=DEFAULT_STORE,
        read_store="",
        external_repo="",
    )
    if lock is None:
        return local_run
    return replace(local_run, release_type=lock.release_type)


def build_packages(
    common: Common,
    lock: SourceLock | None,
    lending_run: RunGroup,
    rocm_builds: Sequence[records.Record],
    *,
    packages: Sequence[Requirement],
    python: str | None,
) -> None:
    """Build the wheels of some packages.

    Args:
        common: The run in which they are built.
        lock: The lock of the run that lacks them.
        lending_run: The run that lacks them, whose ROCm they are built on.
        rocm_builds: The records of that ROCm.
        packages: What is to be installed.
        python: The Python to build for.

    Raises:
        MissingInputError: They cannot be built.
    """
    for record in rocm_builds:
        _copy_rocm(common, lending_run, record)
    build_context = find_context(common)
    projects = _projects_to_build(packages, build_context.ref, gpu=build_context.gpu)
    if lock is not None:
        _write_lock(common, lock, build_context.ref)

    sessions = [step.session for step in STEPS if step.component in projects]
    call = NoxCall(
        sessions=tuple(sessions),
        python=python,
        options=(*common_options(common), *store_options(common)),
    )
    job = Job(
        name=common.run_id,
        kind="build_pytorch",
        calls=(call,),
    )
    try:
        flow.run_jobs([job], root=common.root)
    except ProcessError as problem:
        # These are the stage's own message and its tool's first error, if any.
        lines = problem.message.splitlines()[:2]
        reason = " ".join(lines)
        raise MissingInputError(f"It could not be built: {reason}") from problem


def _copy_rocm(common: Common, lending_run: RunGroup, record: records.Record) -> None:
    """Copy the packages of a ROCm build into this machine's run, with their record."""
    store = common.open_store()
    outputs = common.outputs
    folder = common.cache / "fetched"
    copied_files = []
    for file in record.files:
        path = lending_run.store.fetch(file.key, folder)
        copied_file = distributions.publish(store, outputs, lending_run.name, path)
        copied_files.append(copied_file)
    copied_record = record.model_copy(update={"files": tuple(copied_files)})
    records.write(store, outputs, lending_run.name, copied_record)


def _projects_to_build(packages: Sequence[Requirement], ref: TorchRef, *, gpu: bool) -> Collection[str]:
    """Return the components of the packages, and those of the ref that are built before them."""
    distributions_to_install = {canonicalize_name(requirement.name) for requirement in packages}
    projects: set[str] = set()
    for name, component in COMPONENTS.items():
        if component.distribution not in distributions_to_install:
            continue
        projects.add(name)
        projects.update(first for first in components_built_before(name, gpu=gpu) if first in ref.components)
    return projects


def _write_lock(common: Common, lock: SourceLock, ref: TorchRef) -> None:
    """Put the lock into the run: its commits stand, whatever the refs data names by now."""
    moved_projects: list[str] = []
    for name, source in ref.projects.items():
        # A project that torch pins has no origin of its own in the refs data.
        if name not in lock.projects or source.pin:
            continue
        if source.origin != lock.projects[name].origin:
            moved_projects.append(name)
    if moved_projects:
        names = ", ".join(moved_projects)
        raise MissingInputError(f"Its lock has another origin of {names} than the refs data.")

    projects = {name: project.model_copy(update={"chosen": True}) for name, project in lock.projects.items()}
    text = lock.model_copy(update={"projects": projects}).model_dump_json()
    key = common.outputs.source_lock_key(common.torch_ref)
    common.open_store().put_bytes(key, text.encode(), replace=True)
