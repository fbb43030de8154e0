from dataclasses import replace
from pathlib import Path

import pytest

from ci.flow import planned, release_words, unresolved
from ci.jobs import BUILDS, Target, left_out, plan_jobs, posargs_of, promotion_job, ref_jobs
from ci.plan.origins import completed
from core.cli.options import ROOT, Common
from core.errors import UsageError
from core.files import digest_of
from core.run.plan import RocmOrigin
from pytorch_build.context import Context, context
from tests.kit.job_plans import PULL_REQUEST, stages_of

WITHOUT_PYTORCH = tuple(word for word in PULL_REQUEST if "build:" not in word)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (PULL_REQUEST, "build_rocm test_rocm build_pytorch test_pytorch test_report summary"),
        (WITHOUT_PYTORCH, "build_rocm test_rocm test_report summary"),
        ((*PULL_REQUEST, "--fork"), "build_pytorch summary"),
    ],
)
def test_a_pull_request_has_the_jobs_of_its_labels(words: tuple[str, ...], expected: str) -> None:
    made = plan_jobs(planned(words, Target()), "linux", Target())
    assert stages_of(made) == expected.split()
    if "--fork" in words:
        assert made[0].calls[0].sessions[0] == "build_rocm"


def test_a_plan_with_upstreams_tests_runs_each_part_of_them_and_puts_the_parts_together() -> None:
    plan = planned([*PULL_REQUEST, "--label=test:torch", "--label=test:smoke"], Target())
    made = plan_jobs(plan, "linux", Target())
    parts = [one for one in made if one.stage == "test_torch"]
    expected = [("--config=default", "--shard=1/2"), ("--config=default", "--shard=2/2")]
    assert [one.calls[0].posargs[2:4] for one in parts] == expected
    (build,) = (one for one in made if one.stage == "build_pytorch")
    assert {one.needs for one in parts} == {(build.name,)}
    assert {one.calls[0].sessions for one in parts} == {("test_torch",)}
    (report,) = (one for one in made if one.stage == "test_report")
    assert set(report.needs) == {one.name for one in made if one.stage.startswith("test_") and one != report}
    assert report.tolerant
    assert report.name in made[-1].needs


def test_a_release_ends_with_a_promotion_of_each_family() -> None:
    words = release_words("nightly", "gfx94X-dcgpu,gfx1151", "release/2.14", "3.12,3.13")
    made = plan_jobs(unresolved(planned(words, Target())), "linux", Target(distribution_store="/dist"))
    sets = [one for one in made if one.stage == "promote"]
    assert [call.sessions for one in sets for call in one.calls] == [("stage",), ("promote",)] * 2
    for one in sets:
        assert "--pythons=3.12,3.13" in one.calls[1].posargs
        assert "--distribution-store=/dist" in one.calls[0].posargs
        assert one.tolerant
        # what it goes by is made of the parts of tests
        assert "test_report" in one.needs
        assert [need for need in one.needs if need.startswith("test_torch")]


def test_artifacts_of_another_run_are_fetched_to_where_they_are_packaged() -> None:
    words = ("workflow_dispatch", "linux_amdgpu_families=gfx1151", "artifact_run_id=17")
    plan = planned([f"--event={words[0]}", *(f"--input={one}" for one in words[1:])], Target())
    origin = RocmOrigin(
        platform="linux",
        artifact_group="gfx1151",
        run_id="17",
        repository="ROCm/TheRock",
        store="s3://there",
        artifacts={"base_lib_generic.tar.zst": "a" * 64},
    )
    fetch, build, check, _upload = plan_jobs(completed(plan, [origin]), "linux", Target())[0].calls
    assert fetch.sessions == ("fetch_artifacts",)
    digest = digest_of(origin.artifacts)
    assert fetch.posargs == (
        *("--artifact-run-id=17", "--artifact-repository=ROCm/TheRock", "--artifact-store=s3://there"),
        *(f"--artifact-digest={digest}", "--gpu-family=gfx1151", "--release-type=ci", "--run-id=local"),
    )
    assert (build.sessions, check.sessions) == (("build_rocm",), ("check_rocm",))
    shown = plan_jobs(unresolved(plan), "linux", Target())[0].calls[0].posargs
    assert shown[:2] == ("--artifact-run-id=17", "--gpu-family=gfx1151")


def test_builds_against_the_rocm_of_an_index_as_it_is() -> None:
    plan = planned([word for word in PULL_REQUEST if "torch-ref" not in word], Target())
    url = "https://packages.example/whl/"
    origin = RocmOrigin(platform="linux", artifact_group="gfx94X-dcgpu", index_url=url, version="10.1.0")
    made = plan_jobs(completed(plan, [origin]), "linux", Target())
    assert stages_of(made) == ["build_pytorch", "test_pytorch", "test_report", "summary"]
    build, checks, _upload = made[0].calls
    for call in (build, made[1].calls[0]):
        assert {f"--rocm-index-url={url}", "--rocm-version=10.1.0"} <= set(call.posargs)
    assert (checks.sessions, [one for one in checks.posargs if "rocm" in one]) == (("check_wheels",), [])


def test_builds_and_stores_a_variant_by_itself() -> None:
    made = plan_jobs(planned([*WITHOUT_PYTORCH, "--label=ci:asan"], Target()), "linux", Target())
    plain, asan = (one for one in made if one.stage == "build_rocm")
    assert all("--build-variant=asan" in call.posargs for call in asan.calls)
    assert not [one for call in plain.calls for one in call.posargs if "variant" in one]


def test_a_promotion_by_hand_passes_its_options_on() -> None:
    target = Target(run_id="17", store="s3://b", distribution_store="/d")
    made = promotion_job(target, "dev", "gfx1151", "2.9.0", "3.12")
    assert made.calls[1].posargs[-2:] == ("--torch-version=2.9.0", "--pythons=3.12")
    expected = {"--run-id=17", "--store=s3://b", "--release-type=dev", "--distribution-store=/d"}
    assert expected <= set(made.calls[0].posargs)


# -- `invoke ci` of one ref --------------------------------------------------------------------


def chosen(ref: str, family: str) -> Context:
    return context(Common(torch_ref=ref, gpu_family=family, root=ROOT / "core"))


def test_the_sample_with_rocm_takes_every_session_in_the_order_of_the_pipeline() -> None:
    one = chosen("sample", "gfx94X-dcgpu")
    assert left_out(one) == {}
    made = ref_jobs(one, (), "", "")
    assert [word for job in made for call in job.calls for word in call.sessions] == [
        *("resolve", "build_rocm", "check_rocm", "checkout", *BUILDS.values(), "check_wheels"),
        *("upload", "provenance", "test_smoke", "test_torch", "report"),
    ]


def test_leaves_out_sessions_that_a_ref_or_a_family_does_not_need() -> None:
    assert left_out(chosen("sample", "cpu"))["build_rocm"] == "family cpu has no ROCm"
    out = left_out(chosen("nightly", "gfx110X-all"))
    assert out["build_rocm"] == "ROCm comes from the release index of gfx110X-all"
    assert out["test_torch"] == "upstream's tests take hours: run it by itself"
    assert set(out) <= {"build_rocm", "check_rocm", "test_torch", *BUILDS.values()}
    one = chosen("sample", "gfx94X-dcgpu")
    out = left_out(replace(one, ref=one.ref.only(["torch"])))
    assert out == {name: "not built for sample" for name in BUILDS.values() if name != "build_torch"}


def test_passes_the_layout_of_rocm_to_build_rocm_alone() -> None:
    build, report = ref_jobs(chosen("sample", ""), ("--x",), "", "unsplit")
    assert [call.sessions for call in build.calls][:2] == [("resolve",), ("build_rocm",)]
    assert [call.posargs for call in build.calls] == [("--x",), ("--x", "--rocm-layout=unsplit"), ("--x",)]
    assert report.calls[0].posargs == ("--x", "--brief")
    with pytest.raises(UsageError, match="--rocm-layout is for build_rocm, which is left out: family cpu"):
        ref_jobs(chosen("sample", "cpu"), (), "", "split")


def test_passes_a_policy_to_builds_and_checks() -> None:
    for trees in ({}, {"torch": Path("/tree")}):
        build, _ = ref_jobs(chosen("sample", "cpu"), (), "", trees=trees, policy="/mine.toml")
        limited = [
            one for call in build.calls if "--policy=/mine.toml" in call.posargs for one in call.sessions
        ]
        assert {"build_torch", "check_wheels"} <= {*limited} <= {*BUILDS.values(), "check_wheels"}


def test_every_option_that_was_given_is_passed_on(tmp_path: Path) -> None:
    assert posargs_of(Common(gpu_family="a;b")) == ["--gpu-family=a;b", "--run-id=local", "--release-type=ci"]
    given = Common(torch_ref="r", config_file=tmp_path / "r.toml", run_id="17", store="s", release_type="dev")
    assert posargs_of(replace(given, force=True)) == [
        *("--torch-ref=r", "--run-id=17", "--release-type=dev"),
        *(f"--config-file={tmp_path / 'r.toml'}", "--force", "--store=s"),
    ]
