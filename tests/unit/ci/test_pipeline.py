from collections.abc import Sequence
from dataclasses import replace

import pytest

from ci import pipeline
from ci.pipeline import STEPS, FlowOptions, NoxCall, Step
from core.run.plan import PlannedJob
from core.status import Pending, Status, UpToDate
from pytorch_build.components import COMPONENTS
from pytorch_build.refs.torch_refs import TorchRef, load_refs

GPU_FAMILY = "gfx94X-dcgpu"


def find_ref(name: str) -> TorchRef:
    return load_refs(platform="linux")[name]


def names_of(steps: Sequence[Step]) -> list[str]:
    return [step.name for step in steps]


# The steps as data


def test_every_step_comes_after_what_it_needs() -> None:
    earlier_names: set[str] = set()
    for step in STEPS:
        assert set(step.needs) <= earlier_names, step.name
        earlier_names.add(step.name)


def test_no_two_steps_have_the_same_name() -> None:
    assert len(pipeline.STEPS_BY_NAME) == len(STEPS)


@pytest.mark.parametrize("component", COMPONENTS)
def test_builds_need_the_components_that_they_are_built_on(component: str) -> None:
    step = pipeline.STEPS_BY_NAME[f"build_{component}"]
    needed_components = [need.removeprefix("build_") for need in step.needs if need.startswith("build_")]

    assert tuple(name for name in needed_components if name != "rocm") == COMPONENTS[component].built_first


def test_the_steps_of_a_job_stand_together() -> None:
    jobs = [step.job for step in STEPS]

    assert jobs == [job for job in dict.fromkeys(jobs) for _step in pipeline.steps_of_job(job)]


# The steps of a torch ref


def test_the_sample_goes_through_everything_that_needs_no_plan() -> None:
    steps, left_out = pipeline.steps_of_ref(find_ref("sample"), GPU_FAMILY)

    assert left_out == {}
    assert names_of(steps) == [step.name for step in STEPS if not step.needs_plan]


def test_a_ref_takes_rocm_from_an_index_and_leaves_hours_of_tests_to_the_user() -> None:
    _steps, left_out = pipeline.steps_of_ref(find_ref("nightly"), GPU_FAMILY)

    assert left_out == {
        "build_rocm": f"ROCm comes from the release index of {GPU_FAMILY}",
        "check_rocm": f"ROCm comes from the release index of {GPU_FAMILY}",
        "test_torch": "upstream's tests take hours: run them with nox -s test_torch",
    }


def test_family_cpu_has_neither_rocm_nor_triton() -> None:
    _steps, left_out = pipeline.steps_of_ref(find_ref("sample"), "cpu")

    assert left_out == {
        "build_rocm": "family cpu has no ROCm",
        "check_rocm": "family cpu has no ROCm",
        "build_triton": "family cpu has no use for triton",
    }


def test_builds_only_the_components_of_a_ref() -> None:
    ref = replace(find_ref("sample"), components=("triton", "torch"))

    _steps, left_out = pipeline.steps_of_ref(ref, GPU_FAMILY)

    assert set(left_out) == {"build_audio", "build_vision", "build_apex"}
    assert left_out["build_apex"] == "not built for sample"


# The steps of changed trees


def steps_of_change(*changed_components: str, unlent_steps: Sequence[str] = ()) -> list[str]:
    steps = pipeline.steps_of_changed_trees(
        find_ref("sample"),
        GPU_FAMILY,
        changed_components=changed_components,
        unlent_steps=unlent_steps,
    )
    return names_of(steps)


def test_a_changed_tree_of_torch_is_built_and_tested_by_its_own_tests() -> None:
    assert steps_of_change("torch") == [
        "build_torch",
        "check_wheels",
        "upload",
        "provenance",
        "test_smoke",
        "test_torch",
        "report",
    ]


def test_a_changed_tree_of_another_component_is_not_tested_by_those_of_torch() -> None:
    steps = steps_of_change("audio")

    assert steps[0] == "build_audio"
    assert "test_torch" not in steps


def test_builds_first_what_no_run_can_lend() -> None:
    steps = steps_of_change("torch", unlent_steps=["build_triton", "check_rocm", "build_rocm"])

    assert steps[:4] == ["build_rocm", "check_rocm", "build_triton", "build_torch"]


@pytest.mark.parametrize(
    ("changed_components", "components"),
    [
        (["triton"], []),
        (["torch"], ["triton"]),
        (["vision"], ["triton", "torch"]),
        (["vision", "torch"], ["triton"]),
    ],
)
def test_borrows_the_components_below_the_changed_ones(
    changed_components: list[str], components: list[str]
) -> None:
    assert pipeline.lent_components(find_ref("sample"), GPU_FAMILY, changed_components) == components


def test_family_cpu_borrows_no_triton() -> None:
    assert pipeline.lent_components(find_ref("sample"), "cpu", ["audio"]) == ["torch"]


# The steps of a plan's cell


def make_plan_cell(*sessions: str, stage: str) -> PlannedJob:
    return PlannedJob.model_validate(
        {
            "name": "gfx94X-dcgpu, nightly, Python 3.12",
            "platform": "linux",
            "stage": stage,
            "sessions": sessions,
            "runner": "ubuntu-24.04",
            "gpu_family": GPU_FAMILY,
            "artifact_group": GPU_FAMILY,
            "reason": "a test",
        }
    )


def test_a_job_of_a_plan_does_the_steps_that_the_plan_names() -> None:
    cell = make_plan_cell("build_torch", "check_wheels", stage="build_pytorch")

    assert names_of(pipeline.steps_of_plan_cell(cell)) == ["build_torch", "check_wheels"]


# Calls of nox


OPTIONS = FlowOptions(common=("--run-id=17",), by_topic={"policy": ("--policy=limits.toml",)})


def test_a_step_gets_the_common_options_and_those_of_its_topics() -> None:
    assert OPTIONS.for_step(pipeline.STEPS_BY_NAME["checkout"]) == ("--run-id=17",)
    assert OPTIONS.for_step(pipeline.STEPS_BY_NAME["check_wheels"]) == ("--run-id=17", "--policy=limits.toml")
    assert OPTIONS.for_step(pipeline.STEPS_BY_NAME["upload"]) == ("--run-id=17",)


def test_a_step_gets_the_options_that_make_its_session_do_it() -> None:
    assert OPTIONS.for_step(pipeline.STEPS_BY_NAME["check_rocm"]) == ("--rocm", "--run-id=17")


def test_neighbours_with_the_same_options_share_a_call() -> None:
    names = ["check_rocm", "checkout", "build_torch", "check_wheels", "upload", "test_smoke"]
    steps = [pipeline.STEPS_BY_NAME[name] for name in names]

    assert pipeline.nox_calls(steps, OPTIONS) == [
        NoxCall(sessions=("check_wheels",), options=("--rocm", "--run-id=17")),
        NoxCall(sessions=("checkout",), options=("--run-id=17",)),
        NoxCall(sessions=("build_torch", "check_wheels"), options=("--run-id=17", "--policy=limits.toml")),
        NoxCall(sessions=("upload", "test_smoke"), options=("--run-id=17",)),
    ]


def test_a_call_names_the_python_of_its_sessions() -> None:
    (call,) = pipeline.nox_calls([pipeline.STEPS_BY_NAME["upload"]], OPTIONS, python="3.12")

    assert call.words == ("-s", "upload", "-P", "3.12", "--", "--run-id=17")


# Steps that are up to date


def test_runs_everything_from_the_first_step_with_work_on() -> None:
    looked_at: list[str] = []

    def look(step: Step) -> Status:
        looked_at.append(step.name)
        if step.name == "fetch_artifacts":
            return Pending(reasons=("it was not done yet",))
        return UpToDate()

    steps = pipeline.without_leading_up_to_date(STEPS, look)

    assert looked_at == ["configure", "find_rocm", "resolve", "fetch_artifacts"]
    assert steps == STEPS[3:]


def test_runs_nothing_where_every_step_is_up_to_date() -> None:
    assert pipeline.without_leading_up_to_date(STEPS, lambda _step: UpToDate()) == ()
