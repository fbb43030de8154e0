"""Runs of CI and releases by act: what each event builds, tests and refuses."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.kit.clones import FAMILY, TAG
from tests.kit.workflow_engine import ACT, PYTORCH, ROCM, TRITON, Engine, Ran, pull_request

pytestmark = ACT


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return Engine.cloned(tmp_path_factory.mktemp("workflows"))


@pytest.fixture(scope="module")
def labelled(engine: Engine) -> Ran:
    """A pull request that asks for PyTorch and upstream's tests: a long run, which several tests look at."""
    asked = pull_request("build:pytorch", "test_filter:comprehensive")
    ran = engine.run("pull_request", "1001", asked)
    assert ran.code == 0, ran.problems()
    return ran


def test_a_pull_request_with_the_label_builds_and_tests_pytorch_on_its_own_rocm(labelled: Ran) -> None:
    devices = {"amd_torch_device_gfx942", "amd_torchvision_device_gfx942"}
    assert labelled.distributions() == {*PYTORCH, *devices, *ROCM}
    lock = json.loads((labelled.store / "1001-linux/manifests/source-lock-sample.json").read_text())
    for name in ("triton", "torch", "audio", "vision", "apex"):
        record = labelled.record(f"build_{name}-sample-{TAG}")
        assert record["status"] == "ok"
        assert record["files"][0]["version"] == lock["projects"][name]["versions"]["rocm"]
    assert labelled.record(f"test_smoke-sample-{TAG}")["status"] == "ok"
    assert labelled.record(f"test_rocm-{TAG}")["status"] == "ok"
    assert {"python/gfx94X-dcgpu/index.html", f"reports/{FAMILY}/findings.json"} <= labelled.files()
    assert labelled.log.count("source lock of sample: resolved") == 1


def test_upstreams_tests_run_in_parts_on_the_wheels_just_built_and_are_put_together(labelled: Ran) -> None:
    built = labelled.record(f"build_torch-sample-{TAG}")["files"][0]
    parts = [labelled.record(f"test_torch-{shard}-of-2-sample-{TAG}") for shard in (1, 2)]
    whole = labelled.record(f"test_torch-sample-{TAG}")
    for record in (*parts, whole):
        assert record["status"] == "ok"
        assert record["inputs"]["files"][built["name"]] == built["sha256"]
    counted = [record["details"]["tests"]["tests"] for record in (*parts, whole)]
    assert min(counted) > 0
    assert counted[0] + counted[1] == counted[2]
    reports = {f"reports/{FAMILY}/torch-sample-{TAG}{part}.xml" for part in ("-1-of-2", "-2-of-2", "")}
    assert reports <= labelled.files()


def test_what_needs_github_is_left_out_and_nothing_else(labelled: Ran) -> None:
    assert "Set up nox" not in labelled.log
    assert "Assume the role" not in labelled.log
    assert "Unable to clone" not in labelled.log


def test_a_pull_request_without_the_label_builds_and_tests_rocm_alone(engine: Engine) -> None:
    ran = engine.run("pull_request", "1002", pull_request("documentation"))
    assert ran.code == 0, ran.problems()
    assert ran.distributions() == set(ROCM)
    assert ran.record(f"test_rocm-{TAG}")["status"] == "ok"
    assert "no label build:pytorch" in ran.log


def test_a_fork_builds_in_one_job_and_uploads_nothing(engine: Engine) -> None:
    ran = engine.run(
        "pull_request", "1003", pull_request("build:pytorch", head="somebody/TheRock"), request=TRITON
    )
    assert ran.code == 0, ran.problems()
    assert ran.files() == set()
    assert "check_wheels: 1 wheel, 0 errors" in ran.log
    assert re.search(r"a fork's run has no credentials to upload with", ran.log)
    assert "test_smoke" not in {
        line.split()[-1] for line in ran.log.splitlines() if "Running session" in line
    }


def test_a_change_of_documents_builds_nothing(engine: Engine) -> None:
    ran = engine.run("pull_request", "1004", pull_request("ci:skip", "build:pytorch"))
    assert ran.code == 0, ran.problems()
    assert ran.files() == set()
    assert "label ci:skip" in ran.log


def test_a_label_of_somebody_elses_starts_nothing(engine: Engine) -> None:
    added: dict[str, Any] = {"action": "labeled", "label": {"name": "documentation"}}
    ran = engine.run("pull_request", "1005", pull_request("documentation", **added))
    assert ran.code == 0, ran.problems()
    assert "Running session" not in ran.log


@pytest.mark.parametrize(
    ("event", "run_id", "payload", "why"),
    [
        ("push", "1006", {"ref": "refs/heads/main"}, "pushes to main always build PyTorch"),
        ("schedule", "1007", {}, "the schedule always builds PyTorch"),
    ],
)
def test_after_a_merge_and_at_night_pytorch_is_always_built(
    engine: Engine, event: str, run_id: str, payload: Mapping[str, Any], why: str
) -> None:
    ran = engine.run(event, run_id, payload, request=TRITON)
    assert ran.code == 0, ran.problems()
    assert why in ran.log
    assert ran.distributions() == {"triton", *ROCM}
    assert ran.record(f"test_smoke-sample-{TAG}")["status"] == "ok"


def test_a_release_builds_tests_and_promotes_nothing_of_the_sample(engine: Engine) -> None:
    asked = {"linux_amdgpu_families": FAMILY, "release_type": "nightly", "pytorch_components": "triton,torch"}
    ran = engine.run(
        "workflow_dispatch",
        "1009",
        {"inputs": asked, "ref": "refs/heads/main"},
        workflow="release_portable_linux_pytorch_wheels.yml",
    )
    assert ran.distributions() == {"torch", "amd_torch_device_gfx942", "triton", *ROCM}
    assert ran.record(f"test_smoke-sample-{TAG}")["status"] == "ok"
    assert ran.record(f"test_torch-sample-{TAG}")["status"] == "ok"
    # the last job is reached, and it is the data that refuses
    assert "Wheels of the sample are never published" in ran.log
    assert ran.code != 0
    assert not (engine.folder / "distribution" / "v2").exists()
