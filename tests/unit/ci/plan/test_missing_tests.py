"""A request for tests adds them to a plan, or the plan says which of them no job runs, and why."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci.plan.outputs import summary
from core.errors import UsageError
from core.run.plan import Plan
from tests.kit.planning import REPOSITORY, ci_data, families_by_stage, plan_dispatch, plan_event, pull_request

TESTS = tuple(ci_data().triggers.tests)
OTHER_LABELS = (
    "build:pytorch",
    "ci:skip",
    "ci:asan",
    "ci:run-all-archs",
    "gfx1151",
    "gfx906",
    "test_filter:quick",
    "test_runner:oem",
)


def covered_tests(plan: Plan) -> set[str]:
    """Return the names of the tests that a plan's jobs run."""
    names: set[str] = set()
    for name, test in ci_data().triggers.tests.items():
        for job in plan.jobs:
            parts = (job.stage, job.config)
            if parts == (test.stage, test.config):
                names.add(name)
    return names


def notes_about(plan: Plan, test: str) -> list[str]:
    """Return a plan's notes about a test that was requested in vain."""
    return [note for note in plan.notes if note.startswith(f"test:{test} is requested")]


@pytest.mark.parametrize("test", TESTS)
def test_a_label_adds_its_test_to_those_of_the_event(test: str) -> None:
    other_tests = covered_tests(plan_event("pull_request", pull_request("build:pytorch")))

    plan = plan_event("pull_request", pull_request("build:pytorch", f"test:{test}"))

    assert covered_tests(plan) == {*other_tests, test}
    assert not notes_about(plan, test)


@pytest.mark.parametrize("test", sorted({*TESTS} - {"rocm"}))
def test_a_label_for_a_test_of_pytorch_builds_pytorch(test: str) -> None:
    plan = plan_event("pull_request", pull_request(f"test:{test}"))

    assert f"test:{test}" in plan.build_pytorch.reason
    assert families_by_stage(plan)["build_pytorch"] == ["gfx94X-dcgpu"]


def test_a_label_for_a_test_of_rocm_builds_no_pytorch() -> None:
    assert not plan_event("pull_request", pull_request("test:rocm")).build_pytorch.value


@given(
    st.sets(st.sampled_from(TESTS), min_size=1),
    st.sets(st.sampled_from(OTHER_LABELS)),
    st.sampled_from([REPOSITORY, "somebody/fork", None]),
    st.sampled_from([("docs/ci.md",), ("ci/verbs/cells.py",)]),
)
def test_each_test_that_a_pull_request_asks_for_has_a_job_or_a_warning(
    tests: set[str], other_labels: set[str], head: str | None, files: tuple[str, ...]
) -> None:
    labels = [*(f"test:{name}" for name in tests), *other_labels]

    plan = plan_event("pull_request", pull_request(*labels, head=head), files=files)

    for name in tests:
        assert (name in covered_tests(plan)) != bool(notes_about(plan, name))
    is_tested = any(job.stage.startswith("test_") for job in plan.jobs)
    assert is_tested or "is requested, and no job runs it" in summary(plan)


families_of_linux = st.sets(st.sampled_from(["gfx94X-dcgpu", "gfx906", "gfx1151", "cpu"]))


@given(
    st.sets(st.sampled_from(TESTS), min_size=1),
    families_of_linux,
    st.sampled_from(["", "torch", "triton"]),
    st.sampled_from([None, "true", "false"]),
    st.sampled_from(["ci", "dev", "nightly"]),
)
def test_each_test_that_a_dispatch_asks_for_has_a_job_a_warning_or_is_refused(
    tests: set[str], families: set[str], components: str, build_pytorch: str | None, release_type: str
) -> None:
    inputs: dict[str, Any] = {
        "linux_amdgpu_families": " ".join(families) or "none",
        "linux_test_labels": " ".join(tests),
        "pytorch_components": components,
        "build_pytorch": build_pytorch,
        "release_type": release_type,
        "pytorch_git_refs": "nightly",
    }
    try:
        plan = plan_dispatch(**inputs)
    except UsageError:
        return

    for name in tests:
        assert (name in covered_tests(plan)) != bool(notes_about(plan, name))


@pytest.mark.parametrize(
    ("labels", "head", "reason"),
    [
        pytest.param(["test:torch"], "somebody/fork", "a fork's run has no credentials", id="a fork"),
        pytest.param(["test:torch", "ci:skip"], REPOSITORY, "label ci:skip", id="nothing is built"),
    ],
)
def test_a_warning_says_why_the_test_does_not_run(labels: list[str], head: str, reason: str) -> None:
    (note,) = notes_about(plan_event("pull_request", pull_request(*labels, head=head)), "torch")

    assert reason in note


def test_a_warning_of_a_dispatch_names_the_input_that_is_in_the_way() -> None:
    plan = plan_dispatch(linux_amdgpu_families="gfx94x", linux_test_labels="smoke", build_pytorch="false")

    (note,) = notes_about(plan, "smoke")

    assert "build_pytorch is false" in note
    assert "the plan's other tests count" in note


def test_a_warning_says_that_nothing_else_is_tested_either() -> None:
    plan = plan_event("pull_request", pull_request("test:smoke", head="somebody/fork"))

    (note,) = notes_about(plan, "smoke")

    assert "tests nothing" in note
