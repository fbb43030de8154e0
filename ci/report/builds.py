"""The inside of builds, from what their records say of ninja, of the compiler cache and of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import ConfigDict, Field, ValidationError

from ci.report.build_model import Build, BuildGraph, Compiled, CompilerCache, Memory, Reached
from ci.report.cell_name import CellName
from ci.report.model import Problem
from core.data import Model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ci.report.reading import RunFacts
    from core.run.records import Record

_Count = Annotated[int, Field(ge=0)]
_Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _Said(Model):
    # a later version's record may say more
    model_config = ConfigDict(extra="ignore")


class _Cache(_Said):
    kind: str
    hits: _Count
    misses: _Count
    uncacheable: _Count = 0
    errors: _Count = 0
    storage: str = ""
    access: str = ""
    lost: str = ""


class _Graph(_Said):
    folder: str
    edges: _Count
    seconds: _Number
    busy_seconds: _Number
    slowest: tuple[tuple[str, _Number], ...] = ()
    parallelism: tuple[_Number, ...] = ()


class _Memory(_Said):
    peak: _Count
    total: _Count
    used: tuple[_Count, ...] = ()


class _Reached(_Said):
    done: _Count = 0
    total: _Count = 0
    failed: tuple[str, ...] = ()


class _Details(_Said):
    reached: _Reached | None = None
    compiler_cache: _Cache | None = None
    ninja: tuple[_Graph, ...] = ()
    memory: _Memory | None = None


def builds_of(facts: RunFacts) -> tuple[tuple[Build, ...], tuple[Problem, ...]]:
    """Read what builds say of their inside, failed ones first, then the longest; and what makes no sense."""
    builds, problems = [], []
    for group in facts.groups:
        for key, record in group.records:
            if not record.stage.startswith("build_"):
                continue
            try:
                said = _Details.model_validate(record.details)
            except ValidationError as problem:
                first = problem.errors()[0]
                path = ".".join(str(part) for part in first["loc"])
                problems.append(Problem(where=key, what=f"details.{path}: {first['msg']}."))
                said = _Details()
            builds.append(_build(group.name, record, said))
    builds.sort(key=lambda one: (not one.failed, -one.seconds, one.cell, one.stage))
    return tuple(builds), tuple(problems)


def _build(group: str, record: Record, said: _Details) -> Build:
    cache, memory = said.compiler_cache, said.memory
    return Build(
        cell=CellName(group=group, torch_ref=record.cell.torch_ref, python=record.cell.python),
        stage=record.stage,
        seconds=record.seconds,
        failed=record.status != "ok",
        reached=Reached(**said.reached.model_dump()) if said.reached else None,
        cache=CompilerCache(**cache.model_dump()) if cache else None,
        graphs=_graphs(said.ninja),
        memory=Memory(**memory.model_dump()) if memory else None,
    )


def _graphs(said: Sequence[_Graph]) -> tuple[BuildGraph, ...]:
    graphs = [
        BuildGraph(
            folder=one.folder,
            edges=one.edges,
            seconds=one.seconds,
            busy=one.busy_seconds,
            slowest=tuple(Compiled(output=output, seconds=seconds) for output, seconds in one.slowest),
            parallelism=one.parallelism,
        )
        for one in said
    ]
    return tuple(sorted(graphs, key=lambda one: (-one.seconds, one.folder)))
