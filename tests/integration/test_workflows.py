"""Runs of CI and releases by act: a run of every kind that the workflows know.

What each event and label decides is held by tests of the plan; here is one run of each path that follows.
"""

from typing import Any

import pytest

from tests.kit.clones import FAMILY, TAG
from tests.kit.workflow_engine import ACT, ROCM, TRITON, Engine, Run, pull_request

pytestmark = ACT

# Of the names of upstream's tests: two shards, and what they are put together to.
SHARDS = ("-1-of-2", "-2-of-2", "")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.create(tmp_path_factory.mktemp("workflows"))


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


@pytest.fixture(scope="module")
def release(engine: Engine) -> Run:
    """A release of the sample, which its last job refuses."""
    inputs = {"linux_amdgpu_families": FAMILY, "release_type": "nightly", "pytorch_components": "torch"}
    payload = {"inputs": inputs, "ref": "refs/heads/main"}
    workflow = "release_portable_linux_pytorch_wheels.yml"
    return engine.run("workflow_dispatch", "1009", payload, workflow=workflow)


def test_a_release_of_the_sample_is_refused_by_its_last_job(engine: Engine, release: Run) -> None:
    assert release.distributions() == {"amd_torch_device_gfx942", "torch", "triton", *ROCM}
    assert release.record(f"test_smoke-sample-{TAG}")["status"] == "ok"
    # The data refuses, and not a job before.
    assert "Wheels of the sample are never published" in release.log
    assert release.exit_code != 0
    assert not (engine.folder / "distribution" / "v2").exists()


def test_shards_of_upstreams_tests_run_on_the_wheel_just_built(release: Run) -> None:
    torch_wheel = release.record(f"build_torch-sample-{TAG}")["files"][0]
    reports = release.files()

    for part in SHARDS:
        record = release.record(f"test_torch{part}-sample-{TAG}")
        assert record["status"] == "ok"
        assert record["inputs"]["files"][torch_wheel["name"]] == torch_wheel["sha256"]
        assert f"reports/{FAMILY}/torch-sample-{TAG}{part}.xml" in reports


def test_shards_of_upstreams_tests_add_up(release: Run) -> None:
    records = [release.record(f"test_torch{part}-sample-{TAG}") for part in SHARDS]
    first, second, merged = [record["details"]["tests"]["tests"] for record in records]

    assert min(first, second) > 0
    assert first + second == merged


def test_leaves_out_what_needs_github_and_nothing_else(release: Run) -> None:
    assert "Set up nox" not in release.log
    assert "Assume the role" not in release.log
    assert "Unable to clone" not in release.log
