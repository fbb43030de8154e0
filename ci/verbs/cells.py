"""`cells`: a matrix as the cells of each session, for the noxfile and for CI.

``cells`` maps the name of a session that has any to its cells: each with its text, the keywords that find it,
and the values of nox's parameters. ``test_pythons`` lists the Pythons that the project's own tests run on.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ci.pipeline import BUILD_STEPS, SESSIONS_WITH_CELLS
from ci.plan.data import Matrix, Test, families_of_tier, matrices, triggers
from ci.plan.expansion import expand, parts_of_test, pythons_of_test
from core import console
from core.cell import Cell
from core.cli.options import common_from
from core.data import load_toml, user_file
from core.errors import DataError, MissingInputError, UsageError, nearest
from core.families import family
from core.run import PLAIN, PLATFORMS, Platform, key_name
from core.run.plan import MAX_JOBS, Plan
from pytorch_build.refs.torch_refs import TorchRef, load_refs

TORCH_TESTS = "test_torch"

COMMON_OPTIONS: tuple[str, ...] = ()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    parser.add_argument(
        "matrix",
        help="ci, release, rehearsal, a plan that `configure` wrote, or a TOML file with such a table",
    )
    parser.add_argument(
        "--platform",
        choices=PLATFORMS,
        help="default: this machine's",
    )


def run(arguments: argparse.Namespace) -> None:
    """Print the cells as JSON, and what was left out for people."""
    common = common_from(arguments)
    platform: Platform = arguments.platform or common.outputs.platform
    path = common.root / arguments.matrix
    if path.suffix == ".json":
        sessions = cells_of_plan(Plan.read(path), platform)
        pythons = matrices().ci.tool_pythons
    else:
        matrix = load_matrix(arguments.matrix, common.root)
        refs = load_refs(platform=platform)
        tests = tuple(triggers().tests.values())
        sessions = cells_by_session(matrix, refs, platform, tests)
        pythons = matrix.tool_pythons

    described_cells: dict[str, list[Mapping[str, object]]] = {}
    for session, cells in sessions.items():
        if cells:
            described_cells[session] = [describe(cell) for cell in cells]
    console.result(json.dumps({"cells": described_cells, "test_pythons": list(pythons)}))


def describe(cell: Cell) -> Mapping[str, object]:
    """Return what the noxfile has to know of a cell."""
    return {
        "name": str(cell),
        "keywords": cell.keywords,
        "parameters": cell.to_json(),
    }


def cells_of_plan(plan: Plan, platform: Platform) -> Mapping[str, Sequence[Cell]]:
    """Return the cells of a plan, by session."""
    cells: dict[str, list[Cell]] = {session: [] for session in SESSIONS_WITH_CELLS}
    for job in plan.jobs:
        if job.build_variant != PLAIN:
            console.detail(f"left out: {job.name}; name it: -- --build-variant={job.build_variant}")
        elif job.platform == platform:
            # Every session of a run is on one platform.
            cell = replace(job.cell, platform=None)
            for session in cells.keys() & set(job.sessions):
                cells[session].append(cell)

    if not any(cells.values()):
        raise MissingInputError(
            f"The plan has no cell on {platform}: {plan.build_pytorch.reason}.",
            hint="Look at what it leaves out: `nox -s configure` with the same options.",
        )
    return cells


def load_matrix(name: str, root: Path) -> Matrix:
    """Read a matrix by name, or a file of the user's own."""
    matrices_by_name: dict[str, Matrix] = dict(matrices())
    if name in matrices_by_name:
        matrix = matrices_by_name[name]
        if not matrix.gpu_families and matrix.tier is not None:
            families = families_of_tier(matrix.tier)
            return matrix.model_copy(update={"gpu_families": families})
        return matrix

    if (root / name).is_file():
        return load_toml(root / name, Matrix)
    raise UsageError(f"MATRIX={name} is neither a matrix nor a file. {nearest(name, matrices_by_name)}")


def cells_by_session(
    matrix: Matrix,
    refs: Mapping[str, TorchRef],
    platform: Platform,
    tests: Sequence[Test] = (),
) -> Mapping[str, Sequence[Cell]]:
    """Return the cells of a matrix that can exist, by session; say which cannot."""
    _refuse_refs_of_one_folder(matrix)
    _refuse_exclusions_without_cells(matrix)
    combinations = expand(
        pythons=matrix.pythons,
        refs=[_ref_of_matrix(name, refs) for name in matrix.torch_refs],
        gpu_families=[family(name).name for name in matrix.gpu_families.get(platform, ())],
        platform=platform,
        exclusions=matrix.exclude,
    )

    cells: dict[str, list[Cell]] = {session: [] for session in SESSIONS_WITH_CELLS}
    left_out: list[str] = []
    for combination in combinations:
        if combination.obstacle is not None:
            left_out.append(f"left out: {combination.cell}: {combination.obstacle}")
            continue
        for component in combination.ref.components:
            session = BUILD_STEPS[component].session
            cells[session].append(combination.cell)
        cells["test_smoke"].append(combination.cell)
    if left_out:
        # All at once, as every write looks for every secret.
        console.detail("\n".join(left_out))

    for test in tests:
        if test.stage == TORCH_TESTS and matrix.test_type in test.types:
            cells[TORCH_TESTS] += _torch_tests(test, cells["build_torch"], platform)
    _refuse_unusable_matrix(cells, platform)
    return cells


def _ref_of_matrix(name: str, refs: Mapping[str, TorchRef]) -> TorchRef:
    if name not in refs:
        raise DataError(f"The matrix: unknown torch ref {name!r}. {nearest(name, refs)}")
    return refs[name]


def _torch_tests(
    test: Test,
    built_cells: Sequence[Cell],
    platform: Platform,
) -> Iterator[Cell]:
    """Yield the parts of one kind of upstream's tests, for the torch of each ref and family."""
    if test.platforms and platform not in test.platforms:
        return

    for cell in built_cells:
        if cell.python in pythons_of_test(test, cell, built_cells):
            yield from parts_of_test(test, cell)


def _refuse_unusable_matrix(
    cells_by_session: Mapping[str, Sequence[Cell]],
    platform: Platform,
) -> None:
    """Refuse a matrix without cells, which would pass in CI, with one twice, or with more than CI takes."""
    if not any(cells_by_session.values()):
        raise DataError(
            f"The matrix has no cell on {platform}.",
            hint=f"Name GPU families for {platform}.",
        )
    for session, cells in cells_by_session.items():
        if len(cells) > MAX_JOBS:
            raise DataError(
                f"{session} has {len(cells)} cells on {platform}; a matrix of CI holds {MAX_JOBS}.",
                hint="Split the matrix into several files.",
            )
        for cell, count in Counter(cells).items():
            if count > 1:
                raise DataError(f"The matrix has {cell} more than once.")


def _refuse_refs_of_one_folder(matrix: Matrix) -> None:
    names_by_folder: dict[str, str] = {}
    for name in matrix.torch_refs:
        other_name = names_by_folder.setdefault(key_name(name), name)
        if other_name != name:
            raise DataError(
                f"Torch refs {other_name!r} and {name!r} would share one folder.",
                hint="Rename one.",
            )


def _refuse_exclusions_without_cells(matrix: Matrix) -> None:
    """Refuse an exclusion that matches no cell: its names are wrong."""
    for table in user_file().tables.get("matrix", {}).values():
        if "exclude" not in table:
            # The exclusions are the project's, and the user's file names other families, refs or Pythons.
            return

    for number, exclusion in enumerate(matrix.exclude):
        platform = exclusion.platform
        families = matrix.gpu_families.get(platform, ())
        _refuse_other_names(number, platform, exclusion.gpu_families, families)
        _refuse_other_names(number, platform, exclusion.torch_refs, matrix.torch_refs)
        _refuse_other_names(number, platform, exclusion.pythons, matrix.pythons)


def _refuse_other_names(
    number: int,
    platform: Platform,
    names: Sequence[str],
    names_of_matrix: Sequence[str],
) -> None:
    for name in names:
        if name not in names_of_matrix:
            raise DataError(
                f"exclude[{number}] names {name!r}, which the matrix does not have on {platform}. "
                f"{nearest(name, names_of_matrix)}"
            )
