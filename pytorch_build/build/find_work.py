"""Finding what a build is made of: its tree, its ROCm, and what is installed first.

A dry run may assume what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from core import console
from core.errors import FatalError, MissingInputError, ServiceError
from core.run.records import LEFT_OUT_TARGETS
from pytorch_build.build import machine
from pytorch_build.build.build import Work, missing_wheel_error, wheel_of_run
from pytorch_build.build.facts import PLANNED_FROM, TreeFacts, read_tree_facts, tree_facts_from
from pytorch_build.build.inputs import Dependency, inputs_of
from pytorch_build.components import COMPONENTS, needed_first
from pytorch_build.lock.resolve import prebuilt
from pytorch_build.lock.stored import origins
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
    from rocm_packaging.packages.layouts import Layout


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What a dry run takes for granted: sentences, and the errors that a real build would end with."""

    sentences: list[str] = field(default_factory=list)
    blockers: list[FatalError] = field(default_factory=list)


def find_work(request: BuildRequest, assumptions: Assumptions | None = None) -> Work:
    """Return a build that can begin: what was asked for, with what it is made of.

    Args:
        request: What was asked for.
        assumptions: Where a dry run writes down what it assumes; without it, what is missing is an error.
    """
    tree = _find_tree(request)
    rocm = None
    if request.context.gpu:
        rocm = _find_rocm(request, assumptions)
    dependencies = tuple(find_dependencies(request, assumptions))
    details: dict[str, Any] = {}
    if request.left_out_targets:
        details[LEFT_OUT_TARGETS] = list(request.left_out_targets)
    return Work(
        request=request,
        tree=tree,
        rocm=rocm,
        inputs=inputs_of(request, tree, rocm, dependencies),
        details=details,
    )


def find_dependencies(request: BuildRequest, assumptions: Assumptions | None = None) -> Iterator[Dependency]:
    """Yield what is installed before a build, in that order.

    A dry run assumes what the run lacks, in the version that the lock promises.
    """
    context = request.context
    component = request.component
    for name in needed_first(component.name, gpu=context.gpu):
        dependency = _prebuilt_dependency(request, name)
        # Another platform's run is not looked into: its wheels may be large, and far away.
        if dependency is None and request.is_for_this_platform:
            dependency = wheel_of_run(context, request.target, name)
        if dependency is not None:
            yield dependency
            continue

        error = missing_wheel_error(context, request.target.tag, name)
        is_indispensable = COMPONENTS[name].loss_without is None
        is_built_by_ref = name in context.ref.components
        if assumptions is None:
            if is_indispensable:
                raise error
            if not is_built_by_ref or name not in component.required_components:
                continue
            if context.common.outputs.immutable and request.own_tree is None:
                raise error
            console.warn(
                f"{error.message} This {component.name} gets no {COMPONENTS[name].loss_without} and does not "
                f"require {name}, unlike those of releases."
            )
        elif is_indispensable or is_built_by_ref:
            if is_indispensable:
                assumptions.blockers.append(error)
            version = request.lock.version(name, gpu=context.gpu)
            requirement = f"{COMPONENTS[name].distribution}=={version}"
            yield Dependency(project=name, requirement=requirement, version=version, is_assumed=True)


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
    return tree_facts_from(
        reader.texts(locked.origin, locked.commit, PLANNED_FROM),
        tree=PurePosixPath(locked.origin),
        git_suffix=lambda: f"+git{locked.commit[:8]}",
    )


def _find_tree(request: BuildRequest) -> Tree:
    """Return the tree that is built: a developer's own, or the managed one. Nothing is checked out yet."""
    own_tree = request.own_tree
    if own_tree is None:
        return managed_tree(request)

    # Everything that the machine lacks is said at once, before anything is copied.
    name = request.component.name
    is_dry_run = request.context.common.dry_run
    if not is_dry_run and any(find_tree_problems(own_tree, name, request.user_env)):
        machine.refuse_problems(machine.find_problems(request))
    tree = developers_tree(request, own_tree)
    console.say(f"{name} from {own_tree}, as it is there")
    return tree


def _find_rocm(request: BuildRequest, assumptions: Assumptions | None) -> RocmSource:
    """Return where ROCm comes from; assume today's packages where they cannot be looked at."""
    context = request.context
    options = request.options.rocm
    needs_lock = request.own_tree is None
    version = request.lock.rocm_version if needs_lock else find_version(context, options)
    if assumptions is None:
        return find_source(context, options, version)

    packages = packages_of(context, options)
    is_remote = bool(packages.index_urls) or any("://" in link for link in packages.find_links)
    if request.is_for_this_platform or not is_remote:
        try:
            return find_source(context, options, version)
        except (MissingInputError, ServiceError) as problem:
            # Without ROCm or a network there is a plan all the same.
            assumptions.blockers.append(problem)

    # An index of one family has unsplit packages, one of all families has split ones.
    layout: Layout = "unsplit" if f"/{context.gpu_family}/" in packages.description else "split"
    assumptions.sentences.append(
        f"The packages of ROCm {version} are {layout}: {packages.description} did not say so."
    )
    return RocmSource(
        version=version,
        layout=layout,
        packages=packages,
    )


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
