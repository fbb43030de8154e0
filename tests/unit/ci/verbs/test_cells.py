import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ci.jobs import MATRIX_SESSIONS
from ci.plan.data import Matrix
from ci.verbs.cells import Cell, expand, load_matrix
from core import console
from core.cli.options import ROOT
from core.errors import DataError, UsageError
from core.run import Platform
from core.run.plan import MAX_JOBS
from pytorch_build.refs.torch_refs import TorchRef, load_refs
from tests.kit.front_doors import run_ci
from tests.unit.ci.plan.planning import known, planned, pull_request


def refs(platform: Platform = "linux") -> Mapping[str, TorchRef]:
    return load_refs(platform=platform)


def matrix(**changes: Any) -> Matrix:
    values = {
        "pythons": ("3.12",),
        "torch_refs": ("nightly",),
        "tool_pythons": ("3.11",),
        "gpu_families": {"linux": ("gfx94X-dcgpu",)},
    }
    return Matrix.model_validate({**values, **changes})


UPSTREAM = known().triggers.tests.values()


@pytest.mark.parametrize("platform", ["linux", "windows"])
@pytest.mark.parametrize("name", ["ci", "release"])
def test_the_embedded_matrices_expand_and_fit_into_ci(name: str, platform: Platform) -> None:
    expanded = expand(load_matrix(name, ROOT), refs(platform), platform, tuple(UPSTREAM))
    assert expanded["build_torch"]
    assert bool(expanded["test_torch"]) == (name == "release")
    assert expanded["test_smoke"] == expanded["build_torch"]
    assert all(len(found) <= MAX_JOBS for found in expanded.values())
    assert load_matrix(name, ROOT).tool_pythons == ("3.11", "3.12", "3.13")


def test_a_ref_gets_only_the_stages_of_its_components() -> None:
    one = refs()["nightly"].only(["torch", "audio"])
    sessions = expand(matrix(), {"nightly": one}, "linux")
    cell = Cell(python="3.12", torch_ref="nightly", gpu_family="gfx94X-dcgpu")
    assert {name for name, found in sessions.items() if found} == {"build_torch", "build_audio", "test_smoke"}
    assert sessions["build_torch"] == [cell]


def test_upstreams_tests_are_a_cell_for_each_part_on_one_python_of_a_ref() -> None:
    both = matrix(pythons=("3.11", "3.12"), test_type="full")
    found = expand(both, refs(), "linux", tuple(UPSTREAM))["test_torch"]
    assert {one.python for one in found} == {"3.12"}
    assert [(one.config, one.shard) for one in found] == [
        *(("default", "1/2"), ("default", "2/2"), ("inductor", "1/2"), ("inductor", "2/2")),
        *(("distributed", "1/3"), ("distributed", "2/3"), ("distributed", "3/3")),
    ]
    assert found[0].row == ("3.12", "nightly", "gfx94X-dcgpu", "default", "1/2")
    assert found[0]._replace(config="").row == ("3.12", "nightly", "gfx94X-dcgpu")
    night = both.model_copy(update={"test_type": "comprehensive", "pythons": ("3.11",)})
    found = expand(night, refs(), "linux", tuple(UPSTREAM))["test_torch"]
    assert [(one.python, one.config) for one in found] == [("3.11", "default")] * 2
    assert expand(matrix(), refs(), "linux", tuple(UPSTREAM))["test_torch"] == []


def test_where_a_matrix_has_upstreams_tests() -> None:
    windows = matrix(gpu_families={"windows": ("gfx110X-all",)}, test_type="full")
    found = expand(windows, refs("windows"), "windows", tuple(UPSTREAM))["test_torch"]
    assert {one.config for one in found} == {"default"}


def test_what_cannot_be_built_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(console, "detail", said.append)
    sessions = expand(matrix(pythons=("3.12", "3.99")), refs(), "linux")
    assert said == ["left out: 3.99 nightly gfx94X-dcgpu: nightly is not built for Python 3.99"]
    assert {cell.python for cell in sessions["build_torch"]} == {"3.12"}
    known = {**refs(), "main": refs()["main"].only([])}
    expand(matrix(torch_refs=("nightly", "main")), known, "linux")
    assert said[1:] == ["left out: 3.12 main gfx94X-dcgpu: main is not built on linux"]


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"torch_refs": ("nigtly",)}, DataError, r"unknown torch ref 'nigtly'\. Did you mean 'nightly'\?"),
        ({"torch_refs": ("release/2.10", "release-2.10")}, DataError, "would share one folder"),
        ({"torch_refs": ("nightly", "nightly")}, DataError, "3.12 nightly gfx94X-dcgpu more than once"),
        ({"pythons": ("3.12", "3.12")}, DataError, "more than once"),
        ({"gpu_families": {"windows": ("gfx110X-all",)}}, DataError, "has no cell on linux"),
        ({"pythons": ("3.99",)}, DataError, "has no cell on linux"),
    ],
)
def test_a_matrix_of_mistakes_is_refused(changes: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        expand(matrix(**changes), refs(), "linux")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpu_families": ("gfx90c",)}, r"exclude\[0\] names 'gfx90c', which the matrix does not have"),
        ({"torch_refs": ("nigtly",)}, "Did you mean 'nightly'"),
        ({"platform": "windows"}, "does not have on windows"),
        ({"pythons": ("3.9",)}, "names '3.9', which the matrix does not have"),
    ],
)
def test_an_exclusion_that_matches_nothing_is_refused(changes: dict[str, Any], said: str) -> None:
    row: dict[str, Any] = {"gpu_families": ("gfx94X-dcgpu",), "platform": "linux", "torch_refs": ("nightly",)}
    row["reason"] = "why"
    families = {"linux": ("gfx94X-dcgpu", "gfx1151")}
    found = expand(matrix(exclude=(row,), gpu_families=families), refs(), "linux")["build_torch"]
    assert [cell.gpu_family for cell in found] == ["gfx1151"]
    with pytest.raises(DataError, match=said):
        expand(matrix(exclude=({**row, **changes},), gpu_families=families), refs(), "linux")


def test_more_cells_than_ci_takes_are_refused() -> None:
    ref = refs()["nightly"]
    many = {f"r{number}": ref for number in range(MAX_JOBS + 1)}
    exact = dict(list(many.items())[:MAX_JOBS])
    assert len(expand(matrix(torch_refs=tuple(exact)), exact, "linux")["build_torch"]) == MAX_JOBS
    with pytest.raises(DataError, match=f"has {MAX_JOBS + 1} cells on linux; a matrix of CI holds 256"):
        expand(matrix(torch_refs=tuple(many)), many, "linux")


def test_a_matrix_is_named_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'pythons = ["3.12"]\ntorch_refs = ["sample"]\ntool_pythons = ["3.11"]\n'
        '[gpu_families]\nlinux = ["cpu"]\n'
    )
    mine = load_matrix("mine.toml", tmp_path)
    assert mine == matrix(torch_refs=("sample",), gpu_families={"linux": ("cpu",)})
    for name in ("", "relase"):
        with pytest.raises(UsageError, match="is neither a matrix nor a file"):
            load_matrix(name, tmp_path)
    (tmp_path / "typo.toml").write_text('python = ["3.12"]\n')
    with pytest.raises(DataError, match="pythons"):
        load_matrix("typo.toml", tmp_path)


def test_the_verb_prints_rows_for_the_noxfile(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_ci("cells", "ci", "--platform", "windows") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["tests"] == ["3.11", "3.12", "3.13"]
    assert printed["build_torch"] == [["3.12", "nightly", "gfx110X-all"]]
    assert set(printed) == {*MATRIX_SESSIONS, "tests"}
    assert printed["test_torch"] == []


def test_a_plan_gives_the_cells_of_its_sessions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = planned("pull_request", pull_request("build:pytorch", "gfx1151"))
    made.write(tmp_path / "plan.json")
    words = ["cells", str(tmp_path / "plan.json")]
    assert run_ci(*words, "--platform=linux") == 0
    rows = json.loads(capsys.readouterr().out)
    cells = [["3.12", "nightly", "gfx94X-dcgpu"], ["3.12", "nightly", "gfx1151"]]
    assert rows["build_torch"] == rows["build_triton"] == rows["test_smoke"] == cells
    assert rows["tests"] == ["3.11", "3.12", "3.13"]
    assert run_ci(*words, "--platform=windows") == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows["build_triton"] == []
    assert rows["build_torch"][0] == ["3.12", "nightly", "gfx110X-all"]


def test_a_plan_without_cells_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned("pull_request", pull_request()).write(tmp_path / "plan.json")
    assert run_ci("cells", tmp_path / "plan.json") == 4
    assert "The plan has no cell on linux: no label build:pytorch." in capsys.readouterr().err
    (tmp_path / "other.json").write_text("{}")
    assert run_ci("cells", tmp_path / "other.json") == 3
