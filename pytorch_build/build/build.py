"""A build from what was asked for to its record: what it is made of, and what has been built before.

A dry run may assume what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from core import console
from core.cli.sessions import option_of_python
from core.errors import FatalError, MissingInputError, ServiceError, SourceError
from core.packages.search import others_required_by_lines
from core.run import records, stage
from core.run.records import BORROWED, LEFT_OUT_TARGETS
from core.wheel import distributions, read_metadata
from pytorch_build.build import machine
from pytorch_build.build.facts import PLANNED_FROM, TreeFacts, read_tree_facts, tree_facts_from
from pytorch_build.build.inputs import Dependency, inputs_of
from pytorch_build.components import COMPONENTS, components_built_before
from pytorch_build.lock.resolve import locked_prebuilt_project
from pytorch_build.lock.stored import prepare_origins
from pytorch_build.sdk import find_rocm_packages, find_rocm_source, find_rocm_version
from pytorch_build.sources.git import OriginReader
from pytorch_build.sources.trees import (
    DevelopersTree,
    Tree,
    developers_tree,
    find_tree_problems,
    managed_tree,
)
from rocm_packaging.origin import RocmSource

if TYPE_CHECKING:
    from core.env import Interpreter
    from core.status import Pending
    from pytorch_build.build.inputs import BuildInputs
    from pytorch_build.build.request import BuildRequest
    from pytorch_build.context import Context
    from pytorch_build.sources.trees import Tree
    from rocm_packaging.packages.layouts import Layout


@dataclass(frozen=True, kw_only=True)
class Work:
    """A build whose source tree, ROCm and inputs are known, so that it can begin.

    Attributes:
        request: What was asked for.
        tree: The source tree, which is not checked out yet.
        rocm: Where ROCm comes from; None for CPUs.
        inputs: Everything that its wheel depends on.
        details: What is known of the build so far, for its record, and that of a failure.
    """

    request: BuildRequest
    tree: Tree
    rocm: RocmSource | None
    inputs: BuildInputs
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def stage(self) -> stage.Stage:
        """The step of the run that this build is: its name, artifact group and cell, which its record has."""
        context = self.request.context
        return stage.Stage(
            name=f"build_{self.request.component.name}",
            common=context.common,
            artifact_group=context.artifact_group,
            cell=context.cell(self.request.target.tag),
            output_dir=self.request.output_dir,
        )


def build_wheel(work: Work) -> records.Record | Pending:
    """Build a wheel and return its record; in a dry run or check, return why it would be built."""

    def make_wheels() -> stage.StageResult:
        """Build the wheels, unless they would replace another torch ref's in the run."""
        # Imported where there is work: most runs find that nothing has changed.
        from pytorch_build.build.stage import build_and_check

        refuse_wheel_of_another_ref(work)
        return build_and_check(work)

    return stage.perform(work.stage, work.inputs.to_json(), make_wheels, so_far=work.details)


def refuse_wheel_of_another_ref(work: Work) -> None:
    """Refuse a build whose wheel would replace that of another torch ref in the run.

    Source locks are compared before (`pytorch_build.lock.collisions`). Equal sources make other wheels, too,
    where other wheels were there to build against.
    """
    own_stage = work.stage
    own_ref = own_stage.cell.torch_ref
    run_id = own_stage.common.run_id
    for record in records.read_all(own_stage.store, own_stage.outputs, own_stage.artifact_group):
        if record.cell.torch_ref == own_ref or record.status != "ok":
            continue
        if record.stage != own_stage.name or record.cell.python != own_stage.cell.python:
            continue

        wheel = record.files[0]
        if wheel.version == work.inputs.version:
            raise SourceError(
                f"{wheel.name} is in run {run_id} for torch ref {record.cell.torch_ref}, made of other "
                f"inputs: {own_ref} would replace it.",
                hint=f"Give {own_ref} a run of its own, as in --run-id local-{own_ref} "
                f"--rocm-run-id {run_id}.",
            )


def find_record(context: Context, python_tag: str, project: str) -> records.Record | None:
    """Return the record of a project's build in the run; None without it or the wheels in it."""
    store = context.common.open_for_reading()
    name = records.record_name(f"build_{project}", context.cell(python_tag))
    record = records.read(store, context.common.outputs, context.artifact_group, name)
    if record is None or not record.files:
        return None
    if not all(store.find(file.key) for file in record.files):
        return None
    return record


def copy_wheels_from_run(context: Context, source_context: Context, python_tag: str, project: str) -> None:
    """Copy another run's wheels of a project into this run, with a record that names the other run."""
    record = find_record(source_context, python_tag, project)
    if record is None:
        raise missing_wheel_error(source_context, python_tag, project)

    common = context.common
    group = context.artifact_group
    source_store = source_context.common.open_for_reading()
    store = common.open_store()
    borrowed_files: list[records.FileRecord] = []
    for file in record.files:
        path = source_store.fetch(file.key, common.cache / "fetched")
        borrowed_files.append(distributions.publish(store, common.outputs, group, path))

    details = {**record.details, BORROWED: source_context.common.run_id}
    borrowed_record = record.model_copy(
        update={"run_id": common.run_id, "files": tuple(borrowed_files), "details": details}
    )
    records.write(store, common.outputs, group, borrowed_record)


def fetch_wheel_of_run(context: Context, target: Interpreter, project: str) -> Dependency | None:
    """Fetch the run's wheel of a component and return it as a dependency; None where the run has none."""
    record = find_record(context, target.tag, project)
    if record is None:
        return None

    outputs = context.common.outputs
    store = context.common.open_for_reading()
    recorded_wheel = record.files[0]
    path = store.fetch(recorded_wheel.key, context.common.cache / "fetched" / outputs.prefix)
    return Dependency(
        project=project,
        requirement=str(path),
        version=recorded_wheel.version,
        digest=recorded_wheel.sha256,
        third_party_requirements=others_required_by_lines(read_metadata(path).requires_dist, where=path.name),
    )


def missing_wheel_error(context: Context, python_tag: str, project: str) -> MissingInputError:
    """Return the error for a run that lacks a component's wheel."""
    python = f"3.{python_tag.removeprefix('cp3')}"
    return MissingInputError(
        f"Run {context.common.run_id} has no {COMPONENTS[project].distribution} wheel of {context.ref.name} "
        f"for {context.gpu_family} and Python {python}.",
        hint=f"Build it first: nox -s build_{project}{option_of_python(python)} "
        f"-- {context.options_for_hints}",
    )


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """What a dry run takes for granted: sentences, and the errors that a real build would end with."""

    sentences: list[str] = field(default_factory=list)
    blockers: list[FatalError] = field(default_factory=list)


def find_work(request: BuildRequest, assumptions: Assumptions | None = None) -> Work:
    """Look up the source tree, ROCm and dependencies of a requested build, and return them with its inputs.

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
    """Yield the wheels and requirements that are installed before a build, in that order.

    A dry run assumes what the run lacks, in the version that the lock promises.
    """
    context = request.context
    component = request.component
    for name in components_built_before(component.name, gpu=context.gpu):
        dependency = _prebuilt_dependency(request, name)
        # Another platform's run is not looked into: its wheels may be large, and far away.
        if dependency is None and request.is_for_this_platform:
            dependency = fetch_wheel_of_run(context, request.target, name)
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
            yield Dependency(
                project=name,
                requirement=requirement,
                version=version,
                is_assumed=True,
            )


def find_tree_facts(request: BuildRequest, tree: Tree) -> TreeFacts:
    """Return what a source tree's files say of how it is built, without checking it out or copying it."""
    if isinstance(tree, DevelopersTree):
        return read_tree_facts(tree.copy.source)

    context = request.context
    locked = tree.locked
    reader = OriginReader(
        cache=context.common.cache / "refs",
        origins=prepare_origins(context.common, context.ref, request.mirrors),
    )
    return tree_facts_from(
        reader.read_texts(locked.origin, locked.commit, PLANNED_FROM),
        tree=PurePosixPath(locked.origin),
        git_suffix=lambda: f"+git{locked.commit[:8]}",
    )


def _find_tree(request: BuildRequest) -> Tree:
    """Return the source tree to build: a developer's own, or the managed one, not yet checked out."""
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
    """Return the ROCm to build against and its packages; a dry run assumes what it cannot look up."""
    context = request.context
    options = request.rocm
    needs_lock = request.own_tree is None
    version = request.lock.rocm_version if needs_lock else find_rocm_version(context, options)
    if assumptions is None:
        return find_rocm_source(context, options, version)

    packages = find_rocm_packages(context, options)
    is_remote = bool(packages.index_urls) or any("://" in link for link in packages.find_links)
    if request.is_for_this_platform or not is_remote:
        try:
            return find_rocm_source(context, options, version)
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
    """Return the requirement by which a ref installs a component that it does not build; else None."""
    source = request.context.ref.projects.get(name)
    if source is None or not source.prebuilt:
        return None
    pinned_version = locked_prebuilt_project(name, source.prebuilt).base_version
    return Dependency(
        project=name,
        requirement=source.prebuilt,
        version=pinned_version or None,
    )
