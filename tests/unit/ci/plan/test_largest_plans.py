"""The plans with the most jobs: they fit into GitHub's matrices, and their outputs into a job."""

import json

import pytest

from ci.plan.origins import completed, groups_that_need_rocm
from ci.plan.outputs import outputs
from core.errors import DataError
from core.run.plan import MAX_JOBS, Plan, PlannedJob, RocmOrigin
from tests.kit.planning import nightly_plan, plan_dispatch, plan_event, push

CANDIDATE = {"rocm_package_version": "10.1.0rc1"}


def test_every_job_of_a_nightly_release_has_a_name_of_its_own() -> None:
    jobs = nightly_plan().jobs

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


def test_no_matrix_grows_with_the_number_of_families() -> None:
    plan = plan_dispatch(
        linux_amdgpu_families="all",
        pytorch_git_refs="nightly main release/2.10 release/2.12 release/2.9 release/2.8",
        pytorch_python_versions="3.11 3.12 3.13",
    )

    assert len(plan.matrix("linux", "build_pytorch")) > MAX_JOBS
    # Refuses what a matrix does not hold.
    assert json.loads(outputs(plan)["linux_groups"])


INDEX_URL = "https://packages.example/rocm/whl-multi-arch/"
NIGHTLY_VERSION = "10.1.0a20261121"


def nightly_origins(*, index_url: str | None = None) -> list[RocmOrigin]:
    """Return where the ROCm of a nightly release comes from: of a run, or of an index."""
    origins: list[RocmOrigin] = []
    for groups in groups_that_need_rocm(nightly_plan()).values():
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
                update = {"index_url": index_url}
            origins.append(origin.model_copy(update=update))
    return origins


@pytest.fixture(scope="module")
def nightly_plan_with_versions() -> Plan:
    """The plan of a nightly release as its jobs get it: with the versions of the wheels to come."""
    versions = {"torch": f"2.14.0a0+rocm{NIGHTLY_VERSION}"}
    jobs: list[PlannedJob] = []
    for job in nightly_plan().jobs:
        is_rocm = job.stage.endswith("rocm")
        jobs.append(job if is_rocm else job.model_copy(update={"versions": versions}))
    return nightly_plan().model_copy(update={"cells": tuple(jobs)})


@pytest.mark.parametrize("index_url", [None, INDEX_URL], ids=["run", "index"])
def test_outputs_grow_by_a_short_row_with_each_job(
    nightly_plan_with_versions: Plan, index_url: str | None
) -> None:
    plan = completed(nightly_plan_with_versions, nightly_origins(index_url=index_url))

    characters = sum(len(text) for text in outputs(plan).values())

    assert characters < 150 * len(plan.jobs)


def test_rows_of_a_nightly_release_do_not_say_where_rocm_comes_from(nightly_plan_with_versions: Plan) -> None:
    plan = completed(nightly_plan_with_versions, nightly_origins(index_url=INDEX_URL))

    text = str(outputs(plan))

    assert INDEX_URL not in text
    assert plan.rocm_row(plan.matrix("linux", "build_pytorch")[0])["index_url"] == INDEX_URL


def test_refuses_outputs_that_are_too_long_for_a_job() -> None:
    plan = plan_event("push", push())
    upload = plan.upload.model_copy(update={"reason": "x" * 2**20})
    too_long = plan.model_copy(update={"upload": upload})

    with pytest.raises(DataError, match="MiB"):
        outputs(too_long)
