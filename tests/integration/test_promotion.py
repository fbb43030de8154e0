"""Staging and promotion on a real server that fails, and releases that pip installs."""

import sys
from pathlib import Path

import pytest

from core import process
from core.cli.options import ROOT
from core.env.installer import uv_program
from core.stores.directory import DirectoryStore
from tests.kit.front_doors import run_ci
from tests.kit.servers import served
from tests.unit.ci.promote.conftest import Runs

FAMILIES = ("gfx94X-dcgpu", "gfx1151")


def words(verb: str, runs: Runs, bucket: str, *more: str) -> list[str]:
    where = ["--distribution-store", bucket, "--release-type", "nightly"]
    run = ["--run-id", runs.run_id, "--store", runs.store.url] if verb == "stage" else ["--by", "one"]
    return [sys.executable, "-m", "ci", verb, *where, *run, *more]


def call(verb: str, runs: Runs, bucket: str, *more: str) -> str:
    return process.capture(words(verb, runs, bucket, *more), cwd=ROOT, env=process.inherited()).stderr


def test_uv_finds_the_kept_targets_and_groups_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release of two of three targets, from wheels that require what TheRock's require."""
    runs = Runs(store=DirectoryStore(tmp_path / "runs"), folder=tmp_path / "dist", rocm="7.10.0rc2")
    runs.devices = ("gfx942", "gfx1100", "gfx1201")
    runs.whole(FAMILIES[0])
    candidates, bucket = DirectoryStore(tmp_path / "candidates"), DirectoryStore(tmp_path / "bucket")
    call("stage", runs, candidates.url)
    # wheels of a kilobyte are no torch
    monkeypatch.setattr("ci.promote.candidates.check_wheel", lambda *_wheel, **_how: ())
    words = ["--release-type", "release", "--from-store", candidates.url, "--distribution-store", bucket.url]
    words += ["--from-version", "7.10.0rc2", "--version", "7.10.0", "--gpu-targets", "gfx942,gfx1201"]
    assert run_ci("promote", *words) == 0
    # its sdist is none that could be built
    (tmp_path / "override.txt").write_text("rocm ; sys_platform == 'none'\n")
    options = ["--no-config", "--no-cache", "--no-header", "--no-annotate", "--python-version", "3.12"]
    with served(bucket.root) as url:

        def found(extra: str) -> tuple[set[str], str]:
            (tmp_path / "in.txt").write_text(f"torch[{extra}]=={runs.torch.removesuffix('rc2')}\n")
            argv: list[str | Path] = [uv_program(), "pip", "compile", *options]
            argv += ["--python-platform", "x86_64-unknown-linux-gnu", tmp_path / "in.txt"]
            argv += ["--override", tmp_path / "override.txt"]
            said = process.capture([*argv, "--index-url", f"{url}/v2/{FAMILIES[0]}/simple/"])
            lines = (line for line in said.stdout.splitlines() if "==" in line)
            return {line.partition("==")[0].partition("[")[0] for line in lines}, said.stderr

        device = {f"amd-torch-device-{gpu}" for gpu in ("gfx1201", "gfx12-0", "gfx12")}
        plain = {"torch", "rocm-bootstrap"}
        assert found("device-gfx1201")[0] == {*plain, *device, "rocm-sdk-device-gfx1201"}
        left, said = found("device-gfx1100")
        assert left == plain
        assert "does not have an extra named" in said
