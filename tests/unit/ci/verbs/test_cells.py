"""A matrix as the cells of each session."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ci.pipeline import SESSIONS_WITH_CELLS
from ci.plan.data import Matrix
from ci.verbs.cells import cells_by_session, load_matrix
from core.cell import Cell
from core.cli.options import ROOT
from core.errors import DataError, MissingInputError, UsageError
from core.run import Platform
from core.run.plan import MAX_JOBS
from pytorch_build.refs.torch_refs import TorchRef
from tests.kit.front_doors import run_verb
from tests.kit.planning import ci_data, plan_event, pull_request, torch_refs

TESTS = tuple(ci_data().triggers.tests.values())
TOOL_PYTHONS = ("3.11", "3.12", "3.13")


Cells = Mapping[str, Sequence[Cell]]


def refs(platform: Platform = "linux") -> Mapping[str, TorchRef]:
    return torch_refs()[platform]


def expand_on_linux(matrix: Matrix) -> Cells:
    """Return the cells of a matrix of the project's refs."""
    return cells_by_session(matrix, refs(), "linux")


def gpu_families(cells: Sequence[Cell]) -> list[str | None]:
    return [cell.gpu_family for cell in cells]


def pythons(cells: Sequence[Cell]) -> list[str | None]:
    return [cell.python for cell in cells]


def parts_of_tests(cells: Sequence[Cell]) -> list[str]:
    """Return upstream's configurations and shards."""
    return [f"{cell.config} {cell.shard}" for cell in cells]


def matrix(**changes: Any) -> Matrix:
    """Return a matrix of one cell with other values for some of its keys."""
    values = {
        "pythons": ("3.12",),
        "torch_refs": ("nightly",),
        "tool_pythons": ("3.11",),
        "gpu_families": {"linux": ("gfx94X-dcgpu",)},
    }
    return Matrix.model_validate({**values, **changes})


# --- The matrices of the data ----------------------------------------------------------------


@pytest.mark.parametrize("platform", ["linux", "windows"])
@pytest.mark.parametrize("name", ["ci", "release"])
def test_the_projects_matrices_fit_into_ci(name: str, platform: Platform) -> None:
    cells = cells_by_session(load_matrix(name, ROOT), refs(platform), platform, TESTS)

    assert cells["build_torch"]
    assert cells["test_smoke"] == cells["build_torch"]
    assert bool(cells["test_torch"]) == (name == "release")
    assert max(map(len, cells.values())) <= MAX_JOBS


@pytest.mark.parametrize("name", ["ci", "release"])
def test_the_tool_is_tested_on_every_supported_python(name: str) -> None:
    assert load_matrix(name, ROOT).tool_pythons == TOOL_PYTHONS


# --- Which cells a matrix has ----------------------------------------------------------------


def test_a_ref_has_only_the_sessions_of_its_components() -> None:
    ref = refs()["nightly"].with_only_components(["torch", "audio"])

    cells = cells_by_session(matrix(), {"nightly": ref}, "linux")

    for session in SESSIONS_WITH_CELLS:
        assert bool(cells[session]) == (session in {"build_torch", "build_audio", "test_smoke"})
    expected = Cell(python="3.12", torch_ref="nightly", gpu_family="gfx94X-dcgpu")
    assert cells["build_torch"] == [expected]


def upstream_tests(tested: Matrix, platform: Platform = "linux") -> list[Cell]:
    return list(cells_by_session(tested, refs(platform), platform, TESTS)["test_torch"])


def test_upstreams_tests_have_a_cell_for_each_part_on_one_python() -> None:
    cells = upstream_tests(matrix(pythons=("3.11", "3.12"), test_type="full"))

    assert set(pythons(cells)) == {"3.12"}
    assert parts_of_tests(cells) == [
        "default 1/2",
        "default 2/2",
        "inductor 1/2",
        "inductor 2/2",
        "distributed 1/3",
        "distributed 2/3",
        "distributed 3/3",
    ]


def test_upstreams_tests_run_on_the_python_that_the_matrix_has() -> None:
    cells = upstream_tests(matrix(pythons=("3.11",), test_type="comprehensive"))

    assert pythons(cells) == ["3.11", "3.11"]
    assert parts_of_tests(cells) == ["default 1/2", "default 2/2"]


def test_a_matrix_of_quick_tests_has_none_of_upstreams() -> None:
    assert upstream_tests(matrix()) == []


def test_windows_has_only_upstreams_default_tests() -> None:
    windows = matrix(gpu_families={"windows": ("gfx110X-all",)}, test_type="full")

    cells = upstream_tests(windows, "windows")

    assert parts_of_tests(cells) == ["default 1/2", "default 2/2"]


# --- What is left out ------------------------------------------------------------------------


def test_leaves_out_pythons_that_a_ref_is_not_built_for(capsys: pytest.CaptureFixture[str]) -> None:
    cells = expand_on_linux(matrix(pythons=("3.12", "3.99")))

    assert pythons(cells["build_torch"]) == ["3.12"]
    assert "left out: gfx94X-dcgpu, nightly, Python 3.99: " in capsys.readouterr().err


def test_leaves_out_refs_that_are_not_built_on_the_platform(capsys: pytest.CaptureFixture[str]) -> None:
    without_components = {**refs(), "main": refs()["main"].with_only_components([])}

    cells = cells_by_session(matrix(torch_refs=("nightly", "main")), without_components, "linux")

    assert list(map(str, cells["build_torch"])) == ["gfx94X-dcgpu, nightly, Python 3.12"]
    assert "main is not built on linux" in capsys.readouterr().err


EXCLUSION = {
    "gpu_families": ("gfx94X-dcgpu",),
    "platform": "linux",
    "torch_refs": ("nightly",),
    "reason": "it does not compile",
}
TWO_FAMILIES = {"linux": ("gfx94X-dcgpu", "gfx1151")}


def test_leaves_out_excluded_cells() -> None:
    cells = expand_on_linux(matrix(exclude=(EXCLUSION,), gpu_families=TWO_FAMILIES))

    assert gpu_families(cells["build_torch"]) == ["gfx1151"]


@pytest.mark.parametrize(
    ("changes", "mention"),
    [
        ({"gpu_families": ("gfx90c",)}, "'gfx90c'"),
        ({"torch_refs": ("nigtly",)}, "'nightly'"),
        ({"platform": "windows"}, "windows"),
        ({"pythons": ("3.9",)}, "'3.9'"),
    ],
)
def test_refuses_an_exclusion_that_matches_nothing(changes: dict[str, Any], mention: str) -> None:
    exclusion = {**EXCLUSION, **changes}

    with pytest.raises(DataError, match="exclude") as caught:
        expand_on_linux(matrix(exclude=(exclusion,), gpu_families=TWO_FAMILIES))

    assert mention in str(caught.value)


# --- Mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "mention"),
    [
        ({"torch_refs": ("nigtly",)}, "'nightly'"),
        ({"torch_refs": ("release/2.10", "release-2.10")}, "one folder"),
        ({"torch_refs": ("nightly", "nightly")}, "gfx94X-dcgpu, nightly, Python 3.12"),
        ({"pythons": ("3.12", "3.12")}, "more than once"),
        ({"gpu_families": {"windows": ("gfx110X-all",)}}, "no cell on linux"),
        ({"pythons": ("3.99",)}, "no cell on linux"),
    ],
)
def test_refuses_a_matrix_with_a_mistake(changes: dict[str, Any], mention: str) -> None:
    with pytest.raises(DataError) as caught:
        expand_on_linux(matrix(**changes))

    assert mention in str(caught.value)


def refs_of_one_source(count: int) -> Mapping[str, TorchRef]:
    """Return so many torch refs, which differ in their names alone."""
    source = refs()["nightly"]
    refs_by_name: dict[str, TorchRef] = {}
    for number in range(count):
        name = f"r{number}"
        refs_by_name[name] = replace(source, name=name)
    return refs_by_name


def test_takes_as_many_cells_as_ci_does() -> None:
    refs_by_name = refs_of_one_source(MAX_JOBS)

    cells = cells_by_session(matrix(torch_refs=tuple(refs_by_name)), refs_by_name, "linux")

    assert len(cells["build_torch"]) == MAX_JOBS


def test_refuses_more_cells_than_ci_takes() -> None:
    refs_by_name = refs_of_one_source(MAX_JOBS + 1)

    with pytest.raises(DataError, match=f"{MAX_JOBS + 1} cells"):
        cells_by_session(matrix(torch_refs=tuple(refs_by_name)), refs_by_name, "linux")


# --- Reading a matrix ------------------------------------------------------------------------


def test_reads_a_matrix_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'pythons = ["3.12"]\ntorch_refs = ["sample"]\ntool_pythons = ["3.11"]\n'
        '[gpu_families]\nlinux = ["cpu"]\n'
    )

    expected = matrix(torch_refs=("sample",), gpu_families={"linux": ("cpu",)})
    assert load_matrix("mine.toml", tmp_path) == expected


@pytest.mark.parametrize("name", ["", "relase"])
def test_refuses_a_name_that_is_neither_a_matrix_nor_a_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"MATRIX={name} "):
        load_matrix(name, tmp_path)


def test_names_the_key_that_a_file_lacks(tmp_path: Path) -> None:
    (tmp_path / "typo.toml").write_text('python = ["3.12"]\n')

    with pytest.raises(DataError, match="pythons"):
        load_matrix("typo.toml", tmp_path)


# --- The verb --------------------------------------------------------------------------------


def print_matrix(capsys: pytest.CaptureFixture[str], matrix_name: object, platform: Platform) -> Any:
    """Return what the verb prints for the noxfile."""
    assert run_verb("ci", "cells", matrix_name, "--platform", platform) == 0
    return json.loads(capsys.readouterr().out)


def cell_names(printed_matrix: Any, session: str) -> list[str]:
    return [cell["name"] for cell in printed_matrix["cells"][session]]


def test_prints_the_cells_of_every_session_that_has_some(capsys: pytest.CaptureFixture[str]) -> None:
    printed_matrix = print_matrix(capsys, "ci", "windows")

    assert printed_matrix["cells"].keys() <= set(SESSIONS_WITH_CELLS)
    assert "test_torch" not in printed_matrix["cells"]
    assert cell_names(printed_matrix, "build_torch") == ["gfx110X-all, nightly, Python 3.12"]


def test_prints_the_parameters_and_keywords_of_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    (cell,) = print_matrix(capsys, "ci", "windows")["cells"]["build_torch"]

    assert cell["parameters"] == {"gpu_family": "gfx110X-all", "torch_ref": "nightly", "python": "3.12"}
    assert cell["keywords"] == ["nightly", "gfx110X_all", "py312"]


def test_prints_the_pythons_that_the_tool_is_tested_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_matrix(capsys, "ci", "linux")["test_pythons"] == list(TOOL_PYTHONS)


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    file = tmp_path / "plan.json"
    plan_event("pull_request", pull_request("build:pytorch", "gfx1151")).write(file)
    return file


@pytest.mark.parametrize("session", ["build_torch", "build_triton", "test_smoke"])
def test_prints_the_cells_of_a_plan(
    plan_file: Path, capsys: pytest.CaptureFixture[str], session: str
) -> None:
    printed_matrix = print_matrix(capsys, plan_file, "linux")

    assert cell_names(printed_matrix, session) == [
        "gfx94X-dcgpu, nightly, Python 3.12",
        "gfx1151, nightly, Python 3.12",
    ]


def test_prints_the_cells_of_a_plan_on_another_platform(
    plan_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed_matrix = print_matrix(capsys, plan_file, "windows")

    assert "build_triton" not in printed_matrix["cells"]
    assert cell_names(printed_matrix, "build_torch")[0] == "gfx110X-all, nightly, Python 3.12"


def test_tells_why_a_plan_has_no_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "plan.json"
    plan_event("pull_request", pull_request()).write(file)

    assert run_verb("ci", "cells", file, "--platform=linux") == MissingInputError.exit_code

    assert "no label build:pytorch" in capsys.readouterr().err


def test_refuses_a_file_that_is_no_plan(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    file.write_text("{}")

    assert run_verb("ci", "cells", file) == DataError.exit_code
