"""What every kind of event plans: the rows of the trigger table, and what stands beside it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ci.plan.data import PlanData
from ci.plan.outputs import outputs
from core.errors import UsageError
from core.run import Platform
from core.run.plan import Plan, PlannedJob, Upload
from tests.kit.planning import (
    changed_data,
    changed_runners,
    ci_data,
    dispatch,
    families_by_stage,
    nightly_plan,
    plan_dispatch,
    plan_event,
    pull_request,
    push,
    reason_left_out,
)

PRESUBMIT = ["gfx94X-dcgpu", "gfx110X-all", "gfx1151", "gfx120X-all"]
POSTSUBMIT = [*PRESUBMIT, "gfx90a", "gfx950-dcgpu"]

# The family on Linux that is tested on pull requests; the others are tested at night.
TESTED = "gfx94X-dcgpu"

CANDIDATE = {"rocm_package_version": "10.1.0rc1"}


def families_of_ci(platform: Platform) -> list[str]:
    """Return the families that CI builds on a platform without being asked."""
    names: list[str] = []
    for name, platforms in ci_data().families.families.items():
        if platform in platforms and platforms[platform].tier != "request":
            names.append(name)
    return names


def job_of_family(plan: Plan, stage: Any, family: str) -> PlannedJob:
    """Return the one job on Linux of a stage and a family."""
    (job,) = [job for job in plan.matrix("linux", stage) if job.gpu_family == family]
    return job


# --- When ROCm and PyTorch are built ---------------------------------------------------------


def test_a_pull_request_builds_and_tests_rocm_alone() -> None:
    plan = plan_event("pull_request", pull_request())

    assert families_by_stage(plan) == {"build_rocm": PRESUBMIT, "test_rocm": [TESTED]}
    assert families_by_stage(plan, "windows") == {
        "build_rocm": PRESUBMIT[1:],
        "test_rocm": ["gfx110X-all"],
    }
    assert "build:pytorch" in reason_left_out(plan, "build_pytorch, gfx94X-dcgpu on linux")


def test_a_label_builds_and_tests_pytorch_on_a_pull_request() -> None:
    plan = plan_event("pull_request", pull_request("build:pytorch"))

    families = families_by_stage(plan)
    assert families["build_pytorch"] == [TESTED]
    assert families["test_pytorch"] == [TESTED]
    assert families_by_stage(plan, "windows")["build_pytorch"] == ["gfx110X-all"]


def test_a_job_of_pytorch_builds_every_component_in_order() -> None:
    plan = plan_event("pull_request", pull_request("build:pytorch"))

    (job,) = plan.matrix("linux", "build_pytorch")
    assert job.python == "3.12"
    assert job.torch_ref == "nightly"
    assert job.artifact_group == "gfx94X-dcgpu"
    assert job.sessions == (
        "build_triton",
        "build_torch",
        "build_audio",
        "build_vision",
        "build_apex",
        "check_wheels",
    )


def test_a_job_has_a_reason_for_its_family_and_one_for_its_stage() -> None:
    plan = plan_event("pull_request", pull_request("build:pytorch"))

    (job,) = plan.matrix("linux", "build_pytorch")
    assert job.reason == "every pull request; label build:pytorch"


def test_builds_no_triton_on_windows() -> None:
    plan = plan_event("pull_request", pull_request("build:pytorch"))

    (job,) = plan.matrix("windows", "build_pytorch")
    assert "build_triton" not in job.sessions


def test_builds_no_triton_for_cpus() -> None:
    plan = plan_dispatch(linux_amdgpu_families="cpu", pytorch_python_versions="3.12")

    (job,) = plan.matrix("linux", "build_pytorch")
    assert {"build_triton", "build_torch"}.intersection(job.sessions) == {"build_torch"}


@pytest.mark.parametrize("branch", ["main", "release/therock-7.12", "release/a/b"])
def test_a_push_to_a_long_lived_branch_builds_pytorch(branch: str) -> None:
    families = families_by_stage(plan_event("push", push(branch)))

    assert families["build_rocm"] == POSTSUBMIT
    assert families["build_pytorch"] == [TESTED]


def test_a_dispatch_builds_the_families_that_it_names() -> None:
    plan = plan_dispatch(linux_amdgpu_families="gfx1151, gfx906", windows_amdgpu_families="none")

    assert families_by_stage(plan)["build_rocm"] == ["gfx1151", "gfx906"]
    assert families_by_stage(plan)["build_pytorch"] == ["gfx1151", "gfx906"]
    assert families_by_stage(plan, "windows") == {}


def test_a_dispatch_may_leave_pytorch_out() -> None:
    plan = plan_dispatch(linux_amdgpu_families="all", build_pytorch="false")

    assert families_by_stage(plan)["build_rocm"] == families_of_ci("linux")
    assert "build_pytorch" not in families_by_stage(plan)


def test_inputs_change_what_any_event_builds() -> None:
    inputs = {
        "build_pytorch": "false",
        "windows_amdgpu_families": "",
        "linux_amdgpu_families": "gfx950",
    }

    plan = plan_event("schedule", inputs_of_call=inputs)

    assert families_by_stage(plan)["build_rocm"] == ["gfx950-dcgpu"]
    assert families_by_stage(plan, "windows")["build_rocm"] == families_of_ci("windows")


def test_the_label_to_skip_ci_leaves_nothing() -> None:
    plan = plan_event("pull_request", pull_request("ci:skip", "build:pytorch", "gfx1151"))

    assert plan.enable_build_jobs.reason == "label ci:skip"
    assert not plan.build_pytorch.value
    assert plan.jobs == ()
    assert plan.variants == ()


# --- Tests: always after a merge, on pull requests where somebody has the GPU ----------------


def test_tests_rocm_after_a_merge_without_the_gpu_too() -> None:
    plan = plan_event("schedule")

    job = job_of_family(plan, "test_rocm", "gfx906")
    assert job.runner == "ubuntu-24.04"
    assert "without a GPU" in job.reason
    assert "no machine" in reason_left_out(plan, "test_pytorch, gfx906, nightly, Python 3.12 on linux")


def test_does_not_test_rocm_without_the_gpu_on_a_pull_request() -> None:
    plan = plan_event("pull_request", pull_request("gfx906"))

    assert "gfx906" in reason_left_out(plan, "test_rocm, gfx906 on linux")


@pytest.fixture(scope="module")
def data_with_late_tests() -> PlanData:
    """CI's data where gfx1151 is tested at night alone."""
    families = dict(ci_data().families.families)
    late = families["gfx1151"]["linux"].model_copy(update={"tests": "nightly"})
    families["gfx1151"] = {"linux": late}
    changed = ci_data().families.model_copy(update={"families": families})
    return ci_data().model_copy(update={"families": changed})


def test_does_not_test_a_family_before_its_tier(data_with_late_tests: PlanData) -> None:
    plan = plan_event("pull_request", pull_request(), data=data_with_late_tests)

    assert "nightly" in reason_left_out(plan, "test_rocm, gfx1151 on linux")


def test_tests_a_family_from_its_tier_on(data_with_late_tests: PlanData) -> None:
    plan = plan_event("schedule", data=data_with_late_tests)

    assert "gfx1151" in families_by_stage(plan)["test_rocm"]


def test_tests_a_family_before_its_tier_where_a_label_asks(data_with_late_tests: PlanData) -> None:
    plan = plan_event("pull_request", pull_request("gfx1151"), data=data_with_late_tests)

    assert "gfx1151" in families_by_stage(plan)["test_rocm"]


def test_a_label_for_one_test_leaves_no_other_one_out() -> None:
    plan = plan_event("pull_request", pull_request("build:pytorch", "test:smoke"))

    assert families_by_stage(plan)["test_rocm"] == [TESTED]
    assert families_by_stage(plan)["test_pytorch"] == [TESTED]


def test_an_input_adds_tests_on_one_platform() -> None:
    plan = plan_dispatch(
        linux_amdgpu_families="gfx94x", windows_amdgpu_families="gfx110x", linux_test_labels="torch"
    )

    assert "test_torch" in families_by_stage(plan)
    assert "test_torch" not in families_by_stage(plan, "windows")


def test_jobs_that_test_on_a_machine_without_a_gpu_say_so() -> None:
    plan = nightly_plan()
    without_gpu: set[str] = set()
    with_gpu: set[str] = set()
    for cell in plan.jobs:
        if cell.stage.startswith("test_"):
            labels = without_gpu if plan.row(cell).get("without_gpu") else with_gpu
            labels.add(cell.runner)

    assert without_gpu == {"ubuntu-24.04", "windows-2022"}
    assert "linux-gfx942-1gpu-ccs-csp-ossci-rocm" in with_gpu
    assert not with_gpu & {*ci_data().runners.github}


def test_a_self_hosted_machine_has_a_gpu_unless_the_data_says_otherwise() -> None:
    label = "linux-gfx942-1gpu-ccs-csp-ossci-rocm"
    data = changed_data(runners={"no_gpu": (label,)})

    assert ci_data().runners.has_gpu(label)
    assert not data.runners.has_gpu(label)


# --- The version of ROCm ---------------------------------------------------------------------


def test_a_pull_request_has_the_version_of_its_commit() -> None:
    plan = plan_event("pull_request", pull_request())

    assert plan.rocm.version == f"10.1.0.dev0+{'a' * 40}"


def test_the_sample_is_built_for_the_gpus_that_it_has_rocm_for() -> None:
    sample = {"pytorch_git_refs": "sample"}

    plan = plan_event("pull_request", pull_request(), inputs_of_call=sample)

    assert families_by_stage(plan)["build_rocm"] == ["gfx94X-dcgpu", "gfx110X-all"]
    assert {variant.gpu_family for variant in plan.variants} == {"gfx94X-dcgpu", "gfx110X-all"}
    assert reason_left_out(plan, "gfx1151 on linux") == "torch ref sample has no ROCm for it"


def test_a_family_that_the_sample_has_no_rocm_for_is_refused() -> None:
    with pytest.raises(UsageError, match="gfx1151") as refused:
        plan_dispatch(linux_amdgpu_families="gfx1151", pytorch_git_refs="sample")

    assert "gfx94X-dcgpu" in refused.value.hint


def test_a_push_has_the_version_of_its_commit() -> None:
    plan = plan_event("push", push())

    assert plan.rocm.version == f"10.1.0.dev0+{'b' * 40}"


def test_a_nightly_release_has_the_version_of_its_day() -> None:
    assert nightly_plan().rocm.version == "10.1.0a20260831"


@pytest.mark.parametrize(
    ("inputs", "version"),
    [({"rocm_package_version": "7.9.0"}, "7.9.0"), ({"pytorch_git_refs": "sample"}, None)],
)
def test_inputs_decide_the_version(inputs: Mapping[str, str], version: str | None) -> None:
    assert plan_event("schedule", inputs_of_call=inputs).rocm.version == version


def test_a_prerelease_has_to_say_which_candidate_it_is() -> None:
    with pytest.raises(UsageError) as caught:
        plan_event("schedule", release_type="prerelease")

    assert "10.1.0rc1" in caught.value.hint


# --- Upstream's own tests of torch: at night and in releases, and where a label asks ---------


def upstream_tests(plan: Plan) -> set[tuple[str | None, str | None, str | None]]:
    """Return the parts of upstream's tests on Linux: Python, configuration and shard."""
    return {(job.python, job.config, job.shard) for job in plan.matrix("linux", "test_torch")}


DEFAULT = {("3.12", "default", "1/2"), ("3.12", "default", "2/2")}
INDUCTOR = {("3.12", "inductor", "1/2"), ("3.12", "inductor", "2/2")}
DISTRIBUTED = {
    ("3.12", "distributed", "1/3"),
    ("3.12", "distributed", "2/3"),
    ("3.12", "distributed", "3/3"),
}
FULL = DEFAULT | INDUCTOR | DISTRIBUTED


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["build:pytorch"], set()),
        (["build:pytorch", "test_filter:standard"], set()),
        (["build:pytorch", "test_filter:comprehensive"], DEFAULT),
        (["build:pytorch", "test_filter:full"], FULL),
        (["build:pytorch", "test:torch"], DEFAULT),
        (["build:pytorch", "test:torch-inductor"], INDUCTOR),
        (["test:torch"], DEFAULT),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_a_pull_request_runs_upstreams_tests_that_its_labels_ask_for(
    labels: list[str], expected: set[tuple[str, str, str]]
) -> None:
    plan = plan_event("pull_request", pull_request(*labels))

    assert upstream_tests(plan) == expected


def test_a_push_runs_no_upstream_tests() -> None:
    assert upstream_tests(plan_event("push", push())) == set()


def test_schedules_run_upstreams_default_tests() -> None:
    assert upstream_tests(plan_event("schedule")) == DEFAULT
    assert upstream_tests(nightly_plan()) == DEFAULT


def test_a_prerelease_runs_all_upstream_tests() -> None:
    inputs = {**CANDIDATE, "linux_amdgpu_families": "gfx94x", "windows_amdgpu_families": "none"}

    plan = plan_event("schedule", inputs_of_call=inputs, release_type="prerelease")

    assert upstream_tests(plan) == FULL


def test_a_scheduled_dev_release_runs_upstreams_default_tests() -> None:
    inputs = {"linux_amdgpu_families": "gfx94x", "windows_amdgpu_families": "none"}

    plan = plan_event("schedule", inputs_of_call=inputs, release_type="dev")

    assert upstream_tests(plan) == DEFAULT


DEV_RELEASE = {
    "linux_amdgpu_families": "gfx94x",
    "release_type": "dev",
    "pytorch_git_refs": "nightly",
}


def test_a_dispatch_of_type_dev_runs_no_upstream_tests() -> None:
    assert upstream_tests(plan_dispatch(**DEV_RELEASE)) == set()


def test_a_dispatch_of_type_dev_runs_upstream_tests_that_it_asks_for() -> None:
    assert upstream_tests(plan_dispatch(**DEV_RELEASE, linux_test_labels="test:torch")) == DEFAULT


def test_upstreams_tests_run_on_one_python() -> None:
    plan = plan_dispatch(**DEV_RELEASE, test_type="full", pytorch_python_versions="3.11,3.13")

    assert upstream_tests(plan) == {("3.11", config, shard) for _, config, shard in FULL}


UNTESTED_PYTHON = "test_torch default, gfx94X-dcgpu, nightly, Python 3.11 on linux"
UNTESTED_WHEEL = "test_torch default, gfx94X-dcgpu, nightly, Python 3.12 on linux"


@pytest.mark.parametrize(
    ("labels", "job_in_words", "reason"),
    [
        (["test_filter:full", "gfx1151"], "distributed, gfx1151 on linux", "several GPUs of gfx1151"),
        (["test_filter:full", "gfx906"], "default, gfx906 on linux", "no machine has gfx906"),
        (["test_filter:full"], "inductor, gfx110X-all on windows", "linux only"),
        (["test:smoke"], "default, gfx94X-dcgpu on linux", "test type quick"),
    ],
)
def test_says_why_a_pull_request_leaves_out_upstreams_tests(
    labels: list[str], job_in_words: str, reason: str
) -> None:
    plan = plan_event("pull_request", pull_request("build:pytorch", *labels))

    assert reason in reason_left_out(plan, f"test_torch {job_in_words}")


def test_says_which_label_requests_upstreams_tests() -> None:
    reason = reason_left_out(plan_event("push", push()), "test_torch default, gfx94X-dcgpu on linux")

    assert "quick" in reason
    assert "test:torch" in reason


def test_says_which_python_upstreams_tests_run_on() -> None:
    assert "Python 3.12" in reason_left_out(nightly_plan(), UNTESTED_PYTHON)


def test_runs_no_upstream_tests_of_a_fork() -> None:
    plan = plan_event("pull_request", pull_request("build:pytorch", "test:torch", head="a/b"))

    assert "fork" in reason_left_out(plan, "test_torch default, gfx94X-dcgpu on linux")


def test_runs_no_upstream_tests_without_torch() -> None:
    payload = dispatch(linux_amdgpu_families="gfx94x", pytorch_components="triton", linux_test_labels="torch")

    plan = plan_event("workflow_dispatch", payload)

    assert "torch is not built" in reason_left_out(plan, UNTESTED_WHEEL)


def test_tests_on_several_gpus_run_where_a_machine_has_them() -> None:
    raw = ci_data().runners.model_dump()["families"]["gfx94X-dcgpu"]
    machines = {"linux": {**raw["linux"], "several_gpus": "many"}}
    data = changed_runners(self_hosted={"many": "ROCm"}, families={"gfx94X-dcgpu": machines})
    labels = ("build:pytorch", "test:torch-distributed")

    plan = plan_event("pull_request", pull_request(*labels), data=data)

    jobs = plan.matrix("linux", "test_torch")
    assert [job.shard for job in jobs] == ["1/3", "2/3", "3/3"]
    assert {job.runner for job in jobs} == {"many"}


# --- Families, variants, components ----------------------------------------------------------


def test_a_label_adds_a_family() -> None:
    plan = plan_event("pull_request", pull_request("gfx1151", "build:pytorch", "gfx950-linux"))

    assert families_by_stage(plan)["build_pytorch"] == ["gfx94X-dcgpu", "gfx1151", "gfx950-dcgpu"]
    assert job_of_family(plan, "build_rocm", "gfx950-dcgpu").reason == "label gfx950-linux"
    assert "not built there" in reason_left_out(plan, "gfx950-dcgpu on windows")


def test_labels_build_sanitizers() -> None:
    plan = plan_event("pull_request", pull_request("ci:asan", "ci:host-asan", "build:pytorch"))

    release, asan, host_asan = plan.matrix("linux", "build_rocm")[:3]
    assert release.artifact_group == "gfx94X-dcgpu"
    assert asan.artifact_group == "gfx94X-dcgpu-asan"
    assert asan.build_variant == "asan"
    assert asan.runner == "azure-linux-scale-rocm-heavy-ramdisk"
    assert host_asan.artifact_group == "gfx94X-dcgpu-host-asan"


@pytest.mark.parametrize(
    ("job_in_words", "reason"),
    [
        ("gfx1151 on windows, asan", "asan"),
        ("build_pytorch, gfx94X-dcgpu-asan on linux", "variant"),
        ("test_rocm, gfx94X-dcgpu-asan on linux", "schedule"),
    ],
)
def test_builds_no_pytorch_and_no_tests_of_sanitizers_on_a_pull_request(
    job_in_words: str, reason: str
) -> None:
    plan = plan_event("pull_request", pull_request("ci:asan", "build:pytorch"))

    assert reason in reason_left_out(plan, job_in_words)


def test_tests_sanitizers_at_night() -> None:
    plan = plan_event("schedule", inputs_of_call={"build_variants": "asan"})

    groups = {job.artifact_group for job in plan.matrix("linux", "test_rocm")}
    assert groups == {"gfx94X-dcgpu-asan", "gfx950-dcgpu-asan"}


@pytest.mark.parametrize(
    ("component", "sessions"),
    [
        ("torch", ["build_triton", "build_torch"]),
        # The others are built against the torch of their run, and that comes with its triton.
        ("audio", ["build_triton", "build_torch", "build_audio"]),
        ("vision", ["build_triton", "build_torch", "build_vision"]),
        ("apex", ["build_triton", "build_torch", "build_apex"]),
    ],
)
def test_a_component_comes_with_what_it_requires(component: str, sessions: list[str]) -> None:
    plan = plan_dispatch(linux_amdgpu_families="gfx94x", pytorch_components=component)

    (job,) = plan.matrix("linux", "build_pytorch")
    assert job.sessions == (*sessions, "check_wheels")


def test_a_dispatch_chooses_refs_pythons_and_components() -> None:
    plan = plan_dispatch(
        linux_amdgpu_families="gfx94X-dcgpu",
        windows_amdgpu_families="gfx110X-all",
        pytorch_git_refs="nightly;release/2.10",
        pytorch_python_versions="3.11 3.13",
        pytorch_components="torch,triton",
    )

    jobs = plan.matrix("linux", "build_pytorch")
    assert {(job.python, job.torch_ref) for job in jobs} == {
        ("3.11", "nightly"),
        ("3.11", "release/2.10"),
        ("3.13", "nightly"),
        ("3.13", "release/2.10"),
    }
    assert {job.sessions for job in jobs} == {("build_triton", "build_torch", "check_wheels")}
    windows_jobs = plan.matrix("windows", "build_pytorch")
    assert {job.sessions for job in windows_jobs} == {("build_torch", "check_wheels")}
    assert "windows" in reason_left_out(plan, "triton of nightly")


@pytest.mark.parametrize(
    ("inputs", "mention"),
    [
        ({"linux_amdgpu_families": "gfx94y"}, "'gfx94x'"),
        ({"windows_amdgpu_families": "gfx950"}, "gfx950-dcgpu is not built on windows"),
        ({"linux_amdgpu_families": "", "release_type": "dev"}, "no GPU family"),
        ({"linux_amdgpu_families": "none", "windows_amdgpu_families": "none"}, "no GPU family"),
        ({"linux_amdgpu_families": "all gfx950"}, "'all'"),
        ({"linux_amdgpu_families": "all", "pytorch_git_refs": "nigthly"}, "'nightly'"),
        ({"linux_amdgpu_families": "all", "pytorch_components": "vison"}, "'vision'"),
        ({"linux_amdgpu_families": "all", "pytorch_python_versions": "three"}, "Python version"),
        ({"linux_amdgpu_families": "all", "pytorch_python_versions": "3.9"}, "nothing of it can be built"),
        (
            {"windows_amdgpu_families": "gfx110X-all", "pytorch_components": "apex"},
            "nothing of it can be built",
        ),
        ({"linux_amdgpu_familys": "all"}, "'linux_amdgpu_families'"),
        ({"linux_amdgpu_families": "all", "build_variants": "asam"}, "'asan'"),
        ({"linux_amdgpu_families": "all", "release_type": "nightlies"}, "'nightly'"),
        ({"linux_amdgpu_families": "all", "release_type": "release"}, "no bucket"),
        ({"linux_amdgpu_families": "all", "linux_test_runner": "linux-gfx942"}, "linux-gfx942"),
        ({"linux_amdgpu_families": "all", "linux_build_runner": "my runner"}, "my runner"),
        ({"linux_amdgpu_families": "all", "build_pytorch": "yes"}, "build_pytorch"),
        ({"linux_amdgpu_families": "all", "pytorch_git_refs": "$(id)"}, "$(id)"),
        ({"linux_amdgpu_families": {"a": 1}}, "linux_amdgpu_families"),
    ],
)
def test_refuses_a_dispatch_with_a_mistake(inputs: dict[str, Any], mention: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_dispatch(**inputs)

    assert mention in str(caught.value)


def test_a_dispatch_that_names_no_family_builds_those_of_a_pull_request() -> None:
    plan = plan_dispatch()

    assert {job.gpu_family for job in plan.jobs} == {
        job.gpu_family for job in plan_event("pull_request", pull_request()).jobs
    }
    assert plan.build_pytorch.value


# --- Who is trusted --------------------------------------------------------------------------


@pytest.fixture(params=["somebody/TheRock", None], ids=["fork", "deleted fork"])
def plan_of_fork(request: pytest.FixtureRequest) -> Plan:
    return plan_event("pull_request", pull_request("build:pytorch", head=request.param))


def test_a_fork_gets_nothing_that_it_could_write_to(plan_of_fork: Plan) -> None:
    assert plan_of_fork.store == Upload()
    plan_outputs = outputs(plan_of_fork)
    assert plan_outputs["aws_role"] == ""
    assert plan_outputs["store"] == ""
    assert plan_outputs["trusted"] == "false"


def test_a_forks_job_builds_rocm_and_pytorch_at_once(plan_of_fork: Plan) -> None:
    assert {job.stage for job in plan_of_fork.jobs} == {"build_rocm", "build_pytorch"}
    (job,) = plan_of_fork.matrix("linux", "build_pytorch")
    assert job.sessions[:2] == ("fetch_artifacts", "build_rocm")
    assert job.sessions[-1] == "check_wheels"
    reason = reason_left_out(plan_of_fork, "build_rocm, gfx94X-dcgpu on linux")
    assert "PyTorch jobs" in reason


def test_tests_nothing_of_a_fork(plan_of_fork: Plan) -> None:
    assert "no credentials" in reason_left_out(plan_of_fork, "test_rocm, gfx1151 on linux")


@pytest.mark.parametrize("inputs", [None, {"linux_build_runner": "aws-linux-scale-rocm-prod"}])
def test_builds_a_fork_on_machines_that_end_with_their_job(inputs: Mapping[str, str] | None) -> None:
    payload = pull_request("build:pytorch", head="somebody/TheRock")

    plan = plan_event("pull_request", payload, inputs_of_call=inputs)

    assert {job.runner for job in plan.jobs} <= {*ci_data().runners.github}


def test_another_owner_builds_on_githubs_machines() -> None:
    plan = plan_event("push", push(), repository="downstream/TheRock")

    assert {job.runner for job in plan.jobs} == {"ubuntu-24.04", "windows-2022"}


def test_another_owner_uploads_to_its_own_store() -> None:
    data = changed_data(upload={"store": "out"})

    plan = plan_event("push", push(), repository="downstream/TheRock", data=data)

    assert plan.store.store == "out"
    assert {job.stage for job in plan.jobs} == {"build_rocm", "build_pytorch", "test_rocm"}
    reason = reason_left_out(plan, "test_pytorch, gfx94X-dcgpu, nightly, Python 3.12 on linux")
    assert "repositories of ROCm" in reason


# --- The plan itself -------------------------------------------------------------------------


def test_the_same_event_gives_the_same_plan() -> None:
    payload = pull_request("build:pytorch", "gfx1151")

    assert plan_event("pull_request", payload) == plan_event("pull_request", payload)


def test_other_events_give_plans_with_other_digests() -> None:
    assert plan_event("push", push()).digest() != plan_event("pull_request", pull_request()).digest()


def test_a_plan_survives_its_file(tmp_path: Path) -> None:
    plan = plan_event("push", push())

    plan.write(tmp_path / "plan.json")

    plan_of_file = Plan.read(tmp_path / "plan.json")
    assert plan_of_file == plan
    assert plan_of_file.digest() == plan.digest()
