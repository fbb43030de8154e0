"""The torch and triton that a build stands on: wheels of the run, or a prebuilt requirement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from core import console
from core.errors import MissingInputError
from core.packages.resolution import others_of
from core.run import records
from core.run.records import Cell
from core.wheel import read_metadata
from pytorch_build.refs.torch_refs import DISTRIBUTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.env import Interpreter
    from pytorch_build.context import Context

# what each project's build stands on
NEEDS: dict[str, tuple[str, ...]] = {
    "triton": (),
    "torch": ("triton",),
    "audio": ("triton", "torch"),
    "vision": ("triton", "torch"),
    "apex": ("triton", "torch"),
}


@dataclass(frozen=True, kw_only=True)
class Dependency:
    """One project that is installed before a build."""

    project: str
    requirement: str
    version: str = ""
    digest: str = ""
    others: tuple[str, ...] = ()

    @property
    def identity(self) -> dict[str, str]:
        """What a build's inputs say of it."""
        return {"digest": self.digest} if self.digest else {"requirement": self.requirement}


def dependencies(context: Context, target: Interpreter, project: str) -> Sequence[Dependency]:
    """Find what a project's build stands on, in the order of installation."""
    found = []
    for name in NEEDS[project]:
        source = context.ref.projects.get(name)
        if source is not None and source.prebuilt:
            found.append(Dependency(project=name, requirement=source.prebuilt))
            continue
        wheel = _wheel(context, target, name)
        if wheel is not None:
            found.append(wheel)
        elif name == "torch":
            raise _missing(context, target, name)
        elif project == "torch" and name in context.ref.components:
            _without_triton(context, target)
    return found


def _wheel(context: Context, target: Interpreter, project: str) -> Dependency | None:
    store, outputs = context.common.open_for_reading(), context.common.outputs
    cell = Cell(python=target.tag, torch_ref=context.ref.name, gpu_family=context.gpu_family)
    record = records.read(
        store, outputs, context.artifact_group, records.record_name(f"build_{project}", cell)
    )
    if record is None or not record.files or store.find(record.files[0].key) is None:
        return None
    wheel = record.files[0]
    path = store.fetch(wheel.key, context.common.cache / "fetched" / outputs.prefix)
    return Dependency(
        project=project,
        requirement=str(path),
        version=wheel.version,
        digest=wheel.sha256,
        others=others_of(read_metadata(path).requires_dist, where=path.name),
    )


def _missing(context: Context, target: Interpreter, project: str) -> MissingInputError:
    words = f"-P {target.series} -- --torch-ref {context.ref.name} --gpu-family {context.gpu_family}"
    return MissingInputError(
        f"Run {context.common.run_id} has no {DISTRIBUTIONS[project]} wheel of {context.ref.name} for "
        f"{context.gpu_family} and Python {target.series}.",
        hint=f"Build it first: nox -s build_{project} {words}",
    )


def _without_triton(context: Context, target: Interpreter) -> None:
    """Let a developer build torch alone; a run that others use must not get a lesser wheel."""
    missing = _missing(context, target, "triton")
    if context.common.outputs.immutable:
        raise missing
    console.warn(
        f"{missing.message} This torch gets no flash attention and does not require triton, "
        "unlike those of releases, and check_wheels will say so."
    )


def dependency_inputs(found: Sequence[Dependency]) -> dict[str, Any]:
    """Say what a build's inputs are, of what it stands on."""
    return {one.project: one.identity for one in found}
