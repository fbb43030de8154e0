"""Runs of CI and releases by act: a run of every kind that the workflows know.

What each event and label decides is held by tests of the plan; here is one run of each path that follows.
"""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.kit.clones import FAMILY, TAG
from tests.kit.sample import SampleRun
from tests.kit.workflow_engine import ACT, ROCM, TRITON, Engine, Run, pull_request, sample_config

pytestmark = ACT

# Of the names of upstream's tests: two shards, and what they are put together to.
SHARDS = ("-1-of-2", "-2-of-2", "")

# Jobs of a rehearsal share the run's store, which rehearsals on one machine do not need.
RELEASE = """
[buckets.release_types.rehearsal]
bucket = "nobodys"

# No machine here has the GPU that tests of PyTorch count on.
[promotion.families.{family}]
rocm = ["test_rocm"]
pytorch = []
"""
# Upstream's tests in every run.
UPSTREAM_TESTS = """
[triggers.tests.torch]
types = ["quick"]
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.create(tmp_path_factory.mktemp("workflows"))


@pytest.mark.nightly
def test_a_fork_builds_in_one_job_and_uploads_nothing(engine: Engine) -> None:
    payload = pull_request("build:pytorch", head="somebody/TheRock")

    run = engine.run("pull_request", "1003", payload, request=TRITON)

    assert run.exit_code == 0, run.problems()
    assert run.files() == set()
    assert "check_wheels: 1 wheel, 0 errors" in run.log
    assert "a fork's run has no credentials" in run.log
    assert "test_smoke" not in run.sessions()


@pytest.mark.nightly
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


# A release. Builds, and what their jobs hand over, are those of the shared run of the sample.


def run_release(engine: Engine, sample_run: SampleRun, run_id: str, release_type: str) -> Run:
    """Dispatch a release of one family, whose wheels are built."""
    engine.take_builds_from(sample_run, run_id)
    inputs = {"linux_amdgpu_families": FAMILY, "release_type": release_type}
    payload = {"inputs": inputs, "ref": "refs/heads/main"}
    workflow = "release_portable_linux_pytorch_wheels.yml"
    return engine.run("workflow_dispatch", run_id, payload, workflow=workflow)


def create_release_engine(folder: Path, more_config: str = "") -> Engine:
    """Return an engine whose data lets a rehearsal of the sample promote."""
    config = sample_config(folder / "store") + RELEASE.format(family=FAMILY) + more_config
    return Engine.create(folder, config=config)


@pytest.fixture(scope="module")
def release_engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return create_release_engine(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def release(release_engine: Engine, sample_run: SampleRun) -> Run:
    """Rehearse a release: the only type that takes the sample's wheels."""
    return run_release(release_engine, sample_run, "1009", "rehearsal")


def test_a_release_stages_tests_and_promotes_the_same_bytes(release_engine: Engine, release: Run) -> None:
    assert release.exit_code == 0, release.problems()

    (torch_wheel, *_device_wheels) = release.record(f"build_torch-sample-{TAG}")["files"]
    distribution = release_engine.folder / "distribution"
    for folder in ("v2-staging", "v2"):
        wheel = distribution / folder / FAMILY / torch_wheel["name"]
        assert sha256(wheel.read_bytes()).hexdigest() == torch_wheel["sha256"]


def test_tests_of_a_release_install_what_is_staged(release: Run) -> None:
    torch_wheel = release.record(f"build_torch-sample-{TAG}")["files"][0]
    record = release.record(f"test_smoke-sample-{TAG}")

    assert record["status"] == "ok"
    assert record["inputs"]["files"][torch_wheel["name"]] == torch_wheel["sha256"]
    assert record["inputs"]["source"].startswith("staging (")


@pytest.mark.nightly
def test_a_set_that_cannot_be_staged_is_neither_tested_nor_promoted(
    sample_run: SampleRun, tmp_path: Path
) -> None:
    engine = Engine.create(tmp_path)

    run = run_release(engine, sample_run, "1010", "dev")

    assert {"torch", "triton", *ROCM} < run.distributions()
    # The data refuses, and not a job before.
    assert "Wheels of the sample are never published" in run.log
    assert f"manifests/{FAMILY}/test_smoke-sample-{TAG}.json" not in run.files()
    assert run.exit_code != 0
    assert not (engine.folder / "distribution" / "v2").exists()


@pytest.fixture(scope="module")
def release_with_shards(tmp_path_factory: pytest.TempPathFactory, sample_run: SampleRun) -> Run:
    """Rehearse a release that runs upstream's tests, in two shards."""
    engine = create_release_engine(tmp_path_factory.mktemp("shards"), UPSTREAM_TESTS)
    return run_release(engine, sample_run, "1011", "rehearsal")


@pytest.mark.nightly
def test_shards_of_upstreams_tests_run_on_the_wheel_just_built(release_with_shards: Run) -> None:
    torch_wheel = release_with_shards.record(f"build_torch-sample-{TAG}")["files"][0]
    reports = release_with_shards.files()

    for part in SHARDS:
        record = release_with_shards.record(f"test_torch{part}-sample-{TAG}")
        assert record["status"] == "ok"
        assert record["inputs"]["files"][torch_wheel["name"]] == torch_wheel["sha256"]
        assert f"reports/{FAMILY}/torch-sample-{TAG}{part}.xml" in reports


@pytest.mark.nightly
def test_shards_of_upstreams_tests_add_up(release_with_shards: Run) -> None:
    records = [release_with_shards.record(f"test_torch{part}-sample-{TAG}") for part in SHARDS]
    first, second, merged = [record["details"]["tests"]["tests"] for record in records]

    assert min(first, second) > 0
    assert first + second == merged


def test_leaves_out_what_needs_github_and_nothing_else(release: Run) -> None:
    assert "Set up nox" not in release.log
    assert "Assume the role" not in release.log
    assert "Unable to clone" not in release.log
