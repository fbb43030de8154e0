"""The plans with the most jobs: they fit into GitHub's matrices, and their outputs into a job."""

import json

import pytest

from ci.plan.origins import completed, needs
from ci.plan.outputs import outputs
from core.errors import DataError
from core.run.plan import MAX_JOBS, Plan, PlannedJob, RocmOrigin
from tests.kit.planning import nightly_plan, plan_dispatch, plan_event, push

CANDIDATE = {"rocm_package_version": "10.1.0rc1"}


def test_every_job_of_a_nightly_release_has_a_name_of_its_own() -> None:
    jobs = nightly_plan().cells

    assert len(jobs) > 500
    assert len({(job.platform, job.stage, job.name) for job in jobs}) == len(jobs)


def test_a_nightly_release_fits_into_githubs_matrices() -> None:
    plan = nightly_plan()

    assert 150 < len(plan.matrix("linux", "build_pytorch")) <= MAX_JOBS
    assert {job.torch_ref for job in plan.matrix("windows", "build_pytorch")} >= {
        "nightly",
        "release/2.14",
    }
    assert plan.promote.value


def test_all_upstream_tests_of_a_candidate_fit_into_githubs_matrices() -> None:
    candidate = plan_event("schedule", inputs_of_call=CANDIDATE, release_type="prerelease")

    jobs = len(candidate.matrix("linux", "test_torch"))
    assert len(nightly_plan().matrix("linux", "test_torch")) < jobs <= MAX_JOBS


def test_refuses_a_matrix_that_github_does_not_take() -> None:
    with pytest.raises(DataError, match="288 jobs") as caught:
        plan_dispatch(
            linux_amdgpu_families="all",
            pytorch_git_refs="nightly main release/2.10 release/2.12 release/2.9 release/2.8",
            pytorch_python_versions="3.11 3.12 3.13",
        )

    assert str(MAX_JOBS) in caught.value.message


INDEX_URL = "https://packages.example/rocm/whl-multi-arch/"
NIGHTLY_VERSION = "10.1.0a20261121"


def nightly_origins(*, index_url: str | None = None, index_for_each_group: bool = False) -> list[RocmOrigin]:
    """Return where the ROCm of a nightly release comes from: of a run, or of an index."""
    origins: list[RocmOrigin] = []
    for groups in needs(nightly_plan()).values():
        for group in groups:
            origin = RocmOrigin(
                platform=group.platform,
                artifact_group=group.artifact_group,
                repository="ROCm/rockrel",
                store="s3://therock-nightly-artifacts",
                artifacts={"base_lib_generic.tar.zst": "a" * 64},
                version=NIGHTLY_VERSION,
            )
            update = {"run_id": "17123441166"}
            if index_url is not None:
                folder = f"{group.artifact_group}/" if index_for_each_group else ""
                update = {"index_url": f"{index_url}{folder}"}
            origins.append(origin.model_copy(update=update))
    return origins


@pytest.fixture(scope="module")
def nightly_plan_with_versions() -> Plan:
    """The plan of a nightly release as its jobs get it: with the versions of the wheels to come."""
    versions = {"torch": f"2.14.0a0+rocm{NIGHTLY_VERSION}"}
    jobs: list[PlannedJob] = []
    for job in nightly_plan().cells:
        is_rocm = job.stage.endswith("rocm")
        jobs.append(job if is_rocm else job.model_copy(update={"versions": versions}))
    return nightly_plan().model_copy(update={"cells": tuple(jobs)})


def test_outputs_of_a_nightly_release_fit_into_a_job(nightly_plan_with_versions: Plan) -> None:
    plan = completed(nightly_plan_with_versions, nightly_origins())

    # Refuses outputs that are too long.
    plan_outputs = outputs(plan)

    row = json.loads(plan_outputs["linux_build_rocm_matrix"])[0]
    assert row["rocm"]["run_id"] == "17123441166"
    assert plan_outputs["rocm_package_index_url"] == ""


def test_an_index_of_all_groups_is_an_output_of_its_own(nightly_plan_with_versions: Plan) -> None:
    plan = completed(nightly_plan_with_versions, nightly_origins(index_url=INDEX_URL))

    plan_outputs = outputs(plan)

    row = json.loads(plan_outputs["linux_build_pytorch_matrix"])[0]
    assert plan_outputs["rocm_package_index_url"] == INDEX_URL
    assert row["rocm"] == {"index": True, "version": NIGHTLY_VERSION}


def test_indexes_of_single_groups_are_part_of_their_jobs(nightly_plan_with_versions: Plan) -> None:
    origins = nightly_origins(index_url=INDEX_URL, index_for_each_group=True)
    plan = completed(nightly_plan_with_versions, origins)

    job = plan.matrix("linux", "build_pytorch")[0]

    assert plan.row(job)["rocm"]["index_url"] == f"{INDEX_URL}{job.artifact_group}/"


def test_refuses_outputs_that_are_too_long_for_a_job() -> None:
    plan = plan_event("push", push())
    too_long = plan.model_copy(update={"notes": (), "variants": plan.variants * 400})

    with pytest.raises(DataError, match="MiB"):
        outputs(too_long)
