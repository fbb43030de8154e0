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
from ci.plan.data import Matrix, Test, matrices, of_tier, triggers
from core import console
from core.cell import Cell
from core.cli.options import common_from
from core.data import load_toml, own
from core.errors import DataError, MissingInputError, UsageError, nearest
from core.families import family
from core.run import PLAIN, Platform, key_name
from core.run.plan import MAX_JOBS, Plan
from core.run.plan import Cell as PlanCell
from pytorch_build.refs.torch_refs import TorchRef, load_refs

TORCH_TESTS = "test_torch"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's own options."""
    what = "ci, release, rehearsal, a plan that `configure` wrote, or a TOML file with such a table"
    parser.add_argument("matrix", help=what)
    parser.add_argument("--platform", choices=("linux", "windows"), help="default: this machine's")


def run(arguments: argparse.Namespace) -> None:
    """Print the cells as JSON, and what was left out for people."""
    common = common_from(arguments)
    platform: Platform = arguments.platform or common.outputs.platform
    if (common.root / arguments.matrix).suffix == ".json":
        sessions = planned(Plan.read(common.root / arguments.matrix), platform)
        pythons = matrices().ci.tool_pythons
    else:
        matrix = load_matrix(arguments.matrix, common.root)
        refs = load_refs(platform=platform)
        sessions = expand(matrix, refs, platform, tuple(triggers().tests.values()))
        pythons = matrix.tool_pythons
    described_cells = {name: [describe(cell) for cell in cells] for name, cells in sessions.items() if cells}
    console.result(json.dumps({"cells": described_cells, "test_pythons": list(pythons)}))


def describe(cell: Cell) -> Mapping[str, object]:
    """Return what the noxfile has to know of a cell."""
    return {"name": str(cell), "keywords": cell.keywords, "parameters": cell.to_json()}


def planned(plan: Plan, platform: Platform) -> Mapping[str, Sequence[Cell]]:
    """Return the cells of a plan, by session."""
    found: dict[str, list[Cell]] = {name: [] for name in SESSIONS_WITH_CELLS}
    for one in plan.cells:
        if one.build_variant != PLAIN:
            console.detail(f"left out: {one.name}; name it: -- --build-variant={one.build_variant}")
            continue
        for session in one.sessions if one.platform == platform else ():
            if session in found:
                found[session].append(_plan_cell(one))
    if not any(found.values()):
        raise MissingInputError(
            f"The plan has no cell on {platform}: {plan.build_pytorch.reason}.",
            hint="Look at what it leaves out: `nox -s configure` with the same options.",
        )
    return found


def _plan_cell(job: PlanCell) -> Cell:
    return Cell(
        python=job.python or None,
        torch_ref=job.torch_ref or None,
        gpu_family=job.gpu_family,
        config=job.config or None,
        shard=job.shard or None,
    )


def load_matrix(name: str, root: Path) -> Matrix:
    """Read a matrix by name, or a file of the user's own."""
    known: dict[str, Matrix] = dict(matrices())
    if name in known:
        matrix = known[name]
        found = matrix.gpu_families or (of_tier(matrix.tier) if matrix.tier else {})
        return matrix.model_copy(update={"gpu_families": found})
    if (root / name).is_file():
        return load_toml(root / name, Matrix)
    raise UsageError(f"MATRIX={name} is neither a matrix nor a file. {nearest(name, known)}")


def expand(
    matrix: Matrix, refs: Mapping[str, TorchRef], platform: Platform, tests: Sequence[Test] = ()
) -> Mapping[str, Sequence[Cell]]:
    """Expand a matrix into the cells that can exist, by session; say which cannot."""
    _refuse_names(matrix)
    sessions: dict[str, list[Cell]] = {name: [] for name in SESSIONS_WITH_CELLS}
    left_out: list[str] = []
    for python in matrix.pythons:
        for ref_name in matrix.torch_refs:
            if ref_name not in refs:
                raise DataError(f"The matrix: unknown torch ref {ref_name!r}. {nearest(ref_name, refs)}")
            ref = refs[ref_name]
            for name in matrix.gpu_families.get(platform, ()):
                family_name = family(name).name
                cell = Cell(python=python, torch_ref=ref_name, gpu_family=family_name)
                reason = missing(python, ref, family_name, matrix, platform)
                if reason:
                    left_out.append(f"left out: {python} {ref_name} {name}: {reason}")
                    continue
                for component in ref.components:
                    sessions[BUILD_STEPS[component].session].append(cell)
                sessions["test_smoke"].append(cell)
    if left_out:  # at once, as every write looks for every secret
        console.detail("\n".join(left_out))
    for test in tests:
        if test.stage == TORCH_TESTS and matrix.test_type in test.types:
            sessions[TORCH_TESTS] += _parts(test, sessions["build_torch"], platform)
    _refuse_size(sessions, platform)
    return sessions


def _parts(test: Test, built: Sequence[Cell], platform: Platform) -> Iterator[Cell]:
    """Yield the parts of one kind of upstream's tests, for the torch of each ref and family."""
    if platform not in (test.platforms or (platform,)):
        return

    pythons_of_wheels: dict[tuple[str | None, str | None], list[str]] = {}
    for cell in built:
        pythons_of_wheels.setdefault((cell.torch_ref, cell.gpu_family), []).append(cell.python or "")

    for cell in built:
        pythons = pythons_of_wheels[cell.torch_ref, cell.gpu_family]
        if cell.python in test.of(pythons):
            for number in range(1, test.shards + 1):
                yield replace(cell, config=test.config, shard=f"{number}/{test.shards}")


def missing(python: str, ref: TorchRef, gpu_family: str, matrix: Matrix, platform: Platform) -> str:
    """Return why a cell cannot exist; "" where it can."""
    if python not in ref.pythons:
        return f"{ref.name} is not built for Python {python}"
    if not ref.components:
        return f"{ref.name} is not built on {platform}"
    rows = (row for row in matrix.exclude if row.covers(gpu_family, platform, ref.name, python))
    return next((row.reason for row in rows), "")


def _refuse_size(sessions: Mapping[str, Sequence[Cell]], platform: Platform) -> None:
    """Refuse a matrix without cells, which would pass in CI, and one with more than CI takes."""
    if not any(sessions.values()):
        raise DataError(f"The matrix has no cell on {platform}.", hint=f"Name GPU families for {platform}.")
    for name, cells in sessions.items():
        if len(cells) > MAX_JOBS:
            raise DataError(
                f"{name} has {len(cells)} cells on {platform}; a matrix of CI holds {MAX_JOBS}.",
                hint="Split the matrix into several files.",
            )
        for cell, count in Counter(cells).items():
            if count > 1:
                raise DataError(f"The matrix has {cell} more than once.")


def _refuse_names(matrix: Matrix) -> None:
    """Refuse refs that would share a folder, and an exclusion that matches nothing: its names are wrong."""
    seen: dict[str, str] = {}
    for name in matrix.torch_refs:
        other = seen.setdefault(key_name(name), name)
        if other != name:
            raise DataError(f"Torch refs {other!r} and {name!r} would share one folder.", hint="Rename one.")
    if any("exclude" not in one for one in own().tables.get("matrix", {}).values()):
        return  # these rows are the project's, and the user's file names other families, refs or Pythons
    for number, row in enumerate(matrix.exclude):
        families = matrix.gpu_families.get(row.platform, ())
        there = {"gpu_families": families, "torch_refs": matrix.torch_refs, "pythons": matrix.pythons}
        for name, known in ((name, known) for key, known in there.items() for name in getattr(row, key)):
            if name not in known:
                raise DataError(
                    f"exclude[{number}] names {name!r}, which the matrix does not have on {row.platform}. "
                    f"{nearest(name, known)}"
                )
