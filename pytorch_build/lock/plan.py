"""A plan completed: the source locks of its torch refs, and in its cells the versions of wheels to come.

A name stands for one wheel in a run: cells that promise the same name from other inputs are refused
here, before anything builds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.data import compact
from core.errors import SourceError
from core.families import CPU
from core.run.plan import PLATFORMS, Plan, matrices, refuse_outputs
from pytorch_build.refs.torch_refs import DISTRIBUTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from core.run import Platform
    from core.run.plan import Cell
    from pytorch_build.lock.source_lock import SourceLock

    Locks = Mapping[Platform, Mapping[str, SourceLock]]
    # of a torch ref on a platform, for one of its GPU families: ``cpu`` only where there is no other
    LockOf = Callable[[Platform, str, str], SourceLock]


def complete(plan: Plan, lock_of: LockOf) -> tuple[Plan, Locks]:
    """Resolve every torch ref of a plan once a platform, and write versions into its cells."""
    locks: dict[Platform, dict[str, SourceLock]] = {}
    versions: dict[tuple[Platform, str, str, str], dict[str, str]] = {}
    for platform in PLATFORMS:
        builds = plan.matrix(platform, "build_pytorch")
        refs = dict.fromkeys(cell.torch_ref for cell in builds)
        locks[platform] = {name: lock_of(platform, name, _family(builds, name)) for name in refs}
        versions |= {_key(cell): _versions(cell, locks[platform][cell.torch_ref]) for cell in builds}
        refuse_collisions(builds, locks[platform])
    cells = (
        cell if cell.stage.endswith("rocm") else cell.model_copy(update={"versions": versions[_key(cell)]})
        for cell in plan.cells
    )
    digests = {
        platform: {name: lock.digest() for name, lock in found.items()} for platform, found in locks.items()
    }
    return plan.model_copy(update={"cells": tuple(cells), "locks": digests}), locks


def refuse_collisions(builds: Sequence[Cell], locks: Mapping[str, SourceLock]) -> None:
    """Refuse wheels of one name, in one folder, that would be made from different inputs.

    The same name from the same inputs is the same wheel: the first that is uploaded stands for all.
    """
    promised: dict[tuple[str, str, str, str], dict[str, list[str]]] = {}
    for cell in builds:
        lock = locks[cell.torch_ref]
        for distribution, version in _versions(cell, lock).items():
            name = cell.artifact_group, distribution, version, cell.python
            cells = promised.setdefault(name, {}).setdefault(_made_from(distribution, lock), [])
            cells.append(cell.name)
    collisions = [
        f"{distribution} {version} for Python {python} in {group}:"
        + "".join(f"\n  {' and '.join(cells)}: {made_from}" for made_from, cells in makers.items())
        for (group, distribution, version, python), makers in promised.items()
        if len(makers) > 1
    ]
    if collisions:
        raise SourceError(
            "Jobs of this run would make different wheels of one name.\n" + "\n".join(collisions),
            hint="Plan them in runs of their own; or let the version name the torch that it is for, with "
            "torch_in_version = true in the ref's project table; or, where the commits of the projects "
            "themselves differ, name these: --release-type dev.",
        )


def _made_from(distribution: str, lock: SourceLock) -> str:
    """Name what a wheel depends on besides its Python and its targets, for people and to compare."""
    project = next(name for name, built in DISTRIBUTIONS.items() if built == distribution)
    # torch requires the triton of its own run, the others are built against torch
    needs = {"triton": (), "torch": ("triton",)}.get(project, ("torch",))
    said = [
        f"{name} {locked.prebuilt or f'{locked.commit[:12]} of {locked.origin}'}"
        for name in (project, *needs)
        if (locked := lock.projects.get(name))
    ]
    return ", ".join([*said, *([f"ROCm {lock.rocm_version}"] if lock.rocm_version else [])])


def outputs(plan: Plan, locks: Locks) -> Mapping[str, str]:
    """Write a job's outputs: the matrices again, and ``{platform}_source_locks``.

    The locks are an object by torch ref; each is the line that ``SOURCE_LOCK`` takes, with its digest.
    """
    values: dict[str, object] = {**matrices(plan)}
    for platform in PLATFORMS:
        values[f"{platform}_source_locks"] = {
            name: lock.compact() for name, lock in locks.get(platform, {}).items()
        }
    written = {name: compact(value) for name, value in values.items()}
    return refuse_outputs(written | {"plan_digest": plan.digest()})


def _family(builds: Sequence[Cell], torch_ref: str) -> str:
    families = [cell.gpu_family for cell in builds if cell.torch_ref == torch_ref]
    return next((name for name in families if name != CPU), CPU)


def _key(cell: Cell) -> tuple[Platform, str, str, str]:
    return cell.platform, cell.artifact_group, cell.python, cell.torch_ref


def _versions(cell: Cell, lock: SourceLock) -> dict[str, str]:
    """Return the versions of the wheels that a job builds, by distribution."""
    return {
        distribution: lock.version(project, gpu=cell.gpu_family != CPU)
        for project, distribution in DISTRIBUTIONS.items()
        if f"build_{project}" in cell.sessions
    }
