"""Split and fat wheels, on split and on unsplit ROCm, answer the same: three runs of the sample."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from core import junit, process
from pytorch_build.check.device_code import file_facts

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
FAMILY = "gfx94X-dcgpu"
TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"
BUILDS = ("build_triton", "build_torch", "build_vision")
# run -> layout of its ROCm, and how torch and torchvision are built
RUNS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "split": ("split", ()),
    "fat": ("split", ("--no-split",)),
    "unsplit": ("unsplit", ()),
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Build and test torch and torchvision three times; give each run's outputs."""
    path = tmp_path_factory.mktemp("layouts") / "checkout"
    process.capture(["git", "clone", "--quiet", ROOT, path])
    own = process.inherited(NO_COLOR="1", GITHUB_ACTIONS=None, MATRIX=None, SOURCE_LOCK=None)

    def nox(*words: str) -> None:
        done = process.capture([sys.executable, "-m", "nox", "-s", *words], cwd=path, env=own, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]

    for run, (layout, words) in RUNS.items():
        common = ("--torch-ref=sample", f"--gpu-family={FAMILY}", f"--run-id={run}")
        nox("resolve", "checkout", "--", *common)
        nox("build_rocm", "--", *common, f"--rocm-layout={layout}")
        nox(*BUILDS, "--", *common, *words)
        nox("check_wheels", "index", "test_smoke", "test_torch", "--", *common)
    return {run: path / f"out/{run}-linux" for run in RUNS}


def test_every_test_ends_the_same(outputs: Mapping[str, Path]) -> None:
    for report in (f"smoke-sample-{TAG}.xml", f"torch-sample-{TAG}.xml"):
        ended = {
            run: {
                case.test: case.outcome for case in junit.read_file(out / "reports" / FAMILY / report).cases
            }
            for run, out in outputs.items()
        }
        assert "passed" in ended["split"].values()
        assert ended["split"] == ended["fat"] == ended["unsplit"]


def test_the_runs_differ_in_where_device_code_is(outputs: Mapping[str, Path], tmp_path: Path) -> None:
    devices, fat = {}, {}
    for run, out in outputs.items():
        wheels = {path.name.partition("-")[0]: path for path in (out / "python" / FAMILY).glob("*.whl")}
        devices[run] = {name for name in wheels if "_device_" in name}
        with zipfile.ZipFile(wheels["torch"]) as archive:
            facts = file_facts(Path(archive.extract("torch/lib/libtorch_hip.so", tmp_path / run)))
        fat[run] = facts.targets if facts else frozenset()
    rocm = {"rocm_sdk_device_gfx942"}
    assert devices["unsplit"] == set()
    assert devices["fat"] & rocm == rocm
    assert not [name for name in devices["fat"] if name.startswith("amd_")]
    assert devices["split"] >= {*rocm, "amd_torch_device_gfx942", "amd_torchvision_device_gfx942"}
    assert fat == {"split": frozenset(), "fat": {"gfx942"}, "unsplit": {"gfx942"}}
