"""Staging and promotion on a real server that fails, and releases that pip installs."""

import sys
from pathlib import Path

import pytest

from core import process
from core.cli.options import ROOT
from core.env.installer import uv_program
from core.stores.directory import DirectoryStore
from tests.kit import runs
from tests.kit.front_doors import run_ci
from tests.kit.runs import RunContents
from tests.kit.servers import served

FAMILY = "gfx94X-dcgpu"
CANDIDATE = "7.10.0rc2"
TARGETS = ("gfx942", "gfx1100", "gfx1201")


@pytest.fixture
def releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    """Release two of a candidate's three targets, from wheels that require what TheRock's require."""
    run = runs.run_outputs("17")
    run_store = DirectoryStore(tmp_path / "runs")
    candidates = DirectoryStore(tmp_path / "candidates")
    releases = DirectoryStore(tmp_path / "bucket")
    contents = RunContents(rocm_version=CANDIDATE, targets=TARGETS)
    runs.publish_complete_run(run_store, run, tmp_path / "dist", family=FAMILY, contents=contents)
    stage = [sys.executable, "-m", "ci", "stage", "--run-id", run.run_id, "--store", run_store.url]
    stage += ["--distribution-store", candidates.url, "--release-type", "nightly"]
    process.capture(stage, cwd=ROOT, env=process.inherited())

    # Wheels of a kilobyte are no torch.
    monkeypatch.setattr("ci.promote.candidates.check_wheel", lambda *_wheel, **_options: ())
    release = ["--release-type", "release", "--from-store", candidates.url]
    release += ["--distribution-store", releases.url, "--from-version", CANDIDATE, "--version", "7.10.0"]
    assert run_ci("promote", *release, "--gpu-targets", "gfx942,gfx1201") == 0
    return releases


def resolve(folder: Path, url: str, *, extra: str) -> tuple[set[str], str]:
    """Resolve torch with an extra from a release index; return the names, and what uv says."""
    version = runs.torch_version(CANDIDATE).removesuffix("rc2")
    (folder / "in.txt").write_text(f"torch[{extra}]=={version}\n")
    # The sdist is none that could be built.
    (folder / "override.txt").write_text("rocm ; sys_platform == 'none'\n")
    command: list[str | Path] = [uv_program(), "pip", "compile"]
    command += ["--no-config", "--no-cache", "--no-header", "--no-annotate", "--python-version", "3.12"]
    command += ["--python-platform", "x86_64-unknown-linux-gnu", folder / "in.txt"]
    command += ["--override", folder / "override.txt", "--index-url", f"{url}/v2/{FAMILY}/simple/"]
    completed = process.capture(command)
    pins = [line.partition("==")[0] for line in completed.stdout.splitlines() if "==" in line]
    return {pin.partition("[")[0] for pin in pins}, completed.stderr


def test_uv_finds_a_kept_target_and_its_groups(releases: DirectoryStore, tmp_path: Path) -> None:
    with served(releases.root) as url:
        names, _messages = resolve(tmp_path, url, extra="device-gfx1201")

    groups = ("gfx1201", "gfx12-0", "gfx12")
    assert names == {
        "torch",
        "rocm-bootstrap",
        "rocm-sdk-device-gfx1201",
        *(f"amd-torch-device-{group}" for group in groups),
    }


def test_uv_finds_no_target_that_is_left_out(releases: DirectoryStore, tmp_path: Path) -> None:
    with served(releases.root) as url:
        names, messages = resolve(tmp_path, url, extra="device-gfx1100")

    assert names == {"torch", "rocm-bootstrap"}
    assert "device-gfx1100" in messages
