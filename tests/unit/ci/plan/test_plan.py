"""Every row of the trigger table, and what stands beside it."""

import json
from datetime import date
from typing import Any

import pytest

from ci.plan.origins import completed, needs
from ci.plan.outputs import outputs
from core.errors import DataError, UsageError
from core.run import plan
from core.run.plan import MAX_JOBS, Plan, RocmOrigin
from tests.unit.ci.plan.planning import (
    DAY,
    OURS,
    changed,
    dispatched,
    known,
    planned,
    pull_request,
    push,
    stages,
    why,
)

PRESUBMIT = ["gfx94X-dcgpu", "gfx110X-all", "gfx1151", "gfx120X-all"]
POSTSUBMIT = [*PRESUBMIT, "gfx90a", "gfx950-dcgpu"]
# the others are tested at night
TESTED = ["gfx94X-dcgpu"]


def all_of(platform: Any) -> list[str]:
    rows = known().families.families.items()
    return [name for name, on in rows if platform in on and on[platform].tier != "request"]


# -- the trigger table: when PyTorch is built --------------------------------------------------


def test_a_pull_request_builds_rocm_and_tests_it_and_no_pytorch() -> None:
    made = planned("pull_request", pull_request())
    assert stages(made) == {"build_rocm": PRESUBMIT, "test_rocm": TESTED}
    assert stages(made, "windows") == {"build_rocm": PRESUBMIT[1:], "test_rocm": ["gfx110X-all"]}
    assert why(made, "build_pytorch, gfx94X-dcgpu on linux") == "no label build:pytorch"


def test_the_label_builds_pytorch_on_a_pull_request() -> None:
    made = planned("pull_request", pull_request("build:pytorch"))
    assert stages(made)["build_pytorch"] == stages(made)["test_pytorch"] == ["gfx94X-dcgpu"]
    assert stages(made, "windows")["build_pytorch"] == ["gfx110X-all"]
    (cell,) = made.matrix("linux", "build_pytorch")
    assert (cell.python, cell.torch_ref, cell.artifact_group) == ("3.12", "nightly", "gfx94X-dcgpu")
    expected = (*("build_triton", "build_torch", "build_audio", "build_vision", "build_apex"), "check_wheels")
    assert cell.sessions == expected
    assert cell.reason == "every pull request; label build:pytorch"
    (windows,) = made.matrix("windows", "build_pytorch")
    assert "build_triton" not in windows.sessions


@pytest.mark.parametrize("branch", ["main", "release/therock-7.12", "release/a/b"])
def test_a_push_to_a_long_lived_branch_always_builds_pytorch(branch: str) -> None:
    found = stages(planned("push", push(branch)))
    assert [found[one] for one in ("build_rocm", "build_pytorch")] == [POSTSUBMIT, TESTED]


def test_a_dispatch_builds_what_it_names_and_pytorch_can_be_turned_off() -> None:
    made = dispatched(linux_amdgpu_families="gfx1151, gfx906", windows_amdgpu_families="none")
    assert stages(made)["build_rocm"] == stages(made)["build_pytorch"] == ["gfx1151", "gfx906"]
    assert stages(made, "windows") == {}
    off = dispatched(linux_amdgpu_families="all", build_pytorch="false")
    assert stages(off)["build_rocm"] == all_of("linux")
    assert "build_pytorch" not in stages(off)


def test_inputs_change_what_any_event_does_by_itself() -> None:
    given = {"build_pytorch": "false", "windows_amdgpu_families": "", "linux_amdgpu_families": "gfx950"}
    made = planned("schedule", given=given)
    assert stages(made)["build_rocm"] == ["gfx950-dcgpu"]
    assert stages(made, "windows")["build_rocm"] == all_of("windows")


# -- tests: always after a merge, on pull requests where somebody has the GPU ------------------


def test_rocm_is_tested_after_a_merge_without_the_gpu_too() -> None:
    made = planned("schedule")
    (cell,) = [one for one in made.matrix("linux", "test_rocm") if one.gpu_family == "gfx906"]
    assert cell.runner == "ubuntu-24.04"
    assert "no machine has gfx906 on linux, so without a GPU" in cell.reason
    assert why(made, "test_pytorch, gfx906, nightly, Python 3.12 on linux").startswith("no machine has")
    on_request = planned("pull_request", pull_request("gfx906"))
    assert why(on_request, "test_rocm, gfx906 on linux") == "no machine has gfx906 on linux"


def test_a_family_that_is_tested_from_a_tier_on_is_tested_earlier_where_it_is_asked_for() -> None:
    whole = changed(triggers={"long_lived_branches": ("main",)})
    rows = {**whole.families.families}
    rows["gfx1151"] = {"linux": rows["gfx1151"]["linux"].model_copy(update={"tests": "nightly"})}
    data = whole.model_copy(update={"families": whole.families.model_copy(update={"families": rows})})
    without = planned("pull_request", pull_request(), what=data)
    assert why(without, "test_rocm, gfx1151 on linux").startswith("tested from nightly on")
    assert "gfx1151" in stages(planned("pull_request", pull_request("gfx1151"), what=data))["test_rocm"]
    assert "gfx1151" in stages(planned("schedule", what=data))["test_rocm"]


@pytest.mark.parametrize(
    ("words", "facts", "version"),
    [
        (("pull_request", pull_request()), {}, "10.1.0.dev0+" + "a" * 40),
        (("push", push("main")), {}, "10.1.0.dev0+" + "b" * 40),
        (("schedule",), {"release_type": "nightly"}, "10.1.0a20260831"),
        (("schedule", {}, None, {"rocm_package_version": "7.9.0"}), {}, "7.9.0"),
        (("schedule", {}, None, {"pytorch_git_refs": "sample"}), {}, ""),
    ],
)
def test_the_version_of_rocm_is_known_before_anything_builds(words: Any, facts: Any, version: str) -> None:
    assert planned(*words, **facts).rocm.version == version
    with pytest.raises(UsageError, match=r"which candidate it is.*\n.*10\.1\.0rc1"):
        planned("schedule", release_type="prerelease")


# -- upstream's own tests of torch: at night and in releases, and where a label asks --------------


def parts(made: Plan, platform: Any = "linux") -> set[tuple[str, str, str]]:
    return {(one.python, one.config, one.shard) for one in made.matrix(platform, "test_torch")}


DEFAULT = {("3.12", "default", "1/2"), ("3.12", "default", "2/2")}
INDUCTOR = {("3.12", "inductor", "1/2"), ("3.12", "inductor", "2/2")}
DISTRIBUTED = {("3.12", "distributed", f"{number}/3") for number in (1, 2, 3)}
FULL = DEFAULT | INDUCTOR | DISTRIBUTED


@pytest.mark.parametrize(
    ("words", "facts", "expected"),
    [
        (("pull_request", pull_request("build:pytorch")), {}, set()),
        (("push", push()), {}, set()),
        (("pull_request", pull_request("build:pytorch", "test_filter:standard")), {}, set()),
        (("pull_request", pull_request("build:pytorch", "test_filter:comprehensive")), {}, DEFAULT),
        (("pull_request", pull_request("build:pytorch", "test_filter:full")), {}, FULL),
        (("pull_request", pull_request("build:pytorch", "test:torch")), {}, DEFAULT),
        (("pull_request", pull_request("build:pytorch", "test:torch-inductor")), {}, INDUCTOR),
        (("pull_request", pull_request("test:torch")), {}, set()),
        (("schedule",), {}, DEFAULT),
        (("schedule",), {"release_type": "nightly"}, DEFAULT),
        (("schedule", {}, None, {"rocm_package_version": "10.1.0rc1"}), {"release_type": "prerelease"}, FULL),
        (("schedule",), {"release_type": "dev"}, DEFAULT),
    ],
)
def test_upstreams_tests_run_where_asked(words: Any, facts: Any, expected: set[tuple[str, str, str]]) -> None:
    assert parts(planned(*words, **facts)) == expected


def test_a_dispatch_of_type_dev_runs_no_upstream_tests_unless_it_asks() -> None:
    asked = {"linux_amdgpu_families": "gfx94x", "release_type": "dev", "pytorch_git_refs": "nightly"}
    assert parts(dispatched(**asked)) == set()
    assert parts(dispatched(**asked, linux_test_labels="test:torch")) == DEFAULT
    assert parts(dispatched(**asked, test_type="full", pytorch_python_versions="3.11,3.13")) == {
        ("3.11", config, shard) for _, config, shard in FULL
    }


def labelled(*labels: str, head: str = OURS) -> tuple[str, Any]:
    return "pull_request", pull_request("build:pytorch", *labels, head=head)


FULL_TESTS = labelled("test_filter:full", "gfx906", "gfx1151")
TRITON = {"linux_amdgpu_families": "gfx94x", "pytorch_components": "triton", "linux_test_labels": "torch"}
ON_LINUX = "default, gfx94X-dcgpu on linux"
WHEEL = "default, gfx94X-dcgpu, nightly, Python {} on linux"
NO_UPLOAD = "nothing is uploaded that it could install: a fork's run has no credentials to upload with"


@pytest.mark.parametrize(
    ("words", "facts", "what", "reason"),
    [
        (("push", push()), {}, ON_LINUX, "not of test type quick; label test:torch requests it"),
        (FULL_TESTS, {}, "distributed, gfx1151 on linux", "no machine has several GPUs of gfx1151 on linux"),
        (FULL_TESTS, {}, "default, gfx906 on linux", "no machine has gfx906 on linux"),
        (FULL_TESTS, {}, "inductor, gfx110X-all on windows", "tested on linux only"),
        (("schedule",), {"release_type": "nightly"}, WHEEL.format("3.11"), "tested with Python 3.12"),
        (labelled("test:torch", head="a/b"), {}, ON_LINUX, NO_UPLOAD),
        (("workflow_dispatch", {"inputs": TRITON}), {}, WHEEL.format("3.12"), "torch is not built"),
        (labelled("test:smoke"), {}, ON_LINUX, "other tests are requested"),
        (("schedule",), {"failing": "build_pytorch"}, WHEEL.format("3.12"), "its build is expected to fail"),
    ],
)
def test_what_is_left_out_has_its_reason(words: Any, facts: dict[str, Any], what: str, reason: str) -> None:
    stage = facts.get("failing")
    more = {"what": failing(DAY, stages=(stage,))} if stage else facts
    assert why(planned(*words, **more), f"test_torch {what}") == reason


def test_tests_on_several_gpus_run_where_a_machine_has_them() -> None:
    runners = known().runners.model_dump()
    runners["self_hosted"]["many"] = "ROCm"
    runners["families"]["gfx94X-dcgpu"]["linux"]["several_gpus"] = "many"
    made = planned(*labelled("test:torch-distributed"), what=changed(runners=runners))
    found = [(one.shard, one.runner) for one in made.matrix("linux", "test_torch")]
    assert found == [("1/3", "many"), ("2/3", "many"), ("3/3", "many")]


@pytest.mark.parametrize(
    ("component", "sessions"),
    [
        ("torch", ["build_triton", "build_torch"]),
        # the others are built against the torch of their run, and that comes with its triton
        *((one, ["build_triton", "build_torch", f"build_{one}"]) for one in ("audio", "vision", "apex")),
    ],
)
def test_a_component_comes_with_what_it_requires(component: str, sessions: list[str]) -> None:
    made = dispatched(linux_amdgpu_families="gfx94x", pytorch_components=component)
    (cell,) = made.matrix("linux", "build_pytorch")
    assert cell.sessions == (*sessions, "check_wheels")


def test_labels_choose_tests() -> None:
    made = planned("pull_request", pull_request("build:pytorch", "test:smoke"))
    assert "test_rocm" not in stages(made)
    assert stages(made)["test_pytorch"] == ["gfx94X-dcgpu"]
    assert why(made, "test_rocm, gfx94X-dcgpu on linux") == "other tests are requested"
    one = dispatched(
        linux_amdgpu_families="gfx94x", windows_amdgpu_families="gfx110x", linux_test_labels="rocm"
    )
    assert "test_pytorch" not in stages(one)
    assert "test_pytorch" in stages(one, "windows")


# -- families, variants, components ------------------------------------------------------------


def test_a_label_adds_a_family_with_pytorch_where_that_is_built() -> None:
    made = planned("pull_request", pull_request("gfx1151", "build:pytorch", "gfx950-linux"))
    assert stages(made)["build_pytorch"] == ["gfx94X-dcgpu", "gfx1151", "gfx950-dcgpu"]
    assert why(made, "gfx950-dcgpu on windows") == "not built there"
    (cell,) = [one for one in made.matrix("linux", "build_rocm") if one.gpu_family == "gfx950-dcgpu"]
    assert cell.reason == "label gfx950-linux"


def test_sanitizers_are_built_by_label_and_tested_at_night() -> None:
    made = planned("pull_request", pull_request("ci:asan", "ci:host-asan", "build:pytorch"))
    groups = [cell.artifact_group for cell in made.matrix("linux", "build_rocm")]
    assert groups[:3] == ["gfx94X-dcgpu", "gfx94X-dcgpu-asan", "gfx94X-dcgpu-host-asan"]
    asan = made.matrix("linux", "build_rocm")[1]
    assert (asan.runner, asan.build_variant) == ("azure-linux-scale-rocm-heavy-ramdisk", "asan")
    assert why(made, "gfx1151 on windows, asan") == "not built as asan"
    assert why(made, "build_pytorch, gfx94X-dcgpu-asan on linux") == "PyTorch is not built in this variant"
    assert "on schedule and workflow_dispatch only" in why(made, "test_rocm, gfx94X-dcgpu-asan on linux")
    night = planned("schedule", given={"build_variants": "asan"})
    expected = {"gfx94X-dcgpu-asan", "gfx950-dcgpu-asan"}
    assert {cell.artifact_group for cell in night.matrix("linux", "test_rocm")} == expected
    with pytest.raises(UsageError, match="Did you mean 'asan'"):
        dispatched(linux_amdgpu_families="all", build_variants="asam")


def test_a_dispatch_chooses_refs_pythons_and_components() -> None:
    made = dispatched(
        linux_amdgpu_families="gfx94X-dcgpu",
        windows_amdgpu_families="gfx110X-all",
        pytorch_git_refs="nightly;release/2.10",
        pytorch_python_versions="3.11 3.13",
        pytorch_components="torch,triton",
    )
    cells = made.matrix("linux", "build_pytorch")
    assert {(one.python, one.torch_ref) for one in cells} == {
        (python, ref) for python in ("3.11", "3.13") for ref in ("nightly", "release/2.10")
    }
    assert {one.sessions for one in cells} == {("build_triton", "build_torch", "check_wheels")}
    windows = made.matrix("windows", "build_pytorch")
    assert {one.sessions for one in windows} == {("build_torch", "check_wheels")}
    assert why(made, "triton of nightly") == "not built on windows"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"linux_amdgpu_families": "gfx94y"}, "Unknown GPU family 'gfx94y'. Did you mean 'gfx94x'"),
        ({"windows_amdgpu_families": "gfx950"}, "gfx950-dcgpu is not built on windows"),
        ({"linux_amdgpu_families": ""}, "names no GPU family"),
        ({"linux_amdgpu_families": "none", "windows_amdgpu_families": "none"}, "names no GPU family"),
        ({"linux_amdgpu_families": "all gfx950"}, "'all' beside other families"),
        ({"linux_amdgpu_families": "all", "pytorch_git_refs": "nigthly"}, "Did you mean 'nightly'"),
        ({"linux_amdgpu_families": "all", "pytorch_components": "vison"}, "Did you mean 'vision'"),
        ({"linux_amdgpu_families": "all", "pytorch_python_versions": "three"}, "is not a Python version"),
        ({"linux_amdgpu_families": "all", "pytorch_python_versions": "3.9"}, "nothing of it can be built"),
        ({"windows_amdgpu_families": "gfx110X-all", "pytorch_components": "apex"}, "nothing of it can be"),
        ({"linux_amdgpu_familys": "all"}, "Did you mean 'linux_amdgpu_families'"),
        ({"linux_amdgpu_families": "all", "release_type": "nightlies"}, "Did you mean 'nightly'"),
        ({"linux_amdgpu_families": "all", "release_type": "release"}, "No bucket holds"),
        ({"linux_amdgpu_families": "all", "linux_test_runner": "linux-gfx942"}, "queue forever"),
        ({"linux_amdgpu_families": "all", "linux_build_runner": "my runner"}, "not a valid runner label"),
        ({"linux_amdgpu_families": "all", "build_pytorch": "yes"}, "Give true or false"),
        ({"linux_amdgpu_families": "all", "pytorch_git_refs": "$(id)"}, "not a valid name"),
        ({"linux_amdgpu_families": {"a": 1}}, "neither a text nor a list"),
    ],
)
def test_a_dispatch_that_cannot_be_meant_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        dispatched(**given)
    assert message in str(caught.value)


def test_a_matrix_that_github_does_not_take_is_refused() -> None:
    with pytest.raises(DataError, match="linux has 288 jobs; a matrix of GitHub Actions holds 256"):
        dispatched(
            linux_amdgpu_families="all",
            pytorch_git_refs="nightly main release/2.10 release/2.12 release/2.9 release/2.8",
            pytorch_python_versions="3.11 3.12 3.13",
        )


def test_the_full_release_matrix_fits() -> None:
    made = planned("schedule", release_type="nightly")
    assert 150 < len(made.matrix("linux", "build_pytorch")) <= MAX_JOBS
    assert made.promote.value
    assert {one.torch_ref for one in made.matrix("windows", "build_pytorch")} >= {"nightly", "release/2.14"}
    # a candidate runs all of upstream's tests
    full = planned("schedule", {}, None, {"rocm_package_version": "10.1.0rc1"}, release_type="prerelease")
    assert len(made.matrix("linux", "test_torch")) < len(full.matrix("linux", "test_torch")) <= MAX_JOBS


# -- whether anything is built -----------------------------------------------------------------


def test_nothing_that_is_not_enabled_is_built() -> None:
    made = planned("pull_request", pull_request("ci:skip", "build:pytorch", "gfx1151"))
    assert (made.enable_build_jobs.reason, made.build_pytorch.value) == ("label ci:skip", False)
    assert (made.cells, made.variants) == ((), ())


# -- who is trusted ----------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["somebody/TheRock", None])
def test_a_fork_gets_nothing_that_it_could_write_to(head: str | None) -> None:
    made = planned("pull_request", pull_request("build:pytorch", head=head))
    assert made.store == plan.Upload()
    assert {cell.stage for cell in made.cells} == {"build_rocm", "build_pytorch"}
    (cell,) = made.matrix("linux", "build_pytorch")
    assert cell.sessions[:2] == ("fetch_artifacts", "build_rocm")
    assert cell.sessions[-1] == "check_wheels"
    assert "no credentials" in why(made, "test_rocm, gfx1151 on linux")
    assert why(made, "build_rocm, gfx94X-dcgpu on linux").startswith("the PyTorch jobs build it")
    written = outputs(made)
    assert (written["aws_role"], written["store"], written["trusted"]) == ("", "", "false")
    # on machines that end with their job, whatever an input asks for
    assert {one.runner for one in made.cells} <= {*known().runners.github}
    asked = {"linux_build_runner": "aws-linux-scale-rocm-prod"}
    again = planned("pull_request", pull_request("build:pytorch", head=head), given=asked)
    assert {one.runner for one in again.cells} <= {*known().runners.github}


def test_another_owner_builds_on_githubs_machines_and_uploads_where_it_says() -> None:
    made = planned("push", push(), repository="downstream/TheRock")
    assert {cell.runner for cell in made.cells} == {"ubuntu-24.04", "windows-2022"}
    own = planned("push", push(), repository="downstream/TheRock", what=changed(upload={"store": "out"}))
    assert own.store.store == "out"
    assert {cell.stage for cell in own.cells} == {"build_rocm", "build_pytorch", "test_rocm"}
    assert "serves repositories of ROCm only" in why(
        own, "test_pytorch, gfx94X-dcgpu, nightly, Python 3.12 on linux"
    )


# -- expected failures -------------------------------------------------------------------------


def failing(until: date, **facts: Any) -> Any:
    where = {"gpu_family": "gfx94X-dcgpu", "platform": "linux"}
    row = {**where, "until": until, "reason": "it does not compile", **facts}
    return changed(families={"expect_failure": (row,)})


def test_an_expected_failure_does_not_count_until_its_last_day_has_passed() -> None:
    data = failing(DAY, stages=("build_pytorch",))
    made = planned("push", push(), what=data)
    (cell,) = made.matrix("linux", "build_pytorch")
    assert cell.expect_failure
    assert "expected to fail until 2026-08-31: it does not compile" in cell.reason
    assert not any(one.expect_failure for one in made.matrix("linux", "build_rocm"))
    assert made.matrix("linux", "test_pytorch") == []
    assert made.notes == ()
    later = planned("push", push(), what=data, today=date(2026, 9, 1))
    assert not any(one.expect_failure for one in later.cells)
    assert "expected until 2026-08-31 and counts again" in later.notes[0]


def test_nothing_is_built_on_rocm_packages_that_are_expected_to_fail() -> None:
    made = planned("push", push(), what=failing(date(2027, 1, 1)))
    entry = made.variants[0]
    assert (entry.expect_failure, entry.build_pytorch) == (True, False)
    assert stages(made)["build_rocm"] == POSTSUBMIT
    assert "test_rocm" not in stages(made)
    assert "it does not compile" in why(made, "build_pytorch, gfx94X-dcgpu on linux")
    for_one_ref = planned("push", push(), what=failing(date(2027, 1, 1), torch_refs=("release/2.10",)))
    assert not any(cell.expect_failure for cell in for_one_ref.cells)
    every = dispatched(linux_amdgpu_families="gfx94x", expect_failure="true")
    assert every.variants[0].expect_failure
    assert stages(every) == {"build_rocm": ["gfx94X-dcgpu"]}


# -- the plan itself ---------------------------------------------------------------------------


def test_the_same_event_gives_the_same_plan_and_a_plan_survives_its_file(tmp_path: Any) -> None:
    made = planned("schedule", release_type="nightly")
    assert made == planned("schedule", release_type="nightly")
    names = {(cell.platform, cell.stage, cell.name) for cell in made.cells}
    assert len(names) == len(made.cells) > 500
    made.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == made
    assert Plan.read(tmp_path / "plan.json").digest() == made.digest()
    assert planned("push", push()).digest() != made.digest()


def test_the_outputs_of_the_largest_plan_are_what_github_takes_of_a_job() -> None:
    plan = planned("schedule", release_type="nightly")
    origins = [
        RocmOrigin(
            platform=one.platform,
            artifact_group=one.artifact_group,
            run_id="17123441166",
            repository="ROCm/rockrel",
            store="s3://therock-nightly-artifacts",
            artifacts={"base_lib_generic.tar.zst": "a" * 64},
            version="10.1.0a20261121",
        )
        for some in needs(plan).values()
        for one in some
    ]
    version = {"torch": "2.14.0a0+rocm10.1.0a20261121"}
    cells = (
        one if one.stage.endswith("rocm") else one.model_copy(update={"versions": version})
        for one in plan.cells
    )
    full = completed(plan, origins).model_copy(update={"cells": tuple(cells)})
    written = outputs(full)  # refused where they are too long
    assert json.loads(written["linux_build_rocm_matrix"])[0]["rocm"]["run_id"] == "17123441166"
    assert written["rocm_package_index_url"] == ""
    # an index is longer, and every job builds on it, so its address is an output of its own
    url, version = "https://packages.example/rocm/whl-multi-arch/", {"version": "10.1.0a20261121"}
    of_index = [one.model_copy(update={"run_id": "", "index_url": url, **version}) for one in origins]
    indexed = completed(full, of_index)
    written = outputs(indexed)
    assert written["rocm_package_index_url"] == url
    (row, *_) = json.loads(written["linux_build_pytorch_matrix"])
    assert row["rocm"] == {"index": True, **version}
    own = [one.model_copy(update={"index_url": f"{url}{one.artifact_group}/"}) for one in of_index]
    first = completed(full, own).matrix("linux", "build_pytorch")[0]
    assert completed(full, own).row(first)["rocm"]["index_url"] == f"{url}{first.artifact_group}/"
    twice = full.model_copy(update={"variants": full.variants * 400})
    with pytest.raises(DataError, match=r"outputs are [2-9]\.\d\d MiB"):
        outputs(twice)
