"""Split and fat wheels, on split and on unsplit ROCm, answer the same: three runs of the sample."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from core import junit
from pytorch_build.check.device_code import file_facts
from tests.kit.clones import FAMILY, TAG, Clone

BUILDS = ("build_triton", "build_torch", "build_vision")
# run -> layout of its ROCm, and how torch and torchvision are built
RUNS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "split": ("split", ()),
    "fat": ("split", ("--no-split",)),
    "unsplit": ("unsplit", ()),
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    clone = Clone.create(tmp_path_factory.mktemp("layouts") / "checkout")
    for run, (layout, words) in RUNS.items():
        common = ("--torch-ref=sample", f"--gpu-family={FAMILY}", f"--run-id={run}")
        clone.run_checked("nox", "-s", "resolve", "checkout", "--", *common)
        clone.run_checked("nox", "-s", "build_rocm", "--", *common, f"--rocm-layout={layout}")
        clone.run_checked("nox", "-s", *BUILDS, "--", *common, *words)
        clone.run_checked("nox", "-s", "check_wheels", "index", "test_smoke", "test_torch", "--", *common)
    return {run: clone.path / f"out/{run}-linux" for run in RUNS}


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
