from core.run.plan import Cell, grouped, matrices, promotions
from tests.kit.plans import NO, cell, plan


def build(python: str, version: str, group: str = "gfx1151", **more: object) -> Cell:
    return cell(
        "build_pytorch", group, python=python, versions={"torch": version}, torch_ref=version[:3], **more
    )


def test_artifacts_are_fetched_by_a_step_of_their_own() -> None:
    one = cell("build_pytorch", "gfx1151", sessions=("fetch_artifacts", "build_rocm", "build_torch"))
    row = grouped(plan(one), "linux")["gfx1151"]["build_pytorch"][0]
    assert row["sessions"] == "build_rocm build_torch"


def test_a_set_is_a_torch_version_of_a_family_with_all_its_pythons() -> None:
    made = plan(
        build("3.12", "2.9.0"),
        build("3.13", "2.9.0"),
        build("3.12", "2.10.0"),
        build("3.12", "2.9.0", "gfx90a-dcgpu"),
        build("3.13", "2.10.0", expect_failure=True),
    )
    found = [(row["gpu_family"], row["torch_version"], row["pythons"]) for row in promotions(made, "linux")]
    assert found == [
        ("gfx1151", "2.9.0", "3.12,3.13"),
        ("gfx1151", "2.10.0", "3.12"),
        ("gfx90a-dcgpu", "2.9.0", "3.12"),
    ]


def test_nothing_is_promoted_that_the_plan_does_not_promote() -> None:
    made = plan(build("3.12", "2.9.0"), promote=NO)
    assert matrices(made)["linux_promote_matrix"] == []
    assert matrices(made)["windows_cells"] == {}
