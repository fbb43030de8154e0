"""Split and fat wheels, on split and on unsplit ROCm, answer the same: three runs of the sample."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytorch_build.check.device_code import file_facts
from pytorch_build.test.junit.reader import read_junit_file
from tests.kit.clones import FAMILY, TAG, Clone
from tests.kit.sample import SampleRun

pytestmark = pytest.mark.nightly

SMOKE_REPORT = f"smoke-sample-{TAG}.xml"
UPSTREAM_REPORT = f"torch-sample-{TAG}.xml"
# One file of upstream's tests, where the sample's own run has all.
UPSTREAM_TESTS = ("--include", "test_nn")


@pytest.fixture(scope="module")
def runs(sample_run: SampleRun, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return runs of torch: split and fat on split ROCm, and on unsplit ROCm, where all wheels are fat."""
    clone = Clone.create(tmp_path_factory.mktemp("layouts") / "checkout")
    split_rocm = f"--rocm-find-links={sample_run.clone / 'out/local-linux/python' / FAMILY}"

    fat = ("--torch-ref=sample", f"--gpu-family={FAMILY}", "--run-id=fat")
    clone.run_checked("nox", "-s", "resolve", "checkout", "--", *fat)
    clone.run_checked(
        "nox",
        "-s",
        "build_triton",
        "build_torch",
        "--",
        *fat,
        split_rocm,
        "--no-split",
    )
    clone.run_checked("nox", "-s", "check_wheels", "index", "--", *fat)
    clone.run_checked("nox", "-s", "test_smoke", "--", *fat, split_rocm)

    unsplit = ("--torch-ref=sample", f"--gpu-family={FAMILY}", "--run-id=unsplit")
    clone.run_checked("nox", "-s", "resolve", "checkout", "--", *unsplit)
    clone.run_checked("nox", "-s", "build_rocm", "--", *unsplit, "--rocm-layout=unsplit")
    clone.run_checked("nox", "-s", "build_triton", "build_torch", "--", *unsplit)
    clone.run_checked("nox", "-s", "check_wheels", "index", "test_smoke", "--", *unsplit)
    clone.run_checked("nox", "-s", "test_torch", "--", *unsplit, *UPSTREAM_TESTS)

    return {
        "split": sample_run.clone / "out/local-linux",
        "fat": clone.path / "out/fat-linux",
        "unsplit": clone.path / "out/unsplit-linux",
    }


def read_outcomes(run: Path, report: str, *, file: str = "") -> dict[str, str]:
    """Return test -> outcome, as a run reports them, of one file of tests or of all."""
    cases = read_junit_file(run / "reports" / FAMILY / report).cases
    return {case.test: case.outcome for case in cases if case.test.startswith(file)}


def test_smoke_tests_of_torch_end_the_same(runs: Mapping[str, Path]) -> None:
    # Others depend on what else a run has built.
    split_outcomes = read_outcomes(runs["split"], SMOKE_REPORT, file="test_torch.py")

    assert "passed" in split_outcomes.values()
    for name in ("fat", "unsplit"):
        assert read_outcomes(runs[name], SMOKE_REPORT, file="test_torch.py") == split_outcomes


def test_upstreams_tests_end_the_same_on_either_rocm(
    runs: Mapping[str, Path],
) -> None:
    split_outcomes = read_outcomes(runs["split"], UPSTREAM_REPORT, file="test/test_nn.py")

    assert "passed" in split_outcomes.values()
    assert read_outcomes(runs["unsplit"], UPSTREAM_REPORT) == split_outcomes


@pytest.mark.parametrize(("name", "is_split"), [("split", True), ("fat", False), ("unsplit", False)])
def test_device_code_is_in_the_wheel_or_beside_it(
    runs: Mapping[str, Path], tmp_path: Path, name: str, *, is_split: bool
) -> None:
    wheels = {path.name.partition("-")[0]: path for path in (runs[name] / "python" / FAMILY).glob("*.whl")}
    with zipfile.ZipFile(wheels["torch"]) as archive:
        library = Path(archive.extract("torch/lib/libtorch_hip.so", tmp_path))
    device_code = file_facts(library)

    assert ("amd_torch_device_gfx942" in wheels) is is_split
    assert (device_code is not None and device_code.targets == {"gfx942"}) is not is_split


def test_only_split_rocm_has_packages_of_device_code(
    runs: Mapping[str, Path],
) -> None:
    pattern = f"python/{FAMILY}/rocm_sdk_device_*.whl"

    assert [path.name.partition("-")[0] for path in runs["split"].glob(pattern)] == ["rocm_sdk_device_gfx942"]
    assert not list(runs["unsplit"].glob(pattern))
