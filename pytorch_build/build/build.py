"""Performing a build, and finding what has been built: by its record, in this run or another one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core.errors import MissingInputError, SourceError
from core.packages.search import others_required_by_lines
from core.run import records, stage
from core.run.records import BORROWED
from core.wheel import distributions, read_metadata
from pytorch_build.build.inputs import Dependency
from pytorch_build.components import COMPONENTS

if TYPE_CHECKING:
    from core.env import Interpreter
    from core.status import Pending
    from pytorch_build.build.inputs import BuildInputs
    from pytorch_build.build.request import BuildRequest
    from pytorch_build.context import Context
    from pytorch_build.sources.trees import Tree
    from rocm_packaging.origin import RocmSource


@dataclass(frozen=True, kw_only=True)
class Work:
    """A build that can begin.

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
        """The stage that the build is of its run."""
        context = self.request.context
        return stage.Stage(
            name=f"build_{self.request.component.name}",
            common=context.common,
            artifact_group=context.artifact_group,
            cell=context.cell(self.request.target.tag),
            output_dir=self.request.options.output_dir,
        )


def perform(work: Work) -> records.Record | Pending:
    """Build one wheel into the run's outputs, unless a record says that nothing has changed, or say why."""

    def make_wheels() -> stage.StageResult:
        # Imported where there is work: most runs find that nothing has changed.
        from pytorch_build.build.stage import make

        refuse_wheel_of_another_ref(work)
        return make(work)

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


def find_record(context: Context, tag: str, project: str) -> records.Record | None:
    """Return the record of a wheel that the run has, for this ref, family and Python."""
    store = context.common.open_for_reading()
    name = records.record_name(f"build_{project}", context.cell(tag))
    record = records.read(store, context.common.outputs, context.artifact_group, name)
    if record is None or not record.files:
        return None
    if not all(store.find(file.key) for file in record.files):
        return None
    return record


def borrow(context: Context, source_context: Context, tag: str, project: str) -> None:
    """Put another run's wheels of a project into this one, with a record that says whose they are."""
    record = find_record(source_context, tag, project)
    if record is None:
        raise missing_wheel_error(source_context, tag, project)

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


def wheel_of_run(context: Context, target: Interpreter, project: str) -> Dependency | None:
    """Return the run's wheel of a component, fetched; None where the run has none."""
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


def missing_wheel_error(context: Context, tag: str, project: str) -> MissingInputError:
    """Return the error for a run that lacks a component's wheel."""
    python = f"3.{tag.removeprefix('cp3')}"
    return MissingInputError(
        f"Run {context.common.run_id} has no {COMPONENTS[project].distribution} wheel of {context.ref.name} "
        f"for {context.gpu_family} and Python {python}.",
        hint=f"Build it first: nox -s build_{project} -P {python} -- {context.words}",
    )
