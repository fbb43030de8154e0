import pytest

from core.errors import DataError
from core.run.plan import MAX_JOBS, PlannedJob, group_rows, matrices, wheel_sets_to_promote
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


def test_a_row_of_a_matrix_has_only_what_github_needs_before_a_job_starts() -> None:
    rocm_job = make_job("build_rocm", "gfx1151", python=None, name="gfx1151")
    build_job = make_job("build_pytorch", "gfx1151", name="gfx1151, nightly, Python 3.12", runner="ours")

    (group,) = group_rows(make_plan(rocm_job, build_job), "linux")

    assert group == {
        "artifact_group": "gfx1151",
        "build_rocm": [{"job": "build_rocm gfx1151", "runner": "ubuntu-24.04"}],
        "test_rocm": [],
        "build_pytorch": [
            {"job": "build_pytorch gfx1151, nightly, Python 3.12", "runner": "ours", "fetch": True}
        ],
        "test_pytorch": [],
        "test_torch": [],
    }


def test_finds_a_job_by_its_key() -> None:
    jobs = [make_job(stage, "gfx1151", name="gfx1151") for stage in ("build_rocm", "test_rocm")]
    windows_job = make_job("test_rocm", "gfx1151", name="gfx1151", platform="windows")
    run_plan = make_plan(*jobs, windows_job)

    for job in (*jobs, windows_job):
        assert run_plan.find_job(job.platform, job.key) is job
    with pytest.raises(DataError, match="test_rocm gfx1151"):
        run_plan.find_job("linux", "test_rocm gfx1150")


def test_refuses_more_jobs_of_a_group_than_a_matrix_holds() -> None:
    jobs = [torch_job(f"3.{minor}", "2.9.0") for minor in range(MAX_JOBS + 1)]

    with pytest.raises(DataError, match=f"build_pytorch of gfx1151 on linux has {MAX_JOBS + 1} jobs"):
        matrices(make_plan(*jobs))


def test_promotes_each_torch_version_of_a_family_with_all_its_pythons() -> None:
    run_plan = make_plan(
        torch_job("3.12", "2.9.0"),
        torch_job("3.13", "2.9.0"),
        torch_job("3.12", "2.10.0"),
        torch_job("3.12", "2.9.0", family="gfx90a-dcgpu"),
    )

    rows = wheel_sets_to_promote(run_plan, "linux")

    assert [(row["gpu_family"], row["torch_version"], row["pythons"]) for row in rows] == [
        ("gfx1151", "2.9.0", "3.12,3.13"),
        ("gfx1151", "2.10.0", "3.12"),
        ("gfx90a-dcgpu", "2.9.0", "3.12"),
    ]


def test_promotes_no_python_that_is_expected_to_fail() -> None:
    run_plan = make_plan(torch_job("3.12", "2.9.0"), torch_job("3.13", "2.9.0", expect_failure=True))

    assert [row["pythons"] for row in wheel_sets_to_promote(run_plan, "linux")] == ["3.12"]


def test_promotes_nothing_that_the_plan_does_not_promote() -> None:
    run_matrices = matrices(make_plan(torch_job("3.12", "2.9.0"), promote=NO))

    assert run_matrices["linux_promote_matrix"] == []
    assert run_matrices["linux_stages"] == "build_pytorch"
    assert run_matrices["windows_groups"] == []
