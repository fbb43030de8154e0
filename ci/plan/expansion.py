"""The expansion of a matrix: its Pythons, torch refs and GPU families as cells, with what cannot exist."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ci.plan.data import Exclusion, Test
from core.cell import Cell
from core.run import Platform
from pytorch_build.refs.torch_refs import TorchRef


@dataclass(frozen=True, kw_only=True)
class Combination:
    """A cell of a matrix; `obstacle` says why it cannot exist, and is None where it can."""

    cell: Cell
    ref: TorchRef
    obstacle: str | None = None


def expand(
    *,
    pythons: Sequence[str],
    refs: Sequence[TorchRef],
    gpu_families: Sequence[str],
    platform: Platform,
    exclusions: Sequence[Exclusion] = (),
) -> Iterator[Combination]:
    """Yield every combination of a matrix on one platform, those that cannot exist, too."""
    for python in pythons:
        for ref in refs:
            for gpu_family in gpu_families:
                yield Combination(
                    cell=Cell(python=python, torch_ref=ref.name, gpu_family=gpu_family),
                    ref=ref,
                    obstacle=_obstacle_to_cell(python, ref, gpu_family, platform, exclusions),
                )


def _obstacle_to_cell(
    python: str,
    ref: TorchRef,
    gpu_family: str,
    platform: Platform,
    exclusions: Sequence[Exclusion],
) -> str | None:
    """Return why a cell cannot exist; None where it can."""
    if python not in ref.pythons:
        return f"{ref.name} is not built for Python {python}"
    if not ref.components:
        # The ref is as its platform has it.
        return f"{ref.name} is not built on {platform}"
    for exclusion in exclusions:
        if exclusion.covers(gpu_family, platform, ref.name, python):
            return exclusion.reason
    return None


def pythons_of_test(
    test: Test,
    cell: Cell,
    built_cells: Sequence[Cell],
) -> Sequence[str]:
    """Return which Pythons a test of upstream's runs under, of those that the cell's torch is for."""
    pythons: list[str] = []
    for built_cell in built_cells:
        has_torch_of_cell = built_cell.torch_ref == cell.torch_ref
        has_gpus_of_cell = built_cell.gpu_family == cell.gpu_family
        if has_torch_of_cell and has_gpus_of_cell and built_cell.python is not None:
            pythons.append(built_cell.python)
    return test.tested_pythons(pythons)


def parts_of_test(test: Test, cell: Cell) -> Sequence[Cell]:
    """Return the cells of a test of upstream's: one for each of its shards."""
    numbers = range(1, test.shards + 1)
    return [replace(cell, config=test.config, shard=f"{number}/{test.shards}") for number in numbers]
