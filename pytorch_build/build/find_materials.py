"""Finding what a build is made of: its tree, its ROCm, and what is installed first.

A dry run may assume what is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from core import console
from core.errors import FatalError, MissingInputError, ServiceError
from pytorch_build.build import machine
from pytorch_build.build.build import missing_wheel_error, wheel_of_run
from pytorch_build.build.facts import PLANNED_FROM, TreeFacts, read_tree_facts, tree_facts_from
from pytorch_build.build.inputs import BuildMaterials, Dependency
from pytorch_build.components import COMPONENTS, needed_first
from pytorch_build.lock.resolve import prebuilt
from pytorch_build.lock.stored import origins, source_lock
from pytorch_build.sdk import find_source, find_version, packages_of
from pytorch_build.sources.git import Reader
from pytorch_build.sources.trees import (
    DevelopersTree,
    Tree,
    developers_tree,
    find_tree_problems,
    managed_tree,
)
from rocm_packaging.origin import RocmSource

if TYPE_CHECKING:
    from pytorch_build.build.request import BuildRequest
    from pytorch_build.lock.source_lock import SourceLock
    from rocm_packaging.packages.layouts import Layout

    LockFinder = Callable[[], SourceLock]


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What a dry run takes for granted: sentences, and the errors that a real build would end with."""

    sentences: list[str] = field(default_factory=list)
    blockers: list[FatalError] = field(default_factory=list)


def find_materials(request: BuildRequest, assumptions: Assumptions | None = None) -> BuildMaterials:
    """Return what a build is made of.

    Args:
        request: What was asked for.
        assumptions: Where a dry run writes down what it assumes; without it, what is missing is an error.
    """
    find_lock = _lock_finder(request)
    tree = _find_tree(request, find_lock)
    rocm = None
    if request.context.gpu:
        rocm = _find_rocm(request, _rocm_version(request, find_lock), assumptions)

    if assumptions is None:
        dependencies = find_dependencies(request)
    else:
        dependencies = find_or_assume_dependencies(request, find_lock, assumptions)
    return BuildMaterials(tree=tree, rocm=rocm, dependencies=tuple(dependencies))


def find_dependencies(request: BuildRequest) -> Iterator[Dependency]:
    """Yield what is installed before a build, in that order."""
    context = request.context
    component = request.component
    for name in needed_first(component.name, gpu=context.gpu):
        dependency = _prebuilt_dependency(request, name) or wheel_of_run(context, request.target, name)
        if dependency is not None:
            yield dependency
        elif COMPONENTS[name].loss_without is None:
            raise missing_wheel_error(context, request.target.tag, name)
        elif name in component.required_components and name in context.ref.components:
            _warn_without(request, name)


def find_or_assume_dependencies(
    request: BuildRequest, find_lock: LockFinder, assumptions: Assumptions
) -> Iterator[Dependency]:
    """Yield what is installed before a build; what the run lacks, in the version that the lock promises."""
    context = request.context
    for name in needed_first(request.component.name, gpu=context.gpu):
        dependency = _prebuilt_dependency(request, name)
        # Another platform's run is not looked into: its wheels may be large, and far away.
        if dependency is None and request.is_for_this_platform:
            dependency = wheel_of_run(context, request.target, name)
        if dependency is not None:
            yield dependency
            continue

        is_required = COMPONENTS[name].loss_without is None
        if not is_required and name not in context.ref.components:
            continue
        if is_required:
            error = missing_wheel_error(context, request.target.tag, name)
            assumptions.blockers.append(error)
        version = find_lock().version(name, gpu=context.gpu)
        yield Dependency(
            project=name,
            requirement=f"{COMPONENTS[name].distribution}=={version}",
            version=version,
            is_assumed=True,
        )


def find_tree_facts(request: BuildRequest, tree: Tree) -> TreeFacts:
    """Return what a build's tree says of its build, without checking it out or copying it."""
    if isinstance(tree, DevelopersTree):
        return read_tree_facts(tree.copy.source)

    context = request.context
    locked = tree.locked
    reader = Reader(
        cache=context.common.cache / "refs",
        origins=origins(context.common, context.ref, request.options.mirrors),
    )
    texts = reader.texts(locked.origin, locked.commit, PLANNED_FROM)
    return tree_facts_from(
        texts,
        tree=PurePosixPath(locked.origin),
        git_suffix=lambda: f"+git{locked.commit[:8]}",
    )


def _lock_finder(request: BuildRequest) -> LockFinder:
    """Return what finds the source lock, once and only where it is needed: own trees may do without."""

    @functools.cache
    def find_lock() -> SourceLock:
        options = request.options
        return source_lock(request.context, options.rocm, update=options.update, mirrors=options.mirrors)

    return find_lock


def _find_tree(request: BuildRequest, find_lock: LockFinder) -> Tree:
    """Return the tree that is built: a developer's own, or the managed one. Nothing is checked out yet."""
    context = request.context
    component = request.component
    own_tree = request.own_tree
    if own_tree is None:
        return managed_tree(context, request.options, find_lock(), component.name)

    # Everything that the machine lacks is said at once, before anything is copied.
    if not context.common.dry_run and any(find_tree_problems(own_tree, component.name, request.user_env)):
        need = machine.find_machine_need(context, component)
        machine.refuse_problems(machine.find_problems(request, need))
    tree = developers_tree(
        context,
        own_tree,
        component.name,
        rocm_version=find_version(context, request.options.rocm),
        find_lock=find_lock,
    )
    console.say(f"{component.name} from {own_tree}, as it is there")
    return tree


def _rocm_version(request: BuildRequest, find_lock: LockFinder) -> str:
    """Return the ROCm to build against: the lock's, or where a developer's tree needs no lock, the newest."""
    if request.own_tree is not None:
        return find_version(request.context, request.options.rocm)
    return find_lock().rocm_version


def _find_rocm(request: BuildRequest, version: str, assumptions: Assumptions | None) -> RocmSource:
    """Return where ROCm comes from; assume today's packages where they cannot be looked at."""
    context = request.context
    if assumptions is None:
        return find_source(context, request.options.rocm, version)

    packages = packages_of(context, request.options.rocm)
    is_remote = bool(packages.index_urls) or any("://" in link for link in packages.find_links)
    if request.is_for_this_platform or not is_remote:
        try:
            return find_source(context, request.options.rocm, version)
        except (MissingInputError, ServiceError) as problem:
            # Without ROCm or a network there is a plan all the same.
            assumptions.blockers.append(problem)

    # An index of one family has unsplit packages, one of all families has split ones.
    layout: Layout = "unsplit" if f"/{context.gpu_family}/" in packages.description else "split"
    assumptions.sentences.append(
        f"The packages of ROCm {version} are {layout}: {packages.description} did not say so."
    )
    return RocmSource(version=version, layout=layout, packages=packages)


def _prebuilt_dependency(request: BuildRequest, name: str) -> Dependency | None:
    """Return a component that the torch ref takes as it is, in the version that the requirement pins."""
    source = request.context.ref.projects.get(name)
    if source is None or not source.prebuilt:
        return None
    pinned_version = prebuilt(name, source.prebuilt).base_version
    return Dependency(
        project=name,
        requirement=source.prebuilt,
        version=pinned_version or None,
    )


def _warn_without(request: BuildRequest, name: str) -> None:
    """Warn that a wheel is built without what it should require; refuse that in a run that others use."""
    context = request.context
    error = missing_wheel_error(context, request.target.tag, name)
    if context.common.outputs.immutable and request.own_tree is None:
        raise error
    console.warn(
        f"{error.message} This {request.component.name} gets no {COMPONENTS[name].loss_without} and does not "
        f"require {name}, unlike those of releases."
    )
