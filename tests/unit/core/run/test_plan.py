from core.run.plan import PlannedJob, group_rows, matrices, promotions
from tests.kit.plans import NO, make_job, make_plan


def torch_job(
    python: str, version: str, *, family: str = "gfx1151", expect_failure: bool = False
) -> PlannedJob:
    """Return a job that builds a torch."""
    return make_job(
        "build_pytorch",
        family,
        python=python,
        versions={"torch": version},
        torch_ref=version[:3],
        expect_failure=expect_failure,
    )


def test_fetches_artifacts_and_packages_rocm_in_steps_of_their_own() -> None:
    rocm_and_torch = make_job(
        "build_pytorch", "gfx1151", sessions=("fetch_artifacts", "build_rocm", "check_rocm", "build_torch")
    )

    (row,) = group_rows(make_plan(rocm_and_torch), "linux")["gfx1151"]["build_pytorch"]

    assert row["sessions"] == "build_torch"
    assert row["builds_rocm"] is True


def test_a_job_that_is_handed_rocm_packages_none() -> None:
    (row,) = group_rows(make_plan(make_job("build_pytorch", "gfx1151")), "linux")["gfx1151"]["build_pytorch"]

    assert "builds_rocm" not in row


def test_promotes_each_torch_version_of_a_family_with_all_its_pythons() -> None:
    run_plan = make_plan(
        torch_job("3.12", "2.9.0"),
        torch_job("3.13", "2.9.0"),
        torch_job("3.12", "2.10.0"),
        torch_job("3.12", "2.9.0", family="gfx90a-dcgpu"),
    )

    rows = promotions(run_plan, "linux")

    assert [(row["gpu_family"], row["torch_version"], row["pythons"]) for row in rows] == [
        ("gfx1151", "2.9.0", "3.12,3.13"),
        ("gfx1151", "2.10.0", "3.12"),
        ("gfx90a-dcgpu", "2.9.0", "3.12"),
    ]


def test_promotes_no_python_that_is_expected_to_fail() -> None:
    run_plan = make_plan(torch_job("3.12", "2.9.0"), torch_job("3.13", "2.9.0", expect_failure=True))

    assert [row["pythons"] for row in promotions(run_plan, "linux")] == ["3.12"]


def test_promotes_nothing_that_the_plan_does_not_promote() -> None:
    run_matrices = matrices(make_plan(torch_job("3.12", "2.9.0"), promote=NO))

    assert run_matrices["linux_promote_matrix"] == []
    assert run_matrices["windows_cells"] == {}
