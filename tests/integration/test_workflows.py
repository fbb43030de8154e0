"""Runs of CI and releases by act: a run of every kind that the workflows know.

What each event and label decides is held by tests of the plan; here is one run of each path that follows.
"""

import json
from typing import Any

import pytest

from tests.kit.clones import FAMILY, TAG
from tests.kit.workflow_engine import ACT, ROCM, TRITON, Engine, Run, pull_request

pytestmark = ACT

LABELLED_RUN = "1001"
TORCH_DISTRIBUTIONS = {"amd_torch_device_gfx942", "torch", "triton"}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.create(tmp_path_factory.mktemp("workflows"))


@pytest.fixture(scope="module")
def labelled(engine: Engine) -> Run:
    """A pull request that asks for PyTorch and upstream's tests: a long run, which several tests look at."""
    payload = pull_request("build:pytorch", "test_filter:comprehensive")
    run = engine.run("pull_request", LABELLED_RUN, payload, request={"pytorch_components": "torch"})
    assert run.exit_code == 0, run.problems()
    return run


def test_a_labelled_pull_request_builds_pytorch_on_its_own_rocm(labelled: Run) -> None:
    lock = json.loads((labelled.store / "1001-linux/manifests/source-lock-sample.json").read_text())

    assert labelled.distributions() == {*TORCH_DISTRIBUTIONS, *ROCM}
    for name in ("triton", "torch"):
        record = labelled.record(f"build_{name}-sample-{TAG}")
        assert record["status"] == "ok"
        assert record["files"][0]["version"] == lock["projects"][name]["versions"]["rocm"]
    # Every job takes its commits from the one lock.
    assert labelled.log.count("source lock of sample: resolved") == 1


def test_a_labelled_pull_request_tests_rocm_and_pytorch(labelled: Run) -> None:
    files = labelled.files()

    assert labelled.record(f"test_smoke-sample-{TAG}")["status"] == "ok"
    assert labelled.record(f"test_rocm-{TAG}")["status"] == "ok"
    assert f"python/{FAMILY}/index.html" in files
    assert f"reports/{FAMILY}/findings.json" in files


def test_shards_of_upstreams_tests_run_on_the_wheel_just_built(labelled: Run) -> None:
    torch_wheel = labelled.record(f"build_torch-sample-{TAG}")["files"][0]
    reports = labelled.files()

    for part in ("-1-of-2", "-2-of-2", ""):
        record = labelled.record(f"test_torch{part}-sample-{TAG}")
        assert record["status"] == "ok"
        assert record["inputs"]["files"][torch_wheel["name"]] == torch_wheel["sha256"]
        assert f"reports/{FAMILY}/torch-sample-{TAG}{part}.xml" in reports


def test_shards_of_upstreams_tests_add_up(labelled: Run) -> None:
    first, second, merged = [
        labelled.record(f"test_torch{part}-sample-{TAG}")["details"]["tests"]["tests"]
        for part in ("-1-of-2", "-2-of-2", "")
    ]

    assert min(first, second) > 0
    assert first + second == merged


def test_leaves_out_what_needs_github_and_nothing_else(labelled: Run) -> None:
    assert "Set up nox" not in labelled.log
    assert "Assume the role" not in labelled.log
    assert "Unable to clone" not in labelled.log


def test_a_fork_builds_in_one_job_and_uploads_nothing(engine: Engine) -> None:
    payload = pull_request("build:pytorch", head="somebody/TheRock")

    run = engine.run("pull_request", "1003", payload, request=TRITON)

    assert run.exit_code == 0, run.problems()
    assert run.files() == set()
    assert "check_wheels: 1 wheel, 0 errors" in run.log
    assert "a fork's run has no credentials" in run.log
    assert "test_smoke" not in run.sessions()


def test_a_run_that_is_to_build_nothing_ends_behind_its_plan(engine: Engine) -> None:
    run = engine.run("pull_request", "1004", pull_request("ci:skip", "build:pytorch"))

    assert run.exit_code == 0, run.problems()
    assert run.files() == set()
    assert "label ci:skip" in run.log


def test_a_label_of_somebody_elses_starts_nothing(engine: Engine) -> None:
    added: dict[str, Any] = {"action": "labeled", "label": {"name": "documentation"}}

    run = engine.run("pull_request", "1005", pull_request("documentation", **added))

    assert run.exit_code == 0, run.problems()
    assert run.sessions() == set()


def test_a_release_of_the_sample_is_refused_by_its_last_job(engine: Engine) -> None:
    inputs = {"linux_amdgpu_families": FAMILY, "release_type": "nightly", **TRITON}

    run = engine.run(
        "workflow_dispatch",
        "1009",
        {"inputs": inputs, "ref": "refs/heads/main"},
        workflow="release_portable_linux_pytorch_wheels.yml",
    )

    assert run.distributions() == {"triton", *ROCM}
    assert run.record(f"test_smoke-sample-{TAG}")["status"] == "ok"
    # The data refuses, and not a job before.
    assert "Wheels of the sample are never published" in run.log
    assert run.exit_code != 0
    assert not (engine.folder / "distribution" / "v2").exists()
