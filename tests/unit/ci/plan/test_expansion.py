"""The cells of a matrix, and why some cannot exist."""

from dataclasses import replace

from ci.plan.data import Exclusion, Test
from ci.plan.expansion import Combination, expand, parts_of_test, pythons_of_test
from core.cell import Cell
from core.run import Platform
from pytorch_build.refs.torch_refs import TorchRef
from tests.kit.planning import torch_refs

FAMILY = "gfx94X-dcgpu"
EXCLUSION = Exclusion(gpu_families=("gfx1151",), platform="linux", reason="it has no driver")
CELL = Cell(gpu_family=FAMILY, torch_ref="nightly", python="3.12")


def nightly() -> TorchRef:
    """Return a torch ref of two Pythons."""
    return replace(torch_refs()["linux"]["nightly"], pythons=("3.11", "3.12"))


def combinations(
    *refs: TorchRef, pythons: tuple[str, ...] = ("3.11", "3.12"), platform: Platform = "linux"
) -> list[Combination]:
    """Return the combinations of refs with two GPU families, one of which is excluded on Linux."""
    matrix_combinations = expand(
        pythons=pythons,
        refs=refs,
        gpu_families=(FAMILY, "gfx1151"),
        platform=platform,
        exclusions=(EXCLUSION,),
    )
    return list(matrix_combinations)


def obstacles(matrix_combinations: list[Combination]) -> dict[str, str | None]:
    """Return why each cell cannot exist, by its text."""
    return {str(combination.cell): combination.obstacle for combination in matrix_combinations}


def upstream_test(**changes: object) -> Test:
    """Return a test of upstream's in two shards."""
    values = {"stage": "test_torch", "session": "test_torch", "config": "default", "shards": 2}
    return Test.model_validate({**values, **changes})


def test_expands_pythons_then_refs_then_families() -> None:
    assert obstacles(combinations(nightly())) == {
        "gfx94X-dcgpu, nightly, Python 3.11": None,
        "gfx1151, nightly, Python 3.11": "it has no driver",
        "gfx94X-dcgpu, nightly, Python 3.12": None,
        "gfx1151, nightly, Python 3.12": "it has no driver",
    }


def test_excludes_a_family_on_its_platform_alone() -> None:
    assert set(obstacles(combinations(nightly(), platform="windows")).values()) == {None}


def test_says_which_python_a_ref_is_not_built_for() -> None:
    found = obstacles(combinations(nightly(), pythons=("3.13",)))

    assert set(found.values()) == {"nightly is not built for Python 3.13"}


def test_says_that_a_ref_is_not_built_on_the_platform() -> None:
    found = obstacles(combinations(nightly().with_only_components([])))

    assert set(found.values()) == {"nightly is not built on linux"}


def test_a_test_runs_under_the_pythons_that_it_names() -> None:
    built = [CELL, replace(CELL, python="3.11"), replace(CELL, gpu_family="cpu", python="3.13")]

    assert pythons_of_test(upstream_test(pythons=("3.12", "3.13")), CELL, built) == ["3.12"]
    assert pythons_of_test(upstream_test(pythons=("3.14",)), CELL, built) == ["3.12"]
    assert pythons_of_test(upstream_test(), CELL, built) == ["3.12", "3.11"]


def test_a_test_has_a_cell_for_each_of_its_shards() -> None:
    parts = parts_of_test(upstream_test(), CELL)

    assert [str(part) for part in parts] == [
        "gfx94X-dcgpu, nightly, Python 3.12, default tests 1/2",
        "gfx94X-dcgpu, nightly, Python 3.12, default tests 2/2",
    ]
