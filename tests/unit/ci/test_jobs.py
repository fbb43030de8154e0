from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ci.flow import configure_options_of_release, make_plan, with_placeholders
from ci.jobs import FlowSettings, Job, common_options, jobs_of_plan, promotion_job, store_options
from ci.plan.origins import completed
from core.cli.options import Common
from core.files import digest_of
from core.run.plan import Plan, RocmOrigin

FAMILY = "gfx94X-dcgpu"
PULL_REQUEST = ("--event=pull_request", "--torch-ref=sample", f"--gpu-family={FAMILY}")
WITH_PYTORCH = (*PULL_REQUEST, "--label=build:pytorch")
PYTORCH_OF_NIGHTLY = ("--event=pull_request", "--label=build:pytorch", f"--gpu-family={FAMILY}")


def stages_of(jobs: Iterable[Job]) -> list[str]:
    return [job.kind for job in jobs]


def jobs_of(jobs: Iterable[Job], kind: str) -> list[Job]:
    return [job for job in jobs if job.kind == kind]


def kinds_by_name(jobs: Iterable[Job]) -> dict[str, str]:
    return {job.name: job.kind for job in jobs}


def jobs_of_event(*options: str, settings: FlowSettings | None = None) -> Sequence[Job]:
    """Return the jobs of an event's plan on Linux, before it is resolved."""
    chosen_settings = settings or FlowSettings()
    return jobs_of_plan(make_plan(options, chosen_settings), "linux", chosen_settings)


# Jobs of events


@pytest.mark.parametrize(
    ("options", "stages"),
    [
        pytest.param(
            WITH_PYTORCH,
            ["build_rocm", "test_rocm", "build_pytorch", "test_pytorch", "test_report", "summary"],
            id="PyTorch",
        ),
        pytest.param(PULL_REQUEST, ["build_rocm", "test_rocm", "test_report", "summary"], id="ROCm alone"),
        pytest.param((*WITH_PYTORCH, "--fork"), ["build_pytorch", "summary"], id="a fork"),
    ],
)
def test_a_pull_request_builds_before_it_tests_and_ends_with_the_page(
    options: tuple[str, ...], stages: list[str]
) -> None:
    assert stages_of(jobs_of_event(*options)) == stages


def test_a_fork_builds_rocm_in_the_job_of_pytorch() -> None:
    build = jobs_of_event(*WITH_PYTORCH, "--fork")[0]

    assert build.calls[0].sessions[0] == "build_rocm"


@pytest.fixture(scope="module")
def jobs_with_tests() -> Sequence[Job]:
    return jobs_of_event(*WITH_PYTORCH, "--label=test:torch", "--label=test:smoke")


def test_each_part_of_upstreams_tests_is_a_job(jobs_with_tests: Sequence[Job]) -> None:
    parts = jobs_of(jobs_with_tests, "test_torch")

    assert [part.calls[0].sessions for part in parts] == [("test_torch",), ("test_torch",)]
    assert "--shard=1/2" in parts[0].calls[0].options
    assert "--shard=2/2" in parts[1].calls[0].options


def test_tests_wait_for_the_build_that_they_install(jobs_with_tests: Sequence[Job]) -> None:
    (build,) = jobs_of(jobs_with_tests, "build_pytorch")

    for part in jobs_of(jobs_with_tests, "test_torch"):
        assert part.needs == (build.name,)


def test_the_report_on_tests_waits_for_all_of_them_and_for_failed_ones_too(
    jobs_with_tests: Sequence[Job],
) -> None:
    (report,) = jobs_of(jobs_with_tests, "test_report")
    test_jobs = [job for job in jobs_with_tests if job.kind.startswith("test_") and job != report]

    assert set(report.needs) == {job.name for job in test_jobs}
    assert report.starts_when == "any ran"


def test_the_page_is_written_last(jobs_with_tests: Sequence[Job]) -> None:
    assert jobs_with_tests[-1].kind == "summary"
    assert set(jobs_with_tests[-1].needs) == {job.name for job in jobs_with_tests[:-1]}


def test_a_variant_is_built_and_stored_apart() -> None:
    plain, asan = jobs_of(jobs_of_event(*PULL_REQUEST, "--label=ci:asan"), "build_rocm")

    for call in asan.calls:
        assert "--build-variant=asan" in call.options
    for call in plain.calls:
        assert "variant" not in " ".join(call.options)


def test_a_plan_uploads_to_the_store_of_the_flow() -> None:
    assert make_plan(WITH_PYTORCH, FlowSettings(store="/elsewhere")).store.store == "/elsewhere"


# Where ROCm comes from


def dispatched_plan() -> Plan:
    options = (
        "--event=workflow_dispatch",
        "--input=linux_amdgpu_families=gfx1151",
        "--input=artifact_run_id=17",
    )
    return make_plan(options, FlowSettings())


def test_artifacts_of_another_run_are_fetched_in_the_job_that_packages_them() -> None:
    origin = RocmOrigin(
        platform="linux",
        artifact_group="gfx1151",
        run_id="17",
        repository="ROCm/TheRock",
        store="s3://there",
        artifacts={"base_lib_generic.tar.zst": "a" * 64},
    )

    (job, *_others) = jobs_of_plan(completed(dispatched_plan(), [origin]), "linux", FlowSettings())

    assert [call.sessions[0] for call in job.calls] == [
        "fetch_artifacts",
        "build_rocm",
        "check_wheels",
        "upload",
    ]
    assert job.calls[2].options[0] == "--rocm"
    assert job.calls[0].options == (
        "--gpu-family=gfx1151",
        "--release-type=ci",
        "--run-id=local",
        "--artifact-run-id=17",
        "--artifact-repository=ROCm/TheRock",
        "--artifact-store=s3://there",
        f"--artifact-digest={digest_of(origin.artifacts)}",
    )


def test_a_chain_that_is_only_shown_names_the_artifact_run_that_was_asked_for() -> None:
    (job, *_others) = jobs_of_plan(with_placeholders(dispatched_plan()), "linux", FlowSettings())

    assert "--artifact-run-id=17" in job.calls[0].options


@pytest.fixture(scope="module")
def jobs_on_an_index() -> Sequence[Job]:
    origin = RocmOrigin(
        platform="linux", artifact_group=FAMILY, index_url="https://rocm.invalid/whl/", version="10.1.0"
    )
    plan = completed(make_plan(PYTORCH_OF_NIGHTLY, FlowSettings()), [origin])
    return jobs_of_plan(plan, "linux", FlowSettings())


def test_the_rocm_of_an_index_is_not_built(jobs_on_an_index: Sequence[Job]) -> None:
    assert stages_of(jobs_on_an_index) == ["build_pytorch", "test_pytorch", "test_report", "summary"]


@pytest.mark.parametrize("stage", ["build_pytorch", "test_pytorch"])
def test_builds_and_tests_take_rocm_from_the_index(jobs_on_an_index: Sequence[Job], stage: str) -> None:
    (job,) = jobs_of(jobs_on_an_index, stage)

    assert "--rocm-index-url=https://rocm.invalid/whl/" in job.calls[0].options
    assert "--rocm-version=10.1.0" in job.calls[0].options


def test_checks_take_no_source_of_rocm(jobs_on_an_index: Sequence[Job]) -> None:
    checks = jobs_on_an_index[0].calls[1]

    assert checks.sessions == ("check_wheels",)
    assert "rocm" not in " ".join(checks.options)


# Promotion


@pytest.fixture(scope="module")
def release_jobs() -> Sequence[Job]:
    options = configure_options_of_release(
        "nightly", families="gfx94X-dcgpu,gfx1151", torch_refs="release/2.14", pythons="3.12,3.13"
    )
    plan = with_placeholders(make_plan(options, FlowSettings()))
    return jobs_of_plan(plan, "linux", FlowSettings(distribution_store="/dist"))


@pytest.fixture(scope="module")
def promotions(release_jobs: Sequence[Job]) -> Sequence[Job]:
    return jobs_of(release_jobs, "promote")


def test_a_release_stages_each_family_when_it_is_built(release_jobs: Sequence[Job]) -> None:
    kinds = kinds_by_name(release_jobs)
    stage_jobs = jobs_of(release_jobs, "stage")

    assert len(stage_jobs) == 2
    for job in stage_jobs:
        assert {kinds[name] for name in job.needs} == {"build_rocm", "build_pytorch"}
        assert "--distribution-store=/dist" in job.calls[0].options


@pytest.mark.parametrize("kind", ["test_rocm", "test_pytorch", "test_torch"])
def test_tests_of_a_release_install_what_was_staged(release_jobs: Sequence[Job], kind: str) -> None:
    kinds = kinds_by_name(release_jobs)

    for job in jobs_of(release_jobs, kind):
        assert "stage" in {kinds[name] for name in job.needs}
        assert "--staged" in job.calls[0].options
        assert "--distribution-store=/dist" in job.calls[0].options


def test_tests_of_an_event_install_what_the_run_has(jobs_with_tests: Sequence[Job]) -> None:
    for job in jobs_with_tests:
        for call in job.calls:
            assert "--staged" not in call.options


def test_a_release_promotes_each_family_by_itself(promotions: Sequence[Job]) -> None:
    assert [[call.sessions for call in job.calls] for job in promotions] == [[("promote",)], [("promote",)]]


def test_a_promotion_is_of_every_python_of_its_family(promotions: Sequence[Job]) -> None:
    for job in promotions:
        assert "--pythons=3.12,3.13" in job.calls[0].options
        assert "--distribution-store=/dist" in job.calls[0].options


def test_a_promotion_waits_for_all_tests_and_for_failed_ones_too(promotions: Sequence[Job]) -> None:
    for job in promotions:
        assert job.starts_when == "all ended"
        assert "test_report" in job.needs
        assert any(name.startswith("test_torch") for name in job.needs)


def test_a_promotion_by_hand_passes_its_options_on() -> None:
    settings = FlowSettings(run_id="17", store="s3://b", distribution_store="/d")

    stage, promote = promotion_job(
        settings, release_type="dev", gpu_family="gfx1151", torch_version="2.9.0", pythons="3.12"
    ).calls

    assert promote.options[-2:] == ("--torch-version=2.9.0", "--pythons=3.12")
    for option in ("--run-id=17", "--store=s3://b", "--release-type=dev", "--distribution-store=/d"):
        assert option in stage.options


# Options of a run


def test_every_step_gets_the_run_and_what_it_is_of(tmp_path: Path) -> None:
    common = Common(
        torch_ref="r", config_file=tmp_path / "r.toml", run_id="17", release_type="dev", force=True
    )

    assert common_options(common) == (
        "--torch-ref=r",
        "--run-id=17",
        "--release-type=dev",
        f"--config-file={tmp_path / 'r.toml'}",
        "--force",
    )


def test_options_that_were_not_given_are_not_passed_on() -> None:
    assert common_options(Common(gpu_family="a;b")) == (
        "--gpu-family=a;b",
        "--run-id=local",
        "--release-type=ci",
    )


def test_a_store_that_is_named_is_passed_on() -> None:
    common = Common(store="s3://runs")

    assert store_options(common) == ("--store=s3://runs",)
    assert store_options(replace(common, store="out")) == ()
