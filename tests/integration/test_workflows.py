"""Runs of CI and releases by act: a run of every kind that the workflows know.

What each event and label decides is held by tests of the plan; here is one run of each path that follows.
"""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.kit.clones import FAMILY, TAG
from tests.kit.sample import SampleRun
from tests.kit.workflow_engine import ACT, ROCM, TRITON, Engine, Run, pull_request, sample_config

pytestmark = ACT

TORCH_BUILD = f"build_torch-sample-{TAG}"
SMOKE_TEST = f"test_smoke-sample-{TAG}"

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
    payload = pull_request(
        "documentation",
        action="labeled",
        label={"name": "documentation"},
    )

    run = engine.run("pull_request", "1005", payload)

    assert run.exit_code == 0, run.problems()
    assert run.sessions() == set()


# A release. Builds, and what their jobs hand over, are those of the shared run of the sample.


def run_release(engine: Engine, sample_run: SampleRun, run_id: str, release_type: str) -> Run:
    """Dispatch a release of one family, whose wheels are built."""
    engine.take_builds_from(sample_run, run_id)
    payload = {
        "inputs": {"linux_amdgpu_families": FAMILY, "release_type": release_type},
        "ref": "refs/heads/main",
    }
    return engine.run(
        "workflow_dispatch",
        run_id,
        payload,
        workflow="release_portable_linux_pytorch_wheels.yml",
    )


def torch_wheel_of(run: Run) -> Mapping[str, Any]:
    """Return what its record says of a run's wheel of torch; wheels of device code follow it there."""
    wheel: Mapping[str, Any] = run.record(TORCH_BUILD)["files"][0]
    return wheel


def create_release_engine(folder: Path, more_config: str = "") -> Engine:
    """Return an engine whose data lets a rehearsal of the sample promote."""
    config = sample_config(folder / "store")
    config += RELEASE.format(family=FAMILY)
    config += more_config
    return Engine.create(folder, config=config)


@pytest.fixture(scope="module")
def release_engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return create_release_engine(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def release(release_engine: Engine, sample_run: SampleRun) -> Run:
    """Rehearse a release: the only type that takes the sample's wheels."""
    return run_release(release_engine, sample_run, "1009", "rehearsal")


@pytest.mark.parametrize("folder", ["v2-staging", "v2"])
def test_a_release_stages_and_promotes_the_bytes_that_were_built(
    release_engine: Engine, release: Run, folder: str
) -> None:
    assert release.exit_code == 0, release.problems()

    torch_wheel = torch_wheel_of(release)
    index = release_engine.folder / "distribution" / folder / FAMILY
    content = (index / torch_wheel["name"]).read_bytes()
    assert sha256(content).hexdigest() == torch_wheel["sha256"]


def test_tests_of_a_release_install_what_is_staged(release: Run) -> None:
    torch_wheel = torch_wheel_of(release)
    record = release.record(SMOKE_TEST)

    assert record["status"] == "ok"
    inputs = record["inputs"]
    assert inputs["files"][torch_wheel["name"]] == torch_wheel["sha256"]
    assert inputs["source"].startswith("staging (")


@pytest.mark.nightly
def test_a_set_that_cannot_be_staged_is_neither_tested_nor_promoted(
    sample_run: SampleRun, tmp_path: Path
) -> None:
    engine = Engine.create(tmp_path)

    run = run_release(engine, sample_run, "1010", "dev")

    release_index = engine.folder / "distribution" / "v2"
    assert run.exit_code != 0
    # Staging refuses the wheels, and no job before it.
    assert {"torch", "triton", *ROCM} < run.distributions()
    assert "Wheels of the sample are never published" in run.log
    assert f"manifests/{FAMILY}/{SMOKE_TEST}.json" not in run.files()
    assert not release_index.exists()


@pytest.fixture(scope="module")
def release_with_shards(tmp_path_factory: pytest.TempPathFactory, sample_run: SampleRun) -> Run:
    """Rehearse a release that runs upstream's tests, in two shards."""
    engine = create_release_engine(tmp_path_factory.mktemp("shards"), UPSTREAM_TESTS)
    return run_release(engine, sample_run, "1011", "rehearsal")


# Of the names of upstream's tests: two shards, and what they are put together to.
@pytest.mark.nightly
@pytest.mark.parametrize(
    "part",
    [
        pytest.param("-1-of-2", id="first shard"),
        pytest.param("-2-of-2", id="second shard"),
        pytest.param("", id="both together"),
    ],
)
def test_shards_of_upstreams_tests_run_on_the_wheel_just_built(release_with_shards: Run, part: str) -> None:
    torch_wheel = torch_wheel_of(release_with_shards)
    record = release_with_shards.record(f"test_torch{part}-sample-{TAG}")

    assert record["status"] == "ok"
    assert record["inputs"]["files"][torch_wheel["name"]] == torch_wheel["sha256"]
    assert f"reports/{FAMILY}/torch-sample-{TAG}{part}.xml" in release_with_shards.files()


def count_tests(run: Run, part: str) -> int:
    """Return how many of upstream's tests a part of them has."""
    record = run.record(f"test_torch{part}-sample-{TAG}")
    count: int = record["details"]["tests"]["tests"]
    return count


@pytest.mark.nightly
def test_shards_of_upstreams_tests_add_up(release_with_shards: Run) -> None:
    first_count = count_tests(release_with_shards, "-1-of-2")
    second_count = count_tests(release_with_shards, "-2-of-2")

    assert first_count > 0
    assert second_count > 0
    assert count_tests(release_with_shards, "") == first_count + second_count


def test_leaves_out_what_needs_github_and_nothing_else(release: Run) -> None:
    assert "Set up nox" not in release.log
    assert "Assume the role" not in release.log
    assert "Unable to clone" not in release.log
